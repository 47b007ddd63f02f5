"""Who sent what, what became of it, and whether what was read fits.

A record that was acknowledged to its producer has to be present once, and in its producer's order within the
partition. One that was reported as failed may be present once or not at all. Nothing else may be there.
"""

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from tests.conservation.records import NotARecord, identify

_SEQUENCE_BITS = 40
_CORRUPT = (1 << 64) - 1
"""Stands in a log where no record could be recognised."""


class ChangeStatus(IntEnum):
    """What a producer has been told of a record."""

    NOTHING = 0
    ACKNOWLEDGED = 1
    FAILED = 2


class Sent:
    """The fates of one producer's records, one byte each, by partition and sequence."""

    def __init__(self, producer: int, partitions: int) -> None:
        self.producer = producer
        self.statuses = [bytearray() for _ in range(partitions)]

    def next_sequence(self, partition: int) -> int:
        """The sequence of the next record."""
        return len(self.statuses[partition])

    def add(self, partition: int) -> None:
        """The next record has been given to the client."""
        self.statuses[partition].append(ChangeStatus.NOTHING)

    def settle(self, partition: int, sequence: int, error: object) -> None:
        """The client has told a record's fate."""
        self.statuses[partition][sequence] = ChangeStatus.ACKNOWLEDGED if error is None else ChangeStatus.FAILED

    def count(self, status: ChangeStatus) -> int:
        """How many records have this fate."""
        return sum(statuses.count(status) for statuses in self.statuses)

    def save(self, folder: Path) -> None:
        """Write one file for each partition."""
        for partition, statuses in enumerate(self.statuses):
            (folder / f"sent-{self.producer}-{partition}").write_bytes(statuses)

    @classmethod
    def load(cls, folder: Path, producer: int, partitions: int) -> "Sent":
        """Read what `save` has written."""
        sent = cls(producer, partitions)
        sent.statuses = [
            bytearray((folder / f"sent-{producer}-{partition}").read_bytes()) for partition in range(partitions)
        ]
        return sent


class Log:
    """One partition as somebody has read it: which record is at which offset.

    Reading again what was read before is no fault, but leaving offsets out is one: nothing deletes from these logs.
    """

    def __init__(self, place: str, partition: int) -> None:
        self.place = place
        self.partition = partition
        self.identities = array("Q")
        self.read_again = 0
        self.faults: list[str] = []

    @property
    def next_offset(self) -> int:
        """The first offset that has not been read."""
        return len(self.identities)

    def take(self, offset: int, value: bytes | None) -> None:
        """A record has been read."""
        found = self._recognise(offset, value)
        if offset < self.next_offset:
            self.read_again += 1
            if self.identities[offset] == _CORRUPT:
                self.identities[offset] = found
            elif self.identities[offset] != found:
                self.faults.append(f"{self.place}: offset {offset} holds another record when it is read again")
            return
        if offset > self.next_offset:
            self.faults.append(f"{self.place}: offsets {self.next_offset} to {offset - 1} were left out")
            self.identities.extend([_CORRUPT] * (offset - self.next_offset))
        self.identities.append(found)

    def _recognise(self, offset: int, value: bytes | None) -> int:
        try:
            identity = identify(value)
        except NotARecord as problem:
            self.faults.append(f"{self.place}: offset {offset} is corrupt: {problem}")
            return _CORRUPT
        if identity.partition != self.partition:
            self.faults.append(f"{self.place}: offset {offset} is corrupt: it was sent to {identity.partition}")
            return _CORRUPT
        return identity.producer << _SEQUENCE_BITS | identity.sequence

    def save(self, path: Path) -> None:
        """Write the identities; the faults are the caller's to tell."""
        path.write_bytes(self.identities.tobytes())

    @classmethod
    def load(cls, path: Path, place: str, partition: int) -> "Log":
        """Read what `save` has written."""
        log = cls(place, partition)
        log.identities.frombytes(path.read_bytes())
        return log


class Double(NamedTuple):
    """A record that is twice in a log: at which offset it was last, and at which it is again."""

    producer: int
    sequence: int
    before: int
    again: int


@dataclass
class Findings:
    """What a comparison has found. `counts` may have: lost, out of order, never sent, unanswered, and (no violation)
    failed but present. Of doubles, doubles.py tells whose doing they are: doubled, or (a remark) by librdkafka."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    doubles: list[Double] = field(default_factory=list)

    def violation(self, kind: str, text: str) -> None:
        """Count a violation and say what it is."""
        self.counts[kind] += 1
        self.violations.append(f"{kind}: {text}")


def compare(log: Log, sent: Mapping[int, Sent]) -> Findings:
    """Hold a partition's log against what its producers, by their number, have been told."""
    findings = Findings()
    offsets: dict[int, int] = {}
    last = dict.fromkeys(sent, -1)
    for offset, identity in enumerate(log.identities):
        if identity == _CORRUPT:
            continue
        producer, sequence = identity >> _SEQUENCE_BITS, identity & ((1 << _SEQUENCE_BITS) - 1)
        name = f"{log.place}, offset {offset}: record {sequence} of producer {producer}"
        if producer not in sent or sequence >= len(sent[producer].statuses[log.partition]):
            findings.violation("never sent", name)
            continue
        before, offsets[identity] = offsets.get(identity), offset
        if before is not None:
            findings.doubles.append(Double(producer, sequence, before, offset))
            continue
        if sent[producer].statuses[log.partition][sequence] != ChangeStatus.ACKNOWLEDGED:
            continue
        if sequence < last[producer]:
            findings.violation("out of order", f"{name} comes after {last[producer]}")
        last[producer] = max(sequence, last[producer])
    for one in sent.values():
        _compare_absent(log, one, offsets, findings)
    return findings


def _compare_absent(log: Log, sent: Sent, offsets: Mapping[int, int], findings: Findings) -> None:
    for sequence, status in enumerate(sent.statuses[log.partition]):
        present = sent.producer << _SEQUENCE_BITS | sequence in offsets
        name = f"{log.place}: record {sequence} of producer {sent.producer}"
        if status == ChangeStatus.NOTHING:
            findings.violation("unanswered", name)
        elif status == ChangeStatus.ACKNOWLEDGED and not present:
            findings.violation("lost", name)
        elif status == ChangeStatus.FAILED and present:
            findings.counts["failed but present"] += 1
