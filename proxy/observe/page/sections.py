"""The sections of the status page as plain data. What may be very much is gathered in steps."""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol

from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.net.turns import finish_in_turns
from kafka_throttle.proxy.observe.health import ClusterHealth
from kafka_throttle.proxy.observe.metrics import ShadowTotals
from kafka_throttle.proxy.observe.most_used import MostUsed
from kafka_throttle.proxy.observe.page.history import History, Sample, moment_of
from kafka_throttle.proxy.observe.page.process import Cluster, NodeState, Process
from kafka_throttle.proxy.observe.page.search import Found, search
from kafka_throttle.proxy.observe.throttled_now import throttled_form
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.quotas.explain import UNIT

MAX_ROWS = 50
"""The most rows of a list on the page."""

Facts = Mapping[str, Any]
Steps = Generator[None, None, Facts]

HARMLESS = frozenset(
    {
        CloseReason.CLIENT_CLOSED,
        CloseReason.CLIENT_LOST,
        CloseReason.CLIENT_SENT_NOTHING,
        CloseReason.NODE_CLOSED,
        CloseReason.NODE_LOST,
        CloseReason.NODE_GONE,
        CloseReason.SHUTDOWN,
    }
)
"""Ends of connections that are no refusals, and need no attention."""


class Shown(Protocol):
    """What the page is made of. `name` is that of the process, `clusters` are the names of its virtual clusters."""

    name: str
    clusters: Sequence[str]
    clock: Clock
    history: History

    async def facts(self, section: "Section") -> Facts:
        """The present facts of a section."""

    async def find(self, text: str) -> Found:
        """The clients of which a name contains `text`."""


class Page:
    """The page of one process."""

    def __init__(self, process: Process) -> None:
        self.name = process.name
        self.clusters: Sequence[str] = [cluster.name for cluster in process.clusters]
        self.clock = process.clock
        self.process = process
        self.history = History(partial(moment_of, process))
        self.most_used = MostUsed(process.clusters, process.addresses, process.clock, MAX_ROWS)

    async def facts(self, section: "Section") -> Facts:
        """The present facts of a section."""
        return await finish_in_turns(section.facts(self))

    async def find(self, text: str) -> Found:
        """The clients of which a name contains `text`."""
        return await finish_in_turns(search(self.process, text))


class Section(NamedTuple):
    """One section: its name (its id in the HTML, the name of its template and of its event), and its facts.

    `facts` may have `looked_at`, the number of things that were looked at to find them.
    """

    name: str
    facts: Callable[[Page], Steps]


def _at_once(facts: Callable[[Page], Facts]) -> Callable[[Page], Steps]:
    """Facts that are found in one step."""

    def steps(page: Page) -> Steps:
        yield from ()
        return facts(page)

    return steps


# ------------------------------------------------------------------- the state


@_at_once
def _state(page: Page) -> Facts:
    process = page.process
    return {"reasons": list(process.not_ready()), "remarks": list(process.remarks()), "at_ms": process.clock.epoch_ms()}


# ------------------------------------------------------------------- throttled


def _throttled(page: Page) -> Steps:
    """Who is throttled. Those muted for longest are first: an order that does not change from second to second."""
    process = page.process
    form = yield from throttled_form(process.clusters, "throttled", MAX_ROWS, process.clock)
    return {**form, "several": len(process.clusters) > 1, "looked_at": form["total"]}


# -------------------------------------------------------------------- the hour


class Chart(NamedTuple):
    """One chart: the fields of Sample that are its lines, with their names, and the filter that prints a value.

    The page's script has functions of the same names as these filters, for the axes.
    """

    name: str
    title: str
    lines: Mapping[str, str]
    words: str


CHARTS = (
    Chart("throttled", "Throttled clients", {"throttled_clients": ""}, "count"),
    Chart("muted", "Throttle time, s per s", {"throttled_s_per_s": ""}, "number"),
    Chart("requests", "Requests per second", {"requests_per_s": ""}, "number"),
    Chart("bytes", "Bytes per second", {"in_bytes_per_s": "in", "out_bytes_per_s": "out"}, "size"),
    Chart("connections", "Connections", {"connections": ""}, "count"),
    Chart("lag", "Event loop lag, ms", {"loop_lag_s": ""}, "milliseconds"),
)


@_at_once
def _hour(page: Page) -> Facts:
    return hour_facts(page.history)


def hour_facts(history: History) -> Facts:
    """For each chart the present and the highest value of each of its lines."""
    samples = history.latest()
    return {"charts": [(chart, list(_captions(chart, samples))) for chart in CHARTS], "samples": len(samples)}


def _captions(chart: Chart, samples: Sequence[Sample]) -> Iterator[tuple[str, float, float]]:
    for field, name in chart.lines.items():
        values = [getattr(sample, field) for sample in samples] or [0]
        yield name, values[-1], max(values)


# ---------------------------------------------------------------------- quotas


