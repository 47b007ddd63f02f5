"""The search of the status page: what it finds, in which order, and that it stays small."""

import pytest

from kafka_throttle.proxy.observe.page.search import MAX_HITS, Hit, search
from kafka_throttle.quotas.changes import Limit
from kafka_throttle.quotas.entities import Entity
from tests.proxy.observe.page.shown import PRODUCE, QUOTAS, Cluster, Shown


@pytest.fixture
def cluster(clock):
    return Cluster("main", clock)


def found(clock, cluster, text):
    steps = search(Shown(clock, cluster).process(), text)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def test_a_throttled_client_is_found_by_a_part_of_its_client_id(clock, cluster):
    cluster.throttle("alice", "Nightly-ETL")
    assert (Hit("main", "alice", "Nightly-ETL", ""), True) in found(clock, cluster, "etl").hits


def test_a_client_that_was_only_measured_is_found(clock, cluster):
    cluster.use("bob", "web", 1)
    assert Hit("main", "", "web", "") in [hit for hit, _ in found(clock, cluster, "web").hits]


def test_quotas_connections_and_addresses_are_found(clock, cluster):
    cluster.quotas = {**QUOTAS, Entity(client_id="batch"): {PRODUCE: Limit(1.0, "state.json")}}
    cluster.open = [("carol", "10.1.2.3")]
    assert [hit for hit, _ in found(clock, cluster, "batch").hits] == [Hit("main", "", "batch", "")]
    assert [hit for hit, _ in found(clock, cluster, "carol").hits] == [Hit("main", "carol", "etl", "")]
    assert [hit for hit, _ in found(clock, cluster, "10.1.2").hits] == [Hit("main", "", "", "10.1.2.3")]


def test_equal_names_come_first_then_those_that_begin_so(clock, cluster):
    cluster.open = [(user, "10.0.0.9") for user in ("my-etl", "etl-2", "etl")]
    assert [hit.user for hit, _ in found(clock, cluster, "etl").hits] == ["etl", "etl-2", "my-etl"]


def test_one_client_with_exactly_this_name_is_meant(clock, cluster):
    cluster.open = [("carol", "10.1.2.3")]
    assert found(clock, cluster, "Carol").only == Hit("main", "carol", "etl", "")
    cluster.open += [("carol-2", "10.1.2.3")]
    assert found(clock, cluster, "carol").only is None


def test_of_very_many_clients_some_are_shown_and_an_exact_name_always(clock, cluster):
    cluster.open = [(f"user-{number}", "10.0.0.9") for number in range(10_000)]
    some = found(clock, cluster, "user")
    assert len(some.hits) == MAX_HITS
    assert some.more == 10_000 - MAX_HITS
    assert found(clock, cluster, "user-9999").only == Hit("main", "user-9999", "etl", "")


def test_no_step_compares_very_many_names(clock, cluster):
    cluster.open = [(f"user-{number}", "10.0.0.9") for number in range(10_000)]
    steps = search(Shown(clock, cluster).process(), "nobody")
    assert sum(1 for _ in steps) >= 9
