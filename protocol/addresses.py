"""Rewriting node addresses in answers (Metadata, FindCoordinator, DescribeCluster, NodeEndpoints of KIP-951)."""

from collections.abc import Callable

from protocol.errors import MalformedMessage
from protocol.primitives import compact_string, int32, string, uvarint
from protocol.splices import Splice, grows_by
from protocol.walk import BROKERS, Endpoint, Walk

Address = tuple[bytes, int]
"""Host as UTF-8 and port."""

HIDDEN_TAG = 0x7F
"""The number that a tagged field gets when a client must not see it: unknown to all, one byte long."""


def rewritable(walk: Walk) -> list[Endpoint]:
    """The endpoints of an answer that name a node: not those of a failed look-up, nor those of controllers.

    Raises MalformedMessage for an address that belongs to no node: nobody could stand in for it.
    """
    if walk.endpoint_type != BROKERS:
        return []
    for endpoint in walk.endpoints:
        if endpoint.node_id < 0 and endpoint.host:
            raise MalformedMessage(f"node {endpoint.node_id} with a host")
    return [endpoint for endpoint in walk.endpoints if endpoint.node_id >= 0 and endpoint.host]


def hints_bytes(walk: Walk, frame_end: int) -> int:
    """How many bytes NodeEndpoints take: what a Fetch or ShareFetch answer would be shorter by without them.

    The plain array of ShareFetch, in [tail_at, frame_end - 1), leaves the one byte of its length.
    """
    if walk.endpoint_tag is not None:
        return walk.endpoint_tag.end - walk.endpoint_tag.at
    return frame_end - walk.tail_at - 2 if walk.endpoints else 0


def address_splices(walk: Walk, advertised: Callable[[int], Address]) -> list[Splice]:
    """The splices that put `advertised(node_id)` in place of each node's address, ascending."""
    splices = [_address_splice(endpoint, advertised(endpoint.node_id)) for endpoint in rewritable(walk)]
    tag = walk.endpoint_tag
    if tag is not None and splices:
        size = uvarint(tag.end - tag.start + grows_by(splices))
        splices.insert(0, Splice(tag.size_at, tag.start, size))
    return splices


def _address_splice(endpoint: Endpoint, address: Address) -> Splice:
    host, port = address
    text = compact_string(host) if endpoint.compact else string(host)
    return Splice(endpoint.start, endpoint.end, text + int32(port))


def hiding_splices(walk: Walk, frame_end: int) -> list[Splice]:
    """Splices that hide NodeEndpoints from the client and leave the frame's length as it is.

    For an answer whose length prefix is already on its way: a tagged field only changes its number; the plain array
    of ShareFetch and ShareAcknowledge becomes empty, and its bytes an unknown tagged field at the end. A client
    without the hint asks for Metadata, as it did before KIP-951.
    """
    if not rewritable(walk):
        return []
    if walk.endpoint_tag is not None:
        at = walk.endpoint_tag.at
        return [Splice(at, at + 1, bytes([HIDDEN_TAG]))]
    return _hide_array(walk, frame_end)


def _hide_array(walk: Walk, frame_end: int) -> list[Splice]:
    """The array in [tail_at, frame_end - 1), followed by an empty tag buffer."""
    start = walk.tail_at
    filling = frame_end - start - 3
    if filling < 2 or filling > 16_000:
        raise MalformedMessage(f"{filling} bytes of endpoints behind a large answer")
    tagged = bytes([1, 1, HIDDEN_TAG]) + _size_within(filling)
    return [Splice(start, frame_end, tagged + bytes(frame_end - start - len(tagged)))]


def _size_within(filling: int) -> bytes:
    """The uvarint size of a tagged field that takes `filling` bytes together with its size."""
    if filling <= 128:
        return uvarint(filling - 1)
    return bytes([(filling - 2) & 0x7F | 0x80, (filling - 2) >> 7])
