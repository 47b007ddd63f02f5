"""What models remember of requests and responses on their way, and what they count."""

from dataclasses import dataclass, field

from kafka_throttle.quotas.entities import QuotaType
from tests.simulation import topics, wire
from tests.simulation.judge import Settlement


@dataclass(slots=True)
class Taken:
    """A request that the relay has sent on, or responds to by itself. `at` is its place in the client's stream.

    Nothing is sent on behind one that goes `alone` until its response is here. An `is_own_request` is the proxy's, for
    the request at its place. `throttle_at` is where the throttle time stands in an `own_response`, `sent_bytes` what
    goes to the node, `settlement` what the response to it needs. `timed` is the sensor of its request time, until that
    is charged; `limited`: there was a quota for it when it was taken. `may_be_emptied`: over quota its response
    has no data. `room_bytes`: the most that a Fetch with a quota may bring.
    """

    head: wire.Head
    at: int
    muted_until_ms: int
    fetch_handle: int | None
    own_response: bytes | None = None
    alone: bool = False
    is_own_request: bool = False
    throttle_at: int = -1
    sent_bytes: int = 0
    settlement: Settlement | None = None
    timed: int | None = None
    limited: bool = False
    may_be_emptied: bool = False
    kept_bytes: int = 0
    room_bytes: int = 0


@dataclass(slots=True)
class Written:
    """A response that the node has written, as far as the relay was given it and has sent it. `reported_ms` is the
    throttle time that it reports to the client, once that is `reported`.
    """

    response: wire.Response
    fed_bytes: int = 0
    request: Taken | None = None
    charged: bool = False
    sent_bytes: int = 0
    expected: bytes = b""
    reported: bool = False
    reported_ms: int = 0
    as_empty_fetch: bool = False
    dropped: bool = False
    merged: bytes = b""

    @property
    def all_fed(self) -> bool:
        """Whether the relay was given all of it."""
        return self.fed_bytes == len(self.response.frame)

    @property
    def is_due(self) -> bool:
        """Whether it must have been sent on, or refused."""
        return self.all_fed and not self.response.ending


@dataclass(slots=True)
class ForClient:
    """One response on its way to the client: how long it is, and the throttle time that it reports."""

    frame_bytes: int
    throttle_ms: int


@dataclass(slots=True)
class WindowUsage:
    """What relays have counted, summed up by the models."""

    requests_by_api: dict[int, int] = field(default_factory=dict)
    request_bytes: int = 0
    responses: int = 0
    response_bytes: int = 0
    throttles: dict[QuotaType, int] = field(default_factory=lambda: dict.fromkeys(QuotaType, 0))
    throttled_ms: dict[QuotaType, int] = field(default_factory=lambda: dict.fromkeys(QuotaType, 0))
    throttles_by_node: int = 0
    as_empty_fetch: int = 0
    withheld_bytes: int = 0
    mutations_refused: int = 0
    logins: int = 0
    logins_failed: int = 0


def merged(settlement: Settlement, response: wire.Response) -> bytes:
    """The response with our refusals among the node's results, in the order of the request. Results of topics that
    the request does not name are last.
    """
    if not settlement.refusals:
        return response.frame
    call, results = settlement.call, list(response.results)
    found = dict(
        zip(settlement.passed, topics.matched([call.items[i] for i in settlement.passed], results), strict=True)
    )
    pieces = []
    for i in range(len(call.items)):
        result = found.get(i)
        if i in settlement.refusals:
            pieces.append(settlement.refusals[i])
        elif result is not None:
            pieces.append(result.data)
            results = [other for other in results if other is not result]
    pieces += [result.data for result in results]
    start, end = response.array
    return wire.framed(
        response.frame[4:start] + wire.count(len(pieces), True) + b"".join(pieces) + response.frame[end:]
    )


def difference(given: bytes, expected: bytes | bytearray) -> str:
    """Where, and how, what was given begins to be other than what was expected."""
    shorter = min(len(given), len(expected))
    at = next((i for i in range(shorter) if given[i] != expected[i]), shorter)
    return f"at {at}: {bytes(given[at : at + 12]).hex()} instead of {bytes(expected[at : at + 12]).hex()}"
