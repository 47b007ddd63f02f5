"""Locks that processes of one machine hold, one at a time; when a process ends, however it does, the lock is free."""

import fcntl
import os
from pathlib import Path
from typing import BinaryIO

from common.atomic_file import own_as


def locked(file: Path, mode: int = 0o600) -> BinaryIO | None:
    """The open file, whose lock is held until it is closed; None while another process holds it.

    A missing file is made, with this mode, and belongs to the owner of its directory. Raises OSError.
    """

    def made(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_CREAT | os.O_NOFOLLOW, mode)

    opened = open(file, "r+b", opener=made)  # noqa: SIM115, whoever called closes it
    try:
        own_as(opened.fileno(), file.parent)
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        opened.close()
        return None
    except OSError:
        opened.close()
        raise
    return opened
