"""A client that hangs up is charged for what its node still works on, however the connection ends."""

from struct import pack

import pytest

from kafka_throttle.protocol.api_key import FETCH, HEARTBEAT, PRODUCE
from kafka_throttle.proxy.relay.actions import CloseReason, RelayLimits
from kafka_throttle.proxy.relay.response_direction import ResponseDirection
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.entities import Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.request_costs import Cost, RequestCosts
from tests.relay.frames import fetch, fetched, frame, heartbeat, heartbeaten, produce, request
from tests.relay.script import NOW_MS, NOW_US, Script, manager_of, quota_manager_with, us
from tests.relay.test_share_fetch import share_fetch, share_fetched

RATE = 1000
"""So many bytes/s; one Fetch may bring ten times as much."""
ROOM = 10 * RATE
SIZE = 7000

MODES = [RelayLimits(), RelayLimits(withholds=True), RelayLimits(delays=True)]
NODE_ENDS = [CloseReason.NODE_LOST, CloseReason.NODE_CLOSED, CloseReason.NODE_TLS_FAILED]


def client_of(make_relay, quota_manager, limits=MODES[1]):
    return Script(make_relay, quota_manager, limits).connected()


def lose_client(script, reason=CloseReason.CLIENT_LOST, now_ms=NOW_MS):
    script.do(script.relay.on_lost(reason, "", us(now_ms)), now_ms)


def charged_bytes(quota_manager, shadow=False):
    [total] = [reading.total for key, reading in quota_manager.readings(NOW_MS) if key.shadow == shadow]
    return total


def charged_us(quota_manager):
    sensor = quota_manager.bind("main", 1, "ANONYMOUS", "etl", NOW_MS).request
    return quota_manager.request_sensors.reading(sensor, NOW_MS).total * 10_000


def timed(percent=1e6, **costs_us):
    costs = {HEARTBEAT: Cost(50.0), FETCH: Cost(200.0), PRODUCE: Cost(100.0)}
    limits = {QuotaType.REQUEST: percent}
    return manager_of({Entity(client_id="etl"): limits}, costs=RequestCosts({}, costs))


# -------------------------------------------------------------- a fetch in flight

LEAVES = {
    "resets": lambda script: lose_client(script),
    "closes": lambda script: script.do(script.relay.on_eof(Side.CLIENT, NOW_US)),
    "fails in TLS": lambda script: lose_client(script, CloseReason.TLS_FAILED),
    "sends what is no request": lambda script: script.client(b"GET / HTTP/1.1\r\n\r\n"),
    "sends a request too large": lambda script: script.client(pack(">i", 2**31 - 1) + bytes(40)),
    "sends half a request": lambda script: (
        script.client(pack(">i", 60)),
        lose_client(script, CloseReason.REQUEST_TIMEOUT),
    ),
    "reads nothing": lambda script: (
        script.do(script.relay.on_blocked(Side.CLIENT)),
        lose_client(script, CloseReason.CLIENT_READS_NOTHING),
    ),
    "is one too many": lambda script: lose_client(script, CloseReason.TOO_MANY_OF_USER),
}


def end_of(script):
    """The client leaves in the middle of what it does; where it still waits, it is given up."""
    if script.closed is None:
        lose_client(script)


@pytest.mark.parametrize("limits", MODES)
@pytest.mark.parametrize("leaves", LEAVES.values(), ids=LEAVES.keys())
def test_a_fetch_is_charged_the_size_of_its_response_however_the_client_leaves(make_relay, leaves, limits):
    quota_manager = quota_manager_with(fetch=RATE)
    script = client_of(make_relay, quota_manager, limits)
    script.client(fetch(1))
    leaves(script)
    end_of(script)
    assert (script.relay.unsettled, script.reads[Side.NODE], charged_bytes(quota_manager)) == (True, True, 0)
    assert script.node(fetched(1, size=SIZE)) == b""
    assert (script.relay.unsettled, script.hung_up, charged_bytes(quota_manager)) == (False, 1, SIZE)
    assert len(quota_manager.fetch_rooms) == 0


def test_it_is_charged_for_good_also_over_the_quota(make_relay):
    quota_manager = quota_manager_with(fetch=RATE)
    for corr in range(3):
        script = client_of(make_relay, quota_manager)
        script.client(fetch(corr))
        script.time(script.wake_at or NOW_MS)
        lose_client(script)
        script.node(fetched(corr, size=2 * ROOM), NOW_MS)
    assert charged_bytes(quota_manager) == 6 * ROOM


def test_where_fetches_are_paced_those_that_come_back_bring_nothing_more(make_relay):
    quota_manager = quota_manager_with(fetch=RATE)
    for corr in range(3):
        script = client_of(make_relay, quota_manager, RelayLimits())
        script.client(fetch(corr))
        lose_client(script)
        script.node(fetched(corr, size=2 * ROOM), NOW_MS)
    assert charged_bytes(quota_manager) == 2 * ROOM


