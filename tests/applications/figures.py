"""The figures of a run, as a line and as a row of a table, and whether they are good enough."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from tests.applications.accounts import Account
from tests.applications.restarting import RESTARTS, Restart

MOST_OUTAGE_S = 3.0


@dataclass(frozen=True)
class Run:
    """One run: how its restarts affected clients and applications."""

    restart: Restart
    outages_s: Sequence[float]
    """The outage of the polling client, one for each restart."""
    ends_s: Sequence[float]
    """How long each restart waited for the end of the old process; after SIGUSR2, until the next one had taken over."""
    refused: int
    """Polls that failed."""
    producer_wait_s: float
    """The longest time between two acknowledgements of the feeding producer."""
    streams: Account
    connect: Account
    done_after_s: float
    """From the last record fed until everything was written; until the run gave up, if something is missing."""
    streams_fenced: int
    connect_fenced: int
    dead_threads: int
    failed_tasks: int

    @property
    def exact(self) -> bool:
        """Of both applications."""
        return self.streams.exact and self.connect.exact

    @property
    def harm(self) -> int:
        """Fenced producers, threads of Streams that died, and tasks of Connect that failed."""
        return self.streams_fenced + self.connect_fenced + self.dead_threads + self.failed_tasks

    def as_json(self) -> dict[str, Any]:
        """Plain data, for a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> "Run":
        """The same again."""
        return cls(**{**kept, "streams": Account(**kept["streams"]), "connect": Account(**kept["connect"])})


def line(run: Run) -> str:
    """The figures of a run in one line."""
    words = [
        f"outages {_each(run.outages_s)} s",
        f"old process ended after {_each(run.ends_s)} s",
        f"{run.refused} polls failed",
        f"producer waited {run.producer_wait_s:.1f} s",
        f"Streams {run.streams} ({run.streams_fenced} fenced, {run.dead_threads} threads died)",
        f"Connect {run.connect} ({run.connect_fenced} fenced, {run.failed_tasks} tasks failed)",
        f"done after {run.done_after_s:.1f} s",
    ]
    return f"{run.restart}: {', '.join(words)}"


def _each(values: Sequence[float]) -> str:
    return " and ".join(f"{value:.2f}" for value in values) or "no"


def table(runs: Sequence[Run]) -> str:
    """A row for each way to restart: medians, with the least and the most."""
    head = [
        "| restart | runs | outage, s | old process ended after, s | polls failed | producer waited, s | exact "
        "| missing | fenced | threads and tasks failed | done after, s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(_row(how, found) for how, found in _by_restart(runs))])


def _by_restart(runs: Sequence[Run]) -> Iterator[tuple[Restart, list[Run]]]:
    for how in RESTARTS:
        if found := [run for run in runs if run.restart == how]:
            yield how, found


def _row(how: Restart, runs: Sequence[Run]) -> str:
    cells = [
        how,
        len(runs),
        _spread([s for run in runs for s in run.outages_s], 2),
        _spread([s for run in runs for s in run.ends_s], 2),
        _spread([run.refused for run in runs]),
        _spread([run.producer_wait_s for run in runs], 1),
        f"{sum(run.exact for run in runs)} of {len(runs)}",
        sum(run.streams.missing + run.connect.missing for run in runs),
        sum(run.streams_fenced + run.connect_fenced for run in runs),
        sum(run.dead_threads + run.failed_tasks for run in runs),
        _spread([run.done_after_s for run in runs], 1),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _spread(values: Sequence[float], digits: int = 0) -> str:
    if not values:
        return ""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} - {max(values):.{digits}f})"


def problems(runs: Sequence[Run], most_outage_s: float = MOST_OUTAGE_S) -> list[str]:
    """The problems of these runs: any output that is not exact; after SIGTERM an outage that is too long, or more
    harm to a run than after SIGKILL, where there are runs of both; after SIGUSR2 any outage or harm.
    """
    found = [f"not exact: {line(run)}" for run in runs if not run.exact]
    by_restart = dict(_by_restart(runs))
    terminated, killed = by_restart.get("sigterm", []), by_restart.get("sigkill", [])
    worst = max((s for run in terminated for s in run.outages_s), default=0.0)
    if worst > most_outage_s:
        found.append(f"sigterm: an outage of {worst:.2f} s, more than {most_outage_s:g} s")
    if terminated and killed and _mean_harm(terminated) > _mean_harm(killed):
        means = f"{_mean_harm(terminated):.1f} a run, {_mean_harm(killed):.1f} after sigkill"
        found.append(f"sigterm: more fenced producers, dead threads and failed tasks than after sigkill: {means}")
    found += [f"harm after a handover: {line(run)}" for run in by_restart.get("sigusr2", []) if run.harm or run.refused]
    return found


def _mean_harm(runs: Sequence[Run]) -> float:
    return sum(run.harm for run in runs) / len(runs)
