"""Many connections under one fetch quota, in short (see fan_out.py for the long run)."""

import math
from dataclasses import replace
from struct import pack

import pytest

from tests.parity import fan_out

RATE = 500_000
SECONDS = 33


@pytest.fixture(scope="module")
def cluster():
    with fan_out.filled_cluster() as filled:
        yield filled


def batch(offset, records, size_bytes):
    """A batch as a Fetch brings it, but for what nobody reads here."""
    return pack(">qiiBIhi", offset, size_bytes - 12, 0, 2, 0, 0, records - 1).ljust(size_bytes, b"\0")


def test_a_batch_that_is_cut_counts_for_nothing():
    data = batch(40, 3, 100) + batch(43, 2, 80) + batch(45, 9, 500)[:-1]
    assert fan_out.whole_batches(data, 40) == (45, 180)
    assert fan_out.whole_batches(data[:99], 40) == (40, 0)
    assert fan_out.whole_batches(b"", 40) == (40, 0)


def test_a_connection_has_what_came_between_two_times():
    reader = fan_out.Reader(("127.0.0.1", 1), "crowd", came=[(1.0, 7), (12.0, 100), (19.0, 30), (20.0, 9)])
    assert reader.bytes_in(10.0, 20.0) == 130
    assert reader.longest_s(10.0, 20.0) == 7.0


def test_what_is_not_as_it_should_be_is_told():
    shared = fan_out.Shared("paced", 10, 0, 0.9, 1.2, 0.5, 22.0)
    beside = fan_out.Beside("paced", with_tenant_ms=30.0, without_ms=10.0, half_ms=10.0, other_half_ms=14.0)
    assert fan_out.problems(([shared], beside)) == [
        "10: 0.900 of the limit, expected 0.95 to 1.05",
        "10: Jain's index 0.500, expected at least 0.95",
        "10: 1.200 bytes sent for each read, expected at most 1.05",
        "beside the tenant others' fetches took 3.00 times as long, expected at most 1.40",
    ]
    assert fan_out.problems(([fan_out.Shared("empty", 1, 50, 1.0, 1.7, 1.0, 9.0)], beside))[:-1] == []


def test_shares_as_a_broker_gives_them_are_no_less_even_than_at_a_broker():
    beside = fan_out.Beside("empty", with_tenant_ms=10.0, without_ms=10.0, half_ms=10.0, other_half_ms=10.0)
    at_broker = fan_out.Shared(fan_out.BROKER, 10, 0, 0.86, math.nan, 0.7, 66.0)
    as_even = fan_out.Shared("empty", 10, 0, 1.0, 1.7, 0.7, 12.0)
    assert fan_out.problems(([as_even, at_broker], beside)) == []
    assert fan_out.problems(([replace(as_even, jain=0.6), at_broker], beside)) == [
        "10: Jain's index 0.600, expected at least 0.7"
    ]


@pytest.mark.exclusive
@pytest.mark.kafka
@pytest.mark.nightly
def test_connections_that_share_a_paced_quota_use_it_evenly_and_the_node_sends_nothing_in_vain(cluster):
    crowds = [fan_out.measure_shared(cluster, "paced", RATE, SECONDS, *crowd) for crowd in ((10, 0), (1, 50))]
    assert [problem for crowd in crowds for problem in crowd.problems()] == []


@pytest.mark.exclusive
@pytest.mark.kafka
@pytest.mark.nightly
def test_a_node_sends_no_part_of_a_batch_that_its_client_has_to_ask_for_again():
    """Two batches of this size are a little more than a tenth of a second's quota."""
    with fan_out.filled_cluster(batch_bytes=28_000) as cluster:
        alone = fan_out.measure_shared(cluster, "paced", RATE, SECONDS, connections=1)
    assert list(alone.problems()) == []


@pytest.mark.exclusive
@pytest.mark.kafka
@pytest.mark.nightly
def test_a_tenant_far_over_its_paced_quota_makes_no_other_fetch_slower(cluster):
    assert list(fan_out.measure_beside(cluster, "paced", RATE, SECONDS).problems()) == []