def test_eight_bytes_of_the_response_are_enough(make_relay):
    quota_manager = quota_manager_with(fetch=RATE)
    script = client_of(make_relay, quota_manager)
    script.client(fetch(1))
    lose_client(script)
    for byte in fetched(1, size=SIZE)[:8]:
        assert charged_bytes(quota_manager) == 0
        script.node(bytes([byte]))
    assert (charged_bytes(quota_manager), script.hung_up) == (SIZE, 1)


def test_what_has_come_of_the_response_is_not_charged_again(make_relay):
    quota_manager = quota_manager_with(fetch=RATE)
    script = client_of(make_relay, quota_manager)
    script.client(fetch(1))
    script.node(fetched(1, size=SIZE)[:500])
    lose_client(script)
    assert not script.relay.unsettled
    assert charged_bytes(quota_manager) == SIZE


def test_a_long_poll_that_brings_nothing_costs_next_to_nothing(make_relay):
    quota_manager = quota_manager_with(fetch=RATE)
    script = client_of(make_relay, quota_manager)
    script.client(fetch(1))
    lose_client(script)
    script.node(fetched(1, size=20), NOW_MS + 500)
    assert charged_bytes(quota_manager) == 20


def test_responses_before_it_are_passed_over(make_relay):
    for cut in range(30):
        quota_manager = quota_manager_with(fetch=RATE)
        script = client_of(make_relay, quota_manager)
        script.client(heartbeat(1) + heartbeat(2) + fetch(3))
        responses = heartbeaten(1) + heartbeaten(2) + fetched(3, size=SIZE)
        script.node(responses[:cut])
        lose_client(script)
        script.node(responses[cut : cut + 3])
        script.node(responses[cut + 3 :])
        assert (charged_bytes(quota_manager), script.hung_up) == (SIZE, 1)


def test_a_response_of_ours_that_was_due_before_it_does_not_matter(make_relay):
    quota_manager = quota_manager_with(fetch=RATE)
    script = client_of(make_relay, quota_manager)
    script.client(heartbeat(1) + request(18, 99, b"\1\1\0", corr=2, tags=True) + fetch(3))
    lose_client(script)
    script.node(heartbeaten(1) + fetched(3, size=SIZE))
    assert charged_bytes(quota_manager) == SIZE


def test_a_shared_fetch_is_charged_like_any_other(make_relay):
    quota_manager = quota_manager_with(fetch=RATE)
    script = client_of(make_relay, quota_manager)
    script.client(share_fetch())
    lose_client(script)
    script.node(share_fetched(size=SIZE))
    assert charged_bytes(quota_manager) == SIZE - 1


def test_a_shadow_quota_counts_it_too_and_of_all_that_are_in_flight(make_relay):
    shadow = QuotaTable({Entity(client_id="etl"): {QuotaType.FETCH: 10.0}})
    quota_manager = manager_of({}, shadow)
    script = client_of(make_relay, quota_manager)
    script.client(fetch(1) + fetch(2) + fetch(3))
    script.node(fetched(1, size=SIZE))
    lose_client(script)
    script.node(fetched(2, size=SIZE) + fetched(3, size=SIZE))
    assert (charged_bytes(quota_manager, shadow=True), script.hung_up) == (3 * SIZE, 1)


def test_without_a_quota_nothing_is_waited_for(make_relay):
    script = client_of(make_relay, manager_of({}))
    script.client(fetch(1))
    lose_client(script)
    assert not script.relay.unsettled


def test_a_fetch_of_which_the_node_has_not_got_the_last_byte_costs_nothing(make_relay):
    quota_manager = quota_manager_with(fetch=RATE)
    script = client_of(make_relay, quota_manager)
    assert script.client(fetch(1)[:-1])
    lose_client(script)
    assert not script.relay.unsettled
    assert (charged_bytes(quota_manager), len(quota_manager.fetch_rooms)) == (0, 0)


# ------------------------------------------------- its response cannot be waited for


@pytest.mark.parametrize(("max_bytes", "room"), [(52_428_800, ROOM), (3000, 3000)])
def test_a_response_that_is_not_waited_for_any_longer_costs_the_room_that_it_was_given(make_relay, max_bytes, room):
    for asked in (fetch(1, max_bytes=max_bytes), share_fetch(1, max_bytes=max_bytes)):
        quota_manager = quota_manager_with(fetch=RATE)
        script = client_of(make_relay, quota_manager)
        script.client(asked)
        lose_client(script)
        lose_client(script, CloseReason.CLIENT_LOST, NOW_MS + 10_000)
        assert (charged_bytes(quota_manager), script.hung_up, script.relay.unsettled) == (room, 1, False)
        assert len(quota_manager.fetch_rooms) == 0


