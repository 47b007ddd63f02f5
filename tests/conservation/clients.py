"""The client processes of a round, and the wire: children that take orders on stdin and tell news on stdout."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from kafka_throttle.common.child_process import die_with_parent
from tests.support.places import ROOT


class ChildFailed(RuntimeError):
    """A process of the checker itself has ended or does not answer; the message has the end of its log."""


class Child:
    """`python -m tests.conservation.NAME ARGUMENTS`; it ends with the thread that started it, at the latest."""

    def __init__(self, module: str, folder: Path, *arguments: str) -> None:
        self.name = module
        self.troubles: list[str] = []
        """Errors that its client has raised and that it has lived with."""
        self.log = folder / f"{module}.log"
        self._news: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"tests.conservation.{module}", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                preexec_fn=die_with_parent,
            )
        self.progress = {"sent": 0, "read": 0}
        """How many records it has last said to have sent and read."""
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def running(self) -> bool:
        """False when it has ended."""
        return self._process.poll() is None

    def make_nice(self, nice: int) -> None:
        """Give its process a lower priority."""
        os.setpriority(os.PRIO_PROCESS, self._process.pid, nice)

    def order(self, **order: Any) -> None:
        """Send one JSON line. Raises ChildFailed when it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failure("has ended") from None

    def news(self, key: str, timeout_s: float) -> dict[str, Any]:
        """The next line that has `key`. Raises ChildFailed when it has ended, or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                found = self._news.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise self._failure(f"has not told {key!r} within {timeout_s:.0f} s") from None
            if found is None:
                raise self._failure(f"has ended without telling {key!r}")
            if key in found:
                return found

    def has_news(self) -> bool:
        """Something has been told that nobody has asked for yet, or it has ended."""
        return not self._news.empty()

    def close(self) -> None:
        """End it for good."""
        self._process.kill()
        self._process.wait()

    def _failure(self, problem: str) -> ChildFailed:
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
        return ChildFailed(f"{self.name} {problem}\n{tail}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = json.loads(line)
            if found.keys() <= self.progress.keys():
                self.progress.update(found)
            elif "trouble" in found:
                self.troubles.append(found["trouble"])
            else:
                self._news.put(found)
        self._news.put(None)
