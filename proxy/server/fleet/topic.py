"""Claims in a topic of the cluster itself: a record with the document of each member, and one that says it is alive.

Kafka orders the records of a partition, and who has read its own record back has read all that were written before. It
has no sessions: a member that dies leaves its records. So the others *drop* it, and that is a record, too:

- Each member writes a record at least every third of the time-out T. One that has read nothing of another for T, by its
  own clock, says so in its next record: it drops that member *at the number of its last record*. The drop counts, for
  everyone who reads it, if no record of that member with a higher number comes before it. So the log alone says who is
  in the fleet at each offset, and no two members, nor the one that is dropped, can see it otherwise.
- `heard_ms` of a member is when it *sent* its last record that it has read back, and 11/12 of T later it is cut off.
  (One that has not joined, or was dropped, is heard when it has read anything.)
  A record that drops it at number n was sent T or more after somebody *read* number n, which was after it was sent;
  and until the drop nothing newer was in the log that could have been read back. So who is dropped was cut off before,
  as long as clocks run at the same rate within a twelfth. Nobody compares what clocks say.
- A member that cannot write, cannot read, or reads from a former leader does not read its own records back. It
  considers itself cut off, and drops no other member. When it is back after a while, it gives the others T anew.
- A member reads all that was written since it was last heard before it reads its next record back, so it learns of its
  drop (`losses`) before it takes itself for heard again. Compaction leaves records of the last minute; a member that
  has not read for half of that, by either of its clocks (one stands still with the machine), counts as dropped.
- Records that come late, with a number below one that was read, say nothing. One that was sent before a drop and comes
  after it makes its member appear once more: that holds back shares which nobody uses, for T.
- A fleet in which everybody was cut off has nobody who drops. When the topic is back, each is heard again and goes on;
  a member that is dead is dropped T after the first was heard again.
- A topic that is made anew has lost the claims of those who have not noticed yet. Who creates the topic, or has seen
  another one before, joins T later: by then the others are cut off.

What it needs of the topic is checked when it is opened: no unclean election of leaders, which could lose records that
were read back, and no compaction of young records. In a fleet that crashes as a whole the records are deleted in time.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from kafka_throttle.common.backoff import Backoff
from kafka_throttle.common.duties import Duty
from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.server.fleet.transport import RefusedRecord, TransportLost
from kafka_throttle.quotas.changes import AlterationRefused, SourceUnavailable
from kafka_throttle.quotas.entities import MAX_NAME_BYTES, is_name
from kafka_throttle.quotas.shares.document import MAX_BYTES
from kafka_throttle.quotas.sources.cluster_connection import ClusterClient, Credentials
from kafka_throttle.quotas.sources.topic_log import (
    BY_THE_NODE,
    DELETIONS,
    MAX_BATCH_BYTES,
    Client,
    LogPlace,
    OffsetGone,
    TopicKind,
    TopicLog,
    TopicMissing,
)
from kafka_throttle.quotas.sources.topic_records import Record

FORMAT: Final = 1
_COMPACTION_LAG_MS: Final = 60_000
_NOT_READ_MS: Final = _COMPACTION_LAG_MS // 2
_RETENTION_MS: Final = 600_000
_DOCUMENT_AGAIN_MS: Final = _RETENTION_MS // 4
"""How often a document is written at least, so that it is not deleted for its age."""

CLAIMS: Final = TopicKind(
    frozenset({"compact", "delete"}),
    {
        **BY_THE_NODE,
        "retention.ms": str(_RETENTION_MS),
        "segment.ms": str(_COMPACTION_LAG_MS),
        "min.compaction.lag.ms": str(_COMPACTION_LAG_MS),
        "unclean.leader.election.enable": "false",
    },
    {
        "max.message.bytes": (MAX_BYTES + 1024, MAX_BATCH_BYTES),
        "retention.ms": (_RETENTION_MS, 1 << 63),
        "min.compaction.lag.ms": (_COMPACTION_LAG_MS, 1 << 63),
        DELETIONS: (_COMPACTION_LAG_MS, 1 << 63),
    },
    {"unclean.leader.election.enable": "false", **BY_THE_NODE},
    verifies=False,
)
"""The topic of claims. Checksums are not looked at: nodes do when a record is written, and documents are judged."""

_FIRST_RETRY_S: Final = 0.1
_LONGEST_RETRY_S: Final = 1.0
_BEATS: Final = 3
_CUT_OFF_12THS: Final = 11
_STOP_S: Final = 3.0
_LEAST_REST_MS: Final = 20
_READ_BACK_MS: Final = 100
"""Before a record is sent again because another member is overdue, the last one has so long to be read back."""
_MOST_UNREAD: Final = 100
_DOCUMENT, _ALIVE = "document", "alive"


class _Nonsense(ValueError):
    """A record that no member writes."""


@dataclass(slots=True)
class _Seen:
    """Another member: the number of its last record, when that was read, and the last document."""

    number: int
    read_ms: int
    content: bytes = b""


class TopicTransport:
    """A FleetTransport over a topic. Everything happens in the event loop."""

    def __init__(
        self,
        topic: str,
        servers: Sequence[str],
        credentials: Credentials,
        session_timeout_ms: int,
        clock: Clock,
        timeout_s: float,
        connect: Callable[[str, Credentials, float], Client] = ClusterClient,
    ) -> None:
        self.cut_off_ms = session_timeout_ms * _CUT_OFF_12THS // 12
        self.heard_ms: int | None = None
        self.losses = 0
        self._clock = clock
        self._timeout_ms = session_timeout_ms
        self._log = TopicLog(topic, servers, credentials, self._within_s(timeout_s), connect, CLAIMS)
        self._reading = _Reading()
        self._writing = _Writing()
        self._member_id = ""
        self._changed: Callable[[], None] = lambda: None
        self._duty = Duty("staying in the fleet", f"topic {topic}")
        self._tasks: list[asyncio.Task[None]] = []
        self._reading_trouble = self._writing_trouble = ""
        self._refused: list[RefusedRecord] = []

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong with the topic now, at ""."""
        return {"": trouble} if (trouble := self._trouble) else {}

    def take_refused(self) -> Sequence[RefusedRecord]:
        """The records that were refused since the last call."""
        refused, self._refused = self._refused, []
        return refused

    def _within_s(self, timeout_s: float) -> float:
        return min(timeout_s, self._timeout_ms / 1000 / _BEATS)

    @property
    def _trouble(self) -> str:
        return self._reading_trouble or self._writing_trouble

    def view(self) -> Mapping[str, bytes]:
        """All other members with what they have published last."""
        return {member: seen.content for member, seen in self._reading.members.items()}

    def replace_servers(self, servers: Sequence[str], timeout_s: float) -> None:
        """Find the topic by these servers (host:port) when it has to be found again."""
        self._log.servers.replace(servers)
        self._log.timeout_s = self._within_s(timeout_s)

    async def start(self, member_id: str, changed: Callable[[], None]) -> None:
        """Begin to connect."""
        self._member_id, self._changed = member_id, changed
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._follow()), loop.create_task(self._duty.keep(self._keep_alive))]

    async def publish(self, content: bytes) -> None:
        """Write the document, and wait until it is read back."""
        if len(content) > MAX_BYTES:
            raise TransportLost(f"expected at most {MAX_BYTES} bytes of claims, got {len(content)}")
        if self._log.place is None:
            raise TransportLost(self._trouble or "there is no connection yet")
        if self._clock.now_ms() < self._reading.joins_ms:
            raise TransportLost("the topic was made anew: the others may not have noticed yet")
        losses = self.losses
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                number = await self._write(content)
                await self._reading.until(lambda: self._reading.own_number >= number or losses != self.losses)
        except TimeoutError:
            raise TransportLost(self._trouble or f"topic {self._log.name}: not read back in time") from None
        except (SourceUnavailable, AlterationRefused) as error:
            self._note_writing(str(error))
            raise TransportLost(str(error)) from error
        if losses != self.losses:
            raise TransportLost("the others have dropped this member")

    async def stop(self) -> None:
        """Remove the records of this member. Waits 3 s at most."""
        self._changed = lambda: None
        is_in, self._writing.content = self._writing.content is not None, None
        if is_in and self._log.place is not None:
            keys = [(_key(part, self._member_id), None) for part in (_DOCUMENT, _ALIVE)]
            with suppress(SourceUnavailable, AlterationRefused, TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._log.append(keys, self._clock.epoch_ms())
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    # ------------------------------------------------------------------ writing

    async def _write(self, content: bytes | None) -> int:
        """Write that this member is alive, and the document if given. Returns the number of the records."""
        writing = self._writing
        async with writing.lock:
            writing.number += 1
            number, now_ms = writing.number, self._clock.now_ms()
            header = {"format": FORMAT, "number": number}
            records = [(_key(_ALIVE, self._member_id), _packed({**header, "drops": self._overdue(now_ms)}))]
            if content is not None:
                writing.content, writing.document_ms = content, now_ms
                records.append((_key(_DOCUMENT, self._member_id), _packed(header) + b"\n" + content))
            writing.sending(number, now_ms)
            await self._log.append(records, self._clock.epoch_ms())
        return number

    def _overdue(self, now_ms: int) -> dict[str, int]:
        """The members that this record drops, with the number of the last record of each."""
        members = self._reading.members
        if self.heard_ms is None or now_ms - self.heard_ms > self.cut_off_ms:
            return {}  # it may be this member that is cut off, or all are
        return {name: seen.number for name, seen in members.items() if now_ms - seen.read_ms >= self._timeout_ms}

    async def _keep_alive(self) -> None:
        """Write what is due while this member is in the fleet."""
        while True:
            await asyncio.sleep(max(_LEAST_REST_MS, self._due_ms() - self._clock.now_ms()) / 1000)
            writing, now_ms = self._writing, self._clock.now_ms()
            is_in = self._log.place is not None and writing.content is not None
            if not is_in or now_ms < self._due_ms() or writing.lock.locked():
                continue
            is_old = now_ms - writing.document_ms >= _DOCUMENT_AGAIN_MS
            try:
                async with asyncio.timeout(self._timeout_ms / 1000):
                    await self._write(writing.content if is_old else None)
            except (SourceUnavailable, AlterationRefused, TimeoutError) as error:
                self._note_writing(str(error) or f"topic {self._log.name}: not written in time")

    def _due_ms(self) -> int:
        """When the next record is due: after a third of the time-out, or when another member is overdue."""
        last_ms = self._writing.last_ms
        due_ms = last_ms + self._timeout_ms // _BEATS
        overdue_ms = min((seen.read_ms for seen in self._reading.members.values()), default=due_ms) + self._timeout_ms
        return min(due_ms, max(overdue_ms, last_ms + _READ_BACK_MS))

    # ------------------------------------------------------------------ reading

    async def _follow(self) -> None:
        backoff = Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S)
        try:
            while True:
                try:
                    await self._open()
                    while True:
                        await self._read()
                        backoff.succeeded()
                        self._note_reading("")
                except OffsetGone as error:
                    self._reading.offset = -1
                    self._note_reading(str(error))
                except SourceUnavailable as error:
                    self._note_reading(str(error))
                except Exception as error:  # a fault of ours must not end the membership for good
                    self._note_reading(f"{type(error).__name__}: {error}")
                self._log.close()
                await asyncio.sleep(backoff.failed())
        finally:
            self._log.close()

    async def _open(self) -> None:
        reading = self._reading
        try:
            place = await self._log.open(may_create=False)
        except TopicMissing:
            reading.joins_ms = self._clock.now_ms() + self._timeout_ms
            place = await self._log.open(may_create=True)
        if reading.place is not None and reading.place.topic_id != place.topic_id:
            reading.joins_ms = self._clock.now_ms() + self._timeout_ms
            self._lose()
            reading.members.clear()
            reading.offset = -1
        if reading.offset < place.first:
            reading.offset = place.first
        reading.place = place

    async def _read(self) -> None:
        reading, before = self._reading, self.view()
        sent_ms = self._clock.now_ms()
        found = await self._log.read(reading.offset)
        reading.offset = found.next_offset
        now_ms = self._clock.now_ms()
        not_read_ms = reading.not_read_ms(now_ms, self._clock.epoch_ms())
        if not_read_ms > _NOT_READ_MS:
            self._lose()
        if not_read_ms > self.cut_off_ms:
            reading.give_time(now_ms)
        for offset, why in found.skipped.items():
            self._refuse(offset, why)
        for record in found.records:
            try:
                self._take(record, now_ms)
            except _Nonsense as nonsense:
                self._refuse(record.offset, str(nonsense))
        if self._writing.content is None:  # nobody can drop it
            self.heard_ms = sent_ms
        await reading.tell()
        if found.records and self.view() != before:
            self._changed()

    def _take(self, record: Record, now_ms: int) -> None:
        part, member = _read_key(record.key)
        is_own = member == self._member_id
        if record.value is None:
            if is_own:
                self._lose()
            else:
                self._reading.members.pop(member, None)
            return
        head, _, content = record.value.partition(b"\n")
        number, drops = _read_header(head)
        if is_own:
            self._take_own(number, now_ms)
        else:
            self._take_other(member, number, content if part == _DOCUMENT else None, now_ms)
        for name, at in drops.items() if part == _ALIVE else ():
            self._drop(name, at)

    def _take_own(self, number: int, now_ms: int) -> None:
        reading, sent_ms = self._reading, self._writing.read_back(number)
        if number <= reading.own_number or sent_ms is None:
            return
        if self.heard_ms is not None and now_ms - self.heard_ms > self.cut_off_ms:
            reading.give_time(now_ms)
        reading.own_number, self.heard_ms = number, sent_ms
        self._note_writing("")

    def _take_other(self, member: str, number: int, content: bytes | None, now_ms: int) -> None:
        seen = self._reading.members.get(member)
        if seen is None:
            seen = self._reading.members[member] = _Seen(number, now_ms)
        elif number < seen.number:
            return
        seen.number, seen.read_ms = number, now_ms
        if content is not None:
            seen.content = content

    def _drop(self, member: str, at: int) -> None:
        """A member is out of the fleet, unless it has written since."""
        if member == self._member_id:
            if self._reading.own_number <= at:
                self._lose()
        elif (seen := self._reading.members.get(member)) is not None and seen.number <= at:
            del self._reading.members[member]

    def _lose(self) -> None:
        """The others have dropped this member, if it was there: it says no more that it is alive."""
        if self._writing.content is not None:
            self._writing.content = None
            self.losses += 1
            self._changed()

    def _refuse(self, offset: int, why: str) -> None:
        self._refused.append(RefusedRecord(f"topic {self._log.name}", f"offset {offset}: {why}"))

    def _note_reading(self, trouble: str) -> None:
        is_new, self._reading_trouble = trouble != self._reading_trouble, trouble
        if is_new:
            self._changed()

    def _note_writing(self, trouble: str) -> None:
        is_new, self._writing_trouble = trouble != self._writing_trouble, trouble
        if is_new:
            self._changed()


