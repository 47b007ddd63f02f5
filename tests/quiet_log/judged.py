"""Judges the log of a run: each warning must have a cause in the run's timeline, and each cause its line. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Line = Mapping[str, Any]

FIRST_KEYS = ("timestamp", "level", "event", "pid")
_NOTICED_S = 30.0
"""How long after its cause a line may come: the cluster is looked at every few seconds, and the machine may be busy."""
_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the run did, in seconds since 1970: a node was `away` between two times; the run lasted from `begin_s` to
    `end_s`.

    `throttled` and `good` are client-ids, `storm` is the address that connects in a loop.
    """

    begin_s: float
    end_s: float
    node_id: int
    away: tuple[float, float]
    throttled: str
    good: Sequence[str]
    storm: str

    @property
    def minutes(self) -> int:
        """How many whole minutes the run has lasted."""
        return int((self.end_s - self.begin_s) // _MINUTE_S)


def at_s(line: Line) -> float:
    """When a line was written, in seconds since 1970."""
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def is_alarm(line: Line) -> bool:
    """Whether an operator would look at it."""
    return line["level"] not in ("debug", "info")


# ------------------------------------------------------------------ what is too much


_OF_NODE_AWAY = frozenset({"node_unreachable", "node_lost", "node_closed"})


def unaccounted(lines: Sequence[Line], timeline: Timeline) -> list[Line]:
    """The warnings and errors for which the timeline has no cause."""
    return [line for line in lines if is_alarm(line) and not _has_cause(line, timeline)]


def _has_cause(line: Line, timeline: Timeline) -> bool:
    gone_s, back_s = timeline.away
    if not gone_s <= at_s(line) <= back_s + _NOTICED_S:
        return False
    if line["event"] == "nodes_changed":
        return list(line.get("gone", ())) == [timeline.node_id]
    if line["event"] == "connection_closed":
        return line["reason"] in _OF_NODE_AWAY and line.get("node_id", timeline.node_id) == timeline.node_id
    return bool(line["event"] == "bootstrap_servers_silent")


# ------------------------------------------------------------------ what is too little


def missing(lines: Sequence[Line], timeline: Timeline) -> list[str]:
    """What the log must say of this run and does not, one line each."""
    return [what for what, is_there in _demands(timeline) if not is_there(lines)]


def _demands(timeline: Timeline) -> Iterator[tuple[str, Callable[[Sequence[Line]], bool]]]:
    gone_s, back_s = timeline.away
    node = [timeline.node_id]
    yield (
        "one warning that the node is gone",
        lambda lines: (
            [line["level"] for line in _of(lines, "nodes_changed", gone=node, since_s=gone_s, until_s=back_s)]
            == ["warning"]
        ),
    )
    yield (
        "one line that the node has come back",
        lambda lines: (
            [line["level"] for line in _of(lines, "nodes_changed", come=node, since_s=back_s - _NOTICED_S)] == ["info"]
        ),
    )
    yield (
        "that the bootstrap server on the node responds again",
        lambda lines: (
            len(list(_of(lines, "bootstrap_servers_silent"))) == len(list(_of(lines, "bootstrap_servers_respond")))
        ),
    )
    yield (
        "the begin of a throttle, with limit and client",
        lambda lines: any("limit" in line for line in _of(lines, "throttle_started", client_id=timeline.throttled)),
    )
    yield "the end of that throttle", lambda lines: any(_of(lines, "throttle_ended", client_id=timeline.throttled))
    yield (
        "that no good client is throttled",
        lambda lines: not any(line["client_id"] in timeline.good for line in _of(lines, "throttle_started")),
    )
    yield (
        "a sum of the storm for each minute",
        lambda lines: (
            len(list(_of(lines, "connections_closed", counts_as=timeline.storm))) >= max(timeline.minutes - 1, 0)
        ),
    )
    yield (
        "at most ten connections of the storm in a minute, beside those that a node took with it",
        lambda lines: _most_in_a_minute(_usual_of_address(lines, timeline.storm)) <= 10,
    )
    yield (
        "the client-id and software of each client that sent a request",
        lambda lines: all(
            {"client_id", "software_name", "software_version"} <= line.keys()
            for line in _of(lines, "connection_closed")
            if line.get("requests")
        ),
    )
    yield (
        "that the process was ready, and stopped",
        lambda lines: any(_of(lines, "ready")) and lines[-1]["event"] == "stopped",
    )
    yield (
        "time, level, event and process first, and no empty field",
        lambda lines: all(
            tuple(line)[:4] == FIRST_KEYS and not any(value in (None, "", [], {}) for value in line.values())
            for line in lines
        ),
    )


def _of(
    lines: Iterable[Line], event: str, since_s: float = 0, until_s: float = float("inf"), **keys: Any
) -> Iterator[Line]:
    """The lines of an event, between two times, with these keys."""
    wanted = {"event": event, **keys}
    for line in lines:
        if since_s <= at_s(line) <= until_s and all(line.get(key) == value for key, value in wanted.items()):
            yield line


def _usual_of_address(lines: Sequence[Line], address: str) -> list[Line]:
    """The connections of an address that ended as connections do. One that is an alarm wants a cause of its own."""
    ended = [line for line in _of(lines, "connection_closed") if not is_alarm(line)]
    return [line for line in ended if line["client"].rpartition(":")[0] == address]


def _most_in_a_minute(lines: Sequence[Line]) -> int:
    """The most lines in a minute that begins with one of them; a second less, as sums are made once a second."""
    times = [at_s(line) for line in lines]
    return max((sum(begin <= time < begin + _MINUTE_S - 1.5 for time in times) for begin in times), default=0)


# ------------------------------------------------------------------ for people


def table(lines: Sequence[Line]) -> Iterator[str]:
    """The events with their levels and numbers, the most frequent first, each with one line as an example."""
    counts = Counter((line["level"], line["event"]) for line in lines)
    yield "| level | event | lines | for example |"
    yield "| --- | --- | --- | --- |"
    for (level, event), count in counts.most_common():
        example = next(line for line in lines if (line["level"], line["event"]) == (level, event))
        rest = " ".join(f"{key}={value}" for key, value in list(example.items())[3:])
        yield f"| {level} | {event} | {count} | {rest} |".replace("\n", " ")
