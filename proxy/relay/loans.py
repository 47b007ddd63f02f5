"""Fetches over quota: delivered now, charged when their throttle ends, as a broker would charge them then."""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from quotas.sensors import Sensors, StaleSensor


@dataclass(slots=True, frozen=True)
class Loan:
    """`value` bytes of a Fetch answer that has gone out; `sensor` is a handle."""

    sensor: int
    value: int
    client_id: bytes


class Loans:
    """What one connection has been lent. If its sensor is closed meanwhile, a loan is forgotten: nobody is measured."""

    __slots__ = ("_due_ms", "_loans", "_sensors", "paid_at_ms")

    def __init__(self, sensors: Sensors) -> None:
        self._sensors = sensors
        self._loans: deque[Loan] = deque()
        self._due_ms = 0
        self.paid_at_ms = 0
        """When all will be paid if nothing comes between: what the client is told. In the past: nothing is lent."""

    def charge(self, sensor: int, value: int, client_id: bytes, now_ms: int) -> int:
        """Charge the answer to a Fetch, or lend it; the throttle time in ms."""
        try:
            throttle_ms, lent = self._sensors.charge_or_lend(sensor, value, now_ms)
        except StaleSensor:
            return 0
        if lent:
            if not self._loans:
                self._due_ms = now_ms + self._sensors.max_throttle_ms
            self._loans.append(Loan(sensor, value, client_id))
            paid_after_ms = max(throttle_ms, self._sensors.payable_after_ms(sensor, now_ms))
            self.paid_at_ms = max(self.paid_at_ms, now_ms + paid_after_ms)
        return throttle_ms

    def repay(self, now_ms: int) -> tuple[Loan, int] | None:
        """Charge what was lent, as a broker's client asks again. What is still too much waits on, at most for one cap
        in all; then its charge stands.

        Returns the loan that mutes the client still, and for how many ms; None when there is no such.
        """
        while self._loans:
            loan = self._loans[0]
            throttle_ms, lent = 0, False
            with suppress(StaleSensor):
                throttle_ms, lent = self._sensors.repay(loan.sensor, loan.value, now_ms)
                if lent and now_ms + throttle_ms > self._due_ms:
                    self._sensors.call_in(loan.sensor, loan.value)
                    lent = False
            if not lent:
                self._loans.popleft()
            wait_ms = min(throttle_ms, self._due_ms - now_ms)
            if wait_ms > 0:
                return loan, wait_ms
        self.paid_at_ms = 0
        return None

    def call_in(self) -> None:
        """Charge what was lent to a client that does not stay until it is paid."""
        for loan in self._loans:
            with suppress(StaleSensor):
                self._sensors.call_in(loan.sensor, loan.value)
        self._loans.clear()