class _Reading:
    """What was read, and up to where."""

    def __init__(self) -> None:
        self.place: LogPlace | None = None
        self.offset = -1
        """The next to be read; -1: the first that there is."""
        self._read_at_ms: tuple[int, int] | None = None
        """When something was read last, by both clocks."""
        self.joins_ms = 0
        """This member may not join before."""
        self.members: dict[str, _Seen] = {}
        self.own_number = 0
        self._news = asyncio.Condition()

    def not_read_ms(self, now_ms: int, epoch_ms: int) -> int:
        """How long nothing was read, until now, by the clock that says more."""
        before, self._read_at_ms = self._read_at_ms or (now_ms, epoch_ms), (now_ms, epoch_ms)
        return max(now_ms - before[0], epoch_ms - before[1])

    def give_time(self, now_ms: int) -> None:
        """The others may have been cut off as this member was: they have the whole time-out anew."""
        for seen in self.members.values():
            seen.read_ms = now_ms

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds after something was read."""
        async with self._news:
            await self._news.wait_for(condition)

    async def tell(self) -> None:
        """Something was read."""
        async with self._news:
            self._news.notify_all()


class _Writing:
    """What was written, and when."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.number = 0
        self.content: bytes | None = None
        """The newest document; None before the first one, and after others have dropped this member."""
        self.document_ms = 0
        self.last_ms = 0
        self.sent_ms: dict[int, int] = {}
        """When the records of a number were sent, as long as they were not read back."""

    def sending(self, number: int, now_ms: int) -> None:
        """The records of this number are sent now."""
        self.sent_ms[number] = self.last_ms = now_ms
        if len(self.sent_ms) > _MOST_UNREAD:
            del self.sent_ms[min(self.sent_ms)]

    def read_back(self, number: int) -> int | None:
        """When the records of this number were sent, the first time that this is asked."""
        sent_ms = self.sent_ms.pop(number, None)
        for older in [each for each in self.sent_ms if each < number]:
            del self.sent_ms[older]
        return sent_ms


