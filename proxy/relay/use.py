"""The usage of clients. Relays count it as it crosses the wire; what was counted in a window becomes a `WindowUsage`.

A byte of a request counts when it has been read from the client's socket, and a byte of a response when it is handed
over to be written there. Both count for the user and client-id of the request. When a connection ends within a frame,
the part of the frame that has come is counted. Bytes that were handed over and never written are also counted as
unsent. A request counts when its last byte has come, or when it is known that the rest will not come.

So `requests` is the number of requests that began, `in_bytes` the number of bytes that were read, and `out_bytes` -
`unsent_bytes` the number of bytes that were written. An observer on the network between the clients and the proxy
counts the same, except for bytes that were only in the buffers of a kernel when a connection was lost.
"""

from collections import deque
from typing import Final, NamedTuple

from kafka_throttle.quotas.client_quotas import WHOLE_CLUSTER
from kafka_throttle.quotas.entities import QuotaType
from kafka_throttle.quotas.records.usage_record import (
    LONGEST_PROFILE_S,
    MOST_REPORTED,
    SecondOfUse,
    ThrottledUse,
    is_even,
)
from kafka_throttle.quotas.request_costs import NodeCosts, RequestCosts

# The index of each quota type in `Client.uses`.
PRODUCE: Final = 0
FETCH: Final = 1
REQUEST: Final = 2
MUTATION: Final = 3
CONNECTION: Final = 4

TYPES: Final = (
    QuotaType.PRODUCE,
    QuotaType.FETCH,
    QuotaType.REQUEST,
    QuotaType.CONTROLLER_MUTATION,
    QuotaType.CONNECTION,
)
PLACE: Final = {quota_type: place for place, quota_type in enumerate(TYPES)}

OVERFLOW: Final = "<overflow>"
"""Stands in place of a name for clients that are counted together, because there are too many to count each alone."""

NO_WINDOW: Final = -1
_NEVER_MUTED: Final = -1
_SECOND_US: Final = 1_000_000


class WindowUsage(NamedTuple):
    """What one client used of one quota type at one node in one window.

    `begin_ms` is when the window began, in ms since 1970.
    """

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
    """The profile of the window. Its times count from `begin_ms`."""


class Client:
    """One client at one node, or one IP address, with its usage of each quota type."""

    __slots__ = ("client_id", "costs", "holders", "ip", "meter", "node_id", "open", "user", "uses")

    def __init__(self, meter: "Meter", node_id: int, user: str, client_id: str, ip: str) -> None:
        self.meter = meter
        self.node_id = node_id
        self.user = user
        self.client_id = client_id
        self.ip = ip
        self.costs: NodeCosts | None = None
        self.holders = 0
        """How many connections count usage for this client."""
        self.open = 0
        """How many of its counters have a window that is not closed yet."""
        self.uses: list[UsageCounter | None] = [None] * len(TYPES)

    def of(self, place: int) -> "UsageCounter":
        """The counter of one quota type. Mutations are counted for the whole cluster, not for each node: that client is
        held as long as this one is known, or a mute that ends in a later window would be in a second record of it.
        """
        use = self.uses[place]
        if use is None:
            if place == MUTATION and self.node_id != WHOLE_CLUSTER:
                use = self.meter.hold(WHOLE_CLUSTER, self.user, self.client_id).of(MUTATION)
            else:
                use = UsageCounter(self, place)
            self.uses[place] = use
        return use

    def cost_us(self, kind: int, size_bytes: int, count: int) -> float:
        """The handler time that `count` requests of a kind cost the node, by the model; 0 while no node is known."""
        costs = self.costs
        if costs is None:
            if self.node_id < 0:
                return 0.0
            costs = self.costs = self.meter.costs.of_node(self.node_id)
        return costs.us(kind, size_bytes, count)

    def release(self) -> None:
        """Note that one connection no longer counts usage for this client."""
        self.holders -= 1
        if not self.holders and not self.open:
            self.meter.forget(self)


