"""The trace: records the operations on the sensors of chosen entities, up to a limit of events per second."""

from collections.abc import Callable, Iterable, Sequence

from kafka_throttle.proxy.clock import Clock
from kafka_throttle.quotas.client_quotas import WHOLE_CLUSTER
from kafka_throttle.quotas.connection_quotas import Admission, Outcome
from kafka_throttle.quotas.entities import DEFAULT, Entity, Name, QuotaType, SensorTags
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.records.trace import NO_USE, Operation
from kafka_throttle.quotas.records.traced_sensors import Traced
from kafka_throttle.quotas.records.usage_record import TRACE, Row, TraceEvent
from kafka_throttle.quotas.sensors.token_buckets import TokenBuckets
from kafka_throttle.quotas.sensors.windowed_rate import Sensors

TOO_FAST = "too_fast"
"""The reason for dropped events: more events in a second than the limit."""

Put = Callable[[str, Sequence[Row], int, int], None]
Drop = Callable[[str, int, int, str], None]

_CONNECTION = QuotaType.CONNECTION.name.lower()


class Tracer:
    """Collects the trace events of all virtual clusters, in their order, until `flush`."""

    def __init__(self, entities: Iterable[Entity], events_per_s: int, clock: Clock) -> None:
        self._entities = tuple(entities)
        self._addresses = {entity.ip for entity in self._entities if entity.ip is not None}
        self._events_per_s = events_per_s
        self._clock = clock
        self._instance = ""
        self._epoch = 0
        self._sequence = 0
        self._events: list[TraceEvent] = []
        self._second = -1
        self._left = 0
        self._dropped: list[tuple[int, int]] = []

    def identify(self, instance: str, epoch: int) -> None:
        """Set the instance and epoch of all events. Call it before the first event."""
        self._instance, self._epoch = instance, epoch

    def chooses(self, tags: SensorTags, rule: Entity | None) -> bool:
        """Whether to trace the sensor with these tags, for the quota of the entity `rule`."""
        return any(
            entity == rule or (entity.ip is None and _names(entity.user, tags.user, entity.client_id, tags.client_id))
            for entity in self._entities
        )

    # -------------------------------------------------------------------- events

    def note(self, done: Traced) -> None:
        """Record an operation on a sensor."""
        of = done.subject
        self._add(
            at_ms=done.at_ms,
            virtual_cluster=of.virtual_cluster,
            node_id=of.node_id,
            user=of.user,
            client_id=of.client_id,
            quota_type=of.quota_type.name.lower(),
            operation=done.operation,
            value=float(done.value),
            throttle_ms=done.throttle_ms,
            limit=done.limit if done.limit < UNLIMITED else None,
            rule=of.rule,
            sensor=done.sensor,
            shadow=int(of.shadow),
            count=done.requests,
        )

    def note_connection(self, virtual_cluster: str, address: str, admission: Admission, now_ms: int) -> None:
        """Record a connection from an address whose rate is limited."""
        own = address in self._addresses
        if admission.rate is None or not (own or DEFAULT in self._addresses):
            return
        rule = Entity(ip=address if admission.has_own else DEFAULT)
        self._add(
            at_ms=now_ms,
            virtual_cluster=virtual_cluster,
            node_id=WHOLE_CLUSTER,
            ip=address,
            quota_type=_CONNECTION,
            operation=Operation.CONNECT,
            value=1.0,
            throttle_ms=admission.throttle_ms if admission.outcome is Outcome.TOO_FAST else 0,
            limit=admission.rate,
            rule=str(rule),
        )

    def note_settings(self, virtual_cluster: str, sensors: Sensors, buckets: TokenBuckets, now_ms: int) -> None:
        """Record the settings of the sensors: before the first sensor is used, and whenever a setting is changed."""
        windows = (sensors.samples, sensors.window_ms)
        own = {
            QuotaType.REQUEST: (*windows, sensors.window_ms, 0),
            QuotaType.CONNECTION: (*windows, sensors.window_ms, 0),
            QuotaType.CONTROLLER_MUTATION: (buckets.samples, buckets.window_ms, buckets.max_throttle_ms, 0),
        }
        for quota_type in QuotaType:
            settings = own.get(quota_type, (*windows, sensors.max_throttle_ms, sensors.max_debt_ms))
            for shadow in (0, 1):
                for operation, value in zip(_SETTINGS, settings, strict=True):
                    self._add(
                        at_ms=now_ms,
                        virtual_cluster=virtual_cluster,
                        node_id=WHOLE_CLUSTER,
                        quota_type=quota_type.name.lower(),
                        operation=operation,
                        value=float(value),
                        shadow=shadow,
                    )

    def _add(
        self,
        *,
        at_ms: int,
        virtual_cluster: str,
        node_id: int,
        quota_type: str,
        operation: str,
        value: float,
        user: str = "",
        client_id: str = "",
        ip: str = "",
        throttle_ms: int = 0,
        limit: float | None = None,
        rule: str = "",
        sensor: int = 0,
        shadow: int = 0,
        count: int = 1,
    ) -> None:
        self._sequence += 1
        if operation not in NO_USE and not self._may_add():
            self._drop()
            return
        self._events.append(
            TraceEvent(
                instance=self._instance,
                epoch=self._epoch,
                sequence=self._sequence,
                at_ms=at_ms,
                wall_ms=at_ms + self._clock.epoch_ms() - self._clock.now_ms(),
                virtual_cluster=virtual_cluster,
                node_id=node_id,
                user=user,
                client_id=client_id,
                ip=ip,
                quota_type=quota_type,
                operation=operation,
                value=value,
                throttle_ms=throttle_ms,
                limit=limit,
                rule=rule,
                sensor=sensor,
                shadow=shadow,
                count=count,
            )
        )

    def _may_add(self) -> bool:
        second = self._clock.now_ms() // 1000
        if second != self._second:
            self._second, self._left = second, self._events_per_s
        self._left -= 1
        return self._left >= 0

    def _drop(self) -> None:
        number = self._sequence
        if self._dropped and self._dropped[-1][1] + 1 == number:
            number = self._dropped.pop()[0]
        self._dropped.append((number, self._sequence))

    # --------------------------------------------------------------------- flush

    def flush(self, put: Put, drop: Drop) -> None:
        """Pass on the events since the last call with `put`, and the dropped ones with `drop`, in sequence order."""
        events, self._events = self._events, []
        dropped, self._dropped = self._dropped, []
        begin = 0
        for first, last in dropped:
            end = begin
            while end < len(events) and events[end].sequence < first:
                end += 1
            _put_run(put, events[begin:end])
            drop(TRACE, first, last, TOO_FAST)
            begin = end
        _put_run(put, events[begin:])


_SETTINGS = (Operation.SAMPLES, Operation.WINDOW_MS, Operation.MAX_THROTTLE_MS, Operation.MAX_DEBT_MS)


def _put_run(put: Put, events: Sequence[TraceEvent]) -> None:
    if events:
        put(TRACE, events, events[0].sequence, events[-1].sequence)


def _names(user: Name, tagged_user: str, client_id: Name, tagged_client_id: str) -> bool:
    """Whether a sensor's tags have all names that an entity has. A default matches no name."""
    return user in (None, tagged_user) and client_id in (None, tagged_client_id)
