"""The time-outs of clients, as scripts of bytes and seconds: one look a second, as in the service."""

from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.protocol.api_key import API_VERSIONS
from kafka_throttle.proxy.relay.actions import CloseReason, RelayLimits
from kafka_throttle.proxy.relay.connection_timeouts import ConnectionTimeouts, TimeOuts, WaitingFor
from kafka_throttle.proxy.side import Side
from tests.relay.frames import fetch, fetched, heartbeat, heartbeaten, produce, produced, request
from tests.relay.script import NOW_MS, Script, quota_manager_with
from tests.support.sasl_frames import authenticate, log_in

TIME_OUTS = TimeOuts(first_byte_ms=5_000, request_ms=10_000, idle_ms=30_000, unread_ms=20_000)
STEP_MS = 1_000


class Waiter:
    """A relay that is looked at once a second."""

    def __init__(self, make_relay, time_outs=TIME_OUTS, **settings):
        self.script = Script(make_relay, **settings)
        self.time_outs = time_outs
        self.timeouts = ConnectionTimeouts()
        self.now_ms = NOW_MS
        self.look()

    @property
    def waiting_for(self):
        return self.script.relay.waiting_for

    def look(self, held_up=False):
        relay = self.script.relay
        return self.timeouts.for_bytes(relay.waiting_for, relay.requests, held_up, STEP_MS, self.time_outs)

    def until(self, seconds, held_up=False):
        """After how many seconds the connection ends, and why; None if not within so many."""
        for second in range(1, seconds + 1):
            self.now_ms += STEP_MS
            if reason := self.look(held_up):
                return second, reason
        return None

    def client(self, data):
        self.script.client(data, self.now_ms)

    def node(self, data):
        self.script.node(data, self.now_ms)


def test_a_client_that_sends_nothing(make_relay):
    assert Waiter(make_relay).until(60) == (5, CloseReason.FIRST_BYTE_TIMEOUT)


def test_a_first_request_that_does_not_come_to_its_end(make_relay):
    """The time of a request begins when its first byte is seen, however long the client was silent before."""
    waiter = Waiter(make_relay)
    assert waiter.until(4) is None
    waiter.client(produce()[:7])
    assert waiter.until(60) == (11, CloseReason.REQUEST_TIMEOUT)


def crowds(seconds, crowded_s, time_outs=TIME_OUTS):
    """After how many seconds a request ends for which others wait in those of each ten seconds, and why."""
    timeouts = ConnectionTimeouts()
    for second in range(seconds):
        waiting_for = WaitingFor.CROWDED_REQUEST if second % 10 in crowded_s else WaitingFor.REQUEST
        if reason := timeouts.for_bytes(waiting_for, 0, False, STEP_MS, time_outs):
            return second, reason
    return None


def test_a_wait_for_a_request_goes_on_when_others_begin_or_cease_to_wait_for_its_memory():
    timed_out = CloseReason.REQUEST_TIMEOUT
    assert crowds(60, range(0)) == crowds(60, (3, 4, 7)) == (10, timed_out)
    assert crowds(60, range(10)) == (5, timed_out)
    assert crowds(60, range(4, 10)) == (9, timed_out)
    slow = TimeOuts(request_ms=60_000)
    assert crowds(90, (0, 1, 2, 3, 4, 5), slow) == (5, timed_out)
    assert crowds(90, (0, 1, 2), slow) == (21, timed_out)
    assert crowds(90, (0, 2, 4), slow) == (60, timed_out)
    assert crowds(200, (0, 1), TimeOuts()) == (41, timed_out)
    assert crowds(200, (0, 2), TimeOuts()) is None


@pytest.mark.parametrize("cut", [1, 5, 13, 50, 99])
def test_a_request_that_dribbles(make_relay, cut):
    """A byte a second is no progress, and neither are other requests and responses."""
    waiter = Waiter(make_relay)
    waiter.script.connected()
    slow = produce(2, size=1000)
    waiter.client(fetch(1) + slow[:cut])
    for second in range(10):
        assert waiter.until(1) is None
        waiter.client(slow[cut + second : cut + second + 1])
        if second == 5:
            waiter.node(fetched(1))
    assert waiter.until(1) == (1, CloseReason.REQUEST_TIMEOUT)


