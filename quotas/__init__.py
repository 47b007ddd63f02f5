"""Who may use how much, and how long they wait: Kafka's quota arithmetic, without clocks, sockets or wire bytes."""
