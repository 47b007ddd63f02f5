"""Request time (KIP-124): the charge and the throttle of a request, and that no client pays for a node that stalls."""

from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.protocol.api_key import API_VERSIONS, FETCH, HEARTBEAT, PRODUCE
from kafka_throttle.proxy.relay.actions import CloseReason, RelayLimits
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.request_costs import BUSY_SHARE, NETWORK_US, PAUSE_US, SAMPLES, Cost, RequestCosts
from tests.relay.frames import fetch, fetched, frame, heartbeat, heartbeaten, produce, produced, request
from tests.relay.script import NOW_MS, Script, manager_of, us

MODEL = {
    PRODUCE: Cost(100.0, 10.0),
    FETCH: Cost(200.0, 1.0),
    HEARTBEAT: Cost(50.0),
    API_VERSIONS: Cost(30.0),
}
HUGE = 1e9


def timed(make_relay, percent=HUGE, *, pinned=True, **others):
    """A connected relay whose client has a request quota, and its quota manager."""
    limits = {QuotaType.REQUEST: float(percent)} | {QuotaType[name]: float(rate) for name, rate in others.items()}
    costs = RequestCosts({} if pinned else MODEL, MODEL if pinned else {})
    quota_manager = manager_of({Entity(client_id="etl"): limits}, costs=costs)
    return Script(make_relay, quota_manager).connected()


def charged_us(script):
    """What the client was charged so far."""
    client_sensors = script.quota_manager.bind("main", 1, "ANONYMOUS", "etl", NOW_MS)
    return script.quota_manager.request_sensors.reading(client_sensors.request, NOW_MS).total * 10_000


class Exchanges:
    """Requests and their responses, one right after another."""

    def __init__(self, script):
        self._script = script
        self.now_ms = NOW_MS

    def __call__(self, corr=1, *, took_us, ask=heartbeat, response=heartbeaten):
        """What the client gets."""
        self._script.client(ask(corr), self.now_ms)
        self.now_ms += took_us / 1000
        return self._script.node(response(corr), self.now_ms)


# ------------------------------------------------------------------------ cost


@pytest.mark.rule("request")
@pytest.mark.parametrize(("took_us", "cost_us"), [(0, 0), (20, 20), (50, 50), (80, 50), (500_000, 50)])
def test_a_request_costs_what_it_took_and_never_more_than_such_requests_cost(make_relay, took_us, cost_us):
    script = timed(make_relay)
    exchange = Exchanges(script)
    exchange(took_us=took_us)
    assert charged_us(script) == pytest.approx(cost_us)


def test_size_counts_of_the_request_and_of_its_response(make_relay):
    script = timed(make_relay)
    exchange = Exchanges(script)
    exchange(took_us=10_000, ask=lambda corr: produce(corr, size=10_240), response=produced)
    assert charged_us(script) == pytest.approx(100 + 10 * (10_240 + len(produced()) - 4) / 1024)
    before = charged_us(script)
    exchange(2, took_us=10_000, ask=fetch, response=lambda corr: fetched(corr, size=102_400))
    assert charged_us(script) - before == pytest.approx(200 + (len(fetch()) - 4 + 102_400) / 1024)


def test_the_way_to_the_node_and_back_costs_nothing(make_relay):
    script = timed(make_relay)
    exchange = Exchanges(script)
    script.quota_manager.costs.of_node(1).note_round_trip(15)
    script.quota_manager.costs.of_node(1).note_round_trip(800)
    exchange(took_us=40)
    assert charged_us(script) == pytest.approx(25)


def test_a_request_behind_another_begins_with_that_ones_response(make_relay):
    script = timed(make_relay)
    script.client(b"".join(map(heartbeat, (1, 2, 3))))
    script.node(heartbeaten(1), NOW_MS + 0.040)
    assert charged_us(script) == pytest.approx(40)
    script.node(heartbeaten(2), NOW_MS + 0.050)
    assert charged_us(script) == pytest.approx(50)
    script.node(heartbeaten(3), NOW_MS + 400)
    assert charged_us(script) == pytest.approx(100)


