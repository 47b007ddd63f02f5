"""Rewrites node addresses in responses (Metadata, FindCoordinator, DescribeCluster, NodeEndpoints of KIP-951)."""

from collections.abc import Collection, Sequence

from kafka_throttle.protocol.errors import MalformedMessage
from kafka_throttle.protocol.primitives import UVARINT_MAX_BYTES, compact_string, int16, int32, string, uvarint
from kafka_throttle.protocol.splices import Splice, grows_by
from kafka_throttle.protocol.walk import BROKERS, Endpoint, Walk

Address = tuple[bytes, int]
"""The host as UTF-8, and the port."""

LEADER_NOT_AVAILABLE = 5
COORDINATOR_NOT_AVAILABLE = 15
NOBODY = -1
"""In place of the id of a node whose address clients do not get."""

HIDDEN_TAG = 0x7F
"""The number that a tagged field gets when a client must not see it: no API has it, and it is one byte long."""


def rewritable(walk: Walk) -> list[Endpoint]:
    """The endpoints of a response that name a node: not those of a failed look-up, and not those of controllers.

    Raises MalformedMessage for an address that belongs to no node: there is no address to put in its place.
    """
    if walk.endpoint_type != BROKERS:
        return []
    for endpoint in walk.endpoints:
        if endpoint.node_id < 0 and endpoint.host:
            raise MalformedMessage(f"node {endpoint.node_id} with a host")
    return [endpoint for endpoint in walk.endpoints if endpoint.node_id >= 0 and endpoint.host]


def hints_bytes(walk: Walk, frame_end: int) -> int:
    """How many bytes NodeEndpoints take: without them a Fetch or ShareFetch response would be shorter by so much.

    The array of ShareFetch is not a tagged field: it is in [tail_at, frame_end - 1), and the one byte of its length
    would remain.
    """
    if walk.endpoint_tag is not None:
        return walk.endpoint_tag.end - walk.endpoint_tag.at
    return frame_end - walk.tail_at - 2 if walk.endpoints else 0


def address_splices(walk: Walk, advertised: Sequence[Address | None]) -> list[Splice]:
    """The splices that put advertised addresses in place of the rewritable ones, ascending; those with None stay."""
    places = zip(rewritable(walk), advertised, strict=True)
    splices = [_address_splice(endpoint, address) for endpoint, address in places if address is not None]
    tag = walk.endpoint_tag
    if tag is not None and splices:
        size = uvarint(tag.end - tag.start + grows_by(splices))
        splices.insert(0, Splice(tag.size_at, tag.start, size))
    return splices


def _address_splice(endpoint: Endpoint, address: Address) -> Splice:
    host, port = address
    text = compact_string(host) if endpoint.compact else string(host)
    return Splice(endpoint.start, endpoint.end, text + int32(port))


def leaving_out(walk: Walk, node_ids: Collection[int]) -> list[Splice]:
    """The splices that take nodes out of the list of Metadata or DescribeCluster."""
    endpoints = walk.endpoints
    ends = [endpoint.start - 4 for endpoint in endpoints[1:]] + [walk.tail_at]
    gone = [
        Splice(endpoint.start - 4, end, b"")
        for endpoint, end in zip(endpoints, ends, strict=True)
        if endpoint.node_id in node_ids
    ]
    left = len(endpoints) - len(gone)
    length = uvarint(left + 1) if endpoints[0].compact else int32(left)
    return [Splice(walk.array_at, endpoints[0].start - 4, length), *gone]


def leaderless_splices(walk: Walk) -> list[Splice]:
    """The splices for partitions and controllers whose leader is one of the walk's `leaders`. No length changes.

    The response becomes that of a broker that knows no address of the leader: LEADER_NOT_AVAILABLE, and no leader.
    """
    splices: list[Splice] = []
    for at, is_partition in walk.led:
        if is_partition:
            splices.append(Splice(at, at + 2, int16(LEADER_NOT_AVAILABLE)))
            at += 6
        splices.append(Splice(at, at + 4, int32(NOBODY)))
    walk.led.clear()
    return splices


def coordinators_away(walk: Walk, node_ids: Collection[int], error_at: int | None) -> list[Splice]:
    """The splices that make coordinators at `node_ids` unavailable, in a response to FindCoordinator.

    The error code is at `error_at`; None: after each address, as since version 4.
    """
    splices: list[Splice] = []
    for endpoint in rewritable(walk):
        if endpoint.node_id in node_ids:
            nowhere = (compact_string(b"") if endpoint.compact else string(b"")) + int32(NOBODY)
            splices.append(Splice(endpoint.start - 4, endpoint.end, int32(NOBODY) + nowhere))
            at = endpoint.end if error_at is None else error_at
            splices.append(Splice(at, at + 2, int16(COORDINATOR_NOT_AVAILABLE)))
    return splices


def without_hints(walk: Walk, frame_end: int) -> list[Splice]:
    """The splices that take NodeEndpoints out of a response that is here whole: clients then ask for Metadata."""
    if walk.endpoint_tag is not None:
        return hiding_splices(walk, frame_end)
    return [Splice(walk.tail_at, frame_end - 1, uvarint(1))]


def hiding_splices(walk: Walk, frame_end: int) -> list[Splice]:
    """The splices that hide NodeEndpoints from the client and do not change the frame's length.

    They are for a response whose length prefix was sent already. A tagged field only changes its number. The array of
    ShareFetch and ShareAcknowledge becomes empty, and its bytes become an unknown tagged field at the end. A client
    without the hint asks for Metadata, as it did before KIP-951.
    """
    if not rewritable(walk):
        return []
    if walk.endpoint_tag is not None:
        at = walk.endpoint_tag.at
        return [Splice(at, at + 1, bytes([HIDDEN_TAG]))]
    return _hide_array(walk, frame_end)


def _hide_array(walk: Walk, frame_end: int) -> list[Splice]:
    """Hide the array in [tail_at, frame_end - 1), which an empty tag buffer follows."""
    start = walk.tail_at
    filling = frame_end - start - 3
    if filling < 1:
        raise MalformedMessage(f"{filling} bytes of endpoints at the end of a large response")
    tagged = bytes([1, 1, HIDDEN_TAG]) + _size_within(filling)
    return [Splice(start, frame_end, tagged + bytes(frame_end - start - len(tagged)))]


def _size_within(filling: int) -> bytes:
    """The uvarint size of a tagged field that takes `filling` bytes together with its size.

    A size just below a power of 128 takes one byte more than it needs.
    """
    count = next(count for count in range(1, UVARINT_MAX_BYTES + 1) if filling - count < 1 << 7 * count)
    size = filling - count
    more = [size >> 7 * i & 0x7F | 0x80 for i in range(count - 1)]
    return bytes([*more, size >> 7 * (count - 1)])
