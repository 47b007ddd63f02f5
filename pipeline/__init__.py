"""From usage records to advice, on Spark: jobs over the table of what everybody used."""
