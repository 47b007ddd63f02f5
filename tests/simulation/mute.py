"""How long a client must be muted, found out beside its relay: by whatever throttles it, and what it was lent."""

from collections import deque
from dataclasses import dataclass

from proxy.relay.actions import Throttled
from quotas.entities import QuotaType
from tests.simulation.exchange import Counts, Taken
from tests.simulation.oracle import Charge, Of, WatchedSensors, require


@dataclass(slots=True)
class _Loan:
    """A Fetch answer that went out over quota, to be charged when its mute ends."""

    handle: int
    value: float
    client_id: bytes


class Mute:
    """The mute of one client. `told` is what its relay must have told of since that was last compared."""

    def __init__(self, sensors: WatchedSensors, counts: Counts) -> None:
        self.on = False
        self.until_ms = 0
        self.answers_until_ms = 0
        """Until then answers tell of it, also those to requests that were taken before."""
        self.paid_at_ms = 0
        """When all that was lent will be paid if nothing comes between; 0 if nothing is lent."""
        self.told: list[Throttled] = []
        self._sensors = sensors
        self._counts = counts
        self._loans: deque[_Loan] = deque()
        self._loans_due_ms = 0

    def left_ms(self, request: Taken, now_ms: int) -> int:
        """What the answer to a request tells of it, if it is positive."""
        return max(request.muted_until_ms, self.answers_until_ms, self.paid_at_ms) - now_ms

    def throttle(
        self, now_ms: int, throttle_ms: int, quota_type: QuotaType, client_id: bytes, in_answers: bool = False
    ) -> None:
        """A quota of ours is exceeded; `in_answers`: by an answer."""
        prolonged_ms = self._begin(now_ms, throttle_ms, quota_type, client_id)
        self._counts.throttles[quota_type] += 1
        self._counts.throttled_ms[quota_type] += max(prolonged_ms, 0)
        if in_answers:
            self.answers_until_ms = max(self.answers_until_ms, now_ms + throttle_ms)

    def throttle_by_node(self, now_ms: int, throttle_ms: int, client_id: bytes) -> None:
        """The node has told the client to wait."""
        self._counts.throttles_by_node += 1
        self._begin(now_ms, throttle_ms, None, client_id)

    def _begin(self, now_ms: int, throttle_ms: int, quota_type: QuotaType | None, client_id: bytes) -> int:
        until_ms = now_ms + throttle_ms
        prolonged_ms = until_ms - max(self.until_ms, now_ms)
        if prolonged_ms > 0 or not self.on:
            self.until_ms = until_ms
            self.on = True
            self.told.append(Throttled(quota_type, throttle_ms, client_id))
        return prolonged_ms

    # ------------------------------------------------------------------------- loans

    @property
    def payments_due(self) -> int:
        """How many charges it takes if the client goes now."""
        return sum(self._sensors.is_open(loan.handle) for loan in self._loans)

    def lend(self, charge: Charge, client_id: bytes, now_ms: int) -> None:
        """An answer went out over quota."""
        if not self._loans:
            self._loans_due_ms = now_ms + self._sensors.max_throttle_ms
        self._loans.append(_Loan(charge.handle, charge.value, client_id))
        self.paid_at_ms = max(self.paid_at_ms, now_ms + charge.paid_after_ms)

    def repay(self, now_ms: int) -> None:
        """What was lent is charged when the mute ends; while it is too much, the mute goes on, for one cap in all."""
        while self._loans:
            loan = self._loans[0]
            throttle_ms, goes_on = 0, False
            if self._sensors.is_open(loan.handle):
                charge = self._payment(loan)
                throttle_ms = charge.throttle_ms
                goes_on = charge.lent and now_ms + throttle_ms <= self._loans_due_ms
                if charge.lent and not goes_on:
                    require(not self._payment(loan).lent, "a loan is prolonged beyond its time")
            if not goes_on:
                self._loans.popleft()
            wait_ms = min(throttle_ms, self._loans_due_ms - now_ms)
            if wait_ms > 0:
                self.throttle(now_ms, wait_ms, QuotaType.FETCH, loan.client_id)
                return
        self.paid_at_ms = 0

    def call_in(self) -> None:
        """A client that goes pays at once."""
        for loan in self._loans:
            if self._sensors.is_open(loan.handle):
                require(not self._payment(loan).lent, "a loan to a client that has gone")
        self._loans.clear()

    def _payment(self, loan: _Loan) -> Charge:
        journal = self._sensors.journal
        require(bool(journal), f"a loan of {loan.value} bytes is not paid back")
        charge = journal.popleft()
        paid = (charge.of, charge.handle, charge.value, charge.charges)
        require(paid == (Of.BYTES, loan.handle, loan.value, 1), f"{charge} instead of a loan of {loan.value} bytes")
        return charge
