"""Consumer groups over a fetch quota, in short: nobody leaves, nothing comes twice (see groups.py for the long one)."""

import pytest

from tests.parity import groups

SECONDS = 30
SHORT_OF_BROKER = 0.8
"""In so short a time one burst of Kafka's window more or less is a fifth."""


def test_figures_of_a_group_are_what_its_members_told():
    seen = groups.Seen()
    seen.times = {(0, 0): 1, (0, 1): 3, (1, 0): 1}
    seen.joined_s = [[1.0, 4.0], [2.0, 16.9, 40.0], [2.0, 40.1]]
    assert (seen.distinct, seen.twice, seen.rebalances) == (3, 2, 2)


def test_a_group_that_is_worse_off_than_at_the_broker_is_told():
    broker, proxy = groups.Seen(), groups.Seen()
    broker.times = {(0, offset): 1 for offset in range(100)}
    proxy.times = {(0, offset): 2 for offset in range(90)}
    proxy.joined_s, proxy.errors = [[1.0], [1.0], [1.0, 50.0]], ["a member ended with status 1"]
    assert groups.problems([groups.Compared("sarama", broker, proxy, 1.0)]) == [
        "sarama: a member ended with status 1",
        "sarama: 90 records came twice, 0 at the broker",
        "sarama: 1 rebalances, 0 at the broker",
        "sarama: 0.900 of the broker's distinct records",
    ]
    assert groups.problems([groups.Compared("sarama", broker, broker, 1.0)]) == []


@pytest.mark.exclusive
@pytest.mark.kafka
@pytest.mark.nightly
@pytest.mark.parametrize("client", ["sarama"])
def test_a_group_with_one_connection_for_all_stays_together_over_its_fetch_quota(client):
    [one] = groups.measure([client], 500_000, SECONDS)
    assert not one.broker.errors + one.proxy.errors
    assert (one.proxy.twice, one.proxy.rebalances) <= (one.broker.twice, one.broker.rebalances)
    assert one.of_broker > SHORT_OF_BROKER
