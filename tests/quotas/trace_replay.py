"""A replay of the operations of a trace, which gives every throttle time to the millisecond."""

from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.records.trace import SETTINGS, Operation
from kafka_throttle.quotas.records.usage_record import TraceEvent
from kafka_throttle.quotas.sensors.address_rates import AddressRates
from kafka_throttle.quotas.sensors.token_buckets import TokenBuckets
from kafka_throttle.quotas.sensors.windowed_rate import Sensors

MAX_SENSORS = 65_536

_Place = tuple[str, str, int]
"""Virtual cluster, quota type, shadow."""

_BUCKETS = QuotaType.CONTROLLER_MUTATION.name.lower()
_ANY_ADDRESS = str(Entity(ip=DEFAULT))


class Unknown(LookupError):
    """An event of a sensor whose `open` is missing, or with an operation that this version does not know."""


class Replay:
    """Replays the events of one (instance, epoch), in their order. Another epoch needs another Replay."""

    def __init__(self, max_sensors: int = MAX_SENSORS) -> None:
        self._max_sensors = max_sensors
        self._settings: dict[_Place, dict[Operation, int]] = {}
        self._rates: dict[_Place, Sensors] = {}
        self._buckets: dict[_Place, TokenBuckets] = {}
        self._addresses: dict[_Place, AddressRates] = {}
        self._handles: dict[tuple[_Place, int], int] = {}

    def apply(self, event: TraceEvent) -> int:
        """Do the operation of an event, and return the resulting throttle time in ms. Raises Unknown."""
        place = (event.virtual_cluster, event.quota_type, event.shadow)
        operation = _operation(event)
        if operation in SETTINGS:
            self._set(place, operation, int(event.value))
            return 0
        if operation is Operation.CONNECT:
            return self._connect(place, event)
        rows = self._buckets_at(place) if event.quota_type == _BUCKETS else self._rates_at(place)
        if operation is Operation.OPEN:
            self._handles[place, event.sensor] = rows.open(event.value, event.at_ms)
            return 0
        handle = self._handle(place, event)
        match operation:
            case Operation.GIVE_BACK:
                rows.give_back(handle, event.value, event.at_ms)
            case Operation.SET_LIMIT:
                rows.set_limit(handle, event.value, event.at_ms)
            case Operation.SCALE:
                rows.scale(handle, event.value, event.at_ms)
            case Operation.ADD_HISTORY:
                rows.add_history(handle, (*(0.0,) * (event.count - 1), event.value), event.at_ms)
            case Operation.SET_PACE:
                rows.set_pace(handle, event.value)
            case Operation.CLOSE:
                rows.close(self._handles.pop((place, event.sensor)))
            case _ if isinstance(rows, TokenBuckets):
                return _spend(rows, handle, operation, event)
            case _:
                return _charge(rows, handle, operation, event)
        return 0

    def _set(self, place: _Place, operation: Operation, value: int) -> None:
        settings = self._settings.setdefault(place, {})
        settings[operation] = value
        if (sensors := self._rates.get(place)) is not None:
            sensors.set_caps(settings[Operation.MAX_THROTTLE_MS], settings[Operation.MAX_DEBT_MS])
        if (buckets := self._buckets.get(place)) is not None:
            buckets.set_cap(settings[Operation.MAX_THROTTLE_MS])

    def _setting(self, place: _Place, operation: Operation) -> int:
        settings = self._settings.get(place, {})
        if operation not in settings:
            raise Unknown(f"{operation} of {place[1]} in {place[0]}")
        return settings[operation]

    def _handle(self, place: _Place, event: TraceEvent) -> int:
        handle = self._handles.get((place, event.sensor))
        if handle is None:
            raise Unknown(f"sensor {event.sensor} of {event.quota_type} in {event.virtual_cluster}: it was not opened")
        return handle

    def _connect(self, place: _Place, event: TraceEvent) -> int:
        rates = self._addresses.get(place)
        if rates is None:
            samples, window_ms = self._windows(place)
            rates = self._addresses[place] = AddressRates(samples, window_ms, self._max_sensors)
        limit = UNLIMITED if event.limit is None else event.limit
        return rates.measure(event.ip, limit, event.rule not in ("", _ANY_ADDRESS), event.at_ms)

    def _windows(self, place: _Place) -> tuple[int, int]:
        return self._setting(place, Operation.SAMPLES), self._setting(place, Operation.WINDOW_MS)

    def _rates_at(self, place: _Place) -> Sensors:
        sensors = self._rates.get(place)
        if sensors is None:
            caps = self._setting(place, Operation.MAX_THROTTLE_MS), self._setting(place, Operation.MAX_DEBT_MS)
            sensors = self._rates[place] = Sensors(self._max_sensors, *self._windows(place), *caps)
        return sensors

    def _buckets_at(self, place: _Place) -> TokenBuckets:
        buckets = self._buckets.get(place)
        if buckets is None:
            cap = self._setting(place, Operation.MAX_THROTTLE_MS)
            buckets = self._buckets[place] = TokenBuckets(self._max_sensors, *self._windows(place), cap)
        return buckets


def _operation(event: TraceEvent) -> Operation:
    try:
        return Operation(event.operation)
    except ValueError:
        raise Unknown(f"operation {event.operation!r}") from None


def _charge(sensors: Sensors, handle: int, operation: Operation, event: TraceEvent) -> int:
    value, at_ms = event.value, event.at_ms
    match operation:
        case Operation.CHARGE:
            return sensors.charge(handle, value, at_ms)
        case Operation.RUN:
            within = sensors.charge_unthrottled(handle, value, event.count, at_ms)
            return 0 if within else sensors.charge(handle, value, at_ms)
        case Operation.OWE:
            return sensors.owed_ms(handle, at_ms)
        case Operation.CHARGE_IF_WITHIN:
            return sensors.charge_if_within(handle, value, at_ms)
        case _:
            raise Unknown(f"{operation} of {event.quota_type}")


def _spend(buckets: TokenBuckets, handle: int, operation: Operation, event: TraceEvent) -> int:
    match operation:
        case Operation.SPEND:
            return buckets.spend_permissively(handle, event.value, event.at_ms) or 0
        case Operation.SPEND_STRICTLY:
            return buckets.spend_strictly(handle, event.value, event.at_ms) or 0
        case _:
            raise Unknown(f"{operation} of {event.quota_type}")
