"""The summary that an ingest prints at its end."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from kafka_throttle.pipeline.ingest.ingest import Outcome
from kafka_throttle.pipeline.table.accounts import Accounts, LostEnd, lost_ends
from kafka_throttle.pipeline.table.intervals import size
from kafka_throttle.pipeline.table.schemas import ROWS

_MOST_GAPS = 20


@dataclass(slots=True)
class Totals:
    """The totals of all batches of a run."""

    batches: int = 0
    files: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, outcome: Outcome) -> "Totals":
        """The totals of one batch."""
        totals = cls()
        totals.add(outcome)
        return totals

    def add(self, outcome: Outcome) -> None:
        """Add one more batch."""
        self.batches += 1
        self.files += outcome.files
        self.counts.update(outcome.counts)

    def in_short(self) -> str:
        """The totals in one line."""
        new = sum(self.counts[f"{stream} records"] for stream in ROWS)
        again = sum(self.counts[f"{stream} duplicates"] for stream in ROWS)
        rejected = sum(count for name, count in self.counts.items() if name.startswith("rejected: "))
        return f"{new:,} records new, {again:,} here already, {rejected:,} in quarantine"

    def lines(self) -> Iterator[str]:
        """The totals in full."""
        yield f"{self.files:,} files: {self.in_short()}" if self.files else self.in_short()
        for stream in ROWS:
            if new := self.counts[f"{stream} records"]:
                yield f"  {stream}: {new:,} new"
        for name, count in sorted(self.counts.items(), key=lambda item: (-item[1], item[0])):
            if name.startswith("rejected: "):
                yield f"  in quarantine: {count:,}: {name.removeprefix('rejected: ')}"


def gap_lines(accounts: Accounts, most: int = _MOST_GAPS) -> Iterator[str]:
    """The records that are missing, by writer, those that the proxies have dropped, and the ends of killed ones."""
    reported = 0
    lost = {one.writer: one for one in lost_ends(accounts)}
    for writer, account in sorted(accounts.items()):
        who = f"{writer.stream} of {writer.instance}, epoch {writer.epoch}"
        if account.dropped:
            yield f"dropped by the proxy: {who}: {size(account.dropped):,} records"
        for first, last in account.gaps:
            reported += 1
            if reported <= most:
                yield f"missing: {who}: {last - first + 1:,} records, numbers {first} to {last}"
        if writer in lost:
            reported += 1
            if reported <= most:
                yield f"missing: {who}: its end, {_extent_of(lost[writer])}"
    if reported > most:
        yield f"missing: {reported - most:,} more stretches; `usage gaps` lists all of them"
    if not reported:
        yield "no record is missing"


def _extent_of(lost: LostEnd) -> str:
    before = datetime.fromtimestamp(lost.before_ms // 1_000, UTC)
    longest = f"{lost.flush_ms / 1_000:g} s" if lost.flush_ms else "usage.window_s"
    return (
        f"as it was killed before {before:%Y-%m-%d %H:%M:%S} (UTC): the use of its last {longest} at most "
        "(if the machine crashed, also what was in its last file)"
    )