def test_responses_in_one_piece_share_the_time_before_it(make_relay):
    script = timed(make_relay)
    script.client(b"".join(map(heartbeat, range(1, 7))))
    script.node(heartbeaten(1) + heartbeaten(2) + heartbeaten(3), NOW_MS + 0.120)
    assert charged_us(script) == pytest.approx(120)
    script.node(heartbeaten(4) + heartbeaten(5) + heartbeaten(6), NOW_MS + 5)
    assert charged_us(script) == pytest.approx(120 + 150)


@given(data=st.data())
@settings(max_examples=60)
def test_however_it_is_cut_a_train_is_never_charged_more_than_its_time_or_its_model(make_relay, data):
    script = timed(make_relay)
    count = data.draw(st.integers(1, 12), label="requests")
    script.client(b"".join(map(heartbeat, range(1, count + 1))))
    responses = b"".join(map(heartbeaten, range(1, count + 1)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(responses)), max_size=6), label="cuts"))
    now_us = us(NOW_MS)
    for start, end in zip([0, *cuts], [*cuts, len(responses)], strict=True):
        now_us += data.draw(st.integers(0, 300), label="wait")
        script.node(responses[start:end], now_us / 1000)
    assert charged_us(script) <= min(now_us - us(NOW_MS), 50 * count) + 1e-6
    assert bytes(script.sent[Side.CLIENT]) == responses


def test_without_a_request_quota_nothing_is_timed(make_relay):
    script = Script(make_relay, manager_of()).connected()
    exchange = Exchanges(script)
    exchange(took_us=1000)
    assert script.quota_manager.costs.by_node() == {}


# -------------------------------------------------------------------- throttle


@pytest.mark.rule("request")
def test_a_throttle_is_in_the_response_mutes_the_client_and_is_one_window_at_most(make_relay):
    script = timed(make_relay, percent=1e-4)
    exchange = Exchanges(script)
    got = exchange(took_us=50)
    assert got == heartbeaten(1, 1000)
    [throttled] = script.throttles
    assert (throttled.quota_type, throttled.throttle_time_ms) == (QuotaType.REQUEST, 1000)
    assert script.wake_at == NOW_MS + 1000
    assert script.client(heartbeat(2), NOW_MS + 500) == b""
    assert script.time(NOW_MS + 1000) == heartbeat(2)


def test_kafkas_arithmetic_gives_the_throttle_time(make_relay):
    script = timed(make_relay, percent=0.05)  # 10 windows hold 5,000 us
    exchange = Exchanges(script)
    for corr in range(1, 101):
        assert exchange(corr, took_us=50) == heartbeaten(corr)
    # 5,050 us in 10.005 s are 0.95 % more than the quota allows: 0.0095 * 10,005 ms
    assert exchange(101, took_us=50) == heartbeaten(101, 95)


def test_a_train_over_the_quota_is_throttled_at_its_first_response_too_many(make_relay):
    script = timed(make_relay, percent=0.05)
    script.client(b"".join(map(heartbeat, range(120))))
    got = script.node(b"".join(map(heartbeaten, range(100))), NOW_MS + 60_000)
    assert got == b"".join(map(heartbeaten, range(100)))
    got = script.node(heartbeaten(100), NOW_MS + 60_001)
    assert 90 <= int.from_bytes(got[8:12]) <= 110
    assert script.relay.muted


def test_the_larger_of_two_throttle_times_counts(make_relay):
    script = timed(make_relay, percent=1e-4, PRODUCE=100)
    exchange = Exchanges(script)
    got = exchange(took_us=0, ask=lambda corr: produce(corr, size=1100), response=produced)
    assert got == produced(1, 1000)
    script = timed(make_relay, percent=1e-4, PRODUCE=100)
    exchange = Exchanges(script)
    got = exchange(took_us=100, ask=lambda corr: produce(corr, size=6000), response=produced)
    assert got == produced(1, 20_000)
    assert script.wake_at == NOW_MS + 20_000


