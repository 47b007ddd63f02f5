"""The same frames under a request quota, at a broker that enforces it and at the proxy before one that does not.

Every API that has a throttle time in its response must get one, of one window at most, and be mute for as long;
requests without a response are exempt; and as many requests get through in the long run, as far as both measure alike.
"""

import time
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from struct import unpack_from
from typing import Any

from demo.kafka_cluster import KafkaCluster
from tests.fidelity import broker, frames
from tests.fidelity.clients import Client, Connection, drive
from tests.fidelity.frames import Call, Frames
from tests.fidelity.loads import KIB, LOADS, WRITTEN, Load, Place
from tests.integration.proxy_process import HOST, ProxyProcess

NODE = 1
WINDOW_MS = 1000
"""The longest throttle for request time; a broker's quota.window.size.seconds."""
WITHIN_MS = 25
EARLY_MS = 3
"""A mute may be seen to last so much less than was said: that is in whole ms, and the response was under way."""
ROUNDED_MS = 2
"""What the proxy's clock of whole ms may make of a time that is measured in ns."""
LATEST_S = 30.0
"""How much longer than a throttle a mute may last on a machine where processes stand still; who is not read at all is
told from it."""

_SCARCE_PERCENT = 0.01
"""0.1 ms of a thread each second: some requests at once, and then a whole window of waiting after each."""
_STEADY_PERCENT = 2.0
_STEADY_CONNECTIONS = 8
_STEADY_S = 24.0
_COUNTED_S = 11.0
_MOST_REQUESTS = 2000
_THROTTLES = 2
_EXEMPT = 500
_EXEMPT_S = 120.0
"""If each of them had to wait for a window it were 500 s."""
_STEADY, _EXEMPT_ID = "steady", "exempt"
BROKER, PROXY = "broker", "proxy"

_ASKED = (
    "ApiVersions",
    "Produce acks=1, 1 KiB",
    "Produce acks=all, 1 KiB",
    "Fetch, 1 KiB",
    "Metadata",
    "OffsetCommit",
    "JoinGroup",
    "Heartbeat",
    "CreateTopics, validated only",
)
_FIND_COORDINATOR = Load("FindCoordinator", lambda connection, place, number: frames.find_coordinator("any"))
ANSWERED = (*(load for load in LOADS if load.name in _ASKED), _FIND_COORDINATOR)


@dataclass(frozen=True, slots=True)
class Throttle:
    """What a response said, and when the next one came: after it, and after its request was begun to be sent.

    From its response on a client that hears late has seen less of the mute than there was; from before its request on,
    no client has.
    """

    throttle_time_ms: int
    mute_ms: float
    since_request_ms: float


@dataclass(slots=True)
class Side:
    """A broker with quotas, or the proxy; and what was seen there: throttles by API, requests/s, and the time that
    requests without a response took. Client-ids begin with its name: no quota holds for them on the other side.
    """

    name: str
    place: Place
    throttles: dict[str, Sequence[Throttle]] = field(default_factory=dict)
    admitted: float = 0.0
    exempt_s: float = 0.0

    def client_id(self, rest: str) -> str:
        """One that only this side holds."""
        return f"{self.name}-{''.join(filter(str.isalnum, rest))}"


def percents(name: str) -> dict[str, float]:
    """The quotas of one side, by client-id."""
    side = Side(name, Place(("", 0), 0))
    scarce = {side.client_id(rest): _SCARCE_PERCENT for rest in (*(load.name for load in ANSWERED), _EXEMPT_ID)}
    return {**scarce, side.client_id(_STEADY): _STEADY_PERCENT}


def entries() -> list[dict[str, Any]]:
    """Those of the proxy as its configuration has them."""
    return [{"client_id": name, "request_percentage": percent} for name, percent in percents(PROXY).items()]


def measure(version: str) -> tuple[Side, Side]:
    """All of it on both sides."""
    with KafkaCluster(version, nodes=1, extra=lambda node_id: broker.PROPERTIES) as cluster:
        broker.make_topics(cluster, NODE)
        with ProxyProcess(cluster, entries()) as proxy:
            both = at_both(cluster, proxy)
            compare(both, ANSWERED)
            admit(both)
            return both


def at_both(cluster: KafkaCluster, proxy: ProxyProcess) -> tuple[Side, Side]:
    """A node that from now on has its quotas, and the proxy before it, which has its own."""
    address = cluster.address(NODE)
    broker.set_request_quotas(address, percents(BROKER))
    return Side(BROKER, Place(address, NODE)), Side(PROXY, Place((HOST, proxy.node_ports[NODE]), NODE))


def compare(both: Sequence[Side], loads: Sequence[Load]) -> None:
    """Have each API throttled on both sides, all at the same time: nearly all of it is waiting."""
    with ThreadPoolExecutor(2 * len(loads) + 2) as threads:
        pending = [(side, load, threads.submit(_throttles, side, load)) for load in loads for side in both]
        exempt = [(side, threads.submit(_exempt_s, side)) for side in both]
        for side, load, throttles in pending:
            side.throttles[load.name] = throttles.result()
        for side, seconds in exempt:
            side.exempt_s = seconds.result()


