"""What measures: windowed rates and token buckets, as rows of a flat buffer."""
