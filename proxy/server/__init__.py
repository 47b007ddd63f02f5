"""Listening sockets: bound all together before the first client is served."""
