"""What would have happened under other quotas, from usage records."""
