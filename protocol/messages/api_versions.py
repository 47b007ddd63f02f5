"""ApiVersions: offers clients what the node offers and the proxy can carry, and what the proxy responds to by itself.

Sources: KIP-35, KIP-511.

The response header is v0 in every version. The response to an ApiVersions request of an unknown version has body v0,
error 35 and the versions that are known.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from struct import Struct

from kafka_throttle.protocol.api_key import (
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    PRODUCE,
)
from kafka_throttle.protocol.api_table import APIS
from kafka_throttle.protocol.errors import MalformedMessage
from kafka_throttle.protocol.fields import FieldReader
from kafka_throttle.protocol.own_requests import Offer as NodeOffer
from kafka_throttle.protocol.own_requests import OwnRequest, VersionRange
from kafka_throttle.protocol.primitives import Reader, uvarint
from kafka_throttle.protocol.splices import Splice

UNSUPPORTED_VERSION = 35

_COUNT = Struct(">i")
_ENTRY = Struct(">hhh")
_ERROR_AND_COUNT = Struct(">hi")
_BODY_AT = 8
_ENTRIES_AT = 14
_FIRST_COMPACT_VERSION = 3

Answered = tuple[tuple[int, VersionRange], ...]
"""The APIs that the proxy responds to by itself, always or if a node has none, by ascending key with their versions."""

ANSWERED: Answered = tuple(
    (key, (APIS[key].min_version, APIS[key].max_version))
    for key in (DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS, DESCRIBE_USER_SCRAM_CREDENTIALS)
)

Offer = Callable[[int], VersionRange | None]
"""api_key -> the lowest and highest version that may be offered; None to leave the API out."""


def carried(api_key: int) -> VersionRange | None:
    """The versions of an API that the proxy can carry: all in the table, for APIs that a broker serves to clients.

    Produce begins at 0, as brokers list it: some releases of librdkafka would otherwise give up compression.
    """
    api = APIS.get(api_key)
    if api is None or "broker" not in api.listeners:
        return None
    return (0 if api_key == PRODUCE else api.min_version, api.max_version)


@dataclass(frozen=True, slots=True)
class Offered:
    """The changes to an ApiVersions response: its splices, and where its throttle time is (-1: it has none)."""

    splices: tuple[Splice, ...]
    throttle_at: int


def intersect(
    frame: bytes | memoryview, api_version: int, offer: Offer = carried, answered: Answered = ANSWERED
) -> Offered:
    """Intersect the entries of an ApiVersions response with `offer`; no splice if nothing changes.

    APIs in `answered` are offered in any case, unless the response is an error. The order, and everything after the
    entries, stays. Raises ProtocolError.
    """
    refused = is_unsupported_version(frame)
    compact = api_version >= _FIRST_COMPACT_VERSION and not refused
    reader = Reader(frame, _BODY_AT)
    error_code = reader.int16()
    start = reader.offset
    count = reader.uvarint() - 1 if compact else reader.int32()
    ours = dict(answered) if not error_code else {}
    kept: list[tuple[int, bytes]] = []
    for _ in range(count):
        api_key, entry = _intersected(reader, frame, compact, offer, ours)
        if entry is not None:
            kept.append((api_key, entry))
    _add_missing(kept, ours, b"\0" if compact else b"")
    length = uvarint(len(kept) + 1) if compact else _COUNT.pack(len(kept))
    entries = length + b"".join(entry for _, entry in kept)
    throttled = api_version >= APIS[API_VERSIONS].throttle_since and not refused
    throttle_at = reader.skip(4) if throttled else -1
    end = throttle_at if throttled else reader.offset
    splices = () if entries == frame[start:end] else (Splice(start, end, entries),)
    return Offered(splices, throttle_at)


def _intersected(
    reader: Reader, frame: bytes | memoryview, compact: bool, offer: Offer, ours: Mapping[int, VersionRange]
) -> tuple[int, bytes | None]:
    """The API key of the entry at the reader, and its new bytes: None if it is left out."""
    start = reader.skip(_ENTRY.size)
    api_key, lowest, highest = _ENTRY.unpack_from(frame, start)
    tags_at = reader.offset
    if compact:
        reader.tags()
    carries = offer(api_key)
    if api_key in ours:
        lowest, highest = ours[api_key]
    elif carries is None:
        return api_key, None
    else:
        lowest, highest = max(lowest, carries[0]), min(highest, carries[1])
    if lowest > highest:
        return api_key, None
    return api_key, _ENTRY.pack(api_key, lowest, highest) + bytes(frame[tags_at : reader.offset])


def _add_missing(kept: list[tuple[int, bytes]], ours: Mapping[int, VersionRange], end: bytes) -> None:
    """Insert each of the proxy's own APIs that the node did not list, before the first API with a higher key."""
    named = {api_key for api_key, _ in kept}
    for api_key, versions in ours.items():
        if api_key not in named:
            at = next((i for i, (other, _) in enumerate(kept) if other > api_key), len(kept))
            kept.insert(at, (api_key, _ENTRY.pack(api_key, *versions) + end))


def versions_request(correlation_id: int) -> bytes:
    """The request, a whole frame, that asks a node for what it offers, in version 0."""
    return offer_request().frame(0, correlation_id)


def offer_request() -> OwnRequest[NodeOffer]:
    """The proxy's own request for what a node offers. It is sent in version 0, to which every node responds."""
    return OwnRequest(API_VERSIONS, lambda _writer, _version: b"", _read_offer)


def _read_offer(reader: FieldReader, _version: int) -> NodeOffer:
    if error_code := reader.int16():
        raise MalformedMessage(f"ApiVersions: error {error_code}")
    return {reader.int16(): (reader.int16(), reader.int16()) for _ in reader.elements(_ENTRY.size)}


def is_whole_offer(frame: bytes) -> bool:
    """Whether the response to `versions_request`, a whole frame, is an offer and nothing else."""
    if len(frame) < _ENTRIES_AT:
        return False
    error_code, count = _ERROR_AND_COUNT.unpack_from(frame, _BODY_AT)
    return bool(error_code == 0 and count > 0 and len(frame) == _ENTRIES_AT + count * _ENTRY.size)


def is_in_offer(frame: bytes, api_key: int) -> bool:
    """Whether a whole offer names an API."""
    return any(key == api_key for key, _, _ in _ENTRY.iter_unpack(frame[_ENTRIES_AT:]))


def is_unsupported_version(frame: bytes | memoryview) -> bool:
    """Whether a response has error 35; its body is then version 0, whatever version the request had."""
    return Reader(frame, _BODY_AT).int16() == UNSUPPORTED_VERSION


def unsupported_version_response(correlation_id: int) -> bytes:
    """The response, a whole frame, to an ApiVersions request of a version that the table does not have (KIP-511)."""
    api = APIS[API_VERSIONS]
    body = Struct(">hihhh").pack(UNSUPPORTED_VERSION, 1, API_VERSIONS, api.min_version, api.max_version)
    return _COUNT.pack(4 + len(body)) + _COUNT.pack(correlation_id) + body
