"""Files that get their name when they are complete: also after a crash, either the old or the new file is there, whole.

A renaming cannot be undone, so nothing after it may fail: who writes would repeat what is done. What a file system
cannot do at all is no failure either.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""The errors of file systems for operations that they do not have."""
_MOUNT = "a mount of its own, which no other file can replace: mount its directory instead"
_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})


def write_whole(path: Path, pieces: Iterable[bytes]) -> os.stat_result:
    """Replace a file by one with these bytes, which only its owner may read. Returns the `stat` of the new file.

    There must be only one writer of a file at a time. Raises OSError if the file was not replaced. Whether the new one
    survives a crash of the machine is not certain where the directory cannot be synced.
    """
    aside = path.with_name(f"{path.name}.new")
    file = None
    try:
        aside.unlink(missing_ok=True)
        file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        own_as(file, path if path.exists() else path.parent)
        with os.fdopen(file, "wb", closefd=False) as writer:
            writer.writelines(pieces)
        sync(file)
        publish(file, aside, path)
        written = os.fstat(file)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)
    with contextlib.suppress(OSError):
        sync_directory(path.parent)
    return written


def obstacle(path: Path, *, makes_folders: bool = False) -> str | None:
    """Why `write_whole` would fail, as far as it shows before; None if nothing shows. Nothing is written.

    With `makes_folders`, missing directories are made before.
    """
    try:
        return _obstacle(path, makes_folders)
    except OSError as error:  # this process may not even look there
        return f"cannot be written: {error.strerror or error}"


def _obstacle(path: Path, makes_folders: bool) -> str | None:
    if path.is_dir() and not path.is_symlink():
        return "is a directory, expected a file"
    if _is_mount(path):
        return f"is {_MOUNT}"
    folder = path.parent
    while makes_folders and not folder.exists():
        folder = folder.parent
    if not folder.exists():
        return f"cannot be written, because there is no directory {folder}"
    if os.access(folder, os.W_OK | os.X_OK):
        return None
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return f"cannot be written, because {folder} is on a file system that is mounted read-only"
    return f"cannot be written, because this process may not write to {folder}"


def _is_mount(path: Path) -> bool:
    """Whether something is mounted at exactly this path. `os.path.ismount` does not see a file of the same disk.

    Of a symbolic link that does not matter: the link itself is replaced.
    """
    wanted = os.fsencode(Path(os.path.realpath(path.parent), path.name))
    with contextlib.suppress(OSError):
        return any(
            _ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), line.split()[4]) == wanted
            for line in _MOUNTS.read_bytes().splitlines()
        )
    return False


def publish(file: int, aside: Path, path: Path) -> None:
    """Rename an open file from `aside` to `path`. Raises OSError, and only if `path` does not lead to it then."""
    if not is_at(aside, file):
        raise OSError(errno.ESTALE, "the file was removed or replaced while it was written", str(aside))
    try:
        aside.replace(path)
    except OSError as error:  # over a network it may be done all the same
        if is_at(path, file):
            return
        if error.errno == errno.EBUSY:
            raise OSError(errno.EBUSY, f"it is {_MOUNT}", str(path)) from error
        raise


def is_at(path: Path, file: int) -> bool:
    """Whether a path leads to this open file. Raises OSError if this cannot be known."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except OSError as error:
        if error.errno not in _GONE:
            raise
    return False


def sync(file: int) -> None:
    """Write an open file to the disk, if its file system can sync files. Raises OSError."""
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise


def sync_directory(directory: Path) -> None:
    """Write the names in a directory to the disk, if its file system can sync directories. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def own_as(file: int, like: Path) -> None:
    """Give a file that root has created to the owner of `like`: root may run commands for the proxy's user."""
    if os.geteuid() == 0:
        owner, now = like.stat(), os.fstat(file)
        if (owner.st_uid, owner.st_gid) != (now.st_uid, now.st_gid):
            os.fchown(file, owner.st_uid, owner.st_gid)
