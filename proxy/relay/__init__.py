"""One client connection with its upstream connection, as a pure machine: bytes and times in, actions out."""
