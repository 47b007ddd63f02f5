"""Finds out whether a file has changed since it was read."""

import os
from pathlib import Path
from typing import TypeAlias

Signature: TypeAlias = tuple[int, int, int, int, int]
"""A value that changes with the content, owner or mode of the file, and when another file or mount is in its place."""


def signature(path: Path) -> Signature | None:
    """The signature of a file; None if the file is missing or not accessible."""
    try:
        return signature_of(path.stat())
    except OSError:
        return None


def signature_of(found: os.stat_result) -> Signature:
    """The signature of a file with this `stat`."""
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev
