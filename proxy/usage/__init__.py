"""Usage records and the trace: from what relays count to files that appear when they are complete."""
