"""Sensors that report the operations on them, for the trace. They are used only if something is traced."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kafka_throttle.quotas.entities import QuotaType
from kafka_throttle.quotas.records.trace import Operation
from kafka_throttle.quotas.sensors.rows import PACE, ROW_MASK
from kafka_throttle.quotas.sensors.token_buckets import TokenBuckets
from kafka_throttle.quotas.sensors.windowed_rate import Sensors


class Subject(NamedTuple):
    """The client and the quota of a traced handle. `rule` is the entity that the quota is set on; empty: none."""

    virtual_cluster: str
    node_id: int
    quota_type: QuotaType
    shadow: bool
    user: str
    client_id: str
    rule: str


class TracedHandle(int):
    """A handle whose operations are reported. For all other uses it is a plain handle."""

    subject: Subject

    @classmethod
    def of(cls, handle: int, subject: Subject) -> "TracedHandle":
        """The traced form of a handle."""
        traced = cls(handle)
        traced.subject = subject
        return traced

    def used_by(self, user: str, client_id: str, rule: str) -> "TracedHandle":
        """The same handle, used by this client for the quota of `rule`."""
        return self.of(int(self), self.subject._replace(user=user, client_id=client_id, rule=rule))


class Traced(NamedTuple):
    """One operation that was done. `limit` is in units/s."""

    operation: Operation
    subject: Subject
    sensor: int
    value: float
    requests: int
    throttle_ms: int
    limit: float
    at_ms: int


Note = Callable[[Traced], None]
"""Called with each operation after it is done."""


class TracedSensors(Sensors):
    """Sensors that report the operations on each TracedHandle to `note`."""

    def __init__(
        self, note: Note, capacity: int, samples: int, window_ms: int, max_throttle_ms: int, max_debt_ms: int
    ) -> None:
        self.note = note
        super().__init__(capacity, samples, window_ms, max_throttle_ms, max_debt_ms)

    def like(self, max_throttle_ms: int, max_debt_ms: int) -> Sensors:
        """A new table of the same size that reports to the same `note`."""
        return TracedSensors(self.note, self.capacity, self.samples, self.window_ms, max_throttle_ms, max_debt_ms)

    def charge(self, handle: int, value: float, now_ms: int) -> int:
        """See Sensors; reports the operation."""
        throttle_ms = super().charge(handle, value, now_ms)
        if isinstance(handle, TracedHandle):
            _tell(self, Operation.CHARGE, handle, value, now_ms, throttle_ms)
        return throttle_ms

    def charge_unthrottled(self, handle: int, value: float, charges: int, now_ms: int) -> bool:
        """See Sensors; reports the operation."""
        within = super().charge_unthrottled(handle, value, charges, now_ms)
        if within and isinstance(handle, TracedHandle):
            _tell(self, Operation.RUN, handle, value, now_ms, count=charges)
        return within

    def charge_each(self, handle: int, uses: Iterable[tuple[int, float]]) -> int:
        """See Sensors; reports the operation."""
        return next((reported_ms for now_ms, value in uses if (reported_ms := self.charge(handle, value, now_ms))), 0)

    def charge_if_within(self, handle: int, value: float, now_ms: int) -> int:
        """See Sensors; reports the operation."""
        throttle_ms = super().charge_if_within(int(handle), value, now_ms)
        if isinstance(handle, TracedHandle):
            _tell(self, Operation.CHARGE_IF_WITHIN, handle, value, now_ms, throttle_ms)
        return throttle_ms

    def owed_ms(self, handle: int, now_ms: int) -> int:
        """See Sensors; reports the operation."""
        throttle_ms = super().owed_ms(handle, now_ms)
        if isinstance(handle, TracedHandle):
            _tell(self, Operation.OWE, handle, 0.0, now_ms, throttle_ms)
        return throttle_ms

    def give_back(self, handle: int, value: float, now_ms: int) -> None:
        """See Sensors; reports the operation."""
        super().give_back(handle, value, now_ms)
        if isinstance(handle, TracedHandle):
            _tell(self, Operation.GIVE_BACK, handle, value, now_ms)

    def set_limit(self, handle: int, limit: float, now_ms: int) -> None:
        """See Sensors; reports the operation."""
        super().set_limit(handle, limit, now_ms)
        if isinstance(handle, TracedHandle):
            _tell(self, Operation.SET_LIMIT, handle, limit, now_ms)

    def scale(self, handle: int, factor: float, now_ms: int) -> None:
        """See Sensors; reports the operation."""
        super().scale(handle, factor, now_ms)
        if isinstance(handle, TracedHandle):
            _tell(self, Operation.SCALE, handle, factor, now_ms)

    def add_history(self, handle: int, by_age: Sequence[float], now_ms: int) -> None:
        """See Sensors; reports the operation, for each age that is added to."""
        super().add_history(handle, by_age, now_ms)
        if isinstance(handle, TracedHandle):
            for age, units in enumerate(by_age):
                if units:
                    _tell(self, Operation.ADD_HISTORY, handle, units, now_ms, count=age + 1)

    def set_pace(self, handle: int, pace: float) -> None:
        """See Sensors; reports the operation if it changes anything."""
        before = self._floats[(int(handle) & ROW_MASK) + PACE]
        super().set_pace(handle, pace)
        if isinstance(handle, TracedHandle) and pace != before:
            _tell(self, Operation.SET_PACE, handle, pace, self.idle_since_ms(handle))


class TracedBuckets(TokenBuckets):
    """Token buckets that report the operations on each TracedHandle to `note`."""

    def __init__(self, note: Note, capacity: int, samples: int, window_ms: int, max_throttle_ms: int) -> None:
        self.note = note
        super().__init__(capacity, samples, window_ms, max_throttle_ms)

    def like(self) -> TokenBuckets:
        """A new table of the same size that reports to the same `note`."""
        return TracedBuckets(self.note, self.capacity, self.samples, self.window_ms, self.max_throttle_ms)

    def spend_permissively(self, handle: int, value: float, now_ms: int) -> int | None:
        """See TokenBuckets; reports the operation."""
        reported_ms = super().spend_permissively(handle, value, now_ms)
        if isinstance(handle, TracedHandle):
            _tell(self, Operation.SPEND, handle, value, now_ms, reported_ms)
        return reported_ms

    def spend_strictly(self, handle: int, value: float, now_ms: int) -> int | None:
        """See TokenBuckets; reports the operation."""
        reported_ms = super().spend_strictly(handle, value, now_ms)
        if isinstance(handle, TracedHandle):
            _tell(self, Operation.SPEND_STRICTLY, handle, value, now_ms, reported_ms)
        return reported_ms

    def give_back(self, handle: int, value: float, now_ms: int) -> None:
        """See TokenBuckets; reports the operation."""
        super().give_back(handle, value, now_ms)
        if isinstance(handle, TracedHandle):
            _tell(self, Operation.GIVE_BACK, handle, value, now_ms)

    def set_limit(self, handle: int, limit: float, now_ms: int) -> None:
        """See TokenBuckets; reports the operation."""
        super().set_limit(handle, limit, now_ms)
        if isinstance(handle, TracedHandle):
            _tell(self, Operation.SET_LIMIT, handle, limit, now_ms)

    def scale(self, handle: int, factor: float, now_ms: int) -> None:
        """See TokenBuckets; reports the operation."""
        super().scale(handle, factor, now_ms)
        if isinstance(handle, TracedHandle):
            _tell(self, Operation.SCALE, handle, factor, now_ms)

    def add_history(self, handle: int, by_age: Sequence[float], now_ms: int) -> None:
        """See TokenBuckets; reports the operation, for each age that is added to."""
        super().add_history(handle, by_age, now_ms)
        if isinstance(handle, TracedHandle):
            for age, units in enumerate(by_age):
                if units:
                    _tell(self, Operation.ADD_HISTORY, handle, units, now_ms, count=age + 1)

    def set_pace(self, handle: int, pace: float) -> None:
        """See TokenBuckets; reports the operation if it changes anything."""
        before = self._floats[(int(handle) & ROW_MASK) + PACE]
        super().set_pace(handle, pace)
        if isinstance(handle, TracedHandle) and pace != before:
            _tell(self, Operation.SET_PACE, handle, pace, self.idle_since_ms(handle))


def _tell(
    rows: TracedSensors | TracedBuckets,
    operation: Operation,
    handle: TracedHandle,
    value: float,
    now_ms: int,
    throttle_ms: int | None = None,
    count: int = 1,
) -> None:
    limit = rows.limit(handle)
    rows.note(Traced(operation, handle.subject, int(handle), value, count, throttle_ms or 0, limit, now_ms))
