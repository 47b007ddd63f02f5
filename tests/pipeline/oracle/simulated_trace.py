"""A trace replayed under a candidate: every sensor that it would have, and what that would have done to whom."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_throttle.pipeline.simulate.backlog import Client
from kafka_throttle.pipeline.simulate.candidate import Candidate
from kafka_throttle.pipeline.simulate.meter import MeasuredQuota, Meter, Place, measured_quota
from kafka_throttle.pipeline.simulate.replay import SensorReplay, Throttling
from kafka_throttle.quotas.client_quotas import measured_at
from kafka_throttle.quotas.records.trace import NO_USE, Operation
from kafka_throttle.quotas.records.usage_record import TraceEvent
from tests.pipeline.oracle.traced import TracedClient, in_order


class ClientKey(NamedTuple):
    """A client as records and traces name it."""

    user: str
    client_id: str
    ip: str


class SensorKey(NamedTuple):
    """One sensor of one process under the candidate."""

    instance: str
    epoch: int
    virtual_cluster: str
    node_id: int
    place: Place


@dataclass
class TracedSensor:
    """What one sensor would have done; `reported` has the throttle time of each event by its sequence number."""

    key: SensorKey
    limit: float
    rule: str
    live: dict[ClientKey, Throttling] = field(default_factory=dict)
    replayed: dict[Client, SensorReplay] = field(default_factory=dict)
    reported: dict[int, int] = field(default_factory=dict)


def simulate_trace(events: Iterable[TraceEvent], candidate: Candidate) -> Iterator[TracedSensor]:
    """Every sensor of the candidate that was used in the trace. Events may come in any order, and doubled."""
    processes: dict[tuple[str, int], list[TraceEvent]] = defaultdict(list)
    for event in events:
        processes[event.instance, event.epoch].append(event)
    for own_events in processes.values():
        by_sensor: dict[SensorKey, list[TraceEvent]] = defaultdict(list)
        quotas: dict[SensorKey, MeasuredQuota] = {}
        for event in in_order(own_events):
            key, quota = _sensor_of(event, candidate)
            if key is not None and quota is not None:
                by_sensor[key].append(event)
                quotas[key] = quota
        for key, its_events in by_sensor.items():
            yield _replayed(key, quotas[key], its_events, candidate)


def _sensor_of(event: TraceEvent, candidate: Candidate) -> tuple[SensorKey | None, MeasuredQuota | None]:
    rules = candidate.rules(event.virtual_cluster)
    if rules is None or event.operation in NO_USE or event.shadow:
        return None, None
    quota = measured_quota(rules, event.quota_type, event.user, event.client_id, event.ip)
    if quota is None:
        return None, None
    node_id = measured_at(event.node_id, quota.scope)
    key = SensorKey(event.instance, event.epoch, event.virtual_cluster, node_id, quota.place)
    return key, quota


def _replayed(key: SensorKey, quota: MeasuredQuota, events: list[TraceEvent], candidate: Candidate) -> TracedSensor:
    rules = candidate.rules(key.virtual_cluster)
    assert rules is not None
    sensor = TracedSensor(key, quota.limit, quota.rule, _live(events))
    for kind in Client:
        meter = Meter(rules, key.place.quota_type, quota.limit, events[0].at_ms)
        replay = SensorReplay(meter, sensor.reported if kind is Client.PACED else None)
        clients: dict[ClientKey, TracedClient] = {}
        for event in events:
            name = _client_of(event)
            client = clients.setdefault(name, TracedClient(name, kind))
            if (found := client.add(event)) is not None:
                lane, demand = found
                replay.add(lane, [demand])
        replay.run(until_ms=events[-1].at_ms + 1)
        sensor.replayed[kind] = replay
    return sensor


def _live(events: Iterable[TraceEvent]) -> dict[ClientKey, Throttling]:
    clients: dict[ClientKey, Throttling] = {}
    for event in events:
        client = clients.setdefault(_client_of(event), Throttling())
        refused = event.throttle_ms and event.operation in (
            Operation.SPEND_STRICTLY,
            Operation.CHARGE_IF_WITHIN,
            Operation.CONNECT,
        )
        if event.operation not in (Operation.OWE, Operation.GIVE_BACK):
            client.requests += event.count * (not refused)
            client.used += event.value * (not refused)
        if event.throttle_ms:
            client.add(event.throttle_ms, event.at_ms)
    return clients


def _client_of(event: TraceEvent) -> ClientKey:
    return ClientKey(event.user, event.client_id, event.ip)
