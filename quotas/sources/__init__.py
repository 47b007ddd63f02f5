"""Where quotas come from."""
