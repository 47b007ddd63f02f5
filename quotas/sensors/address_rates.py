"""How fast connections come from each address of one virtual cluster."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

from quotas.sensors.windowed_rate import SensorReading, Sensors

_CLOSED_AT_ONCE = 2
"""So many empty rows may go for each that is opened: they never pile up, and no connection waits for all of them."""


class AddressRates:
    """A windowed rate for each address that was seen within the last N windows, `max_addresses` at most.

    When rows run out, newcomers share one more, counted in `overflowed`; a sixteenth is kept back for addresses with a
    rate of their own. When that is used up, the longest unused row goes. Not for use by several threads.
    """

    def __init__(self, samples: int, window_ms: int, max_addresses: int) -> None:
        self._sensors = Sensors(max_addresses, samples, window_ms, window_ms, max_debt_ms=0)
        self._of_newcomers = Sensors(1, samples, window_ms, window_ms, max_debt_ms=0)
        self._shared: int | None = None
        self._rows: OrderedDict[str, int] = OrderedDict()
        """The longest unused first."""
        self._reserve = max_addresses // 16
        self._empty_after_ms = samples * window_ms
        self.overflowed = 0
        self.throttles = 0
        """How many were too fast."""
        self.throttled_ms = 0
        """For how long, taken together, they were to be held."""

    def measure(self, address: str, limit: float, has_own: bool, now_ms: int) -> int:
        """For how many ms a connection is to be held that comes too fast, and so is not measured; else 0.

        `has_own` says whether `limit`, in connections/s, is for this address alone.
        """
        sensors, row = self._sensors, self._row_of(address, limit, has_own, now_ms)
        if row is None:
            self.overflowed += 1
            sensors, row = self._of_newcomers, self._shared_row(limit, now_ms)
        if sensors.limit(row) != limit:
            sensors.set_limit(row, limit, now_ms)
        throttle_ms = sensors.charge_if_within(row, 1.0, now_ms)
        if throttle_ms:
            self.throttles += 1
            self.throttled_ms += throttle_ms
        return throttle_ms

    def _row_of(self, address: str, limit: float, has_own: bool, now_ms: int) -> int | None:
        """None for a newcomer without a rate of its own when there are no more rows."""
        row = self._rows.get(address)
        if row is not None:
            self._rows.move_to_end(address)
            return row
        sensors = self._sensors
        self._close_empty(now_ms)
        if sensors.used >= sensors.capacity - self._reserve:
            if not has_own:
                return None
            if sensors.used == sensors.capacity:
                sensors.close(self._rows.popitem(last=False)[1])
        row = self._rows[address] = sensors.open(limit, now_ms)
        return row

    def _shared_row(self, limit: float, now_ms: int) -> int:
        if self._shared is None:
            self._shared = self._of_newcomers.open(limit, now_ms)
        return self._shared

    def _close_empty(self, now_ms: int) -> None:
        """Close rows whose window is empty: fresh ones would measure the same."""
        sensors = self._sensors
        for address, row in list(islice(self._rows.items(), _CLOSED_AT_ONCE)):
            if now_ms - sensors.idle_since_ms(row) >= self._empty_after_ms:
                sensors.close(row)
                del self._rows[address]

    @property
    def used(self) -> int:
        """How many addresses have a row."""
        return self._sensors.used

    @property
    def capacity(self) -> int:
        """How many may."""
        return self._sensors.capacity

    def reading(self, address: str, now_ms: int) -> SensorReading | None:
        """What was measured for an address; its limit is the one at its last connection. None if it has no row."""
        row = self._rows.get(address)
        return None if row is None else self._sensors.reading(row, now_ms)

    def readings(self, now_ms: int) -> Iterator[tuple[str, SensorReading]]:
        """Every address that has a row, the longest unused first."""
        for address, row in list(self._rows.items()):
            if address in self._rows:
                yield address, self._sensors.reading(row, now_ms)