class WindowProfile:
    """The profile of one window: what was used and throttled in each second, and the highest use in one second."""

    __slots__ = ("_reported", "_requests_before", "_seconds", "_throttled_ms", "_throttles", "_window_s", "peak")

    def __init__(self, window_s: int) -> None:
        self._window_s = window_s
        self.peak = 0.0
        self._seconds: list[SecondOfUse] = []
        """The seconds with use or throttle time; empty if the window is too long for a profile."""
        self._requests_before = 0
        """How many requests of the window belong to `_seconds`."""
        self._throttles = 0
        """How many throttles belong to the next one of `_seconds`."""
        self._throttled_ms = 0
        """By how much these throttles prolonged mutes."""
        self._reported: list[ThrottledUse] = []
        """The throttled requests of this second; no more are added once there are too many to be recorded."""

    def note_throttle(self, at_ms: int, prolonged_ms: int, used: float) -> None:
        """Add a throttle to this second, and the request that caused it if `used` is not 0."""
        self._throttles += 1
        self._throttled_ms += prolonged_ms
        if used and len(self._reported) <= MOST_REPORTED:
            self._reported.append(ThrottledUse(at_ms, used))

    def end_second(self, began_ms: int, used: float, requests: int) -> None:
        """End this second, in which `used` was used. `requests` is the number of requests in the window so far."""
        if used > self.peak:
            self.peak = used
        if (used > 0 or self._throttled_ms) and self._window_s <= LONGEST_PROFILE_S:
            reported = tuple(self._reported) if len(self._reported) <= MOST_REPORTED else ()
            self._seconds.append(
                SecondOfUse(
                    began_ms, used, self._throttled_ms, requests - self._requests_before, self._throttles, reported
                )
            )
            self._requests_before = requests
            self._throttles = self._throttled_ms = 0
        self._reported.clear()

    def recorded(self, used: float, throttled_ms: int) -> tuple[SecondOfUse, ...]:
        """The seconds that are recorded: none if the whole window was used evenly and never throttled."""
        if not throttled_ms and is_even(len(self._seconds), self._window_s, self.peak, used):
            return ()
        return tuple(self._seconds)


class WindowThrottles:
    """The throttles of one client by one quota, and by its shadow quota, in one window.

    `muted_until_ms` is when the last mute by this quota ends, which may have begun in an earlier window.
    """

    __slots__ = (
        "backlogged_ms",
        "muted_ms",
        "muted_until_ms",
        "shadow_throttled_ms",
        "shadow_throttles",
        "throttled_ms",
        "throttles",
    )

    def __init__(self, muted_until_ms: int) -> None:
        self.muted_until_ms = muted_until_ms
        self.throttles = 0
        self.throttled_ms = 0
        self.muted_ms = 0
        self.backlogged_ms = 0
        self.shadow_throttles = 0
        self.shadow_throttled_ms = 0

    def add(self, prolonged_ms: int, now_ms: int) -> None:
        """Add a throttle that prolonged the mute of a connection. Where mutes overlap, `muted_ms` counts once."""
        self.throttles += 1
        self.throttled_ms += prolonged_ms
        until_ms = now_ms + prolonged_ms
        if until_ms > self.muted_until_ms:
            self.muted_ms += until_ms - max(now_ms, self.muted_until_ms)
            self.muted_until_ms = until_ms

    def add_shadow(self, throttle_ms: int) -> None:
        """Add a throttle time that the shadow quota would have given."""
        self.shadow_throttles += 1
        self.shadow_throttled_ms += throttle_ms


