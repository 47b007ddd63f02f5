"""Which connections of a process that ends are closed, and when, by a clock of its own."""

import pytest

from kafka_throttle.protocol.api_key import FETCH, JOIN_GROUP, PRODUCE, SYNC_GROUP
from kafka_throttle.proxy.server.drain import Drain

STEP_S = 0.02


class Open:
    """A connection that notes what becomes of it. It is idle at some times only, and `answered_s` says from when on
    all that it has taken is answered if it takes no more.
    """

    def __init__(self, opened_ms=0, idle=True, answered_s=None, oldest_api_key=-1):
        self.opened_ms, self.idle, self.answered_s, self.oldest_api_key = opened_ms, idle, answered_s, oldest_api_key
        self.closed_s, self.was_cut, self.now_s, self.is_new_until_s = None, False, 0.0, 0.0

    @property
    def is_new(self):
        return self.now_s < self.is_new_until_s

    def leave(self):
        if self.idle:
            self.close()

    def finish(self):
        if self.idle or (self.answered_s is not None and self.now_s >= self.answered_s):
            self.close()

    def give_up(self, reason):
        if self.closed_s is None:
            self.was_cut = True
            self.close()

    def close(self):
        if self.closed_s is None:
            self.closed_s = self.now_s


def busy(answered_s=None, api_key=PRODUCE):
    return Open(idle=False, answered_s=answered_s, oldest_api_key=api_key)


def drained(connections, drain_s=10, others_accept=lambda now_s: False):
    """Drain until all are closed or the time is over; return how long that takes."""
    drain, now_s = Drain(0.0, drain_s), 0.0
    while not drain.is_over(now_s):
        waiting = [one for one in connections if one.closed_s is None]
        for one in waiting:
            one.now_s = now_s
        drain.look(waiting, now_s, others_accept(now_s))
        if all(one.closed_s is not None for one in connections):
            break
        now_s += STEP_S
    return now_s


def always(now_s):
    return True


def test_while_nobody_accepts_all_idle_connections_are_closed_at_once():
    assert drained([Open() for _ in range(100)]) == 0


@pytest.mark.rule("restart")
def test_while_nobody_accepts_the_end_waits_for_what_is_in_flight_and_no_longer():
    connections = [Open(), busy(answered_s=0.5), busy(answered_s=3)]
    assert drained(connections) == pytest.approx(3, abs=2 * STEP_S)
    assert [one.closed_s for one in connections] == pytest.approx([0, 0.5, 3], abs=2 * STEP_S)
    assert not any(one.was_cut for one in connections)


def test_what_is_never_answered_is_waited_for_as_long_as_the_drain_may_last():
    connection = busy()
    assert drained([connection], drain_s=4) == pytest.approx(4, abs=2 * STEP_S)
    assert connection.closed_s is None


@pytest.mark.parametrize("api_key", [FETCH, JOIN_GROUP, SYNC_GROUP])
def test_a_request_that_only_waits_for_others_does_not_hold_up_the_end(api_key):
    connection = busy(answered_s=60, api_key=api_key)
    assert drained([connection]) < 0.2
    assert connection.was_cut


def test_a_fetch_for_which_there_are_records_gets_them():
    connection = busy(answered_s=0.05, api_key=FETCH)
    drained([connection])
    assert not connection.was_cut


def test_while_others_accept_connections_are_spread_over_the_time_the_oldest_first():
    connections = [Open(opened_ms=number) for number in range(100)]
    assert 8 < drained(connections, others_accept=always) <= 9.1
    closed = [one.closed_s for one in connections]
    assert closed == sorted(closed)
    for tenth in range(1, 9):
        assert sum(at <= tenth for at in closed) == pytest.approx(tenth / 9 * 100, abs=3)


def test_while_others_accept_a_connection_that_is_never_idle_takes_requests_until_the_last_part_of_the_time():
    connection = busy(answered_s=0)
    drained([connection], others_accept=always)
    assert connection.closed_s == pytest.approx(9, abs=3 * STEP_S)
    assert not connection.was_cut


def test_when_the_one_that_accepted_is_lost_the_rest_are_closed_at_once():
    connections = [Open(opened_ms=number) for number in range(100)]
    assert drained(connections, others_accept=lambda now_s: now_s < 3) == pytest.approx(3, abs=2 * STEP_S)


def test_a_process_that_begins_to_accept_later_changes_nothing():
    connection = busy(answered_s=1)
    assert drained([connection], others_accept=lambda now_s: now_s > 0.5) == pytest.approx(1, abs=2 * STEP_S)


def test_a_client_that_has_just_connected_gets_its_first_response():
    connection = Open()
    connection.is_new_until_s = 0.5
    assert drained([connection]) == pytest.approx(0.5, abs=2 * STEP_S)


def test_an_empty_process_has_nothing_to_wait_for():
    assert drained([], others_accept=always) == 0
