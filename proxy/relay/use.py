"""The usage of clients: relays count it as it crosses the wire, and hand it on window by window.

A byte counts when it was read from the client's socket or is handed over to be written there, under the user and
client-id of its request. When a connection ends within a frame, the part of the frame that came is counted. Bytes that
were handed over and never written are also counted as unsent. A request counts with its last byte, or when no more of
it will come. So `requests` are those that began, `in_bytes` what was read, `out_bytes` - `unsent_bytes` what was
written. An observer in front of the proxy sees the same, except for bytes that only a kernel had when a connection was
lost.
"""

from collections import deque
from typing import NamedTuple

from quotas.client_quotas import WHOLE_CLUSTER
from quotas.entities import QuotaType
from quotas.records.usage_record import LONGEST_PROFILE_S, MOST_REPORTED, SecondOfUse, ThrottledUse, is_even
from quotas.request_costs import NodeCosts, RequestCosts

PRODUCE, FETCH, REQUEST, MUTATION, CONNECTION = range(5)
"""The index of each quota type in `Client.uses`."""

TYPES = (
    QuotaType.PRODUCE,
    QuotaType.FETCH,
    QuotaType.REQUEST,
    QuotaType.CONTROLLER_MUTATION,
    QuotaType.CONNECTION,
)
PLACE = {quota_type: place for place, quota_type in enumerate(TYPES)}

OVERFLOW = "<overflow>"
"""In place of a name, when there are too many clients to count each by its name."""

NO_WINDOW = -1
_SECOND_US = 1_000_000


class WindowUsage(NamedTuple):
    """What one client used of one quota type at one node in one window, which began at `begin_ms` since 1970."""

    client: "Client"
    quota_type: QuotaType
    begin_ms: int
    used: float
    peak: float
    requests: int
    in_bytes: int
    out_bytes: int
    throttles: int
    throttled_ms: int
    backlogged_ms: int
    shadow_throttles: int
    shadow_throttled_ms: int
    unsent_bytes: int
    muted_ms: int
    seconds: tuple[SecondOfUse, ...]
    """Their times count from `begin_ms`."""


class Client:
    """One client at one node, or one IP address: its usage of each quota type."""

    __slots__ = ("client_id", "costs", "holders", "ip", "meter", "node_id", "open", "user", "uses")

    def __init__(self, meter: "Meter", node_id: int, user: str, client_id: str, ip: str) -> None:
        self.meter = meter
        self.node_id = node_id
        self.user = user
        self.client_id = client_id
        self.ip = ip
        self.costs: NodeCosts | None = None
        self.holders = 0
        """How many connections count usage for it."""
        self.open = 0
        """How many quota types it has used in this window."""
        self.uses: list[UsageCounter | None] = [None] * len(TYPES)

    def of(self, place: int) -> "UsageCounter":
        """Its usage of one quota type. Mutations are counted for the whole cluster, not for each node."""
        use = self.uses[place]
        if use is None:
            if place == MUTATION and self.node_id != WHOLE_CLUSTER:
                return self.meter.client(WHOLE_CLUSTER, self.user, self.client_id).of(MUTATION)
            use = self.uses[place] = UsageCounter(self, place)
        return use

    def cost_us(self, kind: int, size_bytes: int, count: int) -> float:
        """What requests of a kind cost its node, by the model; 0 before the node is known."""
        costs = self.costs
        if costs is None:
            if self.node_id < 0:
                return 0.0
            costs = self.costs = self.meter.costs.of_node(self.node_id)
        return costs.us(kind, size_bytes, count)

    def release(self) -> None:
        """Note that one connection no longer counts usage for it."""
        self.holders -= 1
        if not self.holders and not self.open:
            self.meter.forget(self)


