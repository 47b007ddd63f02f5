"""The producer that feeds the Streams application through the proxy at an even rate, and notes its acknowledgements."""

import threading
import time
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Producer

from tests.support.timeouts import TIMEOUT_S

KEYS = 20
PER_SECOND = 200
_EVERY_S = 0.05
_NO_LOG = 0


class Feeder:
    """Sends records from a thread until it is stopped; use it as a context manager.

    Record n has the key n modulo KEYS, and as its value how many records of its key were before it.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged_s: list[float] = []
        """When each record was acknowledged."""
        self.errors: list[str] = []
        self.sent = 0
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": _NO_LOG}
        )
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Send no more, and wait for what is under way."""
        self._done.set()
        self._thread.join(2 * TIMEOUT_S)

    @property
    def expected(self) -> dict[str, int]:
        """How many records each key has so far."""
        return {str(key): len(range(key, self.sent, KEYS)) for key in range(KEYS)}

    def longest_wait_s(self) -> float:
        """The longest time between two acknowledgements."""
        return max((after - before for before, after in pairwise(self.acknowledged_s)), default=0.0)

    def _run(self) -> None:
        began_s = time.monotonic()
        while not self._done.is_set():
            due = int((time.monotonic() - began_s) * PER_SECOND)
            while self.sent < due:
                key, value = str(self.sent % KEYS), str(self.sent // KEYS)
                self._producer.produce(self._topic, value, key, on_delivery=self._note)
                self.sent += 1
            self._producer.poll(_EVERY_S)
        self._producer.flush(TIMEOUT_S)

    def _note(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged_s.append(time.monotonic())
        else:
            self.errors.append(str(error))
