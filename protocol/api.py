"""What the proxy must know of an API to carry it: versions, header rules, where throttle time and addresses are.

A *shape* is a program for walking over one response body: a tuple of ops, each a tuple of an op code below and, for
some, its argument. There are shapes only for responses in which the throttle time or addresses must be searched for.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

NEVER: Final = 32767
"""In place of a first version, if no version has the feature."""

FIXED: Final = 0
"""(FIXED, n): n bytes of fixed-size fields."""
STRING: Final = 1
"""int16 length, below 0 for null, and that many bytes."""
COMPACT_STRING: Final = 2
"""uvarint length + 1, 0 for null, and the bytes."""
BYTES: Final = 3
"""int32 length, below 0 for null, and that many bytes; also records."""
COMPACT_BYTES: Final = 4
"""uvarint length + 1, 0 for null, and the bytes; also records."""
ARRAY: Final = 5
"""(ARRAY, shape): int32 count, below 0 for null, then the shape that many times."""
COMPACT_ARRAY: Final = 6
"""(COMPACT_ARRAY, shape): uvarint count + 1, 0 for null, then the shape that many times."""
TAGS: Final = 7
"""(TAGS, {tag: shape}): a tag buffer, with the shapes of those tagged fields that hold addresses."""
NULLABLE: Final = 8
"""(NULLABLE, shape): one byte, below 0 for null, else the shape follows."""
ENDPOINT: Final = 9
"""node id int32, host STRING, port int32: an address that clients will dial."""
COMPACT_ENDPOINT: Final = 10
"""node id int32, host COMPACT_STRING, port int32."""
THROTTLE: Final = 11
"""throttle_time_ms, int32."""
ENDPOINT_TYPE: Final = 12
"""endpoint_type of DescribeCluster, int8: 1 when the endpoints are brokers, 2 when they are controllers."""
END: Final = 13
"""No field that matters can follow, although bytes do."""
CONTROLLER: Final = 14
"""The node id of the controller, int32."""
LEADER: Final = 15
"""error_code int16, partition index int32, the node id of the partition's leader int32."""

Op: TypeAlias = tuple[Any, ...]
Shape: TypeAlias = tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the API table. Versions are those that brokers serve by default; unstable ones are left out.

    `min_version` to `max_version` has no gaps, and a field that a version introduces stays in the later ones.
    """

    key: int
    name: str
    min_version: int
    max_version: int
    first_flexible: int
    """From this version on, requests have header v2 and responses header v1; NEVER if no version has them."""
    throttle_since: int
    """The first version whose response has throttle_time_ms; NEVER if none has."""
    throttle_offset: int
    """The offset of throttle_time_ms in the response body, in all versions that have it. -1: none, or it must be
    walked to.
    """
    listeners: tuple[str, ...]
    """Which kinds of nodes serve it: broker, controller, zkBroker (a broker of a ZooKeeper cluster)."""
    shapes: tuple[Shape | None, ...]
    """By version - min_version: how to walk over the response body; None if nothing is searched for."""
    rests: tuple[Shape, ...] = ()
    """For Metadata, by version: how to walk on after the nodes, where its shape ends."""
    client_id_since: int = 0
    """The first version whose request header has a client id: 1 for ControlledShutdown (v0 has header v0), else 0."""
    tagged_response_header: bool = True
    """False for ApiVersions: clients read the response before they know the broker's versions (KIP-511)."""


def request_header_version(api: Api, version: int) -> int:
    """The version of the request header: 0 (no client id), 1 (client id) or 2 (client id and tagged fields).

    Also right for unknown versions of the API.
    """
    if version >= api.first_flexible:
        return 2
    return 1 if version >= api.client_id_since else 0


def response_header_version(api: Api, version: int) -> int:
    """The version of the response header: 0 (correlation id) or 1 (correlation id and tagged fields).

    Also right for unknown versions of the API.
    """
    return 1 if version >= api.first_flexible and api.tagged_response_header else 0
