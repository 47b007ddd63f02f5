"""The connection rates of the addresses of one virtual cluster."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from kafka_throttle.quotas.sensors.windowed_rate import SensorReading, Sensors

_CLOSED_AT_ONCE: Final = 2
"""How many empty rows may be closed for each one opened: they do not pile up, and no connection waits long."""


class AddressRates:
    """A windowed rate for each address seen within the last N windows; at most `max_addresses`. Not thread-safe.

    When rows run out, new addresses share one extra row, which `overflowed` counts. A sixteenth of the rows is reserved
    for addresses with a limit for themselves. When these are used up too, the longest unused row is closed.
    """

    def __init__(self, samples: int, window_ms: int, max_addresses: int) -> None:
        self._sensors = Sensors(max_addresses, samples, window_ms, window_ms, max_debt_ms=0)
        self._of_newcomers = Sensors(1, samples, window_ms, window_ms, max_debt_ms=0)
        self._shared: int | None = None
        self._rows: OrderedDict[str, int] = OrderedDict()
        """The row of each address, the longest unused first."""
        self._reserve = max_addresses // 16
        self._empty_after_ms = samples * window_ms
        self.overflowed = 0
        self.throttles = 0
        """The number of connections that exceeded the rate of their address."""
        self.throttled_ms = 0
        """The sum of their throttle times."""
        self.pressed: dict[str, int] | None = None
        """Addresses with a row that exceeded their rate since this was emptied, with the end of their latest throttles.

        None: nobody asks.
        """

    def measure(self, address: str, limit: float, has_own: bool, now_ms: int) -> int:
        """Measure a connection. Returns for how many ms to hold it, 0 if it does not exceed the rate.

        A connection that exceeds the rate is not counted. `limit` is in connections/s; `has_own` says whether it is for
        this address alone.
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
            if self.pressed is not None and sensors is self._sensors:
                self.pressed[address] = now_ms + throttle_ms
        return throttle_ms

    def _row_of(self, address: str, limit: float, has_own: bool, now_ms: int) -> int | None:
        """The row of an address, opened if needed. None for a new address without an own limit if no row is free."""
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
        """Close some rows whose window is empty: new ones would measure the same."""
        sensors = self._sensors
        for address, row in list(islice(self._rows.items(), _CLOSED_AT_ONCE)):
            if now_ms - sensors.idle_since_ms(row) >= self._empty_after_ms:
                sensors.close(row)
                del self._rows[address]

    def reshare(self, address: str, limit: float, keep: float, gain: Sequence[float], now_ms: int) -> None:
        """Use `limit` for this address, with the part `keep` of its history, and with `gain` in addition (connections).

        An address without a row gets one if it gains, and if there is room.
        """
        row = self._row_of(address, limit, False, now_ms) if any(gain) else self._rows.get(address)
        if row is not None:
            self._sensors.reshare(row, limit, keep, gain, now_ms)

    def history(self, address: str, now_ms: int) -> tuple[float, tuple[float, ...]] | None:
        """The connections of an address in total, and those of the last windows by age. None if it has no row."""
        row = self._rows.get(address)
        return None if row is None else (self._sensors.total(row), self._sensors.history(row, now_ms))

    @property
    def addresses(self) -> list[str]:
        """The addresses that have a row, the longest unused first."""
        return list(self._rows)

    def copies(self) -> Iterator[tuple[str, bytes]]:
        """A copy of each row with its address, the longest unused first; "" for the row that new addresses share."""
        for address, row in list(self._rows.items()):
            if address in self._rows:
                yield address, self._sensors.copied(row)
        if self._shared is not None:
            yield "", self._of_newcomers.copied(self._shared)

    def adopt(self, address: str, copied: bytes, now_ms: int, limit: float | None = None) -> bool:
        """Give an address, or with "" those that share a row, a copy that `copies` made of a table with these windows.

        False if there is no row for it. Raises ValueError if the copy has another size. Its limit is set when it is
        measured. With a `limit` that is lower than the copied one, it gets the matching part of what the copy holds.
        """
        if not address:
            self._of_newcomers.overwrite(self._shared_row(0.0, now_ms), copied)
            return True
        row = self._row_of(address, 0.0, False, now_ms)
        if row is None:
            return False
        self._sensors.overwrite(row, copied)
        if limit is not None and limit < self._sensors.limit(row):
            self._sensors.reshare(row, limit, limit / self._sensors.limit(row), (), now_ms)
        return True

    @property
    def used(self) -> int:
        """How many addresses have a row."""
        return self._sensors.used

    @property
    def capacity(self) -> int:
        """How many addresses may have a row."""
        return self._sensors.capacity

    def reading(self, address: str, now_ms: int) -> SensorReading | None:
        """The measured rate of an address, with the limit at its last connection. None if it has no row."""
        row = self._rows.get(address)
        return None if row is None else self._sensors.reading(row, now_ms)

    def readings(self, now_ms: int) -> Iterator[tuple[str, SensorReading]]:
        """The measured rate of each address that has a row, the longest unused first."""
        for address, row in list(self._rows.items()):
            if address in self._rows:
                yield address, self._sensors.reading(row, now_ms)