def _throttles(side: Side, load: Load) -> list[Throttle]:
    """Send as fast as responses come, until some were throttled and the request after each has told for how long."""
    answered = []
    with Connection(side.place.address) as connection:
        asking = Frames(load.prepare(connection, side.place, 0), side.client_id(load.name))
        for _ in range(_MOST_REQUESTS):
            sent_s = time.monotonic()
            answered.append((_throttle_time_ms(connection, asking), sent_s, time.monotonic()))
            if sum(throttle_ms > 0 for throttle_ms, *_ in answered[:-1]) == _THROTTLES:
                break
    return [
        Throttle(throttle_ms, (next_s - at_s) * 1000, (next_s - sent_s) * 1000)
        for (throttle_ms, sent_s, at_s), (_, _, next_s) in pairwise(answered)
        if throttle_ms
    ]


def _throttle_time_ms(connection: Connection, asking: Frames) -> int:
    response = connection.exchange_again(asking)
    assert asking.call.throttle_at is not None
    found: int = unpack_from(">i", response, asking.call.throttle_at % len(response))[0]
    return found


def _exempt_s(side: Side) -> float:
    """How long requests without a response take by a client-id that is over its quota, as another connection knows."""
    client_id, address = side.client_id(_EXEMPT_ID), side.place.address
    asking = Frames(frames.metadata(WRITTEN), client_id)
    unanswered = Frames(frames.produce(WRITTEN, 0, 0, KIB), client_id)
    with Connection(address) as over, Connection(address) as connection:
        while not _throttle_time_ms(over, asking):
            pass
        began_s = time.monotonic()
        for _ in range(_EXEMPT):
            connection.send(unanswered, array("q"))
        connection.exchange(frames.api_versions())
        return time.monotonic() - began_s


def admit(both: Sequence[Side]) -> None:
    """Ask on eight connections of one client-id on both sides at once, and count what is answered in the last 11 s."""
    calls: list[Call] = [frames.produce(WRITTEN, number, 1, KIB) for number in range(_STEADY_CONNECTIONS)]
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Client(side.place.address, side.client_id(_STEADY), calls, None)) for side in both
        ]
        drive(clients, _STEADY_S)
        for side, client in zip(both, clients, strict=True):
            until_ns = client.seen.sent_ns[0] + int(_STEADY_S * 1e9)
            last = [at_ns for at_ns in client.seen.answered_ns if until_ns - _COUNTED_S * 1e9 <= at_ns < until_ns]
            side.admitted = len(last) / _COUNTED_S


def table(both: tuple[Side, Side]) -> str:
    """What both said and did, for each API."""
    lines = [
        "| API | broker, throttle: mute in ms | proxy, throttle: mute in ms |",
        "|---|---|---|",
    ]
    for api in both[0].throttles:
        reported = [
            ", ".join(f"{one.throttle_time_ms}: {one.mute_ms:.0f}" for one in side.throttles[api]) for side in both
        ]
        lines.append(f"| {api} | {reported[0]} | {reported[1]} |")
    of_broker, of_proxy = both
    lines.append(f"| Produce at {_STEADY_PERCENT} %, requests/s | {of_broker.admitted:.0f} | {of_proxy.admitted:.0f} |")
    exempt = [f"{side.exempt_s * 1000:.0f}" for side in both]
    lines.append(f"| {_EXEMPT} Produce acks=0 over the quota, ms | {exempt[0]} | {exempt[1]} |")
    return "\n".join(lines)


def problems(both: tuple[Side, Side], late_ms: float, ratio: tuple[float, float]) -> list[str]:
    """What is not as it should be on either side; mutes of the proxy may be longer than what was said by `late_ms`.

    A broker's are not judged: it counts from when it has the response, which is on its way for a while.
    """
    found = problems_of_throttles(both)
    for api, one in ((api, one) for api, throttles in both[1].throttles.items() for one in throttles):
        if not -EARLY_MS <= one.mute_ms - one.throttle_time_ms <= late_ms:
            found.append(f"{PROXY}, {api}: mute for {one.mute_ms:.0f} ms, but said {one.throttle_time_ms}")
    of_broker, of_proxy = (side.admitted for side in both)
    if not ratio[0] <= of_proxy / of_broker <= ratio[1]:
        found.append(f"{of_proxy:.0f} requests/s got through the proxy, {of_broker:.0f} through the broker")
    return found


def problems_of_throttles(both: Sequence[Side]) -> list[str]:
    """What is wrong however slow the machine is: see `Throttle`."""
    return [problem for side in both for problem in _problems_of(side)]


def _problems_of(side: Side) -> Iterator[str]:
    for api, throttles in side.throttles.items():
        if len(throttles) < _THROTTLES:
            yield f"{side.name}, {api}: never throttled"
        for one in throttles:
            said = f"{side.name}, {api}: a throttle of {one.throttle_time_ms} ms"
            if one.throttle_time_ms > WINDOW_MS:
                yield said
            if side.name == PROXY and one.since_request_ms < one.throttle_time_ms - ROUNDED_MS:
                yield f"{said}, and the next answer {one.since_request_ms:.0f} ms after its request was sent"
            if side.name == PROXY and one.mute_ms > one.throttle_time_ms + LATEST_S * 1000:
                yield f"{said}, and no answer for {one.mute_ms:.0f} ms"
    if side.exempt_s > _EXEMPT_S:
        yield f"{side.name}: {_EXEMPT} requests without an answer took {side.exempt_s:.0f} s"