# ------------------------------------------------------------------------- records


def _key(part: str, member: str) -> bytes:
    return _packed({"format": FORMAT, "member": member, "part": part})


def _packed(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _read_key(raw: bytes | None) -> tuple[str, str]:
    fields = _fields(raw)
    member, part = fields.get("member"), fields.get("part")
    if not isinstance(member, str) or part not in (_DOCUMENT, _ALIVE) or _key(part, member) != raw:
        raise _Nonsense("expected the key of a member")
    if not is_name(member):
        raise _Nonsense(f"expected a member of 1 to {MAX_NAME_BYTES} bytes in UTF-8, got {member[:50]!r}")
    return part, member


def _read_header(raw: bytes) -> tuple[int, Mapping[str, int]]:
    fields = _fields(raw)
    number, drops = fields.get("number"), fields.get("drops", {})
    if type(number) is not int or number < 1 or not isinstance(drops, dict):
        raise _Nonsense("expected the number of the record, a whole number above 0")
    if not all(type(at) is int for at in drops.values()):
        raise _Nonsense("expected members with numbers as those who are dropped")
    return number, drops


def _fields(raw: bytes | None) -> dict[str, Any]:
    try:
        fields = json.loads(raw or b"")
    except (ValueError, RecursionError):
        raise _Nonsense("expected JSON") from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise _Nonsense(f"expected format {FORMAT}")
    return fields
