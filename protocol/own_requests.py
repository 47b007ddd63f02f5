"""The proxy's own requests to a node: their frames, in the newest version that both sides support."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from kafka_throttle.protocol.api import request_header_version, response_header_version
from kafka_throttle.protocol.api_table import APIS
from kafka_throttle.protocol.errors import MalformedMessage
from kafka_throttle.protocol.fields import MAX_TAGS, FieldReader, FieldWriter
from kafka_throttle.protocol.primitives import Reader, int16, int32, string

Result = TypeVar("Result")
VersionRange = tuple[int, int]
Offer = Mapping[int, VersionRange]
"""By API key, the lowest and the highest version that a node offers."""

CLIENT_ID = b"kafka-throttle"
_CORRELATION_ID_AT = 4
_BODY_AT = 8


@dataclass(frozen=True, slots=True)
class OwnRequest(Generic[Result]):
    """How the body of a request is written in each version, and how the body of its response is read.

    `read` raises ProtocolError. `first_version` is the lowest version that has all fields that are needed.
    A response is decoded in one step, so one of more than `most_bytes` is not read at all.
    """

    api_key: int
    write: Callable[[FieldWriter, int], bytes]
    read: Callable[[FieldReader, int], Result]
    first_version: int = 0
    most_bytes: int = 2 << 20

    @property
    def name(self) -> str:
        return APIS[self.api_key].name

    @property
    def versions(self) -> VersionRange:
        """The lowest and the highest version in which it can be sent."""
        api = APIS[self.api_key]
        return max(self.first_version, api.min_version), api.max_version

    def version_for(self, offer: Offer) -> int | None:
        """The newest version that both sides support; None if there is none."""
        if self.api_key not in offer:
            return None
        (lowest, highest), (offered_lowest, offered_highest) = self.versions, offer[self.api_key]
        version = min(highest, offered_highest)
        return version if version >= max(lowest, offered_lowest) else None

    def frame(self, version: int, correlation_id: int) -> bytes:
        """The whole frame of the request."""
        api = APIS[self.api_key]
        head = int16(self.api_key) + int16(version) + int32(correlation_id) + string(CLIENT_ID)
        tags = b"\0" if request_header_version(api, version) == 2 else b""
        message = head + tags + self.write(FieldWriter(version >= api.first_flexible), version)
        return int32(len(message)) + message

    def response(self, frame: bytes, version: int, correlation_id: int) -> tuple[Result, int]:
        """The content of a response, a whole frame, and its throttle_time_ms. Raises ProtocolError."""
        api = APIS[self.api_key]
        head = Reader(frame, _CORRELATION_ID_AT)
        if (found := head.int32()) != correlation_id:
            raise MalformedMessage(f"the response to request {found}, expected that to {correlation_id}")
        if response_header_version(api, version):
            head.tags(MAX_TAGS)
        has_throttle = version >= api.throttle_since and api.throttle_offset >= 0
        throttle_ms = Reader(frame, head.offset + api.throttle_offset).int32() if has_throttle else 0
        return self.read(FieldReader(frame, head.offset, version >= api.first_flexible), version), max(throttle_ms, 0)
