"""What every client library is put through, written once for all of them."""

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from tests.support import waiting

PARTITIONS = 3
COPIES = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = (0, 1, -1)
_WAIT_S = 120.0
_JOIN_S = 15.0
_QUIET_S = 0.4

wait_until = partial(waiting.wait_until, timeout_s=_WAIT_S, every_s=0.05)


class Record(NamedTuple):
    """What a consumer got."""

    partition: int
    value: str


class Producer(ABC):
    """A producer of some library; errors of delivery come out of `flush`."""

    @abstractmethod
    def send(self, topic: str, partition: int, value: str) -> None: ...

    @abstractmethod
    def flush(self) -> None: ...

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Consumer(ABC):
    """A consumer of some library; to be used by one thread."""

    @abstractmethod
    def poll(self, timeout_s: float) -> list[Record]: ...

    @abstractmethod
    def partitions(self) -> set[int]: ...

    @abstractmethod
    def close(self) -> None: ...


class Library(ABC):
    """A client library, bootstrapped at one address."""

    @abstractmethod
    def producer(
        self, *, codec: str = "none", acks: int = -1, idempotent: bool = False, transactional_id: str | None = None
    ) -> Producer: ...

    @abstractmethod
    def consumer(self, topic: str, *, group: str | None = None, committed_only: bool = False) -> Consumer:
        """Of all partitions from their beginning, or as a member of a group."""

    @abstractmethod
    def create_topic(self, topic: str, partitions: int) -> None: ...

    @abstractmethod
    def delete_topic(self, topic: str) -> None: ...

    @abstractmethod
    def topics(self) -> set[str]: ...

    @abstractmethod
    def leaders(self, topic: str) -> dict[int, int]:
        """The leading node of each partition, -1 for none."""

    def partitions(self, topic: str) -> set[int]:
        """All partitions of a topic, as soon as a node lists them.

        A new topic may be known to one node and not yet to the next one that is asked; who assigns himself the
        partitions that such a node knows reads nothing, for ever.
        """
        deadline = time.monotonic() + _WAIT_S
        while not (found := self.leaders(topic)):
            assert time.monotonic() < deadline, f"no node knows {topic}"
            time.sleep(0.05)
        return set(found)

    @abstractmethod
    def groups(self) -> set[str]: ...

    @abstractmethod
    def topic_config(self, topic: str) -> dict[str, str]:
        """All settings of a topic; none while the node that was asked does not know it yet."""

    @abstractmethod
    def close(self) -> None: ...


def new_topic(library: Library, topic: str, partitions: int = PARTITIONS) -> None:
    """Create a topic and write one record to each partition, so that every leader is known to lead."""
    library.create_topic(topic, partitions)
    wait_until(lambda: _led(library, topic, partitions), f"leaders of {topic}")
    producer = library.producer()
    for partition in range(partitions):
        producer.send(topic, partition, "first")
    producer.flush()
    producer.close()


def _led(library: Library, topic: str, partitions: int) -> bool:
    leaders = library.leaders(topic)
    return len(leaders) == partitions and min(leaders.values()) > 0


def read_all(library: Library, topic: str, count: int, committed_only: bool = False) -> list[Record]:
    """All records of a topic but those of `new_topic`: at least `count`, and whatever comes within a moment more."""
    consumer = library.consumer(topic, committed_only=committed_only)
    found: list[Record] = []
    deadline = time.monotonic() + _WAIT_S
    quiet_since = time.monotonic()
    while time.monotonic() < deadline:
        records = [record for record in consumer.poll(0.2) if record.value != "first"]
        found += records
        if records:
            quiet_since = time.monotonic()
        elif len(found) >= count and time.monotonic() - quiet_since > _QUIET_S:
            break
    consumer.close()
    return found


def assert_same(found: Iterable[str], sent: Iterable[str]) -> None:
    """Each as often as it was sent."""
    missing, surplus = Counter(sent), Counter(found)
    missing, surplus = missing - surplus, surplus - missing
    assert not missing, f"{missing.total()} records are missing, {list(missing)[:3]} among them"
    assert not surplus, f"{surplus.total()} records are too many, {list(surplus)[:3]} among them"


# ----------------------------------------------------------------- scenarios


def every_codec_and_every_acks(library: Library, topic: str) -> int:
    """Produce with each compression and each acks, read all back; returns how many records."""
    new_topic(library, topic)
    sent = []
    for codec in CODECS:
        for acks in ACKS:
            producer = library.producer(codec=codec, acks=acks)
            for i in range(24):
                sent.append(value := f"{codec} {acks} {i} " + "abc" * 200)
                producer.send(topic, i % PARTITIONS, value)
            producer.flush()
            producer.close()
    assert_same((record.value for record in read_all(library, topic, len(sent))), sent)
    return len(sent)


