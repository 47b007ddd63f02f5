"""SASL frames and tokens, made by hand as clients and nodes make them."""

import base64
import json
from struct import pack
from typing import Any

from kafka_throttle.protocol.api_key import SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.relay.frames import frame, request

SIGNED = base64.urlsafe_b64encode(b"signature").decode()

NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = f"r={NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
VERIFIER = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
"""The exchange of RFC 7677, for the user `user` with the password `pencil`."""


def handshake(mechanism: str = "PLAIN", version: int = 1, corr: int = 1) -> bytes:
    """A SaslHandshake request."""
    raw = mechanism.encode()
    return request(SASL_HANDSHAKE, version, pack(">h", len(raw)) + raw, corr=corr)


def handshaken(corr: int = 1, error: int = 0, mechanisms: tuple[str, ...] = ("PLAIN",)) -> bytes:
    """The response to it."""
    names = b"".join(pack(">h", len(name)) + name.encode() for name in mechanisms)
    return frame(pack(">ihi", corr, error, len(mechanisms)) + names)


def authenticate(token: bytes, version: int = 1, corr: int = 2) -> bytes:
    """A SaslAuthenticate request."""
    if version < 2:
        return request(SASL_AUTHENTICATE, version, pack(">i", len(token)) + token, corr=corr)
    return request(SASL_AUTHENTICATE, version, uvarint(len(token) + 1) + token + b"\0", corr=corr, tags=True)


def authenticated(
    token: bytes = b"", version: int = 1, corr: int = 2, error: int = 0, session_ms: int = 0, text: bytes | None = None
) -> bytes:
    """The response to it."""
    lifetime = pack(">q", session_ms) if version else b""
    if version < 2:
        message = pack(">h", -1) if text is None else pack(">h", len(text)) + text
        return frame(pack(">ih", corr, error) + message + pack(">i", len(token)) + token + lifetime)
    message = b"\0" if text is None else uvarint(len(text) + 1) + text
    return frame(pack(">ibh", corr, 0, error) + message + uvarint(len(token) + 1) + token + lifetime + b"\0")


def plain(user: bytes, password: bytes = b"secret", authzid: bytes = b"") -> bytes:
    """A token of PLAIN."""
    return b"\0".join((authzid, user, password))


def log_in(script: Any) -> None:
    """Have whoever takes `client` and `node` bytes see a login of alice that succeeds."""
    script.client(handshake())
    script.node(handshaken())
    script.client(authenticate(plain(b"alice")))
    script.node(authenticated())


def scram_first(user: str, *, authzid: str = "", extensions: str = "") -> bytes:
    """A client-first message of SCRAM; the user as it is to stand there."""
    return f"n,{authzid},n={user},r=nonce{extensions}".encode()


def oauthbearer(token: str, *, authzid: str = "", more: str = "") -> bytes:
    """An initial response of OAUTHBEARER."""
    return f"n,{authzid},\1auth=Bearer {token}\1{more}\1".encode()


def jwt(claims: object, signature: str = SIGNED) -> str:
    """A token with these claims, as base64url without padding."""
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims))
    return ".".join((*parts, signature))


def msk_token(url: str) -> str:
    """A signed URL as AWS's libraries for Amazon MSK send it: base64url without padding."""
    return base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def uvarint(value: int) -> bytes:
    """`value` as unsigned LEB128."""
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])
