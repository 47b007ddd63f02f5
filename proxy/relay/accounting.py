"""Counts what crosses the wire on one connection: for its log line, for metrics, and for usage records."""

from collections.abc import Callable, Mapping
from typing import Final

from kafka_throttle.proxy.relay.relay_counters import RelayCounters
from kafka_throttle.proxy.relay.request import LONG_CLIENT_ID_BYTES, Request
from kafka_throttle.proxy.relay.turn import Turn
from kafka_throttle.proxy.relay.use import PLACE, PRODUCE, REQUEST, Client, UsageCounter
from kafka_throttle.quotas.entities import QuotaType

UsageOf = Callable[[bytes], Client]
"""Returns the Client for which the usage under a raw client-id is counted."""

MAX_CLIENT_IDS: Final = 64
"""How many client-ids a connection remembers, with their sensors and usage."""


class Accounting:
    """The only place in a relay that counts requests, responses, bytes and what they used of quotas.

    `coming` counts the usage of the request that is being sent on, `going` that of the response; None: not metered.
    """

    __slots__ = (
        "_clients",
        "_turn",
        "_usage_of",
        "coming",
        "counters",
        "going",
        "request_bytes",
        "requests",
        "response_bytes",
        "responses",
    )

    def __init__(self, turn: Turn, counters: RelayCounters, usage_of: UsageOf | None) -> None:
        self.counters = counters
        self.requests = 0
        self.request_bytes = 0
        self.responses = 0
        self.response_bytes = 0
        self.coming: UsageCounter | None = None
        self.going: UsageCounter | None = None
        self._turn = turn
        self._usage_of = usage_of
        """None: usage is not metered."""
        self._clients: dict[bytes, Client] = {}

    def count_requests(self, request: Request, count: int, frames_bytes: int) -> None:
        """Count requests that are handled alike."""
        self.requests += count
        self.request_bytes += frames_bytes
        counters = self.counters
        counters.requests_by_api[request.plan.api_key] += count
        counters.request_bytes += frames_bytes
        if self._usage_of is not None and (use := request.use or self.meter(request)) is not None:
            now_us = self._turn.now_us
            if now_us >= use.until_us:
                if use.place == PRODUCE:  # it is used as soon as it has come, a Fetch when its response has
                    use.turn_used(now_us)
                else:
                    use.turn(now_us)
            use.requests += count

    def count_responses(self, count: int, frames_bytes: int) -> None:
        """Count responses."""
        self.responses += count
        self.response_bytes += frames_bytes
        counters = self.counters
        counters.responses += count
        counters.response_bytes += frames_bytes

    # ------------------------------------------------------------------- metered

    def meter(self, request: Request) -> UsageCounter | None:
        """From now on the usage of this request is counted; by what. None: usage is not metered."""
        if request.use is None and self._usage_of is not None:
            request.use = self._client(request.head.client_id).of(request.plan.use)
        return request.use

    def _client(self, client_id: bytes) -> Client:
        client = self._clients.get(client_id)
        if client is None:
            assert self._usage_of is not None
            if len(self._clients) >= MAX_CLIENT_IDS or len(client_id) > LONG_CLIENT_ID_BYTES:
                for forgotten in forgotten_for(client_id, self._clients):
                    self._clients.pop(forgotten).release()
            client = self._clients[client_id] = self._usage_of(client_id)
        return client

    def forget_clients(self) -> None:
        """The user or the node is another from now on: release the clients of the one before."""
        if self._clients:
            for client in self._clients.values():
                client.release()
            self._clients.clear()

    def read(self, use: UsageCounter | None, read_bytes: int) -> None:
        """Count bytes of a request that have come."""
        if use is not None:
            now_us = self._turn.now_us
            if now_us >= use.until_us:
                use.turn(now_us)
            use.in_bytes += read_bytes

    def read_unjudged(self, read_bytes: int) -> None:
        """Count bytes of a request that never became one, under the client-id of the request before."""
        if read_bytes and self._usage_of is not None:
            self.coming = self.coming or self._client(b"").of(REQUEST)
            self.read(self.coming.client.of(REQUEST), read_bytes)

    def written(self, use: UsageCounter | None, written_bytes: int) -> None:
        """Count bytes of a response that go out."""
        if use is not None:
            now_us = self._turn.now_us
            if now_us >= use.until_us:
                use.turn(now_us)
            use.out_bytes += written_bytes

    def used(self, use: UsageCounter | None, value: float) -> None:
        """Count what was used of a quota."""
        if use is not None:
            use.add(value, self._turn.now_us)

    def model_time(self, request: Request, count: int, response_bytes: int) -> None:
        """Count request time by the model of costs, where it is not measured."""
        if (use := request.use) is not None and request.client_sensors is not None:
            waiting = request.waiting
            size_bytes = request.waiting_bytes if count == waiting else request.waiting_bytes * count // waiting
            client = use.client
            times = client.uses[REQUEST] or client.of(REQUEST)
            now_us = self._turn.now_us
            if now_us >= times.until_us:
                times.turn_used(now_us)
            times.used += client.cost_us(request.plan.cost_kind, size_bytes + response_bytes, count) / 1000

    def note_throttle(
        self, quota_type: QuotaType, client_id: bytes, prolonged_ms: int, used: float
    ) -> UsageCounter | None:
        """Count a throttle, and by how many ms it prolonged the mute; see `ThrottleState.throttle`."""
        self.counters.throttles[quota_type] += 1
        self.counters.throttled_ms[quota_type] += prolonged_ms
        if self._usage_of is None:
            return None
        use = self._client(client_id).of(PLACE[quota_type])
        use.note_throttle(prolonged_ms, self._turn.now_us, used)
        return use

    def note_unsent(self, unsent_bytes: int, now_us: int) -> None:
        """Count bytes that were handed over for the client and never written, because its connection ended first."""
        use = self.going or self.coming
        if unsent_bytes and use is not None:
            use.note_unsent(unsent_bytes, now_us)


def forgotten_for(client_id: bytes, known: Mapping[bytes, object]) -> list[bytes]:
    """The client-ids that a connection forgets to make room for this one.

    Usually this is the oldest one. To find the least recently used one, each request would have to be noted; and a
    client-id that is forgotten too early is only looked up again. For a very long one all others are forgotten, so that
    only one long one is stored.
    """
    if client_id in known:
        return []
    return list(known) if len(client_id) > LONG_CLIENT_ID_BYTES else [next(iter(known))]
