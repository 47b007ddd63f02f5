"""What happened in a second of the past: records on disk of throttled clients and of the quotas in force."""
