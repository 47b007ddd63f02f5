"""A demonstration of the proxy in front of a real Kafka cluster on this machine. The service does not depend on it."""
