"""A Kafka proxy that enforces Kafka's own quotas."""