def _quotas(page: Page) -> Steps:
    """The quotas in force that are used most. All sensors are looked at, in several goes if they are very many."""
    used, clusters = page.most_used, page.process.clusters
    yield from used.read_on()
    choice = used.choice
    rows = [row for row in used.enforced() if row.share]
    return {
        "rows": rows,
        "most": MAX_ROWS,
        "more": choice.enforced.count - len(rows),
        "limited": choice.enforced.count,
        "exceeded": choice.exceeded,
        "is_whole": choice.is_whole,
        "set_on": sum(len(cluster.quotas) for cluster in clusters),
        "unknown": [cluster.origin for cluster in clusters if not cluster.origin.known],
        "several": len(clusters) > 1,
        "units": UNIT,
        "looked_at": choice.looked_at if choice.is_whole else 0,
    }


# ----------------------------------------------------------------- connections


class ListenerRow(NamedTuple):
    """The connections of one listener."""

    virtual_cluster: str
    listener: str
    connections: int
    limit: float | None
    muted: int
    accept_rate: float
    accept_limit: float | None
    waited: int
    held: int


@dataclass(frozen=True, slots=True)
class EndRow:
    """How many connections of a listener ended for one reason."""

    reason: str
    virtual_cluster: str
    listener: str
    count: int


@_at_once
def _connections(page: Page) -> Facts:
    process = page.process
    connections = Counter[tuple[str, str]]()
    for row in process.relays():
        connections[row.virtual_cluster, row.listener] += row.connections_open
    muted = {(one.virtual_cluster, one.listener): one.connections for one in process.muted()}
    listeners = []
    for gate in process.listeners():
        place = gate.virtual_cluster, gate.listener
        listeners.append(
            ListenerRow(
                *place,
                connections[place],
                gate.connections_limit,
                muted.get(place, 0),
                gate.accept_rate,
                gate.accept_limit,
                gate.throttles,
                gate.address_throttles,
            )
        )
    ends = [
        EndRow(reason.value, *place, count)
        for place, reasons in process.closed.items()
        for reason, count in list(reasons.items())
        if count and reason not in HARMLESS
    ]
    ends.sort(key=lambda row: -row.count)
    return {
        "listeners": listeners,
        "instance": process.instance(),
        "ends": ends[:MAX_ROWS],
        "more_ends": max(len(ends) - MAX_ROWS, 0),
        "several": len(process.clusters) > 1,
    }


# ----------------------------------------------------------------------- nodes


class ClusterRow(NamedTuple):
    """A virtual cluster: its state, its nodes with the open connections to each, its quotas and their problems."""

    health: ClusterHealth
    nodes: list[tuple[NodeState, int]]
    more_nodes: int
    quotas: int
    problems: list[tuple[str, str]]
    more_problems: int


@_at_once
def _nodes(page: Page) -> Facts:
    process = page.process
    connections = Counter[tuple[str, int]]()
    for row in process.relays():
        connections[row.virtual_cluster, row.node_id] += row.connections_open
    return {"clusters": [_cluster_row(cluster, connections) for cluster in process.clusters]}


def _cluster_row(cluster: Cluster, connections: Mapping[tuple[str, int], int]) -> ClusterRow:
    nodes = sorted(cluster.nodes(), key=lambda node: (node.gone_for_s is not None, node.node_id))
    problems = cluster.origin.problems
    return ClusterRow(
        cluster.health(),
        [(node, connections.get((cluster.name, node.node_id), 0)) for node in nodes[:MAX_ROWS]],
        max(len(nodes) - MAX_ROWS, 0),
        len(cluster.quotas),
        list(islice(problems.items(), MAX_ROWS)),
        max(len(problems) - MAX_ROWS, 0),
    )


# --------------------------------------------------------------------- shadows


@_at_once
def _shadows(page: Page) -> Facts:
    """What shadow quotas would have throttled, in all and by client. The clients are those that `_quotas` chose."""
    totals: dict[tuple[str, str], ShadowTotals] = {}
    for cluster in page.process.clusters:
        for row in cluster.shadow_totals():
            of_type = totals.setdefault(
                (row.virtual_cluster, row.quota_type), ShadowTotals(row.virtual_cluster, None, row.quota_type, 0, 0)
            )
            of_type.throttles += row.throttles
            of_type.throttled_ms += row.throttled_ms
    rows = [row for row in page.most_used.shadows() if row.throttles]
    return {
        "totals": list(totals.values()),
        "rows": rows,
        "measured": page.most_used.choice.shadows.count,
        "several": len(page.process.clusters) > 1,
        "units": UNIT,
    }


SECTIONS = (
    Section("state", _state),
    Section("throttled", _throttled),
    Section("hour", _hour),
    Section("quotas", _quotas),
    Section("connections", _connections),
    Section("nodes", _nodes),
    Section("shadows", _shadows),
)
"""In the order of the page. `shadows` comes after `quotas`, which chooses its rows."""
