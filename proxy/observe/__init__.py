"""For operators: logs, metrics, health pages and the JSON API."""
