"""Whether the proxy can serve clients: one state for the page /readyz, the log and the metrics."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric

from kafka_throttle.proxy.observe.fleet_metrics import FleetTotals
from kafka_throttle.quotas.sources.source import SourceState

STOPPING: Final = "shutting down"
HANDED_OVER: Final = "handed over to pid "
"""Followed by the number of the process that has taken over."""

_NODES_SHOWN = 10
_START_MS = 30_000
"""So long a start may take before it is reported as a problem that the process is not ready."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """The state of one virtual cluster.

    `trouble` says why the cluster cannot be reached; it is None while it can. `nodes` are the nodes that the cluster
    has now. `listeners_without_port` are the listeners at which none of them has a port.
    """

    virtual_cluster: str
    trouble: str | None
    nodes: Sequence[int]
    listeners_without_port: Sequence[str]
    source: str
    source_state: SourceState
    quotas_known: bool
    fleet: FleetTotals | None = None
    """The fleet of which this instance is a member, if there is one."""
    silent: Sequence[str] = ()
    """The bootstrap servers that do not answer, while other nodes of the cluster do."""
    refused: Sequence[str] = ()
    """The nodes to whose reported address the proxy does not connect, each with that address and the reason."""
    quota_problems: int = 0
    """How many problems the source of the quotas has."""
    lacks_login: bool = False
    """Whether the cluster wants a login of the proxy, which has none: `nodes` are those that clients were told of."""

    def not_ready(self) -> Iterator[str]:
        """The reasons why clients of this virtual cluster cannot be served, one line each."""
        place = f"virtual cluster {self.virtual_cluster}"
        if self.trouble is not None:
            yield f"{place}: the cluster is unreachable: {self.trouble}"
        shown = ", ".join(map(str, self.nodes[:_NODES_SHOWN])) + (", ..." if len(self.nodes) > _NODES_SHOWN else "")
        for listener in self.listeners_without_port:
            yield f"{place}: no node has a port at listener {listener} (nodes of the cluster: {shown})"
        if not self.quotas_known:
            yield f"{place}: quotas are not known yet (source {self.source})"

    def remarks(self) -> Iterator[str]:
        """What is wrong though clients can be served, one line each."""
        place = f"virtual cluster {self.virtual_cluster}"
        if self.lacks_login:
            shown = f"{len(self.nodes)} so far" if self.nodes else "none yet"
            yield (
                f"{place}: the cluster wants a login, and the proxy has none "
                f"(upstream.admin): it learns the nodes from the cluster's responses to clients, {shown}"
            )
        if self.silent and self.trouble is None:
            silent = ", ".join(self.silent)
            yield f"{place}: no response from {silent}, so the proxy asks other nodes of the cluster"
        for refused in self.refused[:_NODES_SHOWN]:
            yield f"{place}: {refused}"
        yield from quota_remarks(self.virtual_cluster, self.source, self.quota_problems)
        if self.fleet is not None and self.fleet.is_cut_off:
            share = f"it gives out at most 1/{self.fleet.members} of each limit"
            yield f"{place}: this instance is cut off from its fleet, and {share}: {self.fleet.trouble}"


def quota_remarks(virtual_cluster: str, source: str, problems: int) -> Iterator[str]:
    """The remark that a source of quotas has problems. It names no entity, as everybody may read it."""
    if problems:
        count = "1 problem" if problems == 1 else f"{problems} problems"
        yield (
            f"virtual cluster {virtual_cluster}: {count} with the quotas of source {source}: what cannot be read keeps "
            "its last good value, all else is in force; quota_problem in the log and kafka-throttle explain have more"
        )


class Writing(Protocol):
    """A part of the proxy that writes to the disk while clients are served."""

    @property
    def problem(self) -> str | None:
        """Why it cannot write now; None while it can."""


def unwritten(what: str, writing: Writing | None) -> Iterator[str]:
    """The remark that `what` cannot be written now, if that is so."""
    if writing is not None and (problem := writing.problem) is not None:
        yield f"{what} cannot be written now: {problem}"


class Muted(NamedTuple):
    """How many connections of a listener are muted by a throttle."""

    virtual_cluster: str
    listener: str
    connections: int


class Readiness:
    """Logs each change of the reasons why the process is not ready. `not_ready` returns them; ready means none.

    They are a warning, unless the process still starts, or ends because an operator wants that.
    """

    def __init__(self, not_ready: Callable[[], list[str]], now_ms: Callable[[], int]) -> None:
        self._not_ready = not_ready
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._was_ready = False
        self._reported: tuple[list[str], int] | None = None
        """The reasons that were logged last, and at which level."""

    def look(self) -> list[str]:
        """The reasons now. They are logged if they, or their level, are others than at the last look."""
        reasons = self._not_ready()
        self._was_ready = self._was_ready or not reasons
        level = self._level_of_reasons(reasons)
        if (reasons, level) != self._reported:
            self._reported = reasons, level
            if reasons:
                log.log(level, "not_ready", reasons=reasons)
            else:
                log.info("ready")
        return reasons

    def _level_of_reasons(self, reasons: Sequence[str]) -> int:
        starts = not self._was_ready and self._now_ms() - self._started_ms < _START_MS
        return logging.INFO if starts or all(map(_is_on_purpose, reasons)) else logging.WARNING


def _is_on_purpose(reason: str) -> bool:
    """Whether a process is not ready because an operator wants that."""
    return reason == STOPPING or reason.startswith(HANDED_OVER)


def health_families(clusters: Iterable[ClusterHealth]) -> Iterator[Metric]:
    """The metric families of the state of virtual clusters."""
    up = _gauge(
        "cluster_up",
        "1 if the cluster named its nodes, or wanted a login that the proxy has not, when it was asked last, else 0.",
    )
    nodes = _gauge("cluster_nodes", "Nodes that the cluster has now.")
    source_up = _gauge("quota_source_up", "1 if the last attempt to read the source of the quotas succeeded.", "source")
    age = _gauge("quota_source_age_seconds", "How long ago the source of the quotas was last read.", "source")
    known = _gauge("quotas_known", "1 once quotas were read, by this process or an earlier one.", "source")
    for cluster in clusters:
        place, source = (cluster.virtual_cluster,), (cluster.virtual_cluster, cluster.source)
        up.add_metric(place, float(cluster.trouble is None))
        nodes.add_metric(place, len(cluster.nodes))
        source_up.add_metric(source, float(cluster.source_state.up))
        known.add_metric(source, float(cluster.quotas_known))
        if cluster.source_state.age_s is not None:
            age.add_metric(source, cluster.source_state.age_s)
    yield from (up, nodes, source_up, age, known)


def muted_family(listeners: Iterable[Muted]) -> Metric:
    """The metric family of muted connections."""
    family = _gauge("connections_muted", "Connections of clients that are muted by a throttle now.", "listener")
    for each in listeners:
        family.add_metric((each.virtual_cluster, each.listener), each.connections)
    return family


def _gauge(name: str, documentation: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"kafka_throttle_{name}", documentation, labels=("virtual_cluster", *labels))
