"""What would have happened under other quotas, from records and from traces."""
