"""From lines of usage records to rows of the table, with what is rejected."""
