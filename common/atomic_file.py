"""Files that are replaced whole, so that at any time, also after a crash, there is the old one or the new."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, pieces: Iterable[bytes]) -> os.stat_result:
    """Replace a file by one of these bytes that only its owner may read; what the system says about it then.

    Two at a time may not write the same file. Raises OSError when it is not sure to be the new one.
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
    """Give a file that root makes, at a command line perhaps, to those whose folder it is in."""
    if os.geteuid() == 0:
        owner = like.stat()
        os.fchown(file, owner.st_uid, owner.st_gid)


def _sync_folder(folder: Path) -> None:
    """Have the renaming outlive a crash of the machine; some file systems do that by themselves and say EINVAL."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
