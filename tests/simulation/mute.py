"""How long a client must be muted, found out beside its relay, by whatever throttles it."""

from kafka_throttle.proxy.relay.actions import Throttled
from kafka_throttle.quotas.entities import QuotaType
from tests.simulation.exchange import Taken, WindowUsage


class Mute:
    """The mute of one client. `reported` is what its relay must have reported since that was last compared."""

    def __init__(self, counts: WindowUsage) -> None:
        self.on = False
        self.until_ms = 0
        self.responses_until_ms = 0
        """Until then responses report it, also those to requests that were taken before."""
        self.reported: list[Throttled] = []
        self._quotas: set[QuotaType | None] = set()
        """Those that were reported in this mute: each is at least once."""
        self._counts = counts

    def left_ms(self, request: Taken, now_ms: int) -> int:
        """What the response to a request reports of it, if it is positive."""
        return max(request.muted_until_ms, self.responses_until_ms) - now_ms

    def throttle(
        self, now_ms: int, throttle_ms: int, quota_type: QuotaType, client_id: bytes, in_responses: bool = False
    ) -> None:
        """A quota of ours is exceeded; `in_responses`: by a response."""
        prolonged_ms = self._begin(now_ms, throttle_ms, quota_type, client_id)
        self._counts.throttles[quota_type] += 1
        self._counts.throttled_ms[quota_type] += max(prolonged_ms, 0)
        if in_responses:
            self.responses_until_ms = max(self.responses_until_ms, now_ms + throttle_ms)

    def throttle_by_node(self, now_ms: int, throttle_ms: int, client_id: bytes) -> None:
        """The node's response has a throttle time."""
        self._counts.throttles_by_node += 1
        self._begin(now_ms, throttle_ms, None, client_id)

    def _begin(self, now_ms: int, throttle_ms: int, quota_type: QuotaType | None, client_id: bytes) -> int:
        until_ms = now_ms + throttle_ms
        prolonged_ms = until_ms - max(self.until_ms, now_ms)
        if not self.on:
            self._quotas.clear()
        is_longer = prolonged_ms > 0 or not self.on
        if is_longer or quota_type not in self._quotas:
            self._quotas.add(quota_type)
            self.reported.append(Throttled(quota_type, throttle_ms, client_id))
        if is_longer:
            self.until_ms = until_ms
            self.on = True
        return prolonged_ms
