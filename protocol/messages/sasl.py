"""The frames of a SASL authentication: SaslHandshake, SaslAuthenticate, and the bare tokens after handshake v0.

Nothing here stores a token: a token is returned as a view into the frame that it came in, and is never printed.
Sources: `SaslHandshakeRequest.json`, `SaslAuthenticateRequest.json` and their responses, KIP-43, KIP-152, KIP-368.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_throttle.protocol.api_key import SASL_AUTHENTICATE, SASL_HANDSHAKE
from kafka_throttle.protocol.errors import MalformedMessage
from kafka_throttle.protocol.fields import FieldReader, FieldWriter
from kafka_throttle.protocol.own_requests import OwnRequest
from kafka_throttle.protocol.primitives import Reader

SASL_APIS = frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE})

BARE_TOKENS_VERSION = 0
"""After a SaslHandshake of this version tokens have no header: an int32 length and the bytes, in both directions."""

BARE = -1
"""In place of a version of SaslAuthenticate: a token without a header."""

NONE = 0
"""The error code of success."""

UNSUPPORTED_SASL_MECHANISM = 33
ILLEGAL_SASL_STATE = 34

_LIFETIME_SINCE = 1
_AUTHENTICATE_FLEXIBLE_SINCE = 2
_SIZE_BYTES = 4
_MAX_WORDS_BYTES = 500
_RESPONSE_BODY_AT = 8


@dataclass(slots=True, frozen=True)
class SaslToken:
    """A response to a token: an error code, the reason (if the node gives one), and the token of the node.

    `lifetime_ms` is how long the connection is authenticated, 0 for as long as it stands (KIP-368).
    """

    error_code: int
    token: memoryview = field(repr=False)
    error_message: str = ""
    lifetime_ms: int = 0


class Handshake(NamedTuple):
    """The content of a response to SaslHandshake: an error code, and the mechanisms that the node accepts."""

    error_code: int
    mechanisms: Sequence[str]


def handshake_request(mechanism: str) -> OwnRequest[Handshake]:
    """The request for a mechanism. After it, tokens are sent in SaslAuthenticate requests."""

    def read(reader: FieldReader, _version: int) -> Handshake:
        return Handshake(reader.int16(), [reader.text() for _ in reader.elements(2)])

    return OwnRequest(SASL_HANDSHAKE, lambda writer, _: writer.text(mechanism), read, BARE_TOKENS_VERSION + 1)


def authenticate_request(token: bytes) -> OwnRequest[SaslToken]:
    """The request that sends a token."""

    def written(writer: FieldWriter, _version: int) -> bytes:
        return writer.blob(token) + writer.end

    def read(reader: FieldReader, version: int) -> SaslToken:
        error_code, message = reader.int16(), reader.nullable_text()
        answer = memoryview(reader.blob())
        lifetime_ms = reader.int64() if version >= _LIFETIME_SINCE else 0
        return SaslToken(error_code, answer, (message or "")[:_MAX_WORDS_BYTES], lifetime_ms)

    return OwnRequest(SASL_AUTHENTICATE, written, read)


def read_handshake(frame: bytes, body_at: int) -> str:
    """The mechanism that a SaslHandshake request names. Raises ProtocolError."""
    mechanism = Reader(frame, body_at).string()
    if mechanism is None:
        raise MalformedMessage("SaslHandshake: no mechanism")
    return mechanism.decode(errors="replace")


def read_handshake_response(frame: bytes) -> int:
    """The error code of a response to SaslHandshake. Raises ProtocolError."""
    return Reader(frame, _RESPONSE_BODY_AT).int16()


def read_authenticate(frame: bytes, body_at: int, api_version: int) -> memoryview:
    """The token in a SaslAuthenticate request. Raises ProtocolError."""
    return _token(Reader(frame, body_at), frame, api_version)


def read_authenticate_response(frame: bytes, api_version: int) -> SaslToken:
    """The error code, error message and token of a response to SaslAuthenticate. Raises ProtocolError."""
    reader = Reader(frame, _RESPONSE_BODY_AT)
    if api_version >= _AUTHENTICATE_FLEXIBLE_SINCE:
        reader.tags()
    error_code = reader.int16()
    message = reader.compact_string() if api_version >= _AUTHENTICATE_FLEXIBLE_SINCE else reader.string()
    words = (message or b"")[:_MAX_WORDS_BYTES].decode(errors="replace")
    return SaslToken(error_code, _token(reader, frame, api_version), words)


def bare_token(frame: bytes) -> memoryview:
    """The token in a frame that consists only of a length and a token."""
    return memoryview(frame)[_SIZE_BYTES:]


def _token(reader: Reader, frame: bytes, api_version: int) -> memoryview:
    length = reader.uvarint() - 1 if api_version >= _AUTHENTICATE_FLEXIBLE_SINCE else reader.int32()
    if length < 0:
        raise MalformedMessage("SaslAuthenticate: no token")
    start = reader.skip(length)
    return memoryview(frame)[start : reader.offset]
