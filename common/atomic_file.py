"""Atomic replacement of files: at any time, also after a crash, the old or the new content is complete."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, pieces: Iterable[bytes]) -> os.stat_result:
    """Replace a file by one with these bytes, which only its owner may read. Returns the `stat` of the new file.

    There must be only one writer of a file at a time. Raises OSError if it is not certain that the file was replaced.
    """
    aside = path.with_name(f"{path.name}.new")
    try:
        aside.unlink(missing_ok=True)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            own_as(file.fileno(), path if path.exists() else path.parent)
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
            written = os.fstat(file.fileno())
        aside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return written


def own_as(file: int, like: Path) -> None:
    """Give a file that root has created to the owner of `like`: root may run commands for the proxy's user."""
    if os.geteuid() == 0:
        owner = like.stat()
        os.fchown(file, owner.st_uid, owner.st_gid)


def _sync_folder(folder: Path) -> None:
    """Make a renaming survive a crash of the machine. Some file systems do so without this, and return EINVAL."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
