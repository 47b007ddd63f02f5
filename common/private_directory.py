"""Directories that only the user of this process may read."""

import contextlib
import os
import stat
from pathlib import Path


class DirectoryUnusable(Exception):
    """The directory cannot be used; the text says why."""


def check_directory(directory: Path) -> None:
    """Create the directory if it is missing.

    Raises DirectoryUnusable if others may read it, or it cannot be written to.
    """
    _make(directory)
    look_at_directory(directory, os.geteuid())


def keep_directory(directory: Path) -> None:
    """Create a directory again that was checked before and is missing now. Raises DirectoryUnusable if that fails.

    If another directory is in its place, is empty and belongs to this user, it gets the mode of a private one. Any
    other directory is used as it is: the files in it are private, and records should not be lost.
    """
    _make(directory)
    with contextlib.suppress(OSError):
        state = directory.lstat()
        is_own = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
        if is_own and state.st_mode & 0o077 and not any(directory.iterdir()):
            directory.chmod(0o700)


def _make(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise DirectoryUnusable(f"{directory} cannot be made: {error.strerror or error}") from None


def look_at_directory(directory: Path, owner: int | None) -> None:
    """Raise DirectoryUnusable if the directory exists and cannot be used, or is missing and cannot be created.

    Creates nothing. With None as `owner` it may belong to any user, because another process will use it.
    """
    try:
        state = directory.stat()
    except FileNotFoundError:
        _may_be_made(directory)
        return
    except OSError as error:
        raise DirectoryUnusable(f"{directory}: {error.strerror or error}") from None
    mode = stat.S_IMODE(state.st_mode)
    if not stat.S_ISDIR(state.st_mode):
        raise DirectoryUnusable(f"{directory}: expected a directory, got something else")
    if owner not in (None, state.st_uid):
        raise DirectoryUnusable(f"{directory}: expected a directory of user {owner}, it belongs to {state.st_uid}")
    if mode & 0o077:
        raise DirectoryUnusable(f"{directory}: expected mode 0700, as names of users are in it, got {mode:04o}")
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise DirectoryUnusable(f"{directory}: this process may not read and write there")


def _may_be_made(directory: Path) -> None:
    parent = directory.parent
    if directory.is_symlink():
        raise DirectoryUnusable(f"{directory}: expected a directory, got a link to nothing")
    if not parent.is_dir():
        raise DirectoryUnusable(f"{directory} cannot be made: expected a directory {parent}, got none")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise DirectoryUnusable(f"{directory} cannot be made: this process may not write to {parent}")
