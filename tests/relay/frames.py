"""Small frames, made by hand: enough of each API for a relay to see what it looks for."""

from struct import pack

from kafka_throttle.protocol.api_key import FETCH, HEARTBEAT, PRODUCE


def frame(payload: bytes) -> bytes:
    """`payload` behind its length."""
    return pack(">i", len(payload)) + payload


def request(
    api_key: int,
    version: int,
    body: bytes = b"",
    *,
    corr: int = 1,
    client_id: bytes | None = b"etl",
    tags: bool = False,
) -> bytes:
    """A request with header v1, or v2 with `tags`."""
    name = pack(">h", -1) if client_id is None else pack(">h", len(client_id)) + client_id
    return frame(pack(">hhi", api_key, version, corr) + name + (b"\0" if tags else b"") + body)


def produce(corr: int = 1, *, size: int = 100, acks: int = 1, client_id: bytes | None = b"etl") -> bytes:
    """A Produce v7 request whose frame is `size` bytes long without its length prefix."""
    head = len(request(PRODUCE, 7, pack(">hhi", -1, acks, 30_000), client_id=client_id)) - 4
    return request(PRODUCE, 7, pack(">hhi", -1, acks, 30_000) + b"r" * (size - head), corr=corr, client_id=client_id)


def produced(corr: int = 1, throttle_time_ms: int = 0) -> bytes:
    """The response to a Produce v7 request: one topic, one partition."""
    partition = pack(">ihqqq", 0, 0, 5, -1, 0)
    topics = pack(">i", 1) + pack(">h", 1) + b"t" + pack(">i", 1) + partition
    return frame(pack(">i", corr) + topics + pack(">i", throttle_time_ms))


def fetch(corr: int = 1, *, max_bytes: int = 52_428_800, min_bytes: int = 1, client_id: bytes = b"etl") -> bytes:
    """A Fetch v11 request without topics."""
    body = pack(">iiiibii", -1, 500, min_bytes, max_bytes, 0, 0, -1) + pack(">ii", 0, 0) + pack(">h", 0)
    return request(FETCH, 11, body, corr=corr, client_id=client_id)


def fetched(corr: int = 1, *, size: int = 1000, throttle_time_ms: int = 0) -> bytes:
    """The response to a Fetch v11 request whose frame is `size` bytes long without its length prefix."""
    head = pack(">iihi", corr, throttle_time_ms, 0, 0)
    return frame(head + b"f" * (size - len(head)))


def heartbeat(corr: int = 1, *, client_id: bytes | None = b"etl") -> bytes:
    """A Heartbeat v2 request."""
    return request(
        HEARTBEAT,
        2,
        pack(">h", 1) + b"g" + pack(">i", 1) + pack(">h", 1) + b"m",
        corr=corr,
        client_id=client_id,
    )


def heartbeaten(corr: int = 1, throttle_time_ms: int = 0) -> bytes:
    """The response to a Heartbeat v2 request."""
    return frame(pack(">iih", corr, throttle_time_ms, 0))
