"""Who was throttled in a second: read from the episodes of connections, bounded; the sums leave nothing out."""

import gc
from time import thread_time

import pytest

from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts
from kafka_throttle.proxy.observe.last_throttles import LastThrottles
from kafka_throttle.proxy.observe.past.seconds import SecondsOfCluster
from kafka_throttle.proxy.observe.throttle_episode import ThrottledClients, ThrottleEpisode
from kafka_throttle.proxy.relay.actions import Throttled
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from tests.fakes.clock import FakeClock

LIMIT = 100.0


class Cluster:
    """Clients of a virtual cluster with a quota of produce for each client-id."""

    def __init__(self, most=1_000, capacity=1_000):
        self.clock = FakeClock()
        table = QuotaTable({Entity(client_id=DEFAULT): {QuotaType.PRODUCE: LIMIT}})
        self.manager = ClientQuotaManager(Sensors(capacity), table)
        self.throttled, self._last = ThrottledClients(), LastThrottles(self.manager, self.clock)
        self.seconds = SecondsOfCluster(self.throttled, self.manager, most)
        self.episodes = []

    def charge(self, client_id, value):
        sensors = self.manager.bind("main", 1, "alice", client_id, self.clock.now_ms())
        return self.manager.sensors.charge(sensors.produce, value, self.clock.now_ms())

    def throttle(self, client_id, throttle_ms, quota_type=QuotaType.PRODUCE):
        """A connection of the client begins to be throttled."""
        facts = ConnectionFacts(ListenerFacts("main", None, self.manager, None), 1, "alice")
        now_ms = self.clock.now_ms()
        past = self._last.note("10.0.0.1", Throttled(quota_type, throttle_ms, client_id.encode()), facts, now_ms)
        episode = ThrottleEpisode(past, now_ms, now_ms)
        self.throttled.add(episode)
        episode.note(throttle_ms, now_ms)
        return episode

    def second(self, ms=1000):
        """What came in the second that is over now."""
        self.clock.advance(ms)
        steps = self.seconds.take(self.clock)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value


def told(past):
    """Of each line: the client-id, its throttles, their time, for how long it was muted and still is."""
    return [
        (each.line.first.client_id, each.line.throttles, each.given_ms, each.line.throttled_ms, each.line.left_ms)
        for each in past.lines
    ]


@pytest.fixture
def cluster():
    return Cluster()


def test_each_second_has_what_came_in_it(cluster):
    assert cluster.second().lines == []
    episode = cluster.throttle("etl", 2500)
    assert told(cluster.second()) == [("etl", 1, 2500, 1000, 1500)]
    assert told(cluster.second()) == [("etl", 0, 0, 1000, 500)]
    cluster.clock.advance(700)
    episode.note(100, cluster.clock.now_ms())
    assert told(cluster.second(300)) == [("etl", 1, 100, 600, 0)]
    assert cluster.second().lines == [], (
        "a client that is not muted any more is not throttled, though its episode goes on"
    )


def test_a_client_is_one_line_for_all_its_connections(cluster):
    for throttle_ms in (300, 3000):
        cluster.throttle("etl", throttle_ms)
    cluster.throttle("etl", 200, QuotaType.REQUEST)
    by_quota = {each.line.first.quota_type: each for each in cluster.second().lines}
    assert by_quota.keys() == {QuotaType.PRODUCE, QuotaType.REQUEST}
    line = by_quota[QuotaType.PRODUCE].line
    assert (line.connections, line.throttles, line.throttled_ms, line.left_ms) == (2, 2, 1300, 2000)


def test_a_connection_that_closes_within_the_second_is_not_forgotten(cluster):
    episode = cluster.throttle("quick", 5000)
    cluster.clock.advance(250)
    cluster.throttled.remove(episode, cluster.clock.now_ms())
    cluster.throttle("quick", 10_000)
    assert told(cluster.second(750)) == [("quick", 2, 15_000, 1000, 9250)]
    gone = cluster.throttle("gone", 5000)
    cluster.clock.advance(100)
    cluster.throttled.remove(gone, cluster.clock.now_ms())
    assert told(cluster.second(900)) == [("quick", 0, 0, 1000, 8250), ("gone", 1, 5000, 100, 0)]
    assert told(cluster.second()) == [("quick", 0, 0, 1000, 7250)]


def test_nothing_is_kept_of_connections_that_close_if_nobody_takes_it():
    throttled = ThrottledClients()
    cluster = Cluster()
    episode = cluster.throttle("etl", 5000)
    throttled.add(episode)
    throttled.remove(episode, cluster.clock.now_ms())
    assert throttled.take_ended() == []


def test_what_a_sensor_was_charged_is_known_from_the_second_second_on(cluster):
    cluster.throttle("etl", cluster.charge("etl", 1_500))
    [first] = cluster.second().lines
    cluster.charge("etl", 40)
    cluster.charge("etl", 2)
    [second] = cluster.second().lines
    assert (first.charged, second.charged) == (None, 42)
    assert second.line.rate > LIMIT
    assert second.line.first.limit == LIMIT


def test_the_clients_that_were_muted_longest_have_lines_and_the_others_are_summed_up():
    cluster = Cluster(most=3)
    for number in range(10):
        cluster.throttle(f"client-{number}", 100 * number + 50)
    past = cluster.second()
    assert [line[0] for line in told(past)] == ["client-9", "client-8", "client-7"]
    others = past.others
    assert (others.lines, others.throttles) == (7, 7)
    assert others.throttled_ms == others.given_ms == sum(100 * number + 50 for number in range(7))


def test_a_hundred_thousand_throttled_clients_take_little_time_and_no_long_step():
    cluster = Cluster(capacity=200_000)
    past = cluster.throttle("client", 1).first
    for number in range(100_000):
        own = type(past)(**{field: getattr(past, field) for field in past.__slots__} | {"client_id": f"c{number}"})
        episode = ThrottleEpisode(own, cluster.clock.now_ms(), cluster.clock.now_ms())
        cluster.throttled.add(episode)
        episode.note(60_000, cluster.clock.now_ms())
    cluster.second()
    gc.collect()
    gc.freeze()
    try:
        cluster.clock.advance(1000)
        steps, longest, begin = cluster.seconds.take(cluster.clock), 0.0, thread_time()
        while True:
            before = thread_time()
            try:
                next(steps)
            except StopIteration as end:
                taken = end.value
                break
            finally:
                longest = max(longest, thread_time() - before)
        total = thread_time() - begin
    finally:
        gc.unfreeze()
    assert (len(taken.lines), taken.others.lines) == (1_000, 99_000)
    assert longest < 0.02
    assert total < 1.0
