"""What the status page reads of the running process."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.gate.gate_metrics import AddressUse, InstanceGate, ListenerGate
from kafka_throttle.proxy.observe import api
from kafka_throttle.proxy.observe.health import ClusterHealth, Muted
from kafka_throttle.proxy.observe.metrics import RelayTotals, ShadowTotals
from kafka_throttle.proxy.relay.actions import CloseReason


class NodeState(NamedTuple):
    """A node of a cluster: its address as host and port, and for how long it has been gone; None: it is there."""

    node_id: int
    address: str
    gone_for_s: float | None


class Cluster(api.Cluster, Protocol):
    """What the page needs of a virtual cluster."""

    def health(self) -> ClusterHealth:
        """What is right and wrong with the cluster, its listeners and its source of quotas."""

    def nodes(self) -> Iterable[NodeState]:
        """The nodes that the cluster has or had."""

    def shadow_totals(self) -> Iterable[ShadowTotals]:
        """What the shadow quotas would have throttled."""

    def peers(self) -> Iterable[tuple[str, str]]:
        """The user and the address of each open connection."""


@dataclass(frozen=True, slots=True)
class Process:
    """The sources of the page. Each function returns what is the case at the time of the call.

    `closed` has how many connections of each virtual cluster and listener ended, by reason.
    """

    name: str
    clusters: Sequence[Cluster]
    clock: Clock
    not_ready: Callable[[], Sequence[str]]
    remarks: Callable[[], Sequence[str]]
    relays: Callable[[], Iterable[RelayTotals]]
    muted: Callable[[], Iterable[Muted]]
    instance: Callable[[], InstanceGate]
    listeners: Callable[[], Iterable[ListenerGate]]
    addresses: Callable[[], Iterable[AddressUse]]
    closed: Mapping[tuple[str, str], Mapping[CloseReason, int]]
    loop_lag_s: Callable[[], float]
