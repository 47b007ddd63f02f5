"""The sockets, on uvloop's event loop: they carry out what relays decide, and decide nothing."""
