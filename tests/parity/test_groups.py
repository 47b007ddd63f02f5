"""Consumer groups over a fetch quota, in short: nobody leaves, nothing comes twice (see groups.py for the long one)."""

from math import ceil

import pytest

from tests.parity import groups

SECONDS = 33
LONGER_S = 66
SHORT_OF_BROKER = 0.8
"""In so short a time one burst of Kafka's window more or less is a fifth."""


def seen(rate=1_000, until_s=137.0, pause_s=1.0):
    """A group whose last member joins at 11 s and which ends at `until_s`; each member reads each `pause_s`."""
    found = groups.Seen(ended_s=until_s, joined_s=[[5.0], [11.0], [5.0]])
    count = ceil(until_s / pause_s)
    found.came = [[(pause_s * number, int(rate * pause_s)) for number in range(1, count)] for _ in range(3)]
    return found


def compared(broker, proxy, fetch="empty", sent_bytes=1_000.0, **load):
    return groups.Compared("sarama", groups.Load(1_000, 150, fetch=fetch, **load), broker, proxy, sent_bytes, 1_000)


def test_figures_of_a_group_are_what_its_members_told():
    found = groups.Seen(ended_s=50.0)
    found.times = {(0, 0): 1, (0, 1): 3, (1, 0): 1}
    found.joined_s = [[1.0, 4.0], [2.0, 16.9, 40.0], [2.0, 40.1]]
    found.came = [[(10.0, 99_000), (20.0, 1_000)], [(27.9, 1_000), (28.1, 30_000)], [(49.0, 1_000)]]
    assert (found.twice, found.rebalances, found.formed_s) == (2, 2, 17.0)
    assert found.delivered_bytes == 132_000
    assert found.rate == 1_000.0  # of the 33 s from 17 s on
    assert found.longest_s == 32.0  # of the member that read nothing from 17 s to 49 s


def test_what_is_before_the_group_has_formed_is_no_gap():
    found = seen()
    found.came[0] = [(at_s, size_bytes) for at_s, size_bytes in found.came[0] if at_s > 26.0]
    assert found.longest_s == 1.0


def test_a_group_that_is_worse_off_than_at_the_broker_is_told():
    broker, proxy = seen(), seen(rate=900)
    proxy.times = {(0, offset): 2 for offset in range(90)}
    proxy.joined_s[2] = [5.0, 50.0]
    proxy.errors = ["a member ended with status 1"]
    assert groups.problems([compared(broker, proxy, sent_bytes=1_900.0)]) == [
        "sarama: a member ended with status 1",
        "sarama: 90 records came twice",
        "sarama: 1 rebalances",
        "sarama: 0.900 of the limit, 1.000 at the broker",
        "sarama: 1.900 bytes sent for each delivered, expected at most 1.8",
    ]
    assert groups.problems([compared(broker, broker, sent_bytes=1_790.0)]) == []


def test_a_paced_group_has_its_limit_soon_and_costs_nothing_more():
    assert groups.problems([compared(seen(rate=700), seen(), "paced", 1_040.0)]) == []
    assert groups.problems([compared(seen(), seen(rate=900, pause_s=5.5), "paced", 1_100.0, batch_bytes=1_000)]) == [
        "sarama: 0.900 of the limit, expected 0.95 to 1.05",
        "sarama: a member was 5.5 s without data, expected at most 3.0 s",
        "sarama: 1.100 bytes sent for each delivered, expected at most 1.05",
    ]


def test_large_batches_have_no_bound_for_what_is_sent_nor_those_of_more_than_a_second_for_gaps():
    large = compared(seen(), seen(pause_s=4.0), "paced", 9_000.0, batch_bytes=500_000)
    assert groups.problems([large]) == []


@pytest.mark.exclusive
@pytest.mark.kafka
@pytest.mark.nightly
@pytest.mark.parametrize("client", ["sarama"])
def test_a_group_with_one_connection_for_all_stays_together_over_its_fetch_quota(client):
    [one] = groups.measure([client], groups.Load(500_000, SECONDS))
    assert not one.broker.errors + one.proxy.errors
    assert (one.proxy.twice, one.proxy.rebalances) <= (one.broker.twice, one.broker.rebalances)
    of_broker, of_proxy = one.of_limit
    assert of_proxy > SHORT_OF_BROKER * of_broker


@pytest.mark.exclusive
@pytest.mark.kafka
@pytest.mark.nightly
def test_a_paced_group_reads_its_limit_without_pauses_and_the_node_sends_nothing_in_vain():
    assert groups.problems(groups.measure(["librdkafka"], groups.Load(500_000, LONGER_S, fetch="paced"))) == []
