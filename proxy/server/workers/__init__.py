"""Several worker processes behind the same ports, under one supervisor: `workers` in the configuration."""
