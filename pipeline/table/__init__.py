"""The table of usage: its files, what is known of their numbers, and compaction."""
