"""What requests cost a node, learned from how long responses took."""

import random
from dataclasses import astuple

import pytest

from kafka_throttle.quotas.request_costs import (
    BUSY_SHARE,
    BYTES_SHARE,
    FITS,
    KIB,
    NETWORK_US,
    PAUSE_US,
    SAMPLES,
    UNKNOWN,
    Cost,
    RequestCosts,
)

KIND = 3
SHIPPED = {KIND: Cost(70.0, 2.0), 5: Cost(9.0)}


def node(pinned=()):
    return RequestCosts(SHIPPED, dict(pinned)).of_node(1)


def teach(costs, service_us, sizes=(1024,), now_us=0, kind=KIND):
    """A fit's worth of samples; `service_us(size, n)` is how long the n-th took."""
    for n in range(SAMPLES):
        size = sizes[n % len(sizes)]
        costs.learn(kind, size, service_us(size, n), now_us)


def cost_of(costs, kind=KIND):
    return next(reading.cost for reading in costs.readings() if reading.kind == kind)


def test_shipped_costs_are_used_until_there_are_enough_samples():
    costs = node()
    for _ in range(SAMPLES - 1):
        costs.learn(KIND, 100, 500.0, 0)
    assert cost_of(costs) == SHIPPED[KIND]
    assert costs.us(KIND, 2048, 3) == pytest.approx(3 * 70 + 2 * 2)
    assert costs.us(max(SHIPPED) + 1, 1024) == UNKNOWN.us(1024)


def test_the_fastest_responses_count_however_long_others_waited():
    costs = node()
    rng = random.Random(5)
    teach(costs, lambda size, n: 100.0 if n % 5 == 0 else 100.0 + rng.expovariate(1 / 3000))
    assert astuple(cost_of(costs)) == (pytest.approx(NETWORK_US + BUSY_SHARE * (100 - 2.0 / BYTES_SHARE)), 2.0)


def test_a_cost_per_kib_is_fitted_where_sizes_differ():
    costs = node()
    teach(costs, lambda size, n: 80 + 3.5 * size / KIB + n % 7, sizes=(512, 64 * KIB, 2048, 300 * KIB))
    assert cost_of(costs).per_kib_us == pytest.approx(BYTES_SHARE * 3.5, rel=0.02)
    assert cost_of(costs).base_us == pytest.approx(NETWORK_US + BUSY_SHARE * 80, rel=0.1)


def test_a_cost_per_kib_is_never_negative():
    costs = node()
    teach(costs, lambda size, n: 400.0 if size == 512 else 80.0, sizes=(512, 64 * KIB))
    assert astuple(cost_of(costs)) == (pytest.approx(NETWORK_US + BUSY_SHARE * 80), 0.0)


def test_load_raises_no_cost_until_all_fits_are_under_load():
    costs = node()
    teach(costs, lambda size, n: 100.0)
    learned = cost_of(costs)
    for fit in range(1, FITS):
        teach(costs, lambda size, n: 900.0, now_us=fit * PAUSE_US)
        assert cost_of(costs) == learned
    teach(costs, lambda size, n: 900.0, now_us=FITS * PAUSE_US)
    assert cost_of(costs).base_us == pytest.approx(NETWORK_US + BUSY_SHARE * (900 - 2 / BYTES_SHARE))


def test_between_fits_nothing_is_learned():
    costs = node()
    teach(costs, lambda size, n: 100.0)
    for now_us in (0, PAUSE_US - 1):
        teach(costs, lambda size, n: 10.0, now_us=now_us)
    [reading] = [one for one in costs.readings() if one.kind == KIND]
    assert reading.samples == SAMPLES


def test_pinned_costs_are_used_and_after_them_the_shipped_ones():
    all_nodes = RequestCosts(SHIPPED, {KIND: Cost(1.0)})
    first, second = all_nodes.of_node(1), all_nodes.of_node(2)
    for costs in (first, second):
        teach(costs, lambda size, n: 100.0)
        assert cost_of(costs) == Cost(1.0)
    all_nodes.pin({5: Cost(2.0)})
    assert (cost_of(first), cost_of(second, 5)) == (SHIPPED[KIND], Cost(2.0))
    assert cost_of(all_nodes.of_node(3), 5) == Cost(2.0)
    assert [(one.kind, one.pinned) for one in first.readings()] == [(KIND, False), (5, True)]


def test_the_least_of_the_latest_round_trips_is_the_floor():
    costs = node()
    for round_trip_us in (40, 12, 300):
        costs.note_round_trip(round_trip_us)
    assert costs.floor_us == 12
    for _ in range(64):
        costs.note_round_trip(50)
    assert costs.floor_us == 50


def test_a_kind_may_have_its_own_share():
    costs = RequestCosts(SHIPPED, busy_shares={5: 0.5}).of_node(1)
    for kind in (KIND, 5):
        teach(costs, lambda size, n: 100.0, sizes=(0,), kind=kind)
    assert cost_of(costs, KIND).base_us == pytest.approx(NETWORK_US + BUSY_SHARE * 100)
    assert cost_of(costs, 5).base_us == pytest.approx(NETWORK_US + 0.5 * 100)