def test_a_fetch_that_is_both_too_large_and_too_slow_is_charged_once(make_relay):
    script = timed(make_relay, percent=1e-4, FETCH=100)
    exchange = Exchanges(script)
    got = exchange(took_us=200, ask=fetch, response=lambda corr: fetched(corr, size=900))
    assert got[8:12] == pack(">i", 5000), "until there is room for the next one"
    client_sensors = script.quota_manager.bind("main", 1, "ANONYMOUS", "etl", NOW_MS)
    assert script.quota_manager.sensors.reading(client_sensors.fetch, NOW_MS).total == 900


def test_a_request_that_the_proxy_responds_to_is_charged_what_it_would_cost_the_node(make_relay):
    script = timed(make_relay, percent=1e-4)
    exchange = Exchanges(script)
    exchange(took_us=0)
    unknown = request(API_VERSIONS, 99, b"\1\1\0", corr=7, tags=True)
    script.client(unknown, NOW_MS + 1)
    assert charged_us(script) == pytest.approx(30)
    assert script.client(heartbeat(8), NOW_MS + 2) == b""


def test_a_request_that_the_proxy_responds_to_is_charged_though_it_is_the_first_of_its_client(make_relay):
    script = timed(make_relay, percent=1e-4)
    unknown = request(API_VERSIONS, 99, b"\1\1\0", tags=True)
    script.client(unknown)
    assert charged_us(script) == pytest.approx(30)
    answered = len(script.sent[Side.CLIENT])
    assert answered
    script.client(unknown, NOW_MS + 500)
    assert len(script.sent[Side.CLIENT]) == answered
    script.time(NOW_MS + 1000)
    assert len(script.sent[Side.CLIENT]) == 2 * answered


def test_a_response_that_is_asked_about_is_charged_when_it_goes_out(make_relay):
    script = timed(make_relay, percent=1e-4)
    offered = frame(pack(">ihi", 1, 0, 1) + pack(">hhh", HEARTBEAT, 0, 4) + pack(">i", 0))
    script.client(request(API_VERSIONS, 1))
    got = script.node(offered, NOW_MS + 0.03)
    assert got[-4:] == pack(">i", 1000)
    assert charged_us(script) == pytest.approx(30)


@pytest.mark.parametrize(("ask", "response"), [(heartbeat, heartbeaten), (fetch, fetched), (produce, produced)])
def test_a_sensor_may_be_closed_while_its_request_is_in_flight(make_relay, ask, response):
    quota_manager = manager_of({Entity(client_id=DEFAULT): {QuotaType.REQUEST: 50.0}})
    script = Script(make_relay, quota_manager).connected()
    exchange = Exchanges(script)
    exchange(took_us=100, ask=ask, response=response)
    script.client(ask(2), NOW_MS + 2)
    later_ms = NOW_MS + 3_700_000
    quota_manager.expire(later_ms)
    assert script.node(response(2), later_ms) == response(2)
    assert exchange(3, took_us=100, ask=ask, response=response) == response(3)


@pytest.mark.parametrize("ends", [False, True])
def test_a_response_that_is_held_is_charged_once_whatever_ends_its_hold(make_relay, ends):
    limits = {QuotaType.REQUEST: 50.0, QuotaType.PRODUCE: 100.0}
    quota_manager = manager_of({Entity(client_id="etl"): limits}, costs=RequestCosts({}, MODEL))
    script = Script(make_relay, quota_manager, RelayLimits(delays=True)).connected()
    script.client(produce(1, size=1500))
    script.node(produced(1), NOW_MS + 1)
    assert script.sent[Side.CLIENT] == b""
    if ends:
        script.do(script.relay.on_lost(CloseReason.SHUTDOWN, "", us(NOW_MS + 150)), NOW_MS + 150)
    else:
        script.time(NOW_MS + 5000)
    assert script.sent[Side.CLIENT]
    assert charged_us(script) == pytest.approx(100 + 10 * (1500 + len(produced()) - 4) / 1024)


# ---------------------------------------------------------------------- exempt