def test_requests_that_end_in_time_may_go_on_for_ever(make_relay):
    """Also if a request is half-way at each look."""
    waiter = Waiter(make_relay)
    waiter.script.connected()
    half = len(produce()) // 2
    waiter.client(produce(1)[:half])
    for number in range(1, 40):
        assert waiter.until(9) is None
        waiter.client(produce(number)[half:] + produce(number + 1)[:half])
        waiter.node(produced(number))


def test_while_a_response_is_due_nothing_is_awaited(make_relay):
    waiter = Waiter(make_relay)
    waiter.script.connected()
    waiter.client(fetch(1))
    assert (waiter.waiting_for, waiter.until(3600)) == (WaitingFor.NOTHING, None)
    waiter.node(fetched(1)[:20])
    assert (waiter.waiting_for, waiter.until(3600)) == (WaitingFor.NOTHING, None)
    waiter.node(fetched(1)[20:])
    assert waiter.until(3600) == (31, CloseReason.IDLE_TIMEOUT)


def test_an_idle_connection(make_relay):
    waiter = Waiter(make_relay)
    waiter.script.connected()
    for number in range(5):
        waiter.client(heartbeat(number))
        waiter.node(heartbeaten(number))
        assert waiter.until(30) is None
    waiter.client(produce(acks=0))
    assert waiter.until(30) is None
    assert waiter.until(1) == (1, CloseReason.IDLE_TIMEOUT)


def test_a_client_with_responses_of_the_proxy_only_may_be_idle_too(make_relay):
    waiter = Waiter(make_relay)
    waiter.script.connected()
    waiter.client(request(API_VERSIONS, 99, tags=True))
    assert waiter.script.sent[Side.CLIENT]
    assert waiter.until(60) == (31, CloseReason.IDLE_TIMEOUT)


def test_while_the_node_is_connected_to_nothing_is_awaited(make_relay):
    waiter = Waiter(make_relay)
    waiter.client(produce())
    assert (waiter.script.opened, waiter.until(3600)) == (1, None)


def test_a_muted_client_has_time(make_relay):
    """With or without a request that waits behind the mute; the rest of a request that has begun must come in time."""
    waiter = Waiter(make_relay, quota_manager=quota_manager_with(produce=100))
    waiter.script.connected()
    waiter.client(produce(1, size=10_000))
    waiter.node(produced(1))
    assert (waiter.waiting_for, waiter.until(3600)) == (WaitingFor.NOTHING, None)
    waiter.client(produce(2)[:20])
    assert (waiter.waiting_for, waiter.until(3600)) == (WaitingFor.NOTHING, None)
    waiter.script.time(waiter.script.wake_at)
    assert waiter.waiting_for is WaitingFor.REQUEST
    assert waiter.until(3600) == (11, CloseReason.REQUEST_TIMEOUT)


def test_a_client_that_is_muted_amid_a_request_has_to_send_the_rest(make_relay):
    waiter = Waiter(make_relay)
    waiter.script.connected()
    waiter.client(heartbeat(1) + produce(2, size=10_000)[:1000])
    waiter.node(heartbeaten(1, throttle_time_ms=3_600_000))
    assert waiter.script.throttles
    assert waiter.until(3600) == (11, CloseReason.REQUEST_TIMEOUT)


def throttled(waiter):
    """A client that has logged in and is then throttled."""
    waiter.script.connected()
    log_in(waiter)
    waiter.client(heartbeat(1))
    waiter.node(heartbeaten(1, throttle_time_ms=3_600_000))


@pytest.mark.parametrize("cut", [6, 13, 14, 50, 9_000])
def test_a_muted_client_that_is_amid_what_passes_the_mute_has_to_send_the_rest(make_relay, cut):
    """A frame of SASL is read in a mute, too, so its time-outs run."""
    waiter = Waiter(make_relay)
    throttled(waiter)
    assert (waiter.waiting_for, waiter.until(100)) == (WaitingFor.NOTHING, None)
    waiter.client(authenticate(bytes(10_000))[:cut])
    assert (waiter.waiting_for, waiter.until(3600)) == (WaitingFor.REQUEST, (11, CloseReason.REQUEST_TIMEOUT))


def test_a_muted_client_that_has_sent_what_passes_the_mute_has_time(make_relay):
    waiter = Waiter(make_relay)
    throttled(waiter)
    waiter.client(authenticate(bytes(10_000)))
    assert (waiter.waiting_for, waiter.until(3600)) == (WaitingFor.NOTHING, None)


