"""Kafka's quota arithmetic: limits, use, and throttle times. Has no clocks, no sockets and no wire formats."""
