"""Base64 as tokens use it (RFC 4648, 5): "-" and "_" for "+" and "/", and often without padding."""

from base64 import b64decode

_TO_PLAIN_BASE64 = str.maketrans("-_", "+/")


def from_base64url(text: str) -> bytes:
    """The bytes that a text encodes, with or without padding. Raises ValueError."""
    plain = text.translate(_TO_PLAIN_BASE64).rstrip("=")
    return b64decode(plain + "=" * (-len(plain) % 4), validate=True)
