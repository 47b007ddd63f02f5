"""A real Kafka cluster on this machine, and a show of the proxy in front of it. The service knows nothing of it."""