@pytest.mark.parametrize("wrong", [heartbeaten(9), b"\xff" * 12, frame(pack(">i", 7))])
def test_so_does_one_that_is_not_understood(make_relay, wrong):
    for leaves_first in (True, False):
        quota_manager = quota_manager_with(fetch=RATE)
        script = client_of(make_relay, quota_manager)
        script.client(fetch(1))
        if leaves_first:
            lose_client(script)
        script.node(wrong)
        assert (charged_bytes(quota_manager), len(quota_manager.fetch_rooms)) == (ROOM, 0)


def test_a_bug_of_the_proxy_is_no_way_to_a_free_fetch(make_relay):
    quota_manager = quota_manager_with(fetch=RATE)
    script = client_of(make_relay, quota_manager)
    script.client(fetch(1))
    lose_client(script, CloseReason.INTERNAL_ERROR)
    assert charged_bytes(quota_manager) == ROOM


@pytest.mark.parametrize("reason", [*NODE_ENDS, CloseReason.SHUTDOWN])
def test_where_the_node_or_the_proxy_ends_it_a_fetch_costs_nothing(make_relay, reason):
    for leaves_first in (True, False):
        quota_manager = quota_manager_with(fetch=RATE)
        script = client_of(make_relay, quota_manager)
        script.client(fetch(1))
        if leaves_first:
            lose_client(script)
        lose_client(script, reason)
        assert (charged_bytes(quota_manager), len(quota_manager.fetch_rooms)) == (0, 0)
        assert script.hung_up == leaves_first


# ------------------------------------------------------------ the next connections


def test_a_new_client_waits_while_fetches_that_nobody_reads_may_bring_more_than_there_is_room_for(make_relay):
    quota_manager = quota_manager_with(fetch=RATE)
    left = [client_of(make_relay, quota_manager) for _ in range(2)]
    for script in left:
        assert script.client(fetch(1))
        lose_client(script)
    script = client_of(make_relay, quota_manager)
    assert script.client(fetch(2)) == b""
    assert (script.throttles[0].quota_type, script.wake_at) == (QuotaType.FETCH, NOW_MS + 1000)
    assert script.time(NOW_MS + 1000) == b""
    for other in left:
        other.node(fetched(1, size=20), NOW_MS + 1500)
    assert script.time(NOW_MS + 2000) == fetch(2, max_bytes=ROOM - 41)


def test_it_waits_for_them_no_longer_than_for_what_is_owed(make_relay):
    quota_manager = quota_manager_with(fetch=RATE, max_throttle_ms=3000)
    for _ in range(2):
        script = client_of(make_relay, quota_manager)
        script.client(fetch(1))
        lose_client(script)
    script = client_of(make_relay, quota_manager)
    script.client(fetch(2))
    assert [bool(script.time(NOW_MS + 1000 * number)) for number in (1, 2, 3)] == [False, False, True]


@pytest.mark.parametrize("limits", MODES[:2])
@pytest.mark.parametrize("response_ms", [3, 400, 9000])
def test_ever_new_clients_that_hang_up_stay_near_the_quota(make_relay, limits, response_ms):
    """One every 20 ms for half a minute, each with a Fetch of all that it may have; the node responds after a time."""
    quota_manager = quota_manager_with(fetch=RATE)
    due, waiting, asked_bytes = [], [], 0
    for now_ms in range(NOW_MS, NOW_MS + 30_000, 20):
        while due and due[0][0] <= now_ms:
            _, script = due.pop(0)
            script.node(fetched(1, size=ROOM), now_ms)
        new = Script(make_relay, quota_manager, limits, checks_usage=False).connected()
        sent = [new] if new.client(fetch(1), now_ms) else []
        for script in [one for one in waiting if one.wake_at <= now_ms]:
            waiting.remove(script)
            script.relay.on_left()
            sent += [script] if script.time(now_ms) else []
        for script in sent:
            asked_bytes += ROOM
            lose_client(script, now_ms=now_ms)
            due.append((now_ms + response_ms, script))
        if new not in sent:
            waiting.append(new)
    assert asked_bytes <= 30 * RATE + 3 * ROOM


def test_a_first_fetch_whose_client_leaves_while_it_waits_is_not_sent(make_relay):
    quota_manager = quota_manager_with(fetch=RATE)
    script = client_of(make_relay, quota_manager)
    script.client(fetch(1))
    script.node(fetched(1, size=2 * ROOM))
    for tells in (lambda one: one.relay.on_left(), lambda one: one.do(one.relay.on_eof(Side.CLIENT, NOW_US))):
        script = client_of(make_relay, quota_manager)
        assert script.client(fetch(1) + heartbeat(2)) == b""
        tells(script)
        assert script.closed is None
        assert script.time(script.wake_at) == b""
        assert script.close_reason is CloseReason.CLIENT_CLOSED


