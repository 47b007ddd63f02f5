"""What systemd and a service tell each other: sockets that are passed, and notices of how the service is.

https://www.freedesktop.org/software/systemd/man/latest/sd_listen_fds.html and sd_notify.html. Other managers, and
`systemd-socket-activate`, do the same.
"""

import contextlib
import os
import socket
import time
from typing import NamedTuple

_FIRST_FD = 3


class PassedFd(NamedTuple):
    """A descriptor that was passed, and the name that its unit gives it."""

    fd: int
    name: str


def passed_fds() -> list[PassedFd]:
    """The descriptors that the service manager has passed to this process. Call it once: children get none of them."""
    pid, count, names = (os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    fds = range(_FIRST_FD, _FIRST_FD + int(count))
    for fd in fds:
        os.set_inheritable(fd, False)
    named = names.split(":") if names else []
    return [PassedFd(fd, named[i] if i < len(named) else "unknown") for i, fd in enumerate(fds)]


def notify(*states: str) -> None:
    """Tell the service manager, if there is one that listens: `READY=1` and other assignments of sd_notify."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.setblocking(False)
        sock.connect(f"\0{address[1:]}" if address[0] == "@" else address)
        sock.send("\n".join(states).encode())


def monotonic_usec() -> str:
    """The assignment that systemd wants with RELOADING=1, so that notices cannot be mixed up."""
    return f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"
