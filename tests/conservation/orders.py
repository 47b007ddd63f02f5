"""How a client process hears from the checker: JSON lines on stdin; the first one says what to do."""

import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any


class Orders:
    """Reads stdin in a thread. `given` is the first line.

    Later ones are {"stop": true} for producers, {"read_to": ...} and {"give_up": true} for consumers.
    """

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us decides when to end
        self.given: dict[str, Any] = json.loads(sys.stdin.readline())
        self.folder = Path(self.given["folder"])
        self.stop = threading.Event()
        self.give_up = threading.Event()
        self.read_to: dict[str, list[int]] | None = None
        """By topic, for each partition the offset that its log ends before."""
        self._reported_at: dict[str, float] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def tell_progress(self, **count: int) -> None:
        """How many records were "sent" or "read", but neither more than once a second."""
        [what] = count
        if time.monotonic() - self._reported_at.get(what, 0) > 1:
            self._reported_at[what] = time.monotonic()
            tell(**count)

    def _read(self) -> None:
        for line in sys.stdin:
            order = json.loads(line)
            if "read_to" in order:
                self.read_to = order["read_to"]
            elif "give_up" in order:
                self.give_up.set()
            else:
                self.stop.set()


def tell(**news: Any) -> None:
    """One line to the checker; may be called by several threads."""
    sys.stdout.write(json.dumps(news) + "\n")
    sys.stdout.flush()
