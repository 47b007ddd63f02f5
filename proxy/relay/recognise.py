"""What bytes that are not Kafka's look like, for the log line that names it."""

TLS_HANDSHAKE = "a TLS handshake"
"""How a TLS client begins."""

_TLS_RECORDS = {0x14: "TLS", 0x15: "a TLS alert", 0x16: TLS_HANDSHAKE, 0x17: "TLS data"}
_STARTS = (
    (b"GET ", "an HTTP request"),
    (b"POST", "an HTTP request"),
    (b"PUT ", "an HTTP request"),
    (b"HEAD", "an HTTP request"),
    (b"OPTI", "an HTTP request"),
    (b"DELE", "an HTTP request"),
    (b"CONN", "an HTTP request"),
    (b"PRI ", "an HTTP/2 request"),
    (b"HTTP", "an HTTP answer"),
    (b"SSH-", "SSH"),
    (b"PROX", "a PROXY protocol v1 header"),
    (b"\r\n\r\n", "a PROXY protocol v2 header"),
)


def looks_like(first_bytes: bytes) -> str | None:
    """A name for the protocol that begins with `first_bytes` (4 are enough), None if it is none of the usual ones."""
    if len(first_bytes) >= 2 and first_bytes[0] in _TLS_RECORDS and first_bytes[1] == 3:
        return _TLS_RECORDS[first_bytes[0]]
    for start, name in _STARTS:
        if first_bytes.startswith(start):
            return name
    return None
