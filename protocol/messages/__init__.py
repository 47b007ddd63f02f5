"""One file for each API whose messages are read or written."""
