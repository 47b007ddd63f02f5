"""From lines of usage records to rows of the table; lines that are rejected go to the quarantine."""
