"""The sensors that measure use: windowed rates and token buckets, as rows of a flat buffer."""
