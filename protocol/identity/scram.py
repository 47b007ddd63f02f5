"""The client's side of SCRAM (RFC 5802) with SHA-256 or SHA-512 (RFC 7677), without channel binding.

It does no I/O and uses no random numbers: the caller gives the nonce. Nothing here prints the password, or what is
derived from it.
"""

import binascii
import hashlib
import hmac
from base64 import b64decode, b64encode
from enum import Enum

from kafka_throttle.protocol.errors import ProtocolError

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash function of each mechanism."""

MAX_ITERATIONS = 100_000
"""Brokers allow 16,384. More iterations than this are refused, because with them a server could keep a client busy."""

_MIN_ITERATIONS = 4096
_HEADER = "n,,"
"""No channel binding, and no authorization identity that differs from the user."""


class ScramFailed(ProtocolError):
    """The server's message is not valid, or does not prove that the server knows the password."""


class _Step(Enum):
    FIRST, FINAL, DONE = range(3)


class ScramClient:
    """One login. `nonce` is printable ASCII without a comma, different each time."""

    def __init__(self, mechanism: str, username: str, password: str, nonce: str) -> None:
        self._hash = HASHES[mechanism]
        self._password = password
        self._nonce = nonce
        self._first = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._step = _Step.FIRST
        self._signature = b""

    def first(self) -> bytes:
        """The client-first-message."""
        return f"{_HEADER}{self._first}".encode()

    def respond(self, message: bytes) -> bytes | None:
        """The response to a message of the server; None after the server's last one. Raises ScramFailed."""
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise ScramFailed("its message is not UTF-8") from None
        if text.startswith("e="):
            raise ScramFailed(f"it says {text[2:100]!r}")
        if self._step is _Step.FIRST:
            return self._final(text)
        if self._step is _Step.FINAL:
            self._verify(text)
            return None
        raise ScramFailed("a message after its last one")

    def _final(self, text: str) -> bytes:
        """The client-final-message, which proves that the client knows the password."""
        nonce, salt, iterations = _challenge(text)
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramFailed("its nonce does not begin with the nonce of the client")
        if not _MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ScramFailed(f"expected {_MIN_ITERATIONS} to {MAX_ITERATIONS} iterations, got {iterations}")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password.encode(), salt, iterations)
        without_proof = f"c={b64encode(_HEADER.encode()).decode()},r={nonce}"
        signed = f"{self._first},{text},{without_proof}".encode()
        client_key = self._mac(salted, b"Client Key")
        signature = self._mac(hashlib.new(self._hash, client_key).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = self._mac(self._mac(salted, b"Server Key"), signed)
        self._step = _Step.FINAL
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def _verify(self, text: str) -> None:
        attribute, _, value = text.partition(",")[0].partition("=")
        if attribute != "v" or not hmac.compare_digest(_decoded(value), self._signature):
            raise ScramFailed("it does not prove that it knows the password")
        self._step = _Step.DONE

    def _mac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _challenge(text: str) -> tuple[str, bytes, int]:
    """Nonce, salt and iterations of a server-first-message; extensions after them are ignored."""
    parts = [part.partition("=") for part in text.split(",")]
    if [name for name, _, _ in parts[:3]] != ["r", "s", "i"]:
        raise ScramFailed("expected nonce, salt and iterations")
    (_, _, nonce), (_, _, salt), (_, _, iterations) = parts[:3]
    if not (iterations.isascii() and iterations.isdigit() and len(iterations) < 10):
        raise ScramFailed("expected a number of iterations")
    return nonce, _decoded(salt), int(iterations)


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramFailed("expected Base64") from None
