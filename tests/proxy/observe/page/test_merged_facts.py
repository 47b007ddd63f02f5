"""The sections of the status page, of several workers as those of one proxy."""

import pytest

from kafka_throttle.proxy.observe.page.merged_facts import MERGED, merged_hits
from kafka_throttle.proxy.observe.page.search import Found, Hit
from kafka_throttle.proxy.observe.page.sections import SECTIONS, Page
from tests.fakes.clock import FakeClock
from tests.proxy.observe.page.shown import Cluster, Shown

BY_NAME = {section.name: section for section in SECTIONS}


@pytest.fixture
def workers():
    """Two workers, of which both have measured alice and throttle her."""
    made = []
    for client_id in ("etl", "web"):
        clock = FakeClock()
        cluster = Cluster("main", clock)
        cluster.use("alice", "etl", 4_000_000)
        cluster.use("alice", client_id, 5_000, "shadow_fetch")
        cluster.throttle("alice", client_id)
        made.append(Shown(clock, cluster))
    return made


async def merged(workers, name):
    facts = [await Page(shown.process()).facts(BY_NAME[name]) for shown in workers]
    return MERGED[name](facts), facts


async def test_all_sections_but_those_of_the_supervisor_are_merged():
    assert MERGED.keys() == BY_NAME.keys() - {"state", "hour"}


async def test_the_same_client_at_two_workers_is_one_row_with_its_use_at_both(workers):
    facts, [one, other] = await merged(workers, "quotas")
    [row] = [use for use in facts["rows"] if use.user == "alice"]
    [here], [there] = ([use for use in each["rows"] if use.user == "alice"] for each in (one, other))
    assert row.rate == pytest.approx(here.rate + there.rate)
    assert row.limit == here.limit + there.limit
    assert row.share == pytest.approx((here.share + there.share) / 2)
    [address] = [use for use in facts["rows"] if use.ip == "10.0.0.1"]
    assert (address.rate, address.limit, address.share) == (8.0, 10.0, 0.8)


async def test_throttled_clients_of_all_workers_are_shown(workers):
    facts, _ = await merged(workers, "throttled")
    assert {line["client_id"] for line in facts["throttled"]} == {"etl", "web"}
    assert facts["clients"] == 2


async def test_connections_and_ends_are_added_up(workers):
    facts, _ = await merged(workers, "connections")
    [listener] = facts["listeners"]
    assert (listener.connections, listener.muted, listener.accept_rate, listener.accept_limit) == (8, 2, 3.0, 40.0)
    assert listener.limit is None
    assert facts["instance"].connections == 8
    assert [end.count for end in facts["ends"]] == [4]


async def test_connections_to_nodes_are_added_up(workers):
    facts, _ = await merged(workers, "nodes")
    [cluster] = facts["clusters"]
    assert [connections for _, connections in cluster.nodes][:1] == [8]


async def test_shadows_are_added_up(workers):
    facts, _ = await merged(workers, "shadows")
    assert [(total.throttles, total.throttled_ms) for total in facts["totals"]] == [(6, 1800)]


def test_hits_of_all_workers_are_shown_once_and_throttled_ones_first():
    one, other = Hit("main", "alice", "etl", ""), Hit("main", "alice", "web", "")
    found = merged_hits([Found([(one, False)], 0, one), Found([(one, False), (other, True)], 3, None)])
    assert found.hits == [(other, True), (one, False)]
    assert (found.more, found.only) == (3, None)
    assert merged_hits([Found([(one, False)], 0, one), Found([(one, True)], 0, one)]).only == one
