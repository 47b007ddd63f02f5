"""Whose doing it is that records are twice in a log.

A violation, with one exception that has to be proved. Of several batches of librdkafka that are under way to a node,
the node may refuse the first (it lacks copies, it does not lead yet) and be ready by the second, which is "out of
order" then. librdkafka goes on under a new epoch, in all partitions, and gives new numbers to all that has no response
yet. What of that was written under the old epoch, in whatever partition, and only its response was lost, no node can
know again: it is written twice (librdkafka issue 4953, open, seen in 2.16.0; without a proxy, too). Each step leaves
its proof: what was refused and why, in the client's log; how both copies are numbered, in the batches.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError

from tests.conservation.accounts import Double, Findings, Log
from tests.conservation.batches import Batch

_PID = r"PID\{Id:(\d+),Epoch:(\d+)\}"
_LINE = re.compile(r"\|(?:NEWPID|DRAIN|ERRSEQ)\|([^|#]+)#[^|]*\| \[thrd:[^]]*\]: (.*)")
_RENUMBERED = re.compile(rf"(\S+) \[(\d+)\] changed {_PID} -> {_PID} with base MsgId")
_BUMPED = re.compile(rf"Beginning partition drain in state \w+ for {_PID} epoch bump for .*: (.*)")
_SKIPPED = re.compile(
    rf"failed due to skipped sequence numbers \({_PID}, base seq (\d+) > next seq \d+\) "
    r"caused by previous failed request \((\w+), actions .*?, base seq \d+\.\.(\d+),"
)

_REFUSALS = {
    KafkaError(code).name()
    for code in (
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    )
}
"""Answers, by librdkafka's names, of a node that has not written a batch and may be ready for the next one."""

Origin = tuple[int, int]
"""Producer id and epoch."""


class Gap(NamedTuple):
    """A batch that a node found out of order, and what had become of the one that failed before it."""

    sequence: int
    error_before: str
    last_sequence_before: int

    @property
    def refused(self) -> bool:
        """A node has refused the very batch that was missing."""
        return self.error_before in _REFUSALS and self.last_sequence_before + 1 == self.sequence


class Journal:
    """What librdkafka's producers have logged (debug=eos) of their epochs."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._renumbered: set[tuple[str, str, int, Origin, Origin]] = set()
        self._reasons: dict[Origin, set[str]] = defaultdict(set)
        self._gaps: dict[Origin, list[Gap]] = defaultdict(list)
        """Why each epoch has ended, in librdkafka's words and where a batch was missing."""
        for line in lines:
            if match := _LINE.search(line):
                self._take(*match.groups())

    def _take(self, client_id: str, text: str) -> None:
        if match := _RENUMBERED.match(text):
            topic, partition, *numbers = match.groups()
            was_id, was_epoch, now_id, now_epoch = map(int, numbers)
            self._renumbered.add((client_id, topic, int(partition), (was_id, was_epoch), (now_id, now_epoch)))
        elif match := _BUMPED.match(text):
            self._reasons[int(match[1]), int(match[2])].add(match[3])
        elif match := _SKIPPED.search(text):
            self._gaps[int(match[1]), int(match[2])].append(Gap(int(match[3]), match[4], int(match[5])))

    def objection(self, client_id: str, topic: str, partition: int, old: Origin, new: Origin) -> str:
        """Why the client has not said that it went from one epoch to the other for a node's refusals; "" if it has."""
        if (client_id, topic, partition, old, new) not in self._renumbered:
            return "the client does not say that it has changed its epoch"
        for epoch in range(old[1], new[1]):
            reasons, gaps = self._reasons[old[0], epoch], self._gaps[old[0], epoch]
            if reasons != {"skipped sequence numbers"}:
                return f"epoch {epoch} has ended by {sorted(reasons)}"
            if not gaps or not all(gap.refused for gap in gaps):
                return f"epoch {epoch}: no node is known to have refused what was missing: {gaps}"
        return ""

    def causes(self, old: Origin, new: Origin) -> list[Gap]:
        """What has ended the epochs between two."""
        return [gap for epoch in range(old[1], new[1]) for gap in self._gaps[old[0], epoch]]


def judge(
    log: Log,
    topic: str,
    doubles: Sequence[Double],
    batches: Sequence[Batch],
    journal: Journal,
    client_ids: Mapping[int, str],
) -> Findings:
    """Count a partition's doubled records as "doubled" or, where that is proved, as "doubled by librdkafka".

    One line for each pair of batches, a violation or a remark, tells all that is known of them.
    """
    findings = Findings()
    batch_at = {offset: batch for batch in batches for offset in range(batch.first_offset, batch.last_offset + 1)}
    by_origins: dict[tuple[int, Origin, Origin], list[Double]] = defaultdict(list)
    for double in doubles:
        before, again = batch_at[double.before], batch_at[double.again]
        by_origins[double.producer, before.origin, again.origin].append(double)
    for (producer, old, new), alike in by_origins.items():
        objection = _objection(alike, old, new, batches)
        objection = objection or journal.objection(client_ids[producer], topic, log.partition, old, new)
        by_batches = Counter((batch_at[double.before], batch_at[double.again]) for double in alike)
        for (before, again), count in by_batches.items():
            text = f"{log.place}: {count} records of producer {producer}; first: {before}; again: {again}"
            if objection:
                findings.counts["doubled"] += count
                findings.violations.append(f"doubled: {text}: {objection}")
            else:
                findings.counts["doubled by librdkafka"] += count
                findings.remarks.append(f"{text}; for {journal.causes(old, new)}")
    return findings


def _objection(alike: Sequence[Double], old: Origin, new: Origin, batches: Sequence[Batch]) -> str:
    """Why the numbers of what is doubled between two epochs are not those that a client gives anew; "" if they are."""
    if old == new:
        return "a node has taken the same producer id and epoch twice"
    if old[0] != new[0] or old[1] > new[1]:
        return "the second is of no later epoch of the same producer id"
    if [double.before for double in alike] != _offsets_of(old, batches)[-len(alike) :]:
        return "the first are not the last of their epoch"
    if [double.again for double in alike] != _offsets_of(new, batches)[: len(alike)]:
        return "the second are not the first of their epoch"
    return ""


def _offsets_of(origin: Origin, batches: Sequence[Batch]) -> list[int]:
    return [
        offset
        for batch in batches
        if batch.origin == origin
        for offset in range(batch.first_offset, batch.last_offset + 1)
    ]
