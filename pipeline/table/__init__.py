"""The table of usage: its log, files, compaction and summaries."""
