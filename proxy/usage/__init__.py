"""Writes usage records and the trace: from the counters of relays to complete files, and from there to a topic."""
