"""The metrics of the history."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


@dataclass(frozen=True, slots=True)
class HistoryTotals:
    """What this process has written so far. `up`: whether the last attempt succeeded. `size_bytes` is of all files."""

    up: bool
    written_seconds: int
    dropped_seconds: int
    failures: int
    size_bytes: int


def history_families(rows: Iterable[HistoryTotals]) -> Iterator[Metric]:
    """The metric families. They have no values if no history is written."""
    up = GaugeMetricFamily("kafka_throttle_history_up", "1 if the history was written at the last attempt.", labels=())
    size = GaugeMetricFamily("kafka_throttle_history_bytes", "Bytes of all files of the history.", labels=())
    written = _counter("history_seconds", "Seconds of the history that were written or are about to be.")
    dropped = _counter("history_seconds_dropped", "Seconds of which nothing was written.")
    failures = _counter("history_write_failures", "Failed attempts to write the history.")
    for row in rows:
        up.add_metric((), float(row.up))
        size.add_metric((), row.size_bytes)
        written.add_metric((), row.written_seconds)
        dropped.add_metric((), row.dropped_seconds)
        failures.add_metric((), row.failures)
    yield from (up, size, written, dropped, failures)


def _counter(name: str, documentation: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"kafka_throttle_{name}", documentation, labels=())
