"""From quotas that are wanted to quotas in force: what to change, and changing it. Needs no Spark."""
