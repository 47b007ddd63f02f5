"""What a request costs a node in thread time, as far as that can be told from outside.

A broker measures for how long a handler thread and a network thread were busy with a request (KIP-124). A proxy sees
only when the answer came, and most of that time may be waiting. So a request is charged the smaller of what was
observed and what requests of its kind and size cost where nothing waits: the model of this module, one for each node.
A node that stalls thus charges nobody.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

KIB = 1024
MAX_KINDS = 128
SAMPLES = 200
"""How many service times are looked at together. Until there are so many of a kind the shipped cost holds."""

PERCENT_PER_US = 1e-4
"""Request time is measured in percent of one thread: 10,000 us in a second are 1 % (KIP-124)."""

_QUANTILE = 0.25
_SPREAD = 4
"""Sizes must differ by this factor for a cost per KiB to be told."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Thread time of one request: `base_us`, and `per_kib_us` for each KiB of the request and its answer."""

    base_us: float
    per_kib_us: float = 0.0

    def us(self, size_bytes: int) -> float:
        """What a request of that size costs, with its answer."""
        return self.base_us + self.per_kib_us * size_bytes / KIB


@dataclass(frozen=True, slots=True)
class CostReading:
    """What holds for one kind of request at one node; `samples` service times were learned from."""

    kind: int
    cost: Cost
    pinned: bool
    samples: int


UNKNOWN = Cost(100.0, 1.0)
"""For kinds that no table has."""


class NodeCosts:
    """What requests cost one node, by their kind: a number below MAX_KINDS that the caller has given a meaning.

    `base_us` and `per_byte_us` are what holds, by kind.
    """

    def __init__(self, shipped: Mapping[int, Cost], pinned: Mapping[int, Cost]) -> None:
        self.base_us = [UNKNOWN.base_us] * MAX_KINDS
        self.per_byte_us = [UNKNOWN.per_kib_us / KIB] * MAX_KINDS
        self._shipped = shipped
        self._costs: dict[int, Cost] = {}
        self._pinned = frozenset(pinned)
        self._samples: list[list[tuple[int, float]]] = [[] for _ in range(MAX_KINDS)]
        self._learned: dict[int, int] = {}
        self.floor_us = 0.0
        """What an answer takes that costs no time: the way to the node and back, and from thread to thread there."""
        for kind, cost in {**shipped, **pinned}.items():
            self._set(kind, cost)

    def us(self, kind: int, size_bytes: int, count: int = 1) -> float:
        """What `count` requests cost, with so many bytes in all and with their answers, as things stand."""
        return self.base_us[kind] * count + self.per_byte_us[kind] * size_bytes

    def pin(self, pinned: Mapping[int, Cost]) -> None:
        """From now on these hold, and only these are not learned."""
        for kind in self._pinned - pinned.keys():
            self._set(kind, self._shipped.get(kind, UNKNOWN))
        for kind, cost in pinned.items():
            self._set(kind, cost)
            self._learned.pop(kind, None)
        self._pinned = frozenset(pinned)

    def learn(self, kind: int, size_bytes: int, service_us: float) -> None:
        """Note how long a request took that had its connection for itself and waited for nothing."""
        samples = self._samples[kind]
        samples.append((size_bytes, service_us))
        if len(samples) >= SAMPLES:
            if kind not in self._pinned:
                self._set(kind, _fitted(samples, self._costs.get(kind, UNKNOWN)))
                self._learned[kind] = self._learned.get(kind, 0) + SAMPLES
            samples.clear()

    def _set(self, kind: int, cost: Cost) -> None:
        self._costs[kind] = cost
        self.base_us[kind] = cost.base_us
        self.per_byte_us[kind] = cost.per_kib_us / KIB

    def readings(self) -> list[CostReading]:
        """All that hold, by kind."""
        return [
            CostReading(kind, cost, kind in self._pinned, self._learned.get(kind, 0))
            for kind, cost in sorted(self._costs.items())
        ]


class RequestCosts:
    """The costs of all nodes of a cluster. Those in `pinned` hold for every node, and are not learned."""

    def __init__(self, shipped: Mapping[int, Cost] | None = None, pinned: Mapping[int, Cost] | None = None) -> None:
        self._shipped = shipped or {}
        self._pinned = pinned or {}
        self._nodes: dict[int, NodeCosts] = {}

    def pin(self, pinned: Mapping[int, Cost]) -> None:
        """From now on these hold for every node, and only these are not learned."""
        self._pinned = pinned
        for costs in self._nodes.values():
            costs.pin(pinned)

    def by_node(self) -> dict[int, NodeCosts]:
        """Those of all nodes whose request time was ever measured."""
        return dict(self._nodes)

    def of_node(self, node_id: int) -> NodeCosts:
        """Those of one node."""
        costs = self._nodes.get(node_id)
        if costs is None:
            costs = self._nodes[node_id] = NodeCosts(self._shipped, self._pinned)
        return costs


def _fitted(samples: Sequence[tuple[int, float]], before: Cost) -> Cost:
    """The line below which a quarter of the samples lie; its slope stays as it is where all are of like sizes."""
    by_size = sorted(samples)
    third = len(by_size) // 3
    small, large = by_size[:third], by_size[-third:]
    small_kib, large_kib = (part[third // 2][0] / KIB for part in (small, large))
    slope = before.per_kib_us
    if large_kib >= _SPREAD * max(small_kib, 1.0):
        rise_us = _low([us for _, us in large]) - _low([us for _, us in small])
        slope = max(rise_us / (large_kib - small_kib), 0.0)
    base_us = _low([us - slope * size / KIB for size, us in samples])
    return replace(before, base_us=max(base_us, 0.0), per_kib_us=slope)


def _low(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * _QUANTILE)]
