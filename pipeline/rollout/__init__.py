"""From wanted quotas to quotas in force: plans the changes and carries them out. Needs no Spark."""