@pytest.mark.parametrize("train", [1, 5])
def test_produce_without_acks_is_exempt(make_relay, train):
    script = timed(make_relay, percent=1e-4)
    exchange = Exchanges(script)
    exchange(took_us=0)
    script.client(produce(2, size=1024, acks=0))
    for _ in range(2):
        script.client(produce(3, size=1024, acks=0) * train)
    assert charged_us(script) == 0
    assert script.counters.exempt_us == pytest.approx((1 + 2 * train) * 110)
    assert not script.throttles


def test_a_shadow_quota_is_charged_and_never_felt(make_relay):
    shadow = QuotaTable({Entity(client_id="etl"): {QuotaType.REQUEST: 0.001}})
    quota_manager = manager_of({}, shadow, costs=RequestCosts({}, MODEL))
    script = Script(make_relay, quota_manager).connected()
    exchange = Exchanges(script)
    for corr in range(1, 4):
        assert exchange(corr, took_us=50) == heartbeaten(corr)
    sensor = quota_manager.bind("main", 1, "ANONYMOUS", "etl", NOW_MS).shadow_request
    reading = quota_manager.shadow_request_sensors.reading(sensor, NOW_MS)
    assert reading.total * 10_000 == pytest.approx(150)
    assert reading.throttles == 1
    assert not script.throttles


# -------------------------------------------------------------------- learning


def learned(script, api_key):
    [reading] = [one for one in script.quota_manager.costs.of_node(1).readings() if one.kind == api_key]
    return reading


def test_costs_are_learned_from_requests_that_had_their_connection_for_themselves(make_relay):
    script = timed(make_relay, pinned=False)
    exchange = Exchanges(script)
    for corr in range(SAMPLES - 1):
        exchange(corr, took_us=900 if corr % 4 else 30)
    assert learned(script, HEARTBEAT).samples == 0
    exchange(SAMPLES, took_us=30)
    assert learned(script, HEARTBEAT).samples == SAMPLES
    assert learned(script, HEARTBEAT).cost.base_us == pytest.approx(NETWORK_US + BUSY_SHARE * 30, abs=0.1)


@pytest.mark.parametrize("acks", [-1, 1])
def test_what_waits_by_design_teaches_nothing(make_relay, acks):
    script = timed(make_relay, pinned=False)
    exchange = Exchanges(script)
    for corr in range(SAMPLES):
        exchange(corr, took_us=5, ask=lambda corr: produce(corr, acks=acks), response=produced)
        exchange(corr, took_us=5, ask=fetch, response=lambda corr: fetched(corr, size=100))
    assert learned(script, PRODUCE).samples == (SAMPLES if acks == 1 else 0)
    assert learned(script, FETCH).samples == 0


def test_pipelined_requests_and_a_client_that_does_not_read_teach_nothing(make_relay):
    script = timed(make_relay, pinned=False)
    for corr in range(0, 2 * SAMPLES, 2):
        script.client(heartbeat(corr) + heartbeat(corr + 1))
        script.node(heartbeaten(corr) + heartbeaten(corr + 1), NOW_MS + 1)
    assert learned(script, HEARTBEAT).samples == 0
    for corr in range(SAMPLES):
        script.client(heartbeat(corr))
        script.do(script.relay.on_blocked(Side.CLIENT))
        script.do(script.relay.on_writable(Side.CLIENT, us(NOW_MS)))
        script.node(heartbeaten(corr), NOW_MS + 1)
    assert learned(script, HEARTBEAT).samples == 0


def test_pinned_costs_are_not_learned_until_they_are_let_go(make_relay):
    script = timed(make_relay)
    exchange = Exchanges(script)
    for corr in range(SAMPLES):
        exchange(corr, took_us=5)
    assert learned(script, HEARTBEAT).cost == MODEL[HEARTBEAT]
    script.quota_manager.costs.pin({})
    exchange.now_ms += PAUSE_US / 1000
    for corr in range(SAMPLES):
        exchange(corr, took_us=5)
    assert learned(script, HEARTBEAT).cost.base_us == pytest.approx(NETWORK_US + BUSY_SHARE * 5, abs=0.1)
