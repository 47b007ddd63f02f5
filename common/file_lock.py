"""Locks that processes of one machine hold, one at a time; when a process ends, however it does, the lock is free."""

import errno
import fcntl
import os
from enum import Enum, auto
from pathlib import Path
from typing import BinaryIO, Final

from kafka_throttle.common.atomic_file import UNSUPPORTED, own_as

_NO_LOCKS: Final = UNSUPPORTED | {errno.ENOLCK}


class Lock(Enum):
    """What an attempt to lock a file has found."""

    TAKEN = auto()
    HELD = auto()
    """Another process holds the lock."""
    NONE = auto()
    """The file system has no locks, so it is not known whether another process uses the file."""


def lock(file: int, operation: int = fcntl.LOCK_EX) -> Lock:
    """Lock an open file until it is closed. Does not wait. Raises OSError."""
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return Lock.HELD
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return Lock.NONE
    return Lock.TAKEN


def locked(file: Path, mode: int = 0o600, *, certainly: bool = False) -> BinaryIO | None:
    """The open file, whose lock is held until it is closed; None while another process holds it.

    A missing file is made, with this mode, and belongs to the owner of its directory. A file system without locks lets
    everybody go on, but raises OSError with `certainly`. Raises OSError.
    """

    def made(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_CREAT | os.O_NOFOLLOW, mode)

    opened = open(file, "r+b", opener=made)  # noqa: SIM115, whoever called closes it
    try:
        own_as(opened.fileno(), file.parent)
        found = lock(opened.fileno())
        if found is Lock.NONE and certainly:
            raise OSError(errno.ENOLCK, "its file system has no locks", str(file))
    except OSError:
        opened.close()
        raise
    if found is Lock.HELD:
        opened.close()
        return None
    return opened
