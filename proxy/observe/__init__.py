"""What operators look at: metrics and health."""