@pytest.mark.parametrize("acks", [0, 1])
def test_a_first_produce_is_sent_all_the_same(make_relay, acks):
    quota_manager = quota_manager_with(produce=RATE)
    client_of(make_relay, quota_manager).client(produce(1, size=2 * ROOM))
    script = client_of(make_relay, quota_manager)
    assert script.client(produce(1, acks=acks)) == b""
    script.do(script.relay.on_eof(Side.CLIENT, NOW_US))
    assert script.time(script.wake_at) == produce(1, acks=acks)
    assert script.close_reason is CloseReason.CLIENT_CLOSED


# -------------------------------------------------------------------- request time


@pytest.mark.parametrize("took_ms", [0, 0.02, 5])
@pytest.mark.parametrize("reason", [CloseReason.CLIENT_LOST, CloseReason.REQUEST_TIMEOUT, CloseReason.SHUTDOWN])
def test_all_requests_in_flight_cost_their_time_by_the_model(make_relay, took_ms, reason):
    quota_manager = timed()
    script = client_of(make_relay, quota_manager)
    script.client(b"".join(map(heartbeat, range(10))) + fetch(10))
    lose_client(script, reason, NOW_MS + took_ms)
    assert charged_us(quota_manager) == pytest.approx(10 * 50 + 200)
    assert quota_manager.time_in_flight == {}


@pytest.mark.parametrize("wrong", [heartbeaten(9), b""])
def test_a_request_that_the_node_never_gets_costs_no_time(make_relay, wrong):
    quota_manager = timed()
    script = client_of(make_relay, quota_manager)
    script.client(heartbeat(1) + request(18, 99, b"\1\1\0", corr=2, tags=True))
    script.node(wrong)
    lose_client(script)
    assert charged_us(quota_manager) == pytest.approx(50)
    assert quota_manager.time_in_flight == {}


def test_those_that_have_their_response_are_not_charged_again(make_relay):
    quota_manager = timed()
    script = client_of(make_relay, quota_manager)
    script.client(b"".join(map(heartbeat, range(10))))
    script.node(b"".join(map(heartbeaten, range(4))), NOW_MS + 100)
    before = charged_us(quota_manager)
    lose_client(script, now_ms=NOW_MS + 100)
    assert charged_us(quota_manager) - before == pytest.approx(6 * 50)


@pytest.mark.parametrize("reason", NODE_ENDS)
def test_a_node_that_has_gone_works_on_nothing(make_relay, reason):
    quota_manager = timed()
    script = client_of(make_relay, quota_manager)
    script.client(heartbeat(1) + heartbeat(2))
    lose_client(script, reason, NOW_MS + 100)
    assert (charged_us(quota_manager), quota_manager.time_in_flight) == (0, {})


def test_a_request_of_which_the_node_has_not_got_all_and_one_without_acks_cost_no_time(make_relay):
    quota_manager = timed()
    script = client_of(make_relay, quota_manager)
    script.client(produce(1, acks=0) + heartbeat(2)[:-1])
    lose_client(script)
    assert (charged_us(quota_manager), quota_manager.time_in_flight) == (0, {})


@pytest.mark.rule("reconnect")
def test_a_client_that_hangs_up_after_each_request_uses_no_more_than_the_quota(make_relay):
    """0.01 % of a thread are 3 ms in half a minute; a throttle, and so a wait, is at most a second."""
    quota_manager, waiting, sent = timed(percent=0.01), [], 0
    for now_ms in range(NOW_MS, NOW_MS + 30_000, 20):
        for one in [one for one in waiting if one.wake_at <= now_ms]:
            waiting.remove(one)
            one.relay.on_left()
            sent += bool(one.time(now_ms))
        script = Script(make_relay, quota_manager, checks_usage=False).connected()
        if script.client(heartbeat(1), now_ms):
            sent += 1
            lose_client(script, now_ms=now_ms)
        else:
            waiting.append(script)
    assert sent * 50 <= 3000 + 1000 + 30 * 50


# ------------------------------------------------------------------- a failing end


@pytest.mark.pure
def test_room_is_free_also_if_the_end_of_a_connection_fails(make_relay, monkeypatch):
    quota_manager = timed()
    script = client_of(make_relay, quota_manager)
    script.client(heartbeat(1) + heartbeat(2))
    assert quota_manager.time_in_flight

    def fail(self):
        raise RuntimeError("a bug")

    monkeypatch.setattr(ResponseDirection, "give_up", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        script.relay.on_lost(CloseReason.CLIENT_LOST, "", NOW_US)
    assert quota_manager.time_in_flight == {}