class UsageCounter:
    """What one client uses of one quota type, counted since the window began.

    Before anything is counted at `until_us` or later, `turn` must be called, or `turn_used` if that is added to `used`.
    What relays count for each request are attributes of the counter itself; its profile and its throttles change only
    once a second, and with each throttle.
    """

    __slots__ = (
        "_began_us",
        "_ends_us",
        "_profile",
        "_throttles",
        "_used_before",
        "client",
        "in_bytes",
        "out_bytes",
        "place",
        "requests",
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
        """When this second ends, by the monotonic clock; -1 until something is used in it."""
        self._ends_us = -1
        """When this second ends."""
        self._began_us = -1
        """When this second was first used, by the wall clock."""
        self._begin(_NEVER_MUTED)

    def _begin(self, muted_until_ms: int) -> None:
        self.requests = self.in_bytes = self.out_bytes = self.unsent_bytes = 0
        self.used = 0.0
        self._used_before = 0.0
        """What was used in the window before this second."""
        self._profile = WindowProfile(self.client.meter.window_s)
        self._throttles = WindowThrottles(muted_until_ms)

    def turn(self, now_us: int) -> None:
        """Begin another second, perhaps in another window, if this one is over: what is counted now is no use."""
        if now_us < self._ends_us:
            return
        meter = self.client.meter
        wall_s = (now_us + meter.offset_us) // _SECOND_US
        window = wall_s // meter.window_s
        if window == self.window:
            self._end_second()
        else:
            self.close()
            self.window = window
            self.client.open += 1
            meter.opened(self)
        self.until_us = -1
        self._ends_us = (wall_s + 1) * _SECOND_US - meter.offset_us
        self._began_us = now_us + meter.offset_us

    def turn_used(self, now_us: int) -> None:
        """The same, where what is counted now is use: nothing of this second need be looked at before more of it."""
        self.turn(now_us)
        if self.used == self._used_before:
            self._began_us = now_us + self.client.meter.offset_us
        self.until_us = self._ends_us

    def _end_second(self) -> None:
        self._profile.end_second(self._ms_in_window(self._began_us), self.used - self._used_before, self.requests)
        self._used_before = self.used

    def _ms_in_window(self, wall_us: int) -> int:
        """The time since the window began. It is always within the window, even if the wall clock was set meanwhile."""
        window_ms = self.client.meter.window_s * 1000
        return min(max(wall_us // 1000 - self.window * window_ms, 0), window_ms - 1)

    def close(self) -> None:
        """End the window, if one has begun, and hand on what was counted in it."""
        if self.window == NO_WINDOW:
            return
        self._end_second()
        meter, profile, throttles = self.client.meter, self._profile, self._throttles
        meter.closed.append(
            WindowUsage(
                client=self.client,
                quota_type=TYPES[self.place],
                begin_ms=self.window * meter.window_s * 1000,
                used=self.used,
                peak=profile.peak,
                requests=self.requests,
                in_bytes=self.in_bytes,
                out_bytes=self.out_bytes,
                throttles=throttles.throttles,
                throttled_ms=throttles.throttled_ms,
                backlogged_ms=throttles.backlogged_ms,
                shadow_throttles=throttles.shadow_throttles,
                shadow_throttled_ms=throttles.shadow_throttled_ms,
                unsent_bytes=self.unsent_bytes,
                muted_ms=throttles.muted_ms,
                seconds=profile.recorded(self.used, throttles.throttled_ms),
            )
        )
        self._begin(throttles.muted_until_ms)
        self.window, self.until_us, self._ends_us = NO_WINDOW, -1, -1
        self.client.open -= 1

    def add(self, value: float, now_us: int) -> None:
        """Add to what is used of the quota; a negative `value` was given back."""
        if now_us >= self.until_us or self.used == self._used_before:
            self.turn_used(now_us)
        self.used += value

    # ------------------------------------------------------------- rare events

    def note_throttle(self, prolonged_ms: int, now_us: int, used: float = 0.0) -> None:
        """Count a throttle of the quota, and by how many ms it prolonged the mute of the connection.

        `used` is what the request that caused the throttle used of the quota, if that was charged just now; else 0.
        """
        self.turn(now_us)
        self._profile.note_throttle(self._ms_in_window(now_us + self.client.meter.offset_us), prolonged_ms, used)
        self._throttles.add(prolonged_ms, now_us // 1000)

    def note_backlog(self, muted_ms: int, now_us: int) -> None:
        """Count the time of a mute by the quota, at the end of which a request was already waiting."""
        self.turn(now_us)
        self._throttles.backlogged_ms += muted_ms

    def note_shadow(self, throttle_ms: int, now_us: int) -> None:
        """Count a throttle time that the shadow quota would have given."""
        self.turn(now_us)
        self._throttles.add_shadow(throttle_ms)

    def note_unsent(self, unsent_bytes: int, now_us: int) -> None:
        """Count bytes of responses that were never written, though `out_bytes` has them."""
        self.turn(now_us)
        self.unsent_bytes += unsent_bytes


class Meter:
    """The usage of all clients of one virtual cluster that are connected, or were in this window.

    Each of the first `max_clients` clients is counted alone. Further ones are counted together, as one overflow client
    for each node and user. There are at most a sixteenth of `max_clients` of these; after that, all further clients of
    a node are counted as one. `closed` has the usage of windows that are over; the owner must take it once a window.
    """

    __slots__ = (
        "_clients",
        "_open",
        "closed",
        "costs",
        "max_clients",
        "offset_us",
        "overflowed",
        "virtual_cluster",
        "window_s",
    )

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
        """The client; when there are too many clients, the overflow client that stands for it."""
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
        """The client, for a connection. The connection counts usage for it, and releases it at the end."""
        client = self.client(node_id, user, client_id)
        client.holders += 1
        return client

    def forget(self, client: Client) -> None:
        """Remove a client for which no connection counts usage any more."""
        key = (client.node_id, client.user, client.client_id, client.ip)
        if self._clients.get(key) is client:
            del self._clients[key]
            mutations = client.uses[MUTATION]
            if mutations is not None and mutations.client is not client:
                client.uses[MUTATION] = None
                mutations.client.release()

    def opened(self, use: UsageCounter) -> None:
        """Note a counter whose window has just begun."""
        self._open.append((use.window, use))

    def take_open(self) -> list[tuple[int, UsageCounter]]:
        """The counters that may have to be closed, each with its window. The caller gives each of them to `settle`."""
        uses, self._open = self._open, []
        return uses

    def settle(self, window: int, use: UsageCounter, now_us: int | None) -> None:
        """Close a counter if its window is over at `now_us`, else keep it open; without a time, close it at once."""
        if use.window != window:
            return
        if now_us is not None and (now_us + self.offset_us) // _SECOND_US // self.window_s == window:
            self._open.append((window, use))
            return
        use.close()
        client = use.client
        if not client.holders and not client.open:
            self.forget(client)
