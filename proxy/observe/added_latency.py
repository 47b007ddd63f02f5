"""How much later requests and responses go on because of the proxy, by API: a histogram of a sample."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import HistogramMetricFamily, Metric

from kafka_throttle.protocol.api_table import APIS
from kafka_throttle.proxy.side import Side

_BOUNDS_MS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
"""The upper bounds of the buckets; one more bucket has what is above."""

_DIRECTION = {Side.CLIENT: "request", Side.NODE: "response"}


class _Histogram:
    __slots__ = ("counts", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_MS) + 1)
        self.sum_us = 0


class AddedLatency(NamedTuple):
    """The sample of one listener. Belongs to the event loop."""

    virtual_cluster: str
    listener: str
    histograms: dict[tuple[Side, int], _Histogram]
    """By the side that the bytes came from, and the API key."""

    def note(self, side: Side, counts: Mapping[int, int], took_us: int) -> None:
        """Count requests or responses, by API key, that were written this long after they could be read."""
        bucket = bisect_left(_BOUNDS_MS, took_us / 1000)
        for api_key, count in counts.items():
            histogram = self.histograms.setdefault((side, api_key), _Histogram())
            histogram.counts[bucket] += count
            histogram.sum_us += count * took_us


def latency_family(listeners: Iterable[AddedLatency]) -> Metric:
    """The metric family of the latency that the proxy adds."""
    family = HistogramMetricFamily(
        "kafka_throttle_added_latency_seconds",
        "How long the proxy took to pass on requests and responses that had to wait for nothing: from when it saw that "
        "their last bytes (of a response, the first ones) can be read until it had written them. Of one in "
        "64 turns of the event loop. Waiting before such a turn is in event_loop_lag_seconds.",
        labels=("virtual_cluster", "listener", "direction", "api"),
    )
    for listener in listeners:
        for (side, api_key), histogram in list(listener.histograms.items()):
            labels = (listener.virtual_cluster, listener.listener, _DIRECTION[side], APIS[api_key].name)
            family.add_metric(labels, list(_buckets(histogram)), histogram.sum_us / 1e6)
    return family


def _buckets(histogram: _Histogram) -> Iterator[tuple[str, float]]:
    """The upper bound of each bucket in seconds, with the number of values up to it."""
    bounds = (*(str(bound / 1000) for bound in _BOUNDS_MS), "+Inf")
    return zip(bounds, map(float, accumulate(histogram.counts)), strict=True)