def a_group_whose_member_leaves(library: Library, topic: str) -> int:
    """One member has six partitions, a second takes over half of them, one leaves: no record is lost; returns how many.

    The second joins when the first is settled: of two consumers of kafka-python 3.0.12 that join at one moment, one
    sometimes never does (twice in eight runs on a busy machine, without a proxy).
    """
    new_topic(library, topic, 6)
    members = [_Member(library, topic, f"{topic}-group")]
    try:
        wait_until(lambda: members[0].has(6), "the first member to have all partitions")
        members.append(_Member(library, topic, f"{topic}-group"))
        leaver, stayer = members
        wait_until(lambda: all(member.has(3) for member in members), "both members to have partitions")
        sent = _send_numbered(library, topic, 0, 150)
        wait_until(lambda: sent <= leaver.values | stayer.values, "what was sent to both")
        assert leaver.values - {"first"}, "one member got nothing"
        assert stayer.values - {"first"}, "the other member got nothing"
        assert f"{topic}-group" in library.groups()
        leaver.leave()
        wait_until(lambda: stayer.has(6), "the other member to have all partitions")
        sent |= _send_numbered(library, topic, 150, 100)
        wait_until(lambda: sent <= leaver.values | stayer.values, "what was sent to the one that is left")
    finally:
        for member in members:
            member.leave()
    for member in members:
        assert member.error is None, member.error
    return len(sent)


def _send_numbered(library: Library, topic: str, first: int, count: int) -> set[str]:
    producer = library.producer()
    values = [f"number {i}" for i in range(first, first + count)]
    for i, value in enumerate(values):
        producer.send(topic, i % 6, value)
    producer.flush()
    producer.close()
    return set(values)


class _Member:
    """A member of a group in a separate thread.

    One that gets no partitions is made anew: a consumer of kafka-python 3.0.12 whose first look at the topic finds
    nothing sometimes never joins properly, also without a proxy.
    """

    def __init__(self, library: Library, topic: str, group: str) -> None:
        self.values: set[str] = set()
        self.partitions: set[int] = set()
        self.error: BaseException | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(library, topic, group), daemon=True)
        self._thread.start()

    def has(self, count: int) -> bool:
        """Whether it has so many partitions; raises what ended it."""
        if self.error is not None:
            raise self.error
        return len(self.partitions) == count

    def leave(self) -> None:
        """Close the consumer, which leaves the group."""
        self._done.set()
        self._thread.join(_WAIT_S)

    def _run(self, library: Library, topic: str, group: str) -> None:
        try:
            consumer = library.consumer(topic, group=group)
            join_by = time.monotonic() + _JOIN_S
            while not self._done.is_set():
                self.values |= {record.value for record in consumer.poll(0.1)}
                self.partitions = consumer.partitions()
                if self.partitions:
                    join_by = math.inf
                elif time.monotonic() > join_by:
                    consumer.close()
                    consumer = library.consumer(topic, group=group)
                    join_by = time.monotonic() + _JOIN_S
            consumer.close()
        except BaseException as error:
            self.error = error
            raise


def an_idempotent_producer(library: Library, topic: str) -> int:
    """Each record once and in order; returns how many."""
    new_topic(library, topic)
    producer = library.producer(idempotent=True, codec="lz4")
    sent = [f"number {i:04}" for i in range(600)]
    for i, value in enumerate(sent):
        producer.send(topic, i % PARTITIONS, value)
    producer.flush()
    producer.close()
    found = read_all(library, topic, len(sent))
    assert_same((record.value for record in found), sent)
    for partition in range(PARTITIONS):
        values = [record.value for record in found if record.partition == partition]
        assert values == sorted(values), f"partition {partition} is out of order"
    return len(sent)


def transactions(library: Library, topic: str) -> int:
    """A reader of committed records gets no record of an aborted transaction; returns how many were sent."""
    new_topic(library, topic)
    producer = library.producer(transactional_id=f"{topic}-id")
    kept, dropped = [], []
    for number, commits in enumerate((True, False, True)):
        values = [f"transaction {number} record {i}" for i in range(30)]
        producer.begin()
        for i, value in enumerate(values):
            producer.send(topic, i % PARTITIONS, value)
        producer.flush()
        if commits:
            kept += values
            producer.commit()
        else:
            dropped += values
            producer.abort()
    producer.close()
    assert_same((record.value for record in read_all(library, topic, len(kept), committed_only=True)), kept)
    assert_same((record.value for record in read_all(library, topic, len(kept + dropped))), kept + dropped)
    return len(kept + dropped)


def administration(library: Library, topic: str) -> int:
    """Create, describe, list and delete a topic, and read its configuration, from whatever node the client asks."""
    library.create_topic(topic, 4)
    found: dict[int, int] = {}

    def described() -> bool:
        found.update(library.leaders(topic))
        return set(found) == {0, 1, 2, 3} and set(found.values()) <= {1, 2, 3}

    def configured() -> bool:
        config = library.topic_config(topic)
        return config.get("cleanup.policy") == "delete" and config.get("retention.ms") == "604800000"

    wait_until(described, f"leaders of {topic}")
    wait_until(lambda: topic in library.topics(), f"{topic} to be listed")
    wait_until(configured, "the configuration of the topic")
    library.delete_topic(topic)
    wait_until(lambda: topic not in library.topics(), "the topic to be gone")
    return len(found)


SCENARIOS: tuple[Callable[[Library, str], int], ...] = (
    administration,
    every_codec_and_every_acks,
    a_group_whose_member_leaves,
    an_idempotent_producer,
    transactions,
)
