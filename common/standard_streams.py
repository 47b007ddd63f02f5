"""The standard streams: descriptors 0, 1 and 2, which every process should have."""

import os
import sys


def open_closed_streams() -> None:
    """Open the null device as each standard stream with which this process was started closed. Call it first of all.

    Otherwise a socket gets the number of the stream: what is printed goes to a client, and libuv aborts the process
    when it closes such a socket.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w", errors="backslashreplace")
