"""Recognises the protocol of bytes that are not Kafka's, for the log line."""

from typing import Final

TLS_HANDSHAKE: Final = "a TLS handshake"
"""The name of what a TLS client sends first."""

_TLS_RECORDS: Final = {0x14: "TLS", 0x15: "a TLS alert", 0x16: TLS_HANDSHAKE, 0x17: "TLS data"}
_STARTS: Final = (
    (b"GET ", "an HTTP request"),
    (b"POST", "an HTTP request"),
    (b"PUT ", "an HTTP request"),
    (b"HEAD", "an HTTP request"),
    (b"OPTI", "an HTTP request"),
    (b"DELE", "an HTTP request"),
    (b"CONN", "an HTTP request"),
    (b"PRI ", "an HTTP/2 request"),
    (b"HTTP", "an HTTP response"),
    (b"SSH-", "SSH"),
    (b"PROX", "a PROXY protocol v1 header"),
    (b"\r\n\r\n", "a PROXY protocol v2 header"),
)


def looks_like(first_bytes: bytes) -> str | None:
    """The name of the protocol that begins with `first_bytes` (4 are enough); None if it is not a known one."""
    if len(first_bytes) >= 2 and first_bytes[0] in _TLS_RECORDS and first_bytes[1] == 3:
        return _TLS_RECORDS[first_bytes[0]]
    for start, name in _STARTS:
        if first_bytes.startswith(start):
            return name
    return None
