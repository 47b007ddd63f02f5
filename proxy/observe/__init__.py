"""What operators look at: logs, metrics, health and the JSON API."""
