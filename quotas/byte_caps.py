"""Byte caps: limits on the bytes/s of all clients together. Reads beyond a cap wait for their turn.

A byte cap is not a quota: no client is throttled by it, and no debt is left. Entities take turns, and in these their
client-ids and connections do (see FairQueue). Each turn allows few bytes, so that all get a turn soon. The turn of an
entity with small reads lasts for several of them: entities that always have more to read get about the same bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kafka_throttle.quotas.fair_queue import FairQueue, Whose
from kafka_throttle.quotas.sensors.token_buckets import TokenBuckets
from kafka_throttle.quotas.sensors.windowed_rate import MAX_THROTTLE_MS

BURST_MS = 100
"""How much an unused cap lets through at once, in ms of its limit."""

_TURNS_PER_S = 50
_LEAST_TURN_BYTES = 2048
MOST_TURN_BYTES = 256 * 1024


class Reader(Protocol):
    """A reader that is subject to byte caps, such as a stream."""

    def turn_came(self, most_bytes: int) -> int:
        """Read at most `most_bytes` now. Returns the number of bytes read, 0 if there was nothing to read any more."""

    def whose(self) -> Whose:
        """Whose turns its reads take."""


@dataclass(slots=True, eq=False)
class _Turn:
    """A pending read: the caps that it has to pass, in order, and those that it has `passed`, with bytes reserved.

    It is in `waiting` until it reads.
    """

    reader: Reader
    whose: Whose
    waiting: dict[Reader, "_Turn"]
    caps: Sequence["ByteCap"]
    most_bytes: int
    asked_ms: int
    passed: list["ByteCap"] = field(default_factory=list)


class ByteCap:
    """A limit in bytes/s for all its readers together; without a `limit` it lets everything pass.

    `wake_in(ms)` must schedule a call of `pump` in that many ms, and return a function that cancels it.
    """

    def __init__(self, wake_in: Callable[[int], Callable[[], object]]) -> None:
        self.limit: int | None = None
        self.read_bytes = 0
        """All bytes read through the cap while it had a limit."""
        self.waits = 0
        self.waited_ms = 0
        self._wake_in = wake_in
        self._wake_at_ms: int | None = None
        self._call_off: Callable[[], object] = bool
        self._queue: FairQueue[_Turn] = FairQueue()
        self._served = ""
        """The entity that had the last turn."""
        self._served_bytes = 0
        """How many bytes this entity has read in its turn, which may last for several reads."""
        self._buckets = TokenBuckets(1, samples=1, window_ms=BURST_MS, max_throttle_ms=MAX_THROTTLE_MS)
        self._row = self._buckets.open(1.0, 0)

    @property
    def waiting(self) -> int:
        """How many reads wait for their turn."""
        return len(self._queue)

    @property
    def turn_bytes(self) -> int:
        """The most bytes that one turn may read."""
        limit = MOST_TURN_BYTES * _TURNS_PER_S if self.limit is None else self.limit
        return min(max(limit // _TURNS_PER_S, _LEAST_TURN_BYTES), MOST_TURN_BYTES)

    def set_limit(self, limit: int | None, now_ms: int) -> None:
        """Set the limit in bytes/s. None removes it: all waiting reads get their turn."""
        if limit == self.limit:
            return
        if limit is not None and self.limit is None:
            self._buckets.close(self._row)
            self._row = self._buckets.open(float(limit), now_ms)
        elif limit is not None:
            self._buckets.set_limit(self._row, float(limit), now_ms)
        self.limit = limit
        self._serve(now_ms)

    def pump(self, now_ms: int) -> None:
        """Give turns to waiting reads, as far as the limit allows."""
        self._wake_at_ms = None
        self._serve(now_ms)

    def _serve(self, now_ms: int) -> None:
        for _ in range(len(self._queue)):
            if not self._queue or self._wait_ms(now_ms):  # a read may end the connections of others that wait
                break
            turn = self._queue.take()
            self._note_turn(turn.whose, _go_on(self._pass(turn, now_ms), now_ms))
        self._see_to_waking(now_ms)

    def _note_turn(self, whose: Whose, read: int) -> None:
        """An entity has read so much. It keeps its turn until it has read as much as one turn allows."""
        if whose.entity != self._served:
            self._served, self._served_bytes = whose.entity, 0
        self._served_bytes += read
        if self._served_bytes < self.turn_bytes:
            self._queue.keep_turn(whose)
        else:
            self._served_bytes = 0

    def is_free(self, now_ms: int) -> bool:
        """Whether a read can have its turn without waiting."""
        return not self._queue and not self._wait_ms(now_ms)

    def wait(self, turn: _Turn, now_ms: int) -> None:
        """Have a read wait for its turn."""
        self.waits += 1
        turn.asked_ms = now_ms
        self._queue.put(turn, turn.whose)
        self._see_to_waking(now_ms)

    def call_off(self, turn: _Turn) -> None:
        """Forget a read that waits here."""
        self._queue.remove(turn, turn.whose)

    def reserve(self, size: int, now_ms: int) -> None:
        """Count bytes before they are read."""
        if self.limit is not None:
            self._buckets.spend_permissively(self._row, size, now_ms)
        self.read_bytes += size

    def give_back(self, size: int, now_ms: int) -> None:
        """Give back bytes that were reserved and not read."""
        if self.limit is not None and size:
            self._buckets.give_back(self._row, size, now_ms)
            self._see_to_waking(now_ms)
        self.read_bytes -= size

    def _pass(self, turn: _Turn, now_ms: int) -> _Turn:
        self.waited_ms += now_ms - turn.asked_ms
        self.reserve(turn.most_bytes, now_ms)
        turn.passed.append(self)
        return turn

    def _wait_ms(self, now_ms: int) -> int:
        if self.limit is None:
            return 0
        if self._buckets.tokens(self._row, now_ms) >= 0:
            return 0
        return max(self._buckets.throttle_ms(self._row, now_ms), 1)

    def _see_to_waking(self, now_ms: int) -> None:
        wait_ms = max(self._wait_ms(now_ms), 1)
        if self._queue and (self._wake_at_ms is None or now_ms + wait_ms < self._wake_at_ms):
            self._call_off()
            self._wake_at_ms = now_ms + wait_ms
            self._call_off = self._wake_in(wait_ms)


class Turnstile:
    """The byte caps that apply to one direction of a listener. `ask` may only be called if `caps` is not empty."""

    def __init__(self, caps: Sequence[ByteCap] = ()) -> None:
        self._all = tuple(caps)
        self.caps: tuple[ByteCap, ...] = ()
        self._waiting: dict[Reader, _Turn] = {}
        self.take_up()

    def take_up(self) -> None:
        """Update `caps`, after a cap got a limit or lost it."""
        self.caps = tuple(cap for cap in self._all if cap.limit is not None)

    def ask(self, reader: Reader, now_ms: int) -> int:
        """How many bytes `reader` may read now; report to `took` what it read. With 0, `turn_came` is called later."""
        caps = self.caps
        most_bytes = min(cap.turn_bytes for cap in caps)
        if all(cap.is_free(now_ms) for cap in caps):
            for cap in caps:
                cap.reserve(most_bytes, now_ms)
            return most_bytes
        turn = self._waiting[reader] = _Turn(reader, reader.whose(), self._waiting, caps, most_bytes, now_ms)
        _go_on(turn, now_ms)
        return 0

    def call_off(self, reader: Reader, now_ms: int) -> None:
        """The reader will not read any more. If it waits for its turn, others have it."""
        turn = self._waiting.pop(reader, None)
        if turn is not None:
            turn.caps[len(turn.passed)].call_off(turn)
            _give_back(turn, turn.most_bytes, now_ms)

    def took(self, asked: int, read: int, now_ms: int) -> None:
        """Report that `read` of the `asked` bytes were read."""
        for cap in self.caps:
            cap.give_back(asked - read, now_ms)


def _go_on(turn: _Turn, now_ms: int) -> int:
    """Pass a read through the caps in order. It reads after the last one, or waits at the first that is not free.

    Returns how many bytes it has read or, while it waits, how many it may.
    """
    while len(turn.passed) < len(turn.caps):
        cap = turn.caps[len(turn.passed)]
        if not cap.is_free(now_ms):
            cap.wait(turn, now_ms)
            return turn.most_bytes
        cap.reserve(turn.most_bytes, now_ms)
        turn.passed.append(cap)
    del turn.waiting[turn.reader]
    read = turn.reader.turn_came(turn.most_bytes)
    _give_back(turn, turn.most_bytes - read, now_ms)
    return read


def _give_back(turn: _Turn, size: int, now_ms: int) -> None:
    for cap in turn.passed:
        cap.give_back(size, now_ms)
