"""One client connection with its upstream connection, as a pure state machine: bytes and times in, actions out."""
