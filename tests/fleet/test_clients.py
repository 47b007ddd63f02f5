"""Simulated clients want what they are told to want, and wait what they are told to wait."""

from random import Random

from tests.fleet.clients import Balancer, Connection, Sent
from tests.fleet.events import Events
from tests.fleet.plan import GREEDY, Load


class Server:
    """Answers each request with the same throttle time."""

    def __init__(self, events: Events, throttle_ms: int = 0) -> None:
        self.is_open = True
        self.incarnation = 1
        self.requests: list[int] = []
        self._events = events
        self._throttle_ms = throttle_ms

    def owed_ms(self, entity):
        return 0

    def charge(self, entity, amount):
        self.requests.append(self._events.now_ms)
        return amount, self._throttle_ms

    def when_running(self, callback, *args):
        callback(*args)


def run(load: Load, servers: int = 2, throttle_ms: int = 0, ms: int = 10_000):
    events, sent = Events(), Sent()
    instances = [Server(events, throttle_ms) for _ in range(servers)]
    connection = Connection(events, Random(1), instances, Balancer(instances), load, 1000.0, sent)
    events.at(ms, lambda: None)
    events.run(ms, lambda: False)
    return instances, sent, connection


def test_a_greedy_client_sends_as_fast_as_its_line_or_as_it_is_told():
    [fast, other], sent, _ = run(Load(0, 0, GREEDY, line=10))
    assert sum(sent.of_entity[0].values()) == 50 * len(fast.requests)
    assert abs(len(fast.requests) - 10 * 10_000 / 1000 / 0.05) < 5
    assert not other.requests
    [slow, _], _, _ = run(Load(0, 0, GREEDY), throttle_ms=1000)
    assert [after - before for before, after in zip(slow.requests, slow.requests[1:], strict=False)] == [1000] * 9


def test_a_paced_client_catches_up_on_what_it_could_not_send():
    _, sent, _ = run(Load(0, 0, 0.5))
    assert abs(sum(sent.of_entity[0].values()) - 0.5 * 10 * 1000) <= 50
    [behind, _], _, connection = run(Load(0, 0, 0.5), throttle_ms=500)
    assert len(behind.requests) == 20
    assert connection.demand(10_000) == 10.0


def test_a_bursty_client_wants_its_rate_in_the_time_on():
    _, sent, _ = run(Load(0, 0, 1.0, on_ms=1000, off_ms=3000), ms=12_000)
    by_second = [sent.of_entity[0][second] for second in range(12)]
    assert sum(by_second) == 3000
    assert all(by_second[second] >= 900 for second in (0, 4, 8))


def test_a_moving_client_is_at_each_instance_in_turn_and_does_not_wait_for_the_one_before():
    servers, _, _ = run(Load(0, 1, GREEDY, moves_ms=2000), servers=3, throttle_ms=100_000)
    assert [len(server.requests) for server in servers] == [1, 2, 2]


def test_a_client_of_an_instance_that_is_gone_goes_to_the_next():
    events, sent = Events(), Sent()
    instances = [Server(events, 500) for _ in range(3)]
    connection = Connection(events, Random(1), instances, Balancer(instances), Load(0, 1, GREEDY), 1000.0, sent)
    events.at(2000, lambda: None)
    events.run(2000, lambda: False)
    instances[1].is_open = False
    connection.lost(1)
    events.at(4000, lambda: None)
    events.run(4000, lambda: False)
    assert instances[2].requests
    assert not instances[0].requests
    assert max(instances[1].requests) <= 2000


def test_a_balancer_leads_to_the_places_that_are_open_in_turn():
    servers = [Server(Events()) for _ in range(3)]
    balancer = Balancer(servers)
    assert [balancer.next() for _ in range(4)] == [0, 1, 2, 0]
    balancer.open((0, 2))
    servers[0].is_open = False
    assert [balancer.next() for _ in range(2)] == [2, 2]
