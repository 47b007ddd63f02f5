"""Reads what a client says about itself in its first request, or in ApiVersions as the first request after a login.

Only for people: every client may say anything.
"""

from typing import Final, NamedTuple

from kafka_throttle.protocol.api_key import API_VERSIONS
from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.protocol.primitives import Reader
from kafka_throttle.proxy.relay.request import RequestHead, read_request

_NAMES_SOFTWARE_SINCE: Final = 3
"""The first version of ApiVersions with the name and version of the client's software (KIP-511)."""

_MOST_FRAME_BYTES: Final = (1 << 31) - 1


class Introduction(NamedTuple):
    """The client-id of the first request, and the client's software if that request was ApiVersions; else ""."""

    client_id: str = ""
    software_name: str = ""
    software_version: str = ""


def introduction_of(first_bytes: bytes) -> Introduction:
    """What the first bytes of a client, as many as are stored, say about it."""
    try:
        head = read_request(first_bytes, 0, len(first_bytes), _MOST_FRAME_BYTES)
        if head is None:
            return Introduction()
        name, version = _software(head, first_bytes)
    except ProtocolError:
        return Introduction()
    return Introduction(_text(head.client_id), _text(name), _text(version))


def _software(head: RequestHead, first_bytes: bytes) -> tuple[bytes | None, bytes | None]:
    plan = head.plan
    if plan.api_key != API_VERSIONS or plan.api_version < _NAMES_SOFTWARE_SINCE:
        return None, None
    reader = Reader(first_bytes, head.body_at)
    return reader.compact_string(), reader.compact_string()


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode(errors="replace")
