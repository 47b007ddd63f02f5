"""Processes that end with this one, however it ends, and a folder that is deleted with them."""

import json
import sys
import tempfile
import uuid
from pathlib import Path
from signal import Signals
from types import TracebackType
from typing import Any, Self

from demo import keeper


class KeptProcesses:
    """Processes by name under a keeper (see keeper.py); use it as a context manager.

    The output of a process goes to a file in `folder`; `new_lines` reads it as it grows.
    """

    def __init__(self) -> None:
        # The keeper makes the folder, so that at every moment there is a process that would delete it.
        self.folder = Path(tempfile.gettempdir()) / f"kafka-throttle-demo-{uuid.uuid4().hex[:12]}"
        self._read: dict[str, int] = {}
        self._keeper = keeper.start(self.folder)
        self._order(folder=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        self._keeper.stdout.close()

    def start(self, name: str, *arguments: str) -> None:
        """Run `python ARGUMENTS`; a name may be used once. Raises RuntimeError if it cannot be started."""
        response = self._order(start=name, argv=[sys.executable, *arguments], log=str(self._log(name)))
        if "error" in response:
            raise RuntimeError(f"{name} cannot be started: {response['error']}")

    def signal(self, name: str, number: Signals, *, wait: bool = False) -> None:
        """Send a signal to a process, which may have ended already; with `wait`, wait for its end."""
        self._order(signal=name, number=int(number), wait=wait)

    def status(self, name: str) -> int | None:
        """The exit status of a process, None while it runs."""
        status: int | None = self._order(poll=name)["status"]
        return status

    def new_lines(self, name: str) -> list[str]:
        """The whole lines that a process has printed since the last call."""
        path = self._log(name)
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(self._read.get(name, 0))
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read[name] = self._read.get(name, 0) + len(whole) + len(newline)
        return whole.decode(errors="replace").splitlines()

    def tail(self, name: str, lines: int = 12) -> str:
        """The last lines that a process has printed."""
        path = self._log(name)
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _order(self, **order: Any) -> dict[str, Any]:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(json.dumps(order) + "\n")
        self._keeper.stdin.flush()
        response: dict[str, Any] = json.loads(self._keeper.stdout.readline())
        return response