def test_a_client_that_may_send_no_more_requests_has_time(make_relay):
    waiter = Waiter(make_relay, limits=RelayLimits(max_in_flight=2))
    waiter.script.connected()
    waiter.client(heartbeat(1) + heartbeat(2) + heartbeat(3)[:5])
    assert (waiter.waiting_for, waiter.until(3600)) == (WaitingFor.NOTHING, None)


def test_time_in_which_the_node_takes_nothing_does_not_count(make_relay):
    waiter = Waiter(make_relay)
    waiter.script.connected()
    waiter.client(produce(size=1000)[:500])
    assert waiter.until(9) is None
    waiter.script.do(waiter.script.relay.on_blocked(Side.NODE))
    assert (waiter.waiting_for, waiter.until(3600)) == (WaitingFor.NOTHING, None)
    waiter.script.do(waiter.script.relay.on_writable(Side.NODE, 1000 * waiter.now_ms))
    assert waiter.until(3600) == (2, CloseReason.REQUEST_TIMEOUT)


def test_time_in_which_the_client_was_not_read_does_not_count(make_relay):
    waiter = Waiter(make_relay)
    waiter.script.connected()
    waiter.client(produce(size=1000)[:500])
    assert waiter.until(9) is None
    assert waiter.until(3600, held_up=True) is None
    assert waiter.until(3600) == (2, CloseReason.REQUEST_TIMEOUT)


def test_a_client_that_has_ended_while_it_is_muted_is_not_waited_for(make_relay):
    waiter = Waiter(make_relay, quota_manager=quota_manager_with(produce=100))
    waiter.script.connected()
    waiter.client(produce(1, size=10_000) + heartbeat(2))
    waiter.script.do(waiter.script.relay.on_eof(Side.CLIENT, 1000 * waiter.now_ms))
    assert (waiter.waiting_for, waiter.until(3600)) == (WaitingFor.NOTHING, None)


def test_zero_is_for_ever(make_relay):
    silent = Waiter(make_relay, TimeOuts())
    assert silent.until(100_000) is None
    slow, idle = Waiter(make_relay, TimeOuts()), Waiter(make_relay, TimeOuts())
    slow.client(pack(">i", 100))
    idle.client(request(API_VERSIONS, 99, tags=True))
    assert slow.until(100_000) is idle.until(100_000) is None


def test_a_client_that_reads_nothing():
    timeouts, seconds = ConnectionTimeouts(), 0
    assert timeouts.for_reading(5000, 0, STEP_MS, TIME_OUTS) is None
    while not (reason := timeouts.for_reading(5000, 100, STEP_MS, TIME_OUTS)):
        seconds += 1
    assert (seconds, reason) == (20, CloseReason.CLIENT_READS_NOTHING)


def test_a_client_that_reads_a_byte_now_and_then_reads():
    timeouts = ConnectionTimeouts()
    for second in range(1000):
        assert timeouts.for_reading(5000, second // 15, STEP_MS, TIME_OUTS) is None
    for _ in range(1000):
        assert timeouts.for_reading(0, 5000, STEP_MS, TIME_OUTS) is None
        assert timeouts.for_reading(5000, 5000, STEP_MS, TimeOuts()) is None


@settings(deadline=None)
@given(st.lists(st.sampled_from(["produce", "heartbeat", "response", "wake"]), max_size=30), st.data())
def test_a_client_that_sends_whole_requests_is_never_closed_for_them(make_relay, moves, data):
    """Whatever the requests, responses and throttles are, and however many requests wait unread behind a mute."""
    waiter = Waiter(make_relay, TimeOuts(5_000, 1_000, 0, 0), quota_manager=quota_manager_with(produce=1000))
    script = waiter.script.connected()
    corr = answered = 0
    for move in ("heartbeat", *moves):
        if move in ("produce", "heartbeat"):
            corr += 1
            waiter.client(produce(corr, size=1500) if move == "produce" else heartbeat(corr))
        elif move == "response" and script.relay.requests > answered:
            answered += 1
            waiter.node(_response_to(script, answered))
        elif script.wake_at is not None:
            waiter.now_ms = max(script.wake_at, waiter.now_ms)
            script.time(waiter.now_ms)
        assert waiter.until(data.draw(st.integers(0, 9))) is None


def _response_to(script, corr):
    request_of_it = script.relay._in_flight.queue[0]
    assert request_of_it.correlation_id == corr
    return produced(corr) if request_of_it.plan.name == "Produce" else heartbeaten(corr)
