"""What a request costs a node in thread time, as far as that can be told from outside.

A broker measures for how long a handler thread and a network thread were busy with a request (KIP-124). A proxy sees
only when the response came, and most of that time may be waiting. So a request is charged the smaller of what was
observed and what requests of its kind and size cost where nothing waits: the model of this module, one for each node.
A node that stalls thus charges nobody.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

KIB = 1024
SAMPLES = 200
"""How many service times are looked at together. Until there are so many of a kind the shipped cost holds."""

PAUSE_US = 5_000_000
"""After that many samples of a kind none are taken for so long."""

FITS = 12
"""So many of the latest fits are kept; the lowest holds, for load makes answers late and work no cheaper."""

NETWORK_US = 20.0
"""For each request: a network thread reads it, and writes the response."""

BUSY_SHARE = 0.25
"""Of the time that a small response takes where nothing waits: for so much of it a handler thread is busy, unless a
kind has another share. The rest is the way from thread to thread (docs/request-time.md says what was measured)."""

BYTES_SHARE = 2.0
"""Of the time that a response takes for its size: two threads are busy with the bytes, one of them before that time."""

PERCENT_PER_US = 1e-4
"""Request time is measured in percent of one thread: 10,000 us in a second are 1 % (KIP-124)."""

_QUANTILE = 0.1
_FEW = 5
"""Fewer samples of an order of size than these tell nothing: of 200 in 33 orders one has more."""
_ROUND_TRIPS = 64
_SPREAD = 4
"""Sizes must differ by this factor for a cost per KiB to be told."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Thread time of one request: `base_us`, and `per_kib_us` for each KiB of the request and its response."""

    base_us: float
    per_kib_us: float = 0.0

    def us(self, size_bytes: int, count: int = 1) -> float:
        """What `count` requests cost, with so many bytes in all and with their responses."""
        return self.base_us * count + self.per_kib_us / KIB * size_bytes


@dataclass(frozen=True, slots=True)
class CostReading:
    """What holds for one kind of request at one node; `samples` service times were learned from."""

    kind: int
    cost: Cost
    pinned: bool
    samples: int


UNKNOWN = Cost(60.0, 0.25)
"""For kinds that no table has."""


class NodeCosts:
    """What requests cost one node, by their kind: a number that the caller has given a meaning."""

    def __init__(
        self, shipped: Mapping[int, Cost], pinned: Mapping[int, Cost], busy_shares: Mapping[int, float]
    ) -> None:
        """`busy_shares` are in place of BUSY_SHARE for some kinds."""
        self._shipped = shipped
        self._busy_shares = busy_shares
        self._costs: dict[int, Cost] = {**shipped, **pinned}
        self._pinned = frozenset(pinned)
        self._samples: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
        self._resume_us: defaultdict[int, int] = defaultdict(int)
        self._fits: dict[int, deque[tuple[Cost, float]]] = {}
        self._learned: dict[int, int] = {}
        self._round_trips: deque[int] = deque(maxlen=_ROUND_TRIPS)
        self.floor_us = 0
        """What a response takes at least: the way to the node and back."""

    def us(self, kind: int, size_bytes: int, count: int = 1) -> float:
        """What `count` requests cost, with so many bytes in all and with their responses, as things stand."""
        return self._costs.get(kind, UNKNOWN).us(size_bytes, count)

    def pin(self, pinned: Mapping[int, Cost]) -> None:
        """From now on these hold, and only these are not learned."""
        for kind in self._pinned - pinned.keys():
            self._costs[kind] = self._shipped.get(kind, UNKNOWN)
        for kind, cost in pinned.items():
            self._costs[kind] = cost
            self._learned.pop(kind, None)
            self._fits.pop(kind, None)
        self._pinned = frozenset(pinned)

    def note_round_trip(self, round_trip_us: int) -> None:
        """Note how long a packet was under way to the node and back; the least of the latest ones counts."""
        self._round_trips.append(round_trip_us)
        self.floor_us = min(self._round_trips)

    def learn(self, kind: int, size_bytes: int, service_us: float, now_us: int) -> None:
        """Note how long a request took that had its connection for itself and waited for nothing.

        `size_bytes` is that of request and answer, `service_us` without the way to the node and back.
        """
        if now_us < self._resume_us[kind]:
            return
        samples = self._samples[kind]
        samples.append((size_bytes, service_us))
        if len(samples) >= SAMPLES:
            self._resume_us[kind] = now_us + PAUSE_US
            if kind not in self._pinned:
                self._fit(kind, samples)
            samples.clear()

    def _fit(self, kind: int, samples: Sequence[tuple[int, float]]) -> None:
        fits = self._fits.setdefault(kind, deque(maxlen=FITS))
        share = self._busy_shares.get(kind, BUSY_SHARE)
        fits.append(_fitted(samples, self._costs.get(kind, UNKNOWN).per_kib_us, share))
        self._costs[kind] = min(fits, key=lambda fit: fit[1])[0]
        self._learned[kind] = self._learned.get(kind, 0) + SAMPLES

    def readings(self) -> list[CostReading]:
        """All that hold, by kind."""
        return [
            CostReading(kind, cost, kind in self._pinned, self._learned.get(kind, 0))
            for kind, cost in sorted(self._costs.items())
        ]


