"""The messages that are read or written, one file each."""
