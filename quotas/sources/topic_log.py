"""One compacted topic with one partition: created, checked, read from the beginning and written to.

Over connections of the proxy's own, not with kafka-python's clients: they tell neither the id of the topic that they
read, without which one that was deleted and made anew passes for the old one, nor when an answered request was sent,
which bounds how old is what was read.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from kafka_throttle.protocol.messages.described_configs import topic_configs_request
from kafka_throttle.protocol.messages.metadata import TopicPlace, nodes_request, topic_request
from kafka_throttle.protocol.messages.topic_log import (
    EARLIEST,
    LATEST,
    append_request,
    creation_request,
    fetch_request,
    offset_request,
)
from kafka_throttle.protocol.own_requests import OwnRequest
from kafka_throttle.quotas.changes import AlterationRefused, SourceUnavailable
from kafka_throttle.quotas.sources.cluster_connection import ClusterClient, Credentials
from kafka_throttle.quotas.sources.known_servers import KnownServers, address_of
from kafka_throttle.quotas.sources.topic_records import Batches, UnreadableBatch, batch_of, records_in

Result = TypeVar("Result")

LONGEST_WAIT_S: Final = 0.5
"""How long a node may wait for the next record before it answers that there is none."""

_FETCH_BYTES: Final = 1 << 20
MAX_BATCH_BYTES: Final = 8 << 20
"""The largest `max.message.bytes` that a topic may have: a batch is read at once."""

_LARGE_BATCH_BYTES: Final = 32 << 10
"""Larger ones are made in a thread: the checksum of each takes 5 ms and more."""

_COPIES: Final = 3
_POLICY: Final = "cleanup.policy"
_COMPRESSION: Final = "compression.type"
_NOT_COMPRESSED: Final = "uncompressed"
"""So a node unpacks what others have compressed, within the bounds that it has itself."""

_OFFSET_OUT_OF_RANGE: Final = 1
_UNKNOWN_TOPIC: Final = 3
_ALREADY_EXISTS: Final = 36
_ELSEWHERE: Final = frozenset({3, 5, 6, 74, 75, 76, 100, 103})
"""The node does not lead the topic of this id, or not in this epoch."""
_NOT_WRITTEN: Final = frozenset({19, *_ELSEWHERE})
_REFUSED: Final = frozenset({2, 10, 17, 18, 29, 32, 43, 44, 87})
_WORDS: Final = {
    1: "the offset is not there any more",
    3: "there is no such topic",
    5: "it has no leader",
    6: "the node does not lead it any more",
    7: "not enough nodes have it in time",
    9: "the node does not serve it yet",
    10: "the record is too large",
    19: "too few of its replicas are in sync (min.insync.replicas)",
    20: "too few of its replicas were in sync afterwards (min.insync.replicas)",
    29: "the proxy's own credentials are not allowed to",
    78: "its new leader does not know yet how far it goes",
    100: "the topic was deleted",
    103: "the topic was deleted and made anew",
}


class TopicRefused(SourceUnavailable):
    """The topic is not one that may be used. The text says which setting it needs."""


class TopicMissing(SourceUnavailable):
    """There is no such topic."""


class LedElsewhere(SourceUnavailable):
    """The node does not lead this topic (any more); nothing was written. The topic has to be opened again."""


class OffsetGone(SourceUnavailable):
    """There is no record at this offset: the topic has to be read from the beginning."""


class TopicKind(NamedTuple):
    """What a topic is for: how it is created, and which settings it must have.

    `policy` are the values of cleanup.policy, `bounds` the least and the greatest value of a number, `fixed` the value
    of another setting. `verifies`: whether the checksums of batches are looked at.
    """

    policy: frozenset[str]
    configs: Mapping[str, str]
    bounds: Mapping[str, tuple[int, int]]
    fixed: Mapping[str, str] = {}
    verifies: bool = True


DELETIONS: Final = "delete.retention.ms"
_FOREVER: Final = 1 << 63
BY_THE_NODE: Final = {"message.timestamp.type": "LogAppendTime"}
"""Else a record with a wrong clock is refused, or deleted early."""

TABLE: Final = TopicKind(
    frozenset({"compact"}),
    BY_THE_NODE,
    {"max.message.bytes": (0, MAX_BATCH_BYTES), DELETIONS: (60_000, _FOREVER)},
)
"""A topic that keeps the last record of each key for ever."""


class LogPlace(NamedTuple):
    """Where a topic is: its id, its leader (host:port) in this epoch, its first offset, and the one after its last.

    The end is that of the moment when it was opened. `deletions_s`: a reader that is slower from one record to the
    next may miss that a key was removed.
    """

    topic_id: bytes
    leader: str
    leader_epoch: int
    first: int
    end: int
    deletions_s: float

    def goes_on(self, before: "LogPlace | None") -> bool:
        """Whether what was read of `before` holds here: the same topic, and no other leader since.

        A leader that was not in sync may lack records that were read, and have others in their places.
        """
        return before is not None and self[:3] == before[:3]


class Client(Protocol):
    """What is needed of a ClusterClient."""

    async def ask(self, request: OwnRequest[Result]) -> Result:
        """The response. Raises SourceUnavailable."""

    def close(self) -> None:
        """Let go of it."""


class TopicLog:
    """The topic `name`. Belongs to one event loop; one task may read while others append.

    `servers` (host:port) may be replaced at any time: one of them is asked when the topic is opened, another one when
    that does not answer, and then the nodes that the cluster has named. Each method raises
    SourceUnavailable, after which it has to be opened again.
    """

    def __init__(
        self,
        name: str,
        servers: Sequence[str],
        credentials: Credentials,
        timeout_s: float,
        connect: Callable[[str, Credentials, float], Client] = ClusterClient,
        kind: TopicKind = TABLE,
    ) -> None:
        self.name = name
        self._kind = kind
        self.servers = KnownServers(servers)
        self.timeout_s = timeout_s
        self.place: LogPlace | None = None
        """Where it is open; None while it is not."""
        self.heard_s: float | None = None
        """When the last answered `read` was sent, by `time.monotonic`."""
        self._credentials = credentials
        self._connect = connect
        self._turn = 0
        self._reader: Client | None = None
        self._writer: Client | None = None
        self._writing = asyncio.Lock()

    # -------------------------------------------------------------- opening

    async def open(self, *, may_create: bool) -> LogPlace:
        """Find the topic, check its settings, and connect to its leader; create it if it is missing and that is wanted.

        Raises TopicMissing, TopicRefused, and SourceUnavailable for all else.
        """
        self.close()
        server = self.servers.all[self._turn % len(self.servers.all)]
        self._turn += 1
        with contextlib.closing(self._client(server)) as client:
            found = await client.ask(topic_request(self.name))
            if found.error_code == _UNKNOWN_TOPIC and may_create:
                await self._create(found)
                found = await client.ask(topic_request(self.name))
            self.servers.note(found.nodes.values())
            leader, epoch = self._leader(found)
            deletions_s = await self._checked(client)
        self._reader = self._client(leader)
        first = await self._offset(epoch, EARLIEST)
        end = await self._offset(epoch, LATEST)
        self._turn -= 1  # this server serves: it is the first to be asked again
        self.place = LogPlace(found.topic_id, leader, epoch, first, end, deletions_s)
        return self.place

    def _leader(self, found: TopicPlace) -> tuple[str, int]:
        if found.error_code == _UNKNOWN_TOPIC:
            raise TopicMissing(f"there is no topic {self.name}")
        if found.error_code:
            raise self._fault(found.error_code, "Describe")
        if len(found.partitions) != 1:
            raise TopicRefused(f"topic {self.name}: expected 1 partition, it has {len(found.partitions)}")
        [partition] = found.partitions
        node = found.nodes.get(partition.leader_id)
        if node is None:
            raise SourceUnavailable(f"topic {self.name} has no leader now")
        return address_of(node), partition.leader_epoch

    async def _create(self, found: TopicPlace) -> None:
        """Create the topic at the node that may do so. One that somebody else has created meanwhile is as good."""
        copies = min(_COPIES, len(found.nodes))
        configs = {
            _POLICY: ",".join(sorted(self._kind.policy)),
            _COMPRESSION: _NOT_COMPRESSED,
            "min.insync.replicas": "2" if copies == _COPIES else "1",
            **self._kind.configs,
        }
        request = creation_request(self.name, copies, configs, round(self.timeout_s * 1000))
        node = found.nodes.get(found.controller_id) or next(iter(found.nodes.values()))
        with contextlib.closing(self._client(address_of(node))) as client:
            created = await client.ask(request)
        if created.error_code not in (0, _ALREADY_EXISTS):
            why = created.error_message or _words_for(created.error_code)
            raise SourceUnavailable(
                f"there is no topic {self.name}, and it cannot be created: {why} (error {created.error_code})"
            )

    async def _checked(self, client: Client) -> float:
        """How long deletions stay in the topic, in s. Raises TopicRefused if a setting is none that it may have."""
        kind = self._kind
        names = [_POLICY, _COMPRESSION, *kind.bounds, *kind.fixed]
        configs = await client.ask(topic_configs_request(self.name, names))
        if configs.error_code == _UNKNOWN_TOPIC:  # it was created just now: not each node knows it yet
            raise SourceUnavailable(f"the settings of topic {self.name} are not known yet")
        if configs.error_code:
            raise self._fault(configs.error_code, "DescribeConfigs")
        values = configs.values
        policy = ",".join(sorted(kind.policy))
        if frozenset((values.get(_POLICY) or "").split(",")) != kind.policy:
            raise self._refusal(values, _POLICY, policy)
        for name, (least, greatest) in kind.bounds.items():
            if not least <= _whole(values, name) <= greatest:
                bounds = f"at most {greatest}" if greatest < _FOREVER else f"at least {least}"
                raise self._refusal(values, name, bounds)
        for name, expected in {_COMPRESSION: _NOT_COMPRESSED, **kind.fixed}.items():
            if values.get(name) != expected:
                raise self._refusal(values, name, expected)
        return _whole(values, DELETIONS) / 1000

    def _refusal(self, values: Mapping[str, str | None], name: str, expected: str) -> TopicRefused:
        return TopicRefused(f"topic {self.name}: expected {name} to be {expected}, got {values.get(name)}")

    async def _offset(self, leader_epoch: int, which: int) -> int:
        assert self._reader is not None
        found = await self._reader.ask(offset_request(self.name, leader_epoch, which, round(self.timeout_s * 1000)))
        if found.error_code:
            raise self._fault(found.error_code, "Describe")
        return found.offset

    # -------------------------------------------------- reading and writing

    async def read(self, offset: int) -> Batches:
        """The records from `offset` on, and the next offset to read; waits a moment if there are none."""
        place, reader = self.place, self._reader
        if place is None or reader is None:
            raise LedElsewhere(f"topic {self.name} is not open")
        max_wait_ms = round(min(LONGEST_WAIT_S, self.timeout_s / 2) * 1000)
        most_bytes = MAX_BATCH_BYTES + _FETCH_BYTES
        sent_s = time.monotonic()
        fetched = await reader.ask(
            fetch_request(place.topic_id, place.leader_epoch, offset, max_wait_ms, _FETCH_BYTES, most_bytes)
        )
        if fetched.error_code:
            raise self._fault(fetched.error_code, "Read")
        if self.servers.are_old:
            self.servers.note((await reader.ask(nodes_request())).nodes)
        try:
            found = records_in(fetched.batches, offset, verifies=self._kind.verifies)
        except UnreadableBatch as error:
            raise SourceUnavailable(f"topic {self.name}: {error}") from error
        self.heard_s = sent_s
        return found

    async def append(self, records: Iterable[tuple[bytes, bytes | None]], epoch_ms: int) -> int:
        """Append keys and values, whole or not at all; the offset of the last, which all in-sync replicas have.

        Raises LedElsewhere if nothing was written, AlterationRefused if the node takes none of them, and
        SourceUnavailable where the text says whether they may be written.
        """
        listed = list(records)
        is_large = sum(len(value or b"") for _, value in listed) > _LARGE_BATCH_BYTES
        batch = await asyncio.to_thread(batch_of, listed, epoch_ms) if is_large else batch_of(listed, epoch_ms)
        async with self._writing:
            place = self.place
            if place is None:
                raise LedElsewhere(f"topic {self.name} is not open")
            if self._writer is None:
                self._writer = self._client(place.leader)
            writer = self._writer
            try:
                appended = await writer.ask(
                    append_request(self.name, place.topic_id, batch, round(self.timeout_s * 500))
                )
            except BaseException as error:
                self._drop(writer)
                if isinstance(error, SourceUnavailable):
                    raise SourceUnavailable(f"{error}; it may be written") from error
                raise
        if appended.error_code in _REFUSED:
            why = appended.error_message or _words_for(appended.error_code, "Write")
            raise AlterationRefused(f"topic {self.name}: {why} (error {appended.error_code})")
        if appended.error_code:
            effect = "nothing is written" if appended.error_code in _NOT_WRITTEN else "it may be written"
            fault = self._fault(appended.error_code, "Write")
            raise type(fault)(f"{fault}; {effect}")
        return appended.base_offset + len(listed) - 1

    def close(self) -> None:
        """Let go of the connections."""
        self.place = None
        for client in (self._reader, self._writer):
            if client is not None:
                client.close()
        self._reader = self._writer = None

    def _client(self, server: str) -> Client:
        return self._connect(server, self._credentials, self.timeout_s)

    def _drop(self, writer: Client) -> None:
        writer.close()
        if self._writer is writer:
            self._writer = None

    def _fault(self, code: int, permission: str) -> SourceUnavailable:
        kind = LedElsewhere if code in _ELSEWHERE else OffsetGone if code == _OFFSET_OUT_OF_RANGE else SourceUnavailable
        return kind(f"topic {self.name}: {_words_for(code, permission)} (error {code})")


def _words_for(code: int, permission: str = "") -> str:
    words = _WORDS.get(code, "the node refuses")
    return f"{words} {permission}" if code == 29 and permission else words


def _whole(values: Mapping[str, str | None], name: str) -> int:
    """A setting that is a whole number; -1 if the node does not tell it."""
    text = values.get(name) or ""
    return int(text) if text.isdecimal() else -1
