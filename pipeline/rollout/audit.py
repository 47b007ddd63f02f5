"""A file of all changes of quotas, with author, time and result: one JSON object a line, lines are only appended."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kafka_throttle.common.atomic_file import sync, sync_directory

IN_EVERY_LINE = {"at", "event", "entity"}
_BEGINNING = b'{"at": "'
_LONGEST_LINE_BYTES = 1 << 16


class AuditLog:
    """Lines in a file that only its owner may read, on the disk when `write` returns; use it as a context manager.

    Several processes may append to one file. All methods raise OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        is_new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if is_new:
            sync_directory(path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append the lines, after anything that a crash has left of an earlier line."""
        data = "".join(json.dumps(line, ensure_ascii=True) + "\n" for line in lines).encode()
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            data = b"\n" + data
        while data:
            data = data[os.write(self._file, data) :]
        sync(self._file)


def is_audit(path: Path) -> bool:
    """Whether lines may be appended here: the file does not exist, is empty, or begins as an audit does.

    Anything but a regular file is not read. Raises OSError.
    """
    if not path.is_file():
        return True
    with path.open("rb") as file:
        head = file.read(_LONGEST_LINE_BYTES)
    first = head.partition(b"\n")[0]
    try:
        form = json.loads(first)
    except (ValueError, RecursionError):  # a crash may have cut the line off
        return first.startswith(_BEGINNING) or (_BEGINNING.startswith(first) and first != b"") or head == b""
    return isinstance(form, dict) and form.keys() >= IN_EVERY_LINE
