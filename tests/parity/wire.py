"""A relay between Kafka's clients and nodes that sends everything on at once, and records each request and response."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Self

from kafka_throttle.protocol.api_key import END_TXN, INIT_PRODUCER_ID, PRODUCE
from kafka_throttle.protocol.api_table import APIS
from kafka_throttle.protocol.primitives import Reader
from kafka_throttle.proxy.relay.plans import PLANS, plan_key

_READ_BYTES = 1 << 16
_TOPIC_ID_BYTES = 16
_TOPIC_ID_SINCE = 13
_FLEXIBLE_SINCE = 9
_ERROR_BEHIND_THROTTLE = (END_TXN, INIT_PRODUCER_ID)
_BEFORE_PRODUCER_ID = 43
"""How many bytes of a record batch are before the id of its producer (KIP-98)."""
_OFFSET_TIME_FIRST_OFFSET = 24


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch of an idempotent producer; the topic is its name, or its id from version 13 on."""

    topic: bytes
    partition: int
    producer_id: int
    epoch: int
    sequence: int
    records: int

    @property
    def number(self) -> tuple[bytes, int, int, int, int]:
        """What a batch that is sent again has in common with the first time, and with no other."""
        return self.topic, self.partition, self.producer_id, self.epoch, self.sequence


@dataclass(slots=True)
class Exchange:
    """A request and its response. The times are when the last byte of each was here; all relays have the same clock."""

    connection: int
    api_key: int
    version: int
    correlation_id: int
    client_id: str
    request_bytes: int
    """Without the length prefix, as quotas count it."""
    sent_s: float
    batches: list[Batch] = field(default_factory=list)
    answered_s: float | None = None
    throttle_time_ms: int = 0
    errors: list[int] = field(default_factory=list)
    """Of a Produce, the error code of each partition; of EndTxn and InitProducerId, the one that there is."""

    @property
    def api(self) -> str:
        """The name of the API."""
        return APIS[self.api_key].name


class Wire:
    """Listens at `host` on ports on which others listen at `target`. A context manager with a thread of its own.

    Produce is read from version 9 on.
    """

    def __init__(self, host: str, target: str, ports: Iterable[int]) -> None:
        self.exchanges: list[Exchange] = []
        """In the order of the requests."""
        self.ports = sorted(ports)
        self._host, self._target = host, target
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    @property
    def bootstrap(self) -> str:
        """Where it listens, as host:port."""
        return ",".join(f"{self._host}:{port}" for port in self.ports)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for port in self.ports:
                server = await asyncio.start_server(self._carrier(port), self._host, port)
                stack.callback(server.close)
            self._ready.set()
            await self._stop.wait()
        carrying = asyncio.all_tasks() - {asyncio.current_task()}
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)

    def _carrier(self, port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def carry(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
            self._connections += 1
            recorded = RecordedConnection(self._connections, self.exchanges)
            with contextlib.suppress(OSError), contextlib.closing(to_client):
                node, to_node = await asyncio.open_connection(self._target, port)
                await asyncio.gather(
                    _carry(client, to_node, recorded.request), _carry(node, to_client, recorded.response)
                )

        return carry


async def _carry(source: asyncio.StreamReader, to: asyncio.StreamWriter, note: Callable[[bytes, float], None]) -> None:
    """Send on what comes, and tell of each whole frame."""
    unread = bytearray()
    with contextlib.suppress(OSError), contextlib.closing(to):
        while data := await source.read(_READ_BYTES):
            to.write(data)
            now_s = time.monotonic()
            unread += data
            while len(unread) >= 4 and len(unread) >= (end := 4 + int.from_bytes(unread[:4], "big")):
                note(bytes(unread[4:end]), now_s)
                del unread[:end]
            await to.drain()


class RecordedConnection:
    """Reads the frames of one connection, without their length prefixes, and adds its exchanges to those of all."""

    def __init__(self, number: int, exchanges: list[Exchange]) -> None:
        self._number = number
        self._exchanges = exchanges
        self._waiting: list[Exchange] = []

    def request(self, frame: bytes, now_s: float) -> None:
        """A request has passed."""
        reader = Reader(frame)
        key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
        client_id = (reader.string() or b"").decode()
        exchange = Exchange(self._number, key, version, correlation_id, client_id, len(frame), now_s)
        if key == PRODUCE and version >= _FLEXIBLE_SINCE:
            reader.tags()
            exchange.batches = _batches(reader, frame, version)
        self._exchanges.append(exchange)
        self._waiting.append(exchange)

    def response(self, frame: bytes, now_s: float) -> None:
        """The response to the oldest request without one has passed."""
        exchange = self._waiting.pop(0)
        reader, plan = Reader(frame, 4), PLANS[plan_key(exchange.api_key, exchange.version)]
        if plan.response_tags:
            reader.tags()
        if exchange.api_key == PRODUCE:
            if exchange.version >= _FLEXIBLE_SINCE:
                exchange.errors = _produce_errors(reader, frame, exchange.version)
                exchange.throttle_time_ms = reader.int32()
        elif plan.throttle_at >= 0:
            exchange.throttle_time_ms = Reader(frame, plan.throttle_at - 4).int32()
            if exchange.api_key in _ERROR_BEHIND_THROTTLE:
                exchange.errors = [Reader(frame, plan.throttle_at).int16()]
        exchange.answered_s = now_s


def _batches(reader: Reader, frame: bytes, version: int) -> list[Batch]:
    """Those of a Produce request whose header is read."""
    found = []
    reader.compact_string()  # transactional id
    reader.skip(6)  # acks and time-out
    for _ in range(reader.count(True, 1)):
        topic = _topic(reader, frame, version)
        for _ in range(reader.count(True, 1)):
            partition = reader.int32()
            batch = Reader(frame, reader.skip(reader.uvarint() - 1) + _BEFORE_PRODUCER_ID)
            found.append(Batch(topic, partition, batch.int64(), batch.int16(), batch.int32(), batch.int32()))
            reader.tags()
        reader.tags()
    return found


def _produce_errors(reader: Reader, frame: bytes, version: int) -> list[int]:
    """The error code of each partition; what is read next is the throttle time."""
    codes = []
    for _ in range(reader.count(True, 1)):
        _topic(reader, frame, version)
        for _ in range(reader.count(True, 1)):
            reader.int32()  # partition
            codes.append(reader.int16())
            reader.skip(_OFFSET_TIME_FIRST_OFFSET)
            for _ in range(reader.count(True, 1)):
                reader.int32()  # which record has an error
                reader.compact_string()
                reader.tags()
            reader.compact_string()
            reader.tags()
        reader.tags()
    return codes


def _topic(reader: Reader, frame: bytes, version: int) -> bytes:
    """The name, or the id."""
    if version < _TOPIC_ID_SINCE:
        return reader.compact_string() or b""
    at = reader.skip(_TOPIC_ID_BYTES)
    return frame[at : at + _TOPIC_ID_BYTES]
