"""The Spark session, its errors and the buckets of time."""
