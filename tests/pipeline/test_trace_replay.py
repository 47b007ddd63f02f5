"""A trace replayed: under the same quotas it is what was lived through; under others an interval."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.pipeline.simulate.backlog import Client
from kafka_throttle.pipeline.simulate.candidate import Candidate, Rules
from kafka_throttle.pipeline.simulate.meter import Meter, type_of
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.records.trace import Operation
from kafka_throttle.quotas.records.usage_record import TraceEvent
from tests.pipeline.live_runs import FETCH, PRODUCE, Connection, bursty, candidate_with, greedy, live_run, steady
from tests.pipeline.oracle.simulated_trace import ClientKey, simulate_trace

MB = 1_000_000


def table(rate: float, **users: float) -> QuotaTable:
    rates = {Entity(user=DEFAULT): rate} | {Entity(user=user): own for user, own in users.items()}
    return QuotaTable({entity: {QuotaType.PRODUCE: own, QuotaType.FETCH: own} for entity, own in rates.items()})


HOW = [(PRODUCE,), (FETCH,), (FETCH, True)]
"""How it is charged: fetches over quota get no data, or are delivered."""

_LOADS = st.one_of(
    st.builds(greedy, st.integers(10_000, 3_000_000)),
    st.builds(steady, st.floats(0.1 * MB, 2 * MB), st.integers(20_000, 500_000)),
    st.builds(bursty, st.integers(1_000_000, 20_000_000), st.just(200_000), st.integers(2_000, 30_000)),
)
_CONNECTIONS = st.lists(
    st.builds(Connection, st.sampled_from("ab"), st.sampled_from("xyz"), _LOADS, st.integers(1, 30)),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("how", HOW)
@settings(max_examples=25, deadline=None)
@given(_CONNECTIONS, st.integers(200_000, 3_000_000), st.integers(0, 1000))
def test_with_the_same_quotas_every_throttle_time_is_the_live_one(how, connections, rate, seed):
    quotas = table(float(rate), a=rate * 2.0)
    run = live_run(quotas, connections, 40, seed, *how)
    reported: dict[int, int] = {}
    for sensor in simulate_trace(run.events, candidate_with(quotas)):
        reported |= sensor.reported
    assert reported == {event.sequence: event.throttle_ms for event in run.events}


def test_events_may_come_doubled_and_in_any_order():
    quotas = table(1.0 * MB)
    run = live_run(quotas, [Connection("a", "x", greedy(100_000))], 20)
    [sensor] = simulate_trace([*reversed(run.events), *run.events[5:]], candidate_with(quotas))
    assert sensor.reported == {event.sequence: event.throttle_ms for event in run.events}


def test_without_a_quota_there_is_nothing_to_throttle():
    run = live_run(table(1.0 * MB), [Connection("a", "x", greedy(100_000))], 20)
    assert list(simulate_trace(run.events, Candidate(all_others=Rules()))) == []
    assert list(simulate_trace(run.events, Candidate())) == []


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("connections", [1, 5])
def test_a_greedy_load_under_a_doubled_quota_meets_its_greedy_bound(how, connections):
    load = [Connection("a", "x", greedy(100_000)) for _ in range(connections)]
    before, after = (live_run(table(rate), load, 120, 1, *how) for rate in (1.0 * MB, 2.0 * MB))
    [sensor] = simulate_trace(before.events, candidate_with(table(2.0 * MB)))
    bound = sensor.replayed[Client.GREEDY].all.used
    assert abs(bound / sum(after.used.values()) - 1) < 0.1
    still_refused = connections * 100_000 if how == (FETCH,) else 0
    assert 0 <= sensor.replayed[Client.PACED].all.used - sum(before.used.values()) <= still_refused


def test_who_fetches_under_a_halved_quota_waits_for_all_that_was_delivered():
    run = live_run(table(1.0 * MB), [Connection("a", "x", steady(0.9 * MB, 300_000))], 120, 1, FETCH)
    [sensor] = simulate_trace(run.events, candidate_with(table(0.5 * MB)))
    paced = sensor.replayed[Client.PACED].all
    assert 0.9 < paced.used / (0.5 * MB * 120) < 1.2
    assert paced.throttles > 20


def test_a_fetch_larger_than_a_lower_quota_ever_lets_through_comes_in_pieces():
    run = live_run(table(1.0 * MB), [Connection("a", "x", steady(0.3 * MB, 3_000_000))], 120, 1, FETCH)
    [sensor] = simulate_trace(run.events, candidate_with(table(0.1 * MB)))
    assert 0.4 < sensor.replayed[Client.PACED].all.used / (0.1 * MB * 120) < 1.2


def _waits(quota_type: str, operation: str, limit: float, value: float, seconds: int) -> tuple[list[TraceEvent], float]:
    """What somebody does who always wants one more, and what he gets."""
    meter, events, got, now_ms = Meter(Rules(), quota_type, limit, 0), [], 0.0, 5
    template = live_run(table(1.0 * MB), [Connection("a", "x", greedy(100_000))], 1).events[0]
    while now_ms < seconds * 1000:
        throttle_ms = meter.use(operation, value, now_ms)
        refused = operation != Operation.SPEND and throttle_ms > 0
        got += 0 if refused else value
        ip = "10.0.0.1" if quota_type == "connection" else ""
        events.append(
            replace(
                template,
                sequence=len(events) + 1,
                at_ms=now_ms,
                wall_ms=now_ms,
                ip=ip,
                quota_type=quota_type,
                operation=operation,
                value=value,
                throttle_ms=throttle_ms,
            )
        )
        now_ms += throttle_ms + 5
    return events, got


@pytest.mark.parametrize(
    ("quota_type", "operation"),
    [("controller_mutation", "spend"), ("controller_mutation", "spend_strictly"), ("connection", "connect")],
)
def test_who_always_wants_one_more_meets_his_greedy_bound_also_where_he_is_refused(quota_type, operation):
    entity = Entity(ip="10.0.0.1") if quota_type == "connection" else Entity(user="a")
    (before, got), (_, after) = (_waits(quota_type, operation, limit, 2.0, 120) for limit in (2.0, 4.0))
    for limit, wanted in ((2.0, got), (4.0, after)):
        rules = candidate_with(QuotaTable({entity: {type_of(quota_type): limit}}))
        [sensor] = simulate_trace(before, rules)
        if limit == 2.0:
            assert sensor.reported == {event.sequence: event.throttle_ms for event in before}
        assert sensor.replayed[Client.PACED].all.used <= wanted * 1.02
        assert sensor.replayed[Client.GREEDY].all.used == pytest.approx(wanted, rel=0.1)


def test_an_open_load_below_a_doubled_quota_meets_its_paced_bound():
    load = [Connection("a", "x", steady(0.9 * MB, 50_000))]
    before, after = live_run(table(1.0 * MB), load, 120), live_run(table(2.0 * MB), load, 120)
    [sensor] = simulate_trace(before.events, candidate_with(table(2.0 * MB)))
    assert sensor.replayed[Client.PACED].all.throttled_ms == sum(after.throttled_ms.values()) == 0
    assert sensor.replayed[Client.PACED].all.used == sum(after.used.values())


def test_who_shares_a_sensor_is_replayed_together_in_the_order_of_time():
    load = [Connection("a", "x", greedy(100_000)), Connection("a", "y", steady(0.2 * MB, 20_000))]
    run = live_run(QuotaTable({Entity(user=DEFAULT, client_id=DEFAULT): {QuotaType.PRODUCE: MB}}), load, 60)
    assert run.throttled_ms["a", "y"] == 0
    sensors = list(simulate_trace(run.events, candidate_with(table(1.0 * MB))))
    assert [sensor.key.place.user for sensor in sensors] == ["a"]
    hurt = sensors[0].replayed[Client.PACED].clients
    assert hurt[ClientKey("a", "y", "")].throttles > 0


def test_the_strongest_entity_decides_as_it_does_in_the_proxy():
    run = live_run(table(1.0 * MB), [Connection("a", "x", greedy(100_000)), Connection("b", "x", greedy(100_000))], 30)
    quotas = table(0.5 * MB, b=3.0 * MB)
    sensors = {sensor.key.place.user: sensor for sensor in simulate_trace(run.events, candidate_with(quotas))}
    assert {user: (sensor.limit, sensor.rule) for user, sensor in sensors.items()} == {
        "a": (0.5 * MB, "user=<default>"),
        "b": (3.0 * MB, "user=b"),
    }
    assert sensors["a"].replayed[Client.PACED].all.throttled_ms > run.throttled_ms["a", "x"] / 2
    assert sensors["b"].replayed[Client.PACED].all.throttled_ms == 0
