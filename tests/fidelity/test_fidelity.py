"""The arithmetic of the fidelity run."""

import json
from array import array

import pytest

from tests.fidelity import frames, page, report, throttles
from tests.fidelity.clients import Seen
from tests.fidelity.frames import Frames
from tests.fidelity.loads import LOADS, Place, chosen
from tests.fidelity.runs import FROZEN, HALF, IDLE, SATURATED, STEADY, Figures, Measured
from tests.fidelity.sensors import microseconds
from tests.fidelity.throttles import BROKER, PROXY, Side, Throttle
from tests.quotas.windowed_rate import WindowedRate

PRODUCE = chosen(["Produce acks=1, 1 KiB"])[0]


def figures(requests=100, broker_us=300.0, proxy_us=300.0):
    """`broker_us` and `proxy_us` are for each request."""
    return Figures(requests, 5.0, broker_us * requests, [200.0, 400.0], 20, proxy_us * requests)


def measured(half=(), frozen=(), load=PRODUCE):
    """The steady runs beside the frozen ones are the usual `figures`."""
    steady = [figures() for _ in frozen]
    return Measured(load, runs={IDLE: [], HALF: list(half), SATURATED: [], STEADY: steady, FROZEN: list(frozen)})


# ---------------------------------------------------------------------- sensors


@pytest.mark.parametrize("read_ms", [3250, 7500, 9750, 10_400])
def test_the_sum_behind_a_rate_is_found_in_its_first_eleven_seconds(read_ms):
    rate = WindowedRate(1e9, 11, 1000)
    events = range(0, min(read_ms, 9000), 7)
    for at_ms in events:
        rate.charge(0.03, at_ms)
    percent = rate.measure(read_ms)[0]
    assert microseconds(percent, 10 + read_ms / 1000 % 1) == pytest.approx(300 * len(events))


# ---------------------------------------------------------------------- reports


@pytest.mark.parametrize(("ours", "good"), [(239, False), (241, True), (374, True), (376, False)])
def test_a_ratio_at_half_load_is_good_from_four_fifths_to_five_fourths(ours, good):
    found = measured([figures(proxy_us=ours)])
    assert report.ratio(found.runs[HALF]) == ours / 300
    assert bool(report.problems([found])) is not good


def test_the_median_of_a_loads_runs_counts():
    found = measured([figures(broker_us=of_broker, proxy_us=90) for of_broker in (100, 9000, 120)])
    assert report.ratio(found.runs[HALF]) == 0.75
    *_, line = report.table([found]).splitlines()
    assert line.split(" | ")[1:] == ["half load", "20", "120 (100 - 9000)", "90 (90 - 90)", "0.75 |"]


@pytest.mark.parametrize(("ours", "good"), [(300.0, True), (700.0, True), (900.0, False)])
def test_who_is_charged_for_a_frozen_node_is_told(ours, good):
    found = measured([figures()], [figures(broker_us=5300.0, proxy_us=ours)])
    [(_, of_broker_ms, of_proxy_ms)] = report.frozen_ms(found)
    assert of_broker_ms == 500
    assert of_proxy_ms == pytest.approx((ours - 300) / 10)
    assert bool(report.problems([found])) is not good


def test_the_page_and_the_json_have_all_loads():
    loads = [measured([figures()], [figures()], load) for load in LOADS]
    text = page.page(loads, "4.3.1", 3)
    assert all(f"| {load.name}" in text for load in LOADS)
    assert len(json.loads(json.dumps(report.as_json(loads, {})))["loads"]) == len(LOADS)


def test_loads_are_chosen_by_a_part_of_their_name():
    assert [load.name for load in chosen(["metadata", "JoinGroup"])] == ["Metadata", "JoinGroup"]
    assert chosen([]) == list(LOADS)
    with pytest.raises(ValueError, match="no load has nothing in its name"):
        chosen(["nothing"])


# ----------------------------------------------------------------------- frames


def test_each_request_has_the_next_number_in_place_of_the_last():
    asking = Frames(frames.create_topic("made-", True), "etl", 7)
    first, second = bytes(asking.frame(1)), bytes(asking.frame(2))
    assert len(first) == len(second) == 4 + int.from_bytes(first[:4], "big")
    assert b"made-000000000007" in first
    assert b"made-000000000008" in second
    assert first[8:12] == b"\0\0\0\1"


def test_a_request_counts_from_its_first_response():
    assert Seen(array("q", [5, 9]), array("q", [8, 12])).began_ns == 8
    assert Seen(array("q", [5, 9])).began_ns == 5


# -------------------------------------------------------------------- throttles


def sides(throttle=Throttle(1000, 1001.0, 1002.0), admitted=100.0, exempt_s=1.0):  # noqa: B008
    broker = Side(BROKER, Place(("", 0), 1), {"Metadata": [Throttle(1000, 1000.0, 1001.0)] * 2}, 100.0, 1.0)
    return broker, Side(PROXY, Place(("", 0), 1), {"Metadata": [throttle] * 2}, admitted, exempt_s)


def test_equal_sides_have_no_problem():
    assert throttles.problems(sides(), 25, (0.8, 1.25)) == []


@pytest.mark.parametrize(
    ("both", "words"),
    [
        (sides(Throttle(1001, 1001.0, 1002.0)), "a throttle of 1001 ms"),
        (sides(Throttle(900, 800.0, 901.0)), "mute for 800 ms, but said 900"),
        (sides(Throttle(900, 926.0, 927.0)), "mute for 926 ms"),
        (sides(admitted=79), "79 requests/s got through"),
        (sides(exempt_s=121), "requests without an answer took 121 s"),
    ],
)
def test_what_is_not_as_a_brokers_is_told(both, words):
    assert any(words in problem for problem in throttles.problems(both, 25, (0.8, 1.25)))


@pytest.mark.parametrize(
    ("throttle", "words"),
    [
        (Throttle(1001, 1001.0, 1002.0), "a throttle of 1001 ms"),
        (Throttle(900, 897.0, 897.0), "a throttle of 900 ms, and the next answer 897 ms after its request was sent"),
        (Throttle(900, 30_901.0, 30_902.0), "no answer for 30901 ms"),
    ],
)
def test_what_no_slow_machine_makes_is_told(throttle, words):
    [problem, again] = throttles.problems_of_throttles(sides(throttle))
    assert problem == again
    assert words in problem


def test_a_client_that_stood_still_is_no_problem():
    assert throttles.problems_of_throttles(sides(Throttle(900, 0.1, 900.0))) == []
    assert throttles.problems_of_throttles(sides(Throttle(900, 3900.0, 3901.0))) == []


def test_an_api_without_a_throttle_is_a_problem():
    broker, proxy = sides()
    proxy.throttles["Metadata"] = []
    assert throttles.problems((broker, proxy), 25, (0.8, 1.25)) == ["proxy, Metadata: never throttled"]


def test_no_client_id_has_a_quota_on_both_sides():
    assert not throttles.percents(BROKER).keys() & throttles.percents(PROXY).keys()
