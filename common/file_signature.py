"""Whether a file is still the one that was read."""

import os
from pathlib import Path
from typing import TypeAlias

Signature: TypeAlias = tuple[int, int, int]
"""Changes when the file does, also when it is replaced or a link on the way is."""


def signature(path: Path) -> Signature | None:
    """The signature of a file, None where it cannot be seen."""
    try:
        return signature_of(path.stat())
    except OSError:
        return None


def signature_of(found: os.stat_result) -> Signature:
    """The signature of a file of which the system says this."""
    return found.st_mtime_ns, found.st_size, found.st_ino