class RequestCosts:
    """The costs of all nodes of a cluster. Those in `pinned` hold for every node, and are not learned."""

    def __init__(
        self,
        shipped: Mapping[int, Cost] | None = None,
        pinned: Mapping[int, Cost] | None = None,
        busy_shares: Mapping[int, float] | None = None,
    ) -> None:
        self._shipped = shipped or {}
        self._pinned = pinned or {}
        self._busy_shares = busy_shares or {}
        self._nodes: dict[int, NodeCosts] = {}

    def pin(self, pinned: Mapping[int, Cost]) -> None:
        """From now on these hold for every node, and only these are not learned."""
        self._pinned = pinned
        for costs in self._nodes.values():
            costs.pin(pinned)

    def by_node(self) -> dict[int, NodeCosts]:
        """Those of all nodes that were connected to, or whose request time was measured."""
        return dict(self._nodes)

    def of_node(self, node_id: int) -> NodeCosts:
        """Those of one node."""
        costs = self._nodes.get(node_id)
        if costs is None:
            costs = self._nodes[node_id] = NodeCosts(self._shipped, self._pinned, self._busy_shares)
        return costs


def _fitted(samples: Sequence[tuple[int, float]], per_kib_us: float, busy_share: float) -> tuple[Cost, float]:
    """What the line tells below which a tenth of the samples lie, and the time on it for a typical size, in us.

    Where all are of like sizes bytes are taken to cost `per_kib_us`, as before.
    """
    points = _points(samples)
    (small_kib, small_us), (large_kib, large_us) = points[0], points[-1]
    slope = per_kib_us / BYTES_SHARE
    if large_kib >= _SPREAD * max(small_kib, 1.0):
        slope = max((large_us - small_us) / (large_kib - small_kib), 0.0)
    rest_us = max(_low([us - slope * size / KIB for size, us in samples]), 0.0)
    typical_kib = sorted(samples)[len(samples) // 2][0] / KIB
    cost = Cost(NETWORK_US + busy_share * rest_us, BYTES_SHARE * slope)
    return cost, rest_us + slope * typical_kib


def _points(samples: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """KiB and us of the quickest answers for each order of size, the smallest first; rare sizes are left out."""
    by_order: dict[int, list[tuple[float, int]]] = {}
    for size, us in samples:
        by_order.setdefault(size.bit_length(), []).append((us, size))
    points = []
    for _, found in sorted(by_order.items()):
        if len(found) >= _FEW:
            quickest = sorted(found)[: max(int(len(found) * _QUANTILE), 1)]
            points.append((fmean(size for _, size in quickest) / KIB, fmean(us for us, _ in quickest)))
    return points


def _low(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * _QUANTILE)]
