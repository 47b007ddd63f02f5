"""The Spark session, its errors, cached frames and days."""
