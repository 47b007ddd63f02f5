"""What can be done about throttled clients: the commands to type."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from kafka_throttle.pipeline.report.findings import Findings, Row
from kafka_throttle.pipeline.spark.rule import kind_of

TYPES = ("produce", "fetch", "request", "controller_mutation", "connection")
_LEAST_DAYS, _LEAST_WINDOWS = 7, 100
"""The defaults of `usage recommend`."""


@dataclass(frozen=True, slots=True)
class NextCommands:
    """The commands for all throttled clients whose quotas are set on one kind of entity."""

    by: str
    """As `usage recommend --by` has it."""
    types: tuple[str, ...]
    recommend: str
    simulate: str
    is_short: bool
    """Whether the records are of less time than recommendations need."""

    @property
    def anchor(self) -> str:
        """The id of their place on the page."""
        return anchor_of(self.by)


def anchor_of(by: str) -> str:
    """The id of the commands for one kind of entity."""
    return f"next-{by.replace('+', '-and-')}"


def next_commands(findings: Findings, throttled: Sequence[Row]) -> list[NextCommands]:
    """The commands for these rows of the table of throttled clients, by kind of entity."""
    types: dict[str, set[str]] = {}
    for row in throttled:
        types.setdefault(kind_of(row.get("rule") or ""), set()).add(row["quota_type"])
    return [_commands(findings, by, tuple(one for one in TYPES if one in types[by])) for by in sorted(types)]


def _commands(findings: Findings, by: str, types: tuple[str, ...]) -> NextCommands:
    out = f"advice-by-{by.replace('+', '-and-')}"
    use = ("--table", findings.table, *_period(findings))
    windows = (findings.end_ms - findings.begin_ms) // max(findings.window_ms, 1)
    is_short = len(findings.days) < _LEAST_DAYS or windows < _LEAST_WINDOWS
    least = ("--least-days", str(max(1, min(len(findings.days), _LEAST_DAYS))), "--least-windows", "3")
    asked = ("--by", by, "--types", ",".join(types), *(least if is_short else ()))
    return NextCommands(
        by,
        types,
        _typed("recommend", (*use, "--out", out, *asked)),
        _typed("simulate", (*use, "--candidate", f"{out}/quotas.yaml")),
        is_short,
    )


def _period(findings: Findings) -> Iterable[str]:
    for option, at_ms in (("--since", findings.since_ms), ("--until", findings.until_ms)):
        if at_ms is not None:
            yield option
            yield datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")


def _typed(job: str, arguments: Iterable[str]) -> str:
    return f"kafka-throttle usage {job} {shlex.join(arguments)}"
