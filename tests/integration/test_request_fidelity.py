"""Request time beside a broker: what is charged, which clients are throttled, and for how long; see tests/fidelity."""

import time

import pytest
from kafka.admin import KafkaAdminClient

from tests.fidelity import broker, report, throttles
from tests.fidelity.__main__ import FROZEN_LOADS, measure
from tests.fidelity.loads import chosen
from tests.fidelity.runs import HALF
from tests.fidelity.sensors import TooLate
from tests.integration.topics import leaders_of
from tests.support.disturbance import Disturbance, undisturbed
from tests.support.timeouts import TIMEOUT_S

_GROUPS = "__consumer_offsets"
_PREFERRED = 0


def lead_again(cluster, node_id):
    """Until the node leads partitions of groups again: one that was killed has lost all that it led."""
    admin, deadline = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers), time.monotonic() + TIMEOUT_S
    try:
        while (leaders := leaders_of(cluster.bootstrap_servers, _GROUPS)) and node_id not in leaders.values():
            assert time.monotonic() < deadline, leaders
            admin.elect_leaders(_PREFERRED, raise_errors=False)
            time.sleep(0.2)
    finally:
        admin.close()


@pytest.fixture
def both_sides(newest_kafka, start_proxy):
    lead_again(newest_kafka, throttles.NODE)
    try:
        broker.make_topics(newest_kafka, throttles.NODE)
        yield throttles.at_both(newest_kafka, start_proxy(throttles.entries()))
    finally:
        broker.set_request_quotas(
            newest_kafka.address(throttles.NODE), dict.fromkeys(throttles.percents(throttles.BROKER))
        )
        broker.delete_topics(newest_kafka)


def test_each_api_is_throttled_for_one_window_at_most_and_mute_for_as_long_here_and_at_a_broker(both_sides):
    throttles.compare(both_sides, throttles.ANSWERED)
    assert throttles.problems_of_throttles(both_sides) == []


@pytest.mark.exclusive
@pytest.mark.nightly
def test_as_many_requests_get_through_as_at_a_broker_on_the_whole(both_sides):
    def admitted():
        throttles.admit(both_sides)
        return [side.admitted for side in both_sides]

    (of_broker, of_proxy), no_process_stood_still = undisturbed(admitted)
    assert of_proxy > 0
    # At so few requests a second a broker's threads are cold: one costs it up to fifteen times what it does under load.
    # One that stands still amid a request takes that time for the request's.
    assert not no_process_stood_still or 0.1 < of_proxy / of_broker < 30


@pytest.mark.kafka
@pytest.mark.exclusive
@pytest.mark.nightly
def test_at_half_load_requests_cost_about_what_a_broker_measures_and_a_frozen_node_charges_no_client():
    loads = [load for load in chosen(["Produce acks=1, 1 KiB", "Fetch, 16 KiB"]) if load.name in FROZEN_LOADS]
    with Disturbance() as disturbance:
        try:
            found, _ = measure(loads, 1, "4.3.1", direct=False, levels=(HALF,))
        except TooLate:
            assert disturbance.seen
            return
    for each in found:
        # A broker that stands still amid a request takes that time for the request's.
        assert disturbance.seen or 0.2 < report.ratio(each.runs[HALF]) < 5, report.table(found)
        for _, _, charged_ms in report.frozen_ms(each):
            assert charged_ms < 500, "less than one of the eight connections has waited"