class UsageCounter:
    """What one client uses of one quota type, counted since the window began.

    Before anything is counted at `until_us` or later, `turn` must be called.
    """

    __slots__ = (
        "backlogged_ms",
        "began_us",
        "client",
        "in_bytes",
        "is_profiled",
        "mark",
        "muted_ms",
        "muted_until_ms",
        "out_bytes",
        "peak",
        "place",
        "reported",
        "requests",
        "requests_mark",
        "seconds",
        "shadow_throttled_ms",
        "shadow_throttles",
        "throttled_mark",
        "throttled_ms",
        "throttles",
        "throttles_mark",
        "unsent_bytes",
        "until_us",
        "used",
        "window",
    )

    def __init__(self, client: Client, place: int) -> None:
        self.client = client
        self.place = place
        self.window = NO_WINDOW
        self.until_us = -1
        self.began_us = -1
        """When this second began to be used, by the wall clock."""
        self.muted_until_ms = -1
        self.is_profiled = client.meter.window_s <= LONGEST_PROFILE_S
        self._begin()

    def _begin(self) -> None:
        self.requests = self.in_bytes = self.out_bytes = self.unsent_bytes = 0
        self.throttles = self.throttled_ms = self.backlogged_ms = 0
        self.shadow_throttles = self.shadow_throttled_ms = 0
        self.muted_ms = self.throttled_mark = self.requests_mark = self.throttles_mark = 0
        self.used = self.mark = self.peak = 0.0
        self.reported: list[ThrottledUse] = []
        self.seconds: list[SecondOfUse] = []

    def turn(self, now_us: int) -> None:
        """Begin another second, perhaps in another window."""
        meter = self.client.meter
        wall_s = (now_us + meter.offset_us) // _SECOND_US
        self._end_second()
        window = wall_s // meter.window_s
        if window != self.window:
            self.close()
            self.window = window
            self.client.open += 1
            meter.opened(self)
        self.until_us = (wall_s + 1) * _SECOND_US - meter.offset_us
        self.began_us = now_us + meter.offset_us

    def _end_second(self) -> None:
        in_second, throttled_ms = self.used - self.mark, self.throttled_ms - self.throttled_mark
        if in_second > self.peak:
            self.peak = in_second
        if self.is_profiled and (in_second > 0 or throttled_ms):
            requests, throttles = self.requests - self.requests_mark, self.throttles - self.throttles_mark
            reported = tuple(self.reported) if len(self.reported) <= MOST_REPORTED else ()
            self.seconds.append(
                SecondOfUse(self.began_us // 1000, in_second, throttled_ms, requests, throttles, reported)
            )
            self.requests_mark, self.throttles_mark = self.requests, self.throttles
        self.mark, self.throttled_mark = self.used, self.throttled_ms
        if self.reported:
            self.reported = []

    def close(self) -> None:
        """End the window, if one has begun, and hand on what was counted in it."""
        if self.window == NO_WINDOW:
            return
        self._end_second()
        meter = self.client.meter
        counts = (
            self.used,
            self.peak,
            self.requests,
            self.in_bytes,
            self.out_bytes,
            self.throttles,
            self.throttled_ms,
            self.backlogged_ms,
            self.shadow_throttles,
            self.shadow_throttled_ms,
            self.unsent_bytes,
            self.muted_ms,
        )
        begin_ms = self.window * meter.window_s * 1000
        meter.closed.append(WindowUsage(self.client, TYPES[self.place], begin_ms, *counts, self._profile(begin_ms)))
        self._begin()
        self.window, self.until_us = NO_WINDOW, -1
        self.client.open -= 1

    def _profile(self, begin_ms: int) -> tuple[SecondOfUse, ...]:
        meter = self.client.meter
        if is_even(len(self.seconds), meter.window_s, self.peak, self.used) and not self.throttled_ms:
            return ()
        last_ms = meter.window_s * 1000 - 1

        def in_window(at_ms: int) -> int:
            # The wall clock may have been set within the window.
            return min(max(at_ms - begin_ms, 0), last_ms)

        return tuple(
            second._replace(
                at_ms=in_window(second.at_ms),
                reported=tuple(ThrottledUse(in_window(at_ms), used) for at_ms, used in second.reported),
            )
            for second in self.seconds
        )

    # ------------------------------------------------------------- rare events

    def note_throttle(self, prolonged_ms: int, now_us: int, used: float = 0.0) -> None:
        """Count a throttle of the quota, and by how many ms it prolonged the mute.

        `used` is how much of the quota was used by the request that caused it, if that was charged just now.
        """
        if now_us >= self.until_us:
            self.turn(now_us)
        if used and len(self.reported) <= MOST_REPORTED:
            self.reported.append(ThrottledUse((now_us + self.client.meter.offset_us) // 1000, used))
        self.throttles += 1
        self.throttled_ms += prolonged_ms
        now_ms = now_us // 1000
        until_ms = now_ms + prolonged_ms
        if until_ms > self.muted_until_ms:
            self.muted_ms += until_ms - max(now_ms, self.muted_until_ms)
            self.muted_until_ms = until_ms

    def note_backlog(self, muted_ms: int, now_us: int) -> None:
        """Count a mute by the quota at whose end a request was waiting."""
        if now_us >= self.until_us:
            self.turn(now_us)
        self.backlogged_ms += muted_ms

    def note_shadow(self, throttle_ms: int, now_us: int) -> None:
        """Count a throttle time that the shadow quota would have given."""
        if now_us >= self.until_us:
            self.turn(now_us)
        self.shadow_throttles += 1
        self.shadow_throttled_ms += throttle_ms

    def note_unsent(self, unsent_bytes: int, now_us: int) -> None:
        """Count bytes that were counted as written and were not."""
        if now_us >= self.until_us:
            self.turn(now_us)
        self.unsent_bytes += unsent_bytes

    def add(self, value: float, now_us: int) -> None:
        """Add to what is used of the quota; a negative `value` was given back."""
        if now_us >= self.until_us:
            self.turn(now_us)
        elif self.used == self.mark:
            # Nothing was used in this second so far: for example, a Fetch has come but not its response.
            self.began_us = now_us + self.client.meter.offset_us
        self.used += value


class Meter:
    """The usage of all clients of one virtual cluster that are connected, or were in this window.

    There are `max_clients` at most, and a sixteenth more for one overflow client for each user; beyond that, all
    further clients are counted as one. `closed` has the usage of windows that are over; it must be taken once in each
    window.
    """

    def __init__(self, virtual_cluster: str, window_s: int, max_clients: int, costs: RequestCosts) -> None:
        self.virtual_cluster = virtual_cluster
        self.window_s = window_s
        self.max_clients = max_clients
        self.offset_us = 0
        """How far the wall clock is ahead of the monotonic one, in us."""
        self.closed: deque[WindowUsage] = deque()
        self.overflowed = 0
        """How often a client was counted as overflow."""
        self.costs = costs
        self._clients: dict[tuple[int, str, str, str], Client] = {}
        self._open: list[tuple[int, UsageCounter]] = []

    def __len__(self) -> int:
        return len(self._clients)

    def client(self, node_id: int, user: str, client_id: str, ip: str = "") -> Client:
        """The client, or the overflow client it is counted with when there are too many."""
        key = (node_id, user, client_id, ip)
        client = self._clients.get(key)
        if client is None:
            if len(self._clients) >= self.max_clients:
                key = self._overflow(node_id, user, ip)
                client = self._clients.get(key)
            if client is None:
                client = self._clients[key] = Client(self, *key)
        return client

    def _overflow(self, node_id: int, user: str, ip: str) -> tuple[int, str, str, str]:
        self.overflowed += 1
        if ip:
            return node_id, "", "", OVERFLOW
        key = (node_id, user, OVERFLOW, "")
        if key in self._clients or len(self._clients) < self.max_clients + max(self.max_clients // 16, 1):
            return key
        return node_id, OVERFLOW, OVERFLOW, ""

    def hold(self, node_id: int, user: str, client_id: str) -> Client:
        """The client, for a connection that counts its usage until it releases the client."""
        client = self.client(node_id, user, client_id)
        client.holders += 1
        return client

    def forget(self, client: Client) -> None:
        """Remove a client for which no connection counts usage any more."""
        key = (client.node_id, client.user, client.client_id, client.ip)
        if self._clients.get(key) is client:
            del self._clients[key]

    def opened(self, use: UsageCounter) -> None:
        """Note a quota type that was not used before in this window."""
        self._open.append((use.window, use))

    def take_open(self) -> list[tuple[int, UsageCounter]]:
        """The uses that may have to be closed, each with its window; each must be given to `settle`."""
        uses, self._open = self._open, []
        return uses

    def settle(self, window: int, use: UsageCounter, now_us: int | None) -> None:
        """Close a use if its window is over, or leave it open until then; without a time, close it in any case."""
        if use.window != window:
            return
        if now_us is not None and (now_us + self.offset_us) // _SECOND_US // self.window_s == window:
            self._open.append((window, use))
            return
        use.close()
        client = use.client
        if not client.holders and not client.open:
            self.forget(client)
