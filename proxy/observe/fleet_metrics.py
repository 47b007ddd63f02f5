"""The metrics of fleets: the members of each, what they claim, and how fresh it is."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


@dataclass(frozen=True, slots=True)
class FleetTotals:
    """The membership of this process in the fleet of one virtual cluster.

    `trouble` says in words why it is cut off. `heard_ms_ago` is None before anything was heard. `keys` are those that
    this member claims a share of, `claimed` is the sum of these shares. `refused` counts documents that made no sense,
    `excesses` keys whose claims added up to more than the limit.
    """

    virtual_cluster: str
    members: int
    is_cut_off: bool
    trouble: str
    heard_ms_ago: int | None
    keys: int
    claimed: float
    moves: int
    raises: int
    lowers: int
    conflicts: int
    excesses: int
    refused: int
    writes: int
    written_bytes: int
    read_bytes: int


_GAUGES = (
    ("members", "members", "Instances of the fleet, this one included, as far as this one knows."),
    ("cut_off", "is_cut_off", "1 if this instance has not heard of its fleet for too long, else 0."),
    ("claimed_keys", "keys", "Quotas of entities of which this instance claims a share."),
    ("claimed_limits", "claimed", "The sum of these shares: 1 is one whole limit."),
)
_COUNTERS = (
    ("moves", "moves", "Changes of the share that this instance enforces of a limit."),
    ("raises", "raises", "Claims that this instance has raised."),
    ("lowers", "lowers", "Claims that this instance has lowered."),
    ("conflicts", "conflicts", "Claims that were taken back because another instance had raised the same share."),
    ("excesses", "excesses", "Times that the claims of a limit added up to more than the limit."),
    ("refused_documents", "refused", "Claims of other instances that made no sense and were not used."),
    ("writes", "writes", "Times that this instance has published its claims."),
    ("written_bytes", "written_bytes", "Bytes of claims that this instance has published."),
    ("read_bytes", "read_bytes", "Bytes of claims of other instances that were read."),
)


def fleet_families(fleets: Iterable[FleetTotals]) -> Iterator[Metric]:
    """The metric families of the fleets."""
    fleets, labels = list(fleets), ("virtual_cluster",)
    for name, attribute, about in _GAUGES:
        gauge = GaugeMetricFamily(f"kafka_throttle_fleet_{name}", about, labels=labels)
        for fleet in fleets:
            gauge.add_metric((fleet.virtual_cluster,), float(getattr(fleet, attribute)))
        yield gauge
    age = GaugeMetricFamily(
        "kafka_throttle_fleet_age_seconds", "How long ago this instance has heard of its fleet.", labels=labels
    )
    for fleet in fleets:
        if fleet.heard_ms_ago is not None:
            age.add_metric((fleet.virtual_cluster,), fleet.heard_ms_ago / 1000)
    yield age
    for name, attribute, about in _COUNTERS:
        counter = CounterMetricFamily(f"kafka_throttle_fleet_{name}", about, labels=labels)
        for fleet in fleets:
            counter.add_metric((fleet.virtual_cluster,), getattr(fleet, attribute))
        yield counter
