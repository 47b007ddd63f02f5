"""The metrics of several processes as those of one: what a scrape of the supervisor of several workers gets."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]
"""The name of a series, and its labels in alphabetical order."""


class Family(NamedTuple):
    """A metric family of one process as plain data."""

    name: str
    about: str
    kind: str
    samples: Mapping[Key, float]


def exported(registry: CollectorRegistry) -> list[Family]:
    """The families of a process."""
    return [
        Family(
            family.name,
            family.documentation,
            family.type,
            {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in family.samples},
        )
        for family in registry.collect()
    ]


_OF_THE_SUPERVISOR: Final = frozenset(
    {
        "kafka_throttle_build",
        "kafka_throttle_config_last_reload_success_timestamp_seconds",
        "kafka_throttle_config_last_reload_successful",
        "kafka_throttle_config_reloads",
        "kafka_throttle_handover_failures",
        "kafka_throttle_http_refused",
        "kafka_throttle_quota_problems",
        "kafka_throttle_ready",
        "python_info",
    }
)
"""What only the supervisor knows; workers export them, too, but have nothing to say there."""

_OF_EACH_WORKER: Final = frozenset({"kafka_throttle_event_loop_lag_seconds"})
"""Where a sum says nothing and the worst hides which: they get the label `worker`, empty for the supervisor."""

_LEAST: Final = frozenset(
    {
        "kafka_throttle_certificate_expiry_timestamp_seconds",
        "kafka_throttle_certificate_renewal_due_timestamp_seconds",
        "kafka_throttle_cluster_up",
        "kafka_throttle_quota_source_up",
        "kafka_throttle_quotas_known",
        "process_start_time_seconds",
    }
)
_HIGHEST: Final = frozenset(
    {
        "kafka_throttle_certificate_reloads",
        "kafka_throttle_cluster_nodes",
        "kafka_throttle_fleet_age_seconds",
        "kafka_throttle_fleet_cut_off",
        "kafka_throttle_fleet_members",
        "kafka_throttle_quota_source_age_seconds",
        "process_max_fds",
    }
)
"""Families of which each process says the same of the same thing. All others are added up."""

_OF_CLIENTS: Final = frozenset({"user", "client_id", "ip"})
_CREATED = "_created"


def _rule(family: str) -> Callable[[float, float], float]:
    if family in _LEAST:
        return min
    if family in _HIGHEST:
        return max
    return lambda one, other: one + other


class MergedMetrics:
    """Adds up what the workers export, and what the supervisor does. What a worker that ended has counted stays.

    Else a counter would fall, and Prometheus would take the rest of it for new. Series of single clients are left out
    of that: they come and go anyway.
    """

    def __init__(self) -> None:
        self._latest: dict[str, Sequence[Family]] = {}
        self._ended: dict[Key, float] = {}

    def take(self, worker: str, families: Sequence[Family]) -> None:
        """These are the present metrics of a worker; "" is the supervisor."""
        self._latest[worker] = families

    def end(self, worker: str) -> None:
        """The worker has ended: keep what it had counted when it was asked last."""
        for family in self._latest.pop(worker, ()):
            if family.kind in ("counter", "histogram") and family.name not in _OF_THE_SUPERVISOR:
                for key, value in family.samples.items():
                    if not key[0].endswith(_CREATED) and _OF_CLIENTS.isdisjoint(name for name, _ in key[1]):
                        self._ended[key] = self._ended.get(key, 0.0) + value

    def collect(self) -> Iterator[Metric]:
        """The families of all processes together."""
        merged: dict[str, tuple[Family, dict[Key, float]]] = {}
        for worker, families in self._latest.items():
            for family in families:
                if worker and family.name in _OF_THE_SUPERVISOR:
                    continue
                _, samples = merged.setdefault(family.name, (family, {}))
                for key, value in _of(worker, family):
                    rule = min if key[0].endswith(_CREATED) else _rule(family.name)
                    samples[key] = rule(samples[key], value) if key in samples else value
        for family, samples in merged.values():
            if family.kind in ("counter", "histogram"):
                self._add_ended(family, samples)
            metric = Metric(family.name, family.about, family.kind)
            metric.samples = [Sample(name, dict(labels), value) for (name, labels), value in samples.items()]
            yield metric

    def _add_ended(self, family: Family, samples: dict[Key, float]) -> None:
        names = {f"{family.name}{ending}" for ending in ("_total", "_bucket", "_count", "_sum")}
        for key, value in self._ended.items():
            if key[0] in names:
                samples[key] = samples.get(key, 0.0) + value


def _of(worker: str, family: Family) -> Iterable[tuple[Key, float]]:
    if family.name not in _OF_EACH_WORKER:
        return family.samples.items()
    return [((name, (*labels, ("worker", worker))), value) for (name, labels), value in family.samples.items()]
