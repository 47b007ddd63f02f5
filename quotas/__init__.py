"""Who may use how much, and how long they wait: Kafka's quotas, without its brokers."""
