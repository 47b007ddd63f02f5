"""A model of the thread time that requests cost a node, learned from response times.

A broker measures for how long a handler thread and a network thread were busy with a request (KIP-124). A proxy sees
only when the response came, and most of that time may be waiting. So a request is charged the smaller of two times:
the observed time, and the time that requests of its kind and size cost when nothing waits. The second comes from this
model, which is separate for each node. So clients are not charged for the time in which a node stalls.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

KIB: Final = 1024
SAMPLES: Final = 200
"""The number of service times in one fit. Until a kind has that many, its shipped cost is used."""

PAUSE_US: Final = 5_000_000
"""The pause after a fit in which no samples of this kind are taken."""

FITS: Final = 12
"""The number of latest fits that are kept. The lowest is used: load delays responses, but makes no work cheaper."""

NETWORK_US: Final = 20.0
"""Thread time of the network thread for each request: it reads the request and writes the response."""

BUSY_SHARE: Final = 0.25
"""The share of the time of a small response, when nothing waits, for which a handler thread is busy.

Some kinds have another share. The rest is the hand-over between threads; docs/proofs/request-time.md has the
measurements.
"""

BYTES_SHARE: Final = 2.0
"""Thread time per time that a response takes for its size: two threads handle the bytes, one of them before that time.
"""

PERCENT_PER_US: Final = 1e-4
"""Request time is measured in percent of one thread: 10,000 us in a second are 1 % (KIP-124)."""

_QUANTILE: Final = 0.1
_FEW: Final = 5
"""Size classes with fewer samples are ignored. Of 200 samples in 33 size classes, one class always has more."""
_ROUND_TRIPS: Final = 64
_SPREAD: Final = 4
"""The cost per KiB is only fitted if sizes differ by this factor."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Thread time of one request: `base_us`, and `per_kib_us` for each KiB of the request and its response."""

    base_us: float
    per_kib_us: float = 0.0

    def us(self, size_bytes: int, count: int = 1) -> float:
        """The cost in us of `count` requests, which have `size_bytes` together with their responses."""
        return self.base_us * count + self.per_kib_us / KIB * size_bytes


@dataclass(frozen=True, slots=True)
class CostReading:
    """The cost in use for one kind of request at one node; it was learned from `samples` service times."""

    kind: int
    cost: Cost
    pinned: bool
    samples: int


UNKNOWN: Final = Cost(60.0, 0.25)
"""The cost of kinds that are in no table."""


class NodeCosts:
    """The costs of requests at one node, by kind: a number whose meaning the caller defines (an API key)."""

    def __init__(
        self, shipped: Mapping[int, Cost], pinned: Mapping[int, Cost], busy_shares: Mapping[int, float]
    ) -> None:
        """`busy_shares` replace BUSY_SHARE for some kinds."""
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
        """The least time until a response: the round trip to the node."""

    def us(self, kind: int, size_bytes: int, count: int = 1) -> float:
        """The present cost in us of `count` requests, which have `size_bytes` together with their responses."""
        return self._costs.get(kind, UNKNOWN).us(size_bytes, count)

    def pin(self, pinned: Mapping[int, Cost]) -> None:
        """Use these costs from now on. Only these kinds are not learned."""
        for kind in self._pinned.difference(pinned):
            self._costs[kind] = self._shipped.get(kind, UNKNOWN)
        for kind, cost in pinned.items():
            self._costs[kind] = cost
            self._learned.pop(kind, None)
            self._fits.pop(kind, None)
        self._pinned = frozenset(pinned)

    def note_round_trip(self, round_trip_us: int) -> None:
        """Note a round-trip time to the node; the least of the latest ones is used."""
        self._round_trips.append(round_trip_us)
        self.floor_us = min(self._round_trips)

    def learn(self, kind: int, size_bytes: int, service_us: float, now_us: int) -> None:
        """Note the time of a request that was alone on its connection and did not wait.

        `size_bytes` is the size of request and response, `service_us` is the time without the round trip to the node.
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
        """The costs in use, by kind."""
        return [
            CostReading(kind, cost, kind in self._pinned, self._learned.get(kind, 0))
            for kind, cost in sorted(self._costs.items())
        ]


class RequestCosts:
    """The costs at all nodes of a cluster. Those in `pinned` are used for every node, and are not learned."""

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
        """Use these costs for every node from now on. Only these kinds are not learned."""
        self._pinned = pinned
        for costs in self._nodes.values():
            costs.pin(pinned)

    def by_node(self) -> dict[int, NodeCosts]:
        """The costs at each node that was connected to, or whose request time was measured."""
        return dict(self._nodes)

    def of_node(self, node_id: int) -> NodeCosts:
        """The costs at one node."""
        costs = self._nodes.get(node_id)
        if costs is None:
            costs = self._nodes[node_id] = NodeCosts(self._shipped, self._pinned, self._busy_shares)
        return costs


def _fitted(samples: Sequence[tuple[int, float]], per_kib_us: float, busy_share: float) -> tuple[Cost, float]:
    """The cost by a line below which a tenth of the samples lie, and the time on that line for the median size, in us.

    If all sizes are similar, the cost per KiB remains `per_kib_us`.
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
    """KiB and us of the fastest responses in each size class, the smallest first; rare sizes are left out."""
    by_order: dict[int, list[tuple[float, int]]] = {}
    for size, us in samples:
        by_order.setdefault(size.bit_length(), []).append((us, size))
    points = []
    for _, found in sorted(by_order.items()):
        if len(found) >= _FEW:
            count = max(int(len(found) * _QUANTILE), 1)
            quickest = sorted(found)[:count]
            points.append((fmean(size for _, size in quickest) / KIB, fmean(us for us, _ in quickest)))
    return points


def _low(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * _QUANTILE)]
