"""Usage records replayed: what is quiet is quiet, runs may be cut apart, and the model is close to what was lived."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.simulate import recorded
from pipeline.simulate.attempts import MOST, MOST_TRIED, attempts
from pipeline.simulate.candidate import Rules
from pipeline.simulate.meter import Meter
from pipeline.simulate.quiet import Most, line_of, memory_of, runs
from pipeline.simulate.record_replay import explained, replay_run
from pipeline.simulate.recorded import MAX_REQUESTS, Window, lanes_of, retold
from pipeline.simulate.replay import Throttling
from quotas.entities import DEFAULT, Entity, QuotaType
from quotas.quota_table import QuotaTable
from quotas.records.usage_record import SecondOfUse, ThrottledUse, profile_text
from tests.pipeline.live_runs import Connection, greedy, live_run, steady
from tests.pipeline.record_fidelity import KINDS, found, live_and_replayed_ms, one_user, windows_of

MB = 1_000_000
RULES = Rules()
MEMORY = memory_of(RULES, "produce")
WITHIN = {
    "one greedy, 100 KB": 0.02,
    "three greedy, 1 MB": 0.02,
    "ten greedy, 60 KB": 0.02,
    "one greedy, 1 MiB, quota of 1 KB/s": 0.0,
    "open, 95 %": 0.0,
    "open, 105 %": 0.02,
    "open, 130 %": 0.02,
    "bursts of 4 s every 5 s": 0.02,
    "bursts of 13 s every 10 s": 0.02,
    "on at 300 % for 8 s, off for 20 s": 0.02,
    "bursts of 30 s every 45 s": 0.02,
    "bursts of 40 s every 120 s, 1 MB": 0.02,
    "three that burst together every 60 s": 0.02,
    "ten that burst together every 30 s": 0.02,
    "shared: greedy, open, bursty": 0.08,
    "shared: five greedy": 0.02,
    "random sizes and times, 120 %": 0.02,
    "fetches, one greedy, 100 KB": 0.03,  # 600 s are full of them, and the 3 ms that each takes are not told
    "fetches, one greedy, 1 MB": 0.02,
    "fetches, one greedy, 10 to 500 KB": 0.02,
    "fetches, one greedy, 10 KB to 5 MB": 0.03,  # of 601 s the last mute, of 10 s, is one that the replay has not
    "fetches, five greedy, 100 KB": 0.03,
    "fetches, three greedy, 1 MB": 0.02,
    "fetches, bursts of 18 s every 20 s": 0.02,
    "requests of 200 us, 1 %": 0.02,
    "requests of 1 ms, 2 %": 0.03,
    "one that connects, 5/s": 0.1,
    "120 connections every 20 s, 5/s": 0.02,
    "connects, 95 % of 20/s": 0.0,
    "connects, 130 % of 20/s": 0.02,
}


@pytest.mark.parametrize("load", WITHIN)
def test_the_quotas_in_force_give_the_recorded_throttle_times(load):
    live_ms, replayed_ms = live_and_replayed_ms(KINDS[load], 600)
    assert replayed_ms == pytest.approx(live_ms, rel=WITHIN[load])


@pytest.mark.parametrize("load", ["one greedy, 100 KB", "five greedy, 100 KB", "shared: five greedy"])
def test_a_greedy_load_under_a_doubled_quota_meets_its_greedy_bound(load):
    one = found(KINDS[load], 300)
    assert one.greedy_used == pytest.approx(one.live_used, rel=0.1)


def test_an_open_load_below_its_quota_meets_its_paced_bound():
    one = found(KINDS["open, 95 %"], 300)
    assert one.paced_used == pytest.approx(one.live_used, rel=1e-6)


def test_records_without_profiles_do_for_what_is_steady():
    run = live_run(one_user(MB), [Connection("a", "x", greedy(100_000))], 600)
    run.records[:] = [replace(record, profile="", muted_ms=0) for record in run.records]
    clients = windows_of(run)
    reported = explained(clients, RULES, "produce", MB, MB)
    assert reported.model_ms == pytest.approx(reported.recorded_ms, rel=0.1)


def test_another_limit_than_the_one_in_force_takes_the_recorded_throttling_out():
    run = live_run(one_user(MB), [Connection("a", "x", steady(1.3 * MB, 20_000))], 300)
    clients = windows_of(run)
    reported = explained(clients, RULES, "produce", MB, 4.0 * MB)
    freed = replay_run([reported], RULES, "produce", 4.0 * MB, clients["a", "x"][-1].end_ms)
    assert freed.sensor.throttled_ms == 0
    assert freed.sensor.used == pytest.approx(sum(record.used for record in run.records), rel=1e-3)


def test_who_shared_live_and_who_did_not_are_replayed_together():
    table = QuotaTable({Entity(user=DEFAULT, client_id=DEFAULT): {QuotaType.PRODUCE: MB}})
    run = live_run(table, [Connection("a", "x", greedy(100_000)), Connection("a", "y", steady(0.2 * MB, 20_000))], 120)
    clients = windows_of(run)
    x, y = ({name: windows} for name, windows in clients.items())
    groups = [explained(x, RULES, "produce", MB, MB), explained(y, RULES, "produce", None, MB)]
    both = replay_run(groups, RULES, "produce", MB, clients["a", "x"][-1].end_ms)
    assert both.paced["a", "y"].throttles > 0
    assert both.sensor.used <= 1.1 * MB * 120 + 10 * MB


def test_a_client_that_comes_after_the_last_throttle_of_its_sensor_is_replayed_too():
    run = live_run(one_user(MB), [Connection("a", "x", greedy(100_000))], 60)
    windows = windows_of(run)["a", "x"]
    late = windows[-1]._replace(begin_ms=windows[-1].end_ms, end_ms=windows[-1].end_ms + 10_000, used=1_000.0)
    late = late._replace(peak=1_000.0, requests=1, throttles=0, throttled_ms=0, muted_ms=0, profile="0:1000")
    reported = explained({"x": windows, "y": [late]}, RULES, "produce", MB, MB)
    assert replay_run([reported], RULES, "produce", MB, late.end_ms).paced["y"].used == 1_000.0


@pytest.mark.parametrize("quota_type", ["produce", "fetch", "request", "controller_mutation"])
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_what_nothing_held_is_spread_in_a_short_way_as_in_the_long_one(quota_type, data):
    windows = _windows(data.draw(_WINDOWS))
    profile = profile_text(SecondOfUse(i * 1000 + 17 * i, data.draw(st.floats(0, 3 * MB))) for i in range(10))
    windows = [window._replace(profile=data.draw(st.sampled_from(["", profile]))) for window in windows]
    client = recorded._Client.of(
        "a", windows, RULES, quota_type, None, data.draw(st.sampled_from([1.0, MB, 30.0 * MB]))
    )
    for portion in client.portions():
        long = portion.requests(recorded.SPREAD, -(2**62))
        assert [(at_ms, value, refused_ms) for at_ms, value, _, refused_ms, _ in long] == [
            (*use, 0) for use in portion.spread()
        ]


def _alone(windows: list[Window], limit: float, end_ms: int, quota_type: str = "produce"):
    reported = explained({"a": windows}, RULES, quota_type, None, limit)
    return replay_run([reported], RULES, quota_type, limit, end_ms).sensor


_WINDOWS = st.lists(
    st.tuples(st.integers(1, 15), st.floats(0, 20 * MB), st.floats(0, 1), st.integers(1, 300)),
    min_size=1,
    max_size=30,
)


def _windows(drawn) -> list[Window]:
    windows, begin_ms = [], 1_795_000_000_000
    for step, used, peak, requests in drawn:
        begin_ms += step * 10_000
        windows.append(Window(begin_ms, begin_ms + 10_000, used, used * max(peak, 0.1), requests, 0, 0))
    return windows


def _runs(windows: list[Window], limit: float) -> np.ndarray:
    lines = [line_of(w.used, w.peak, w.length_ms / 1000, bool(w.profile)) for w in windows]
    begin, end = (np.array([getattr(w, name) for w in windows]) for name in ("begin_ms", "end_ms"))
    used = np.array([w.used for w in windows])
    return runs(begin, end, Most(used, *np.array(lines).T), used, limit, MEMORY)


@settings(max_examples=150, deadline=None)
@given(_WINDOWS)
def test_what_is_quiet_is_never_throttled(drawn):
    windows = _windows(drawn)
    found = _runs(windows, MB)
    if (found < 0).all():
        assert _alone(windows, MB, windows[-1].end_ms).throttles == 0


@settings(max_examples=100, deadline=None)
@given(_WINDOWS)
def test_runs_apart_give_what_all_windows_give_together(drawn):
    windows = _windows(drawn)
    found = _runs(windows, MB)
    end_ms = windows[-1].end_ms
    together = _alone(windows, MB, end_ms)
    apart = [
        [window for window, number in zip(windows, found, strict=True) if number == run]
        for run in sorted(set(found.tolist()) - {-1})
    ]
    sums = [_alone(part, MB, end_ms) for part in apart]
    assert sum(part.throttled_ms for part in sums) == pytest.approx(together.throttled_ms, rel=0.01, abs=20)
    assert sum(part.throttles for part in sums) == pytest.approx(together.throttles, rel=0.02, abs=1)


@pytest.mark.parametrize("limit", [None, MB])
@pytest.mark.parametrize(
    "profile",
    ["", "700:1000000 3004:1500000:5800 9100:500000:200", "700:1000000 3004:1500000:5800:9:3 9100:500000:200:2:2"],
)
def test_what_is_used_is_what_was_recorded(profile, limit):
    window = Window(0, 10_000, 3_000_000.0, 900_000.0, 77, 20, 6_000, 6_000, profile)
    events = retold({"a": [window]}, RULES, "produce", limit, MB)
    assert sum(event.value for event in events) == pytest.approx(window.used)
    assert all(event.at_ms >= 0 for event in events)
    if limit is None:
        assert all(event.at_ms < window.end_ms for event in events)
        assert not profile or {event.at_ms // 1000 for event in events} <= {0, 3, 9}


@pytest.mark.parametrize(("used", "profile"), [(0.0, "100:5"), (1.0, "100:50000"), (-1.0, "100:5 200:-7")])
def test_a_record_that_contradicts_itself_is_retold_in_few_requests(used, profile):
    """The proxy writes none; whoever may write to a topic can."""
    window = Window(0, 10_000, used, 1.0, 77, 0, 0, 0, profile)
    for limit in (None, MB):
        assert len(retold({"a": [window]}, RULES, "produce", limit, MB)) <= 2 * MAX_REQUESTS


def test_as_many_connections_as_were_muted_at_the_same_time():
    def windows(throttled_ms, muted_ms):
        return [Window(i * 10_000, (i + 1) * 10_000, 1.0, 1.0, 9, 9, throttled_ms, muted_ms) for i in range(10)]

    assert lanes_of(windows(49_500, 0)) == lanes_of(windows(49_500, 9_950)) == 5
    assert lanes_of(windows(9_900, 0)) == lanes_of(windows(9_900, 9_900)) == 1
    assert lanes_of(windows(6_000, 2_000)) == 3


def test_a_refused_mutation_comes_again():
    rules = Rules(bucket_samples=2)
    windows = [Window(0, 10_000, 40.0, 40.0, 40, 0, 0), Window(60_000, 70_000, 1.0, 1.0, 1, 0, 0)]
    reported = explained({"a": windows}, rules, "controller_mutation", None, 2.0)
    replay = replay_run([reported], rules, "controller_mutation", 2.0, 70_000)
    assert replay.sensor.used == 41.0
    assert replay.sensor.throttles > 0


class _Recorded:
    """Windows of one connection that does one thing after the other."""

    def __init__(self) -> None:
        self.seconds: dict[int, list[float]] = {}
        self.throttles: dict[int, int] = {}
        self.requests: dict[int, int] = {}

    def add(self, at_ms: int, used: float, throttle_ms: int) -> None:
        second = self.seconds.setdefault(at_ms // 1000, [at_ms % 10_000, 0, 0, 0, 0])
        counted = (used, throttle_ms, used > 0, throttle_ms > 0)
        second[1:] = [before + more for before, more in zip(second[1:], counted, strict=True)]
        for counts, counted in ((self.throttles, throttle_ms > 0), (self.requests, used > 0)):
            counts[at_ms // 10_000] = counts.get(at_ms // 10_000, 0) + counted

    def windows(self) -> list[Window]:
        windows = []
        for number, throttles in self.throttles.items():
            own = [self.seconds[second] for second in sorted(self.seconds) if second // 10 == number]
            used, muted_ms = sum(one[1] for one in own), int(sum(one[2] for one in own))
            profile = profile_text(SecondOfUse(int(at_ms), amount, *map(int, others)) for at_ms, amount, *others in own)
            begin_ms = number * 10_000
            window = Window(
                begin_ms, begin_ms + 10_000, used, used, self.requests[number], throttles, muted_ms, muted_ms, profile
            )
            windows.append(window)
        return windows


def _again(recorded: _Recorded, quota_type: str, limit: float) -> tuple[int, Throttling]:
    windows = recorded.windows()
    reported = explained({"a": windows}, RULES, quota_type, limit, limit)
    return reported.recorded_ms, replay_run([reported], RULES, quota_type, limit, windows[-1].end_ms).sensor


def test_mutations_that_were_refused_and_came_again_are_refused_again():
    recorded, meter, now_ms = _Recorded(), Meter(RULES, "controller_mutation", 2.0, 0), 0
    while now_ms < 60_000:
        throttle_ms = meter.use("spend_strictly", 2.0, now_ms)
        recorded.add(now_ms, 0 if meter.refused else 2, throttle_ms)
        now_ms += throttle_ms + (3 if meter.refused else 15)
    recorded_ms, replayed = _again(recorded, "controller_mutation", 2.0)
    assert replayed.throttled_ms == pytest.approx(recorded_ms, rel=0.05)
    assert replayed.used == sum(window.used for window in recorded.windows())


def test_connections_that_came_too_fast_are_told_as_so_many_attempts_and_are_held_again():
    lived, meter, now_ms = _Recorded(), Meter(RULES, "connection", 5.0, 0), 0
    while now_ms < 60_000:
        throttle_ms = meter.use("connect", 1.0, now_ms)
        lived.add(now_ms, 0 if throttle_ms else 1, throttle_ms)
        now_ms += throttle_ms + 4
    windows = lived.windows()
    events = attempts("a", windows, Meter(RULES, "connection", 5.0, 0))
    assert sum(event.value for event in events if not event.throttle_ms) == sum(window.used for window in windows)
    assert sum(event.throttle_ms > 0 for event in events) <= sum(window.throttles for window in windows)
    recorded_ms, replayed = _again(lived, "connection", 5.0)
    assert replayed.throttled_ms == pytest.approx(recorded_ms, rel=0.1)
    assert replayed.used == sum(window.used for window in windows)


@pytest.mark.parametrize("limit", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("profile", ["", "100:7 3000:500:900:0:1", "100:5:900:0:9000 200:-7 9000:1e9:3:0:1"])
def test_connections_of_a_record_that_contradicts_itself_are_told_in_few_attempts(limit, profile):
    window = Window(0, 10_000, 507.0, 500.0, 0, 9, 900, 900, profile)
    events = attempts("a", [window], Meter(RULES, "connection", limit, 0))
    assert len(events) <= 2 * MOST * len(window.seconds())
    used = sum(max(second.used, 0.0) for second in window.seconds())
    assert sum(event.value for event in events if not event.throttle_ms) == pytest.approx(used)


def test_a_hold_that_its_record_does_not_count_is_told_as_one():
    windows = [Window(0, 10_000, 5, 1, 5, 3, 0, 0, "0:5:1000"), Window(10_000, 20_000, 5, 1, 5, 1, 500, 500, "")]
    reported = explained({"a": windows}, RULES, "connection", 1.0, 1.0)
    assert sum(event.value for event in reported.events if not event.throttle_ms) == pytest.approx(10)


def test_a_limit_far_below_what_was_let_in_is_given_up_on_soon():
    profile = " ".join(f"{second}000:3:200:0:50" for second in range(10))
    meter, tried = Meter(RULES, "connection", 0.01, 0), []
    use = meter.use
    meter.use = lambda *what: tried.append(what) or use(*what)
    attempts("a", [Window(0, 10_000, 30, 3, 30, 500, 2000, 2000, profile)], meter)
    assert len(tried) <= 10 * (MOST_TRIED + 3 * 1_100)


def test_mutations_that_were_let_through_and_throttled_after_it_are_so_again():
    recorded, meter, now_ms = _Recorded(), Meter(RULES, "controller_mutation", 2.0, 0), 0
    while now_ms < 60_000:
        throttle_ms = meter.use("spend", 2.0, now_ms)
        recorded.add(now_ms, 2, throttle_ms)
        now_ms += throttle_ms + 15
    recorded_ms, replayed = _again(recorded, "controller_mutation", 2.0)
    assert replayed.throttled_ms == pytest.approx(recorded_ms, rel=0.02)


@pytest.mark.parametrize("size", [50_000, 164_000, 1_000_000])
def test_responses_that_were_delivered_over_quota_are_throttled_in_the_replay_too(size):
    recorded, meter, now_ms = _Recorded(), Meter(RULES, "fetch", 200_000.0, 0), 0
    while now_ms < 300_000:
        throttle_ms = meter.use("charge", size, now_ms)
        recorded.add(now_ms, size, throttle_ms)
        now_ms += throttle_ms + 4
    recorded_ms, replayed = _again(recorded, "fetch", 200_000.0)
    assert replayed.throttled_ms == pytest.approx(recorded_ms, rel=0.02)


class _TriesAll(recorded._Retelling):
    """Tries each manner to its end, also what has been tried already."""

    def _best(self, own, manners, best, requests, before, end_ms, best_off_ms, good_ms):
        involved = [sender for sender, _ in before.senders]
        for manner in manners:
            self._restore(before)
            off_ms = self._try(own, recorded._requests(own, manner), involved, end_ms)
            if off_ms < best_off_ms:
                best, best_off_ms = manner, off_ms
            if off_ms <= good_ms:
                return best
        self._restore(before)
        self._try(own, recorded._requests(own, best), involved, end_ms)
        return best


_SECONDS = st.lists(
    st.tuples(
        st.integers(0, 999),
        st.sampled_from([0.0, 20_000.0, 100_000.0, 1 / 3 * MB, MB, 4.0 * MB]),
        st.sampled_from([0, 0, 100, 700, 1_000, 3_000]),
        st.integers(1, 40),
        st.integers(0, 4),
    ),
    min_size=10,
    max_size=10,
)


def _reported(at_ms, used, parts):
    """So many that were throttled, each as large as all the others and what was not."""
    return tuple(
        ThrottledUse(min(at_ms + 90 * i, at_ms // 1000 * 1000 + 999), used / (parts + 1)) for i in range(parts)
    )


def _throttled_window(number: int, seconds) -> Window:
    reported = [
        SecondOfUse(
            i * 1000 + at_ms, used, ms, n, min(n, ms // 100), _reported(i * 1000 + at_ms, used, parts) if ms else ()
        )
        for i, (at_ms, used, ms, n, parts) in enumerate(seconds)
    ]
    used, throttled_ms = sum(one[1] for one in reported), sum(one[2] for one in reported)
    begin_ms, throttles, muted_ms = number * 10_000, sum(one[4] for one in reported), min(throttled_ms, 10_000)
    requests, peak = sum(one[3] for one in reported), max(one[1] for one in reported)
    return Window(
        begin_ms, begin_ms + 10_000, used, peak, requests, throttles, throttled_ms, muted_ms, profile_text(reported)
    )


@pytest.mark.parametrize("quota_type", ["produce", "fetch", "controller_mutation"])
@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(_SECONDS, min_size=1, max_size=3), min_size=1, max_size=3))
def test_what_cannot_be_best_is_not_tried_to_its_end(quota_type, drawn):
    clients = {
        name: [_throttled_window(i, seconds) for i, seconds in enumerate(its)]
        for name, its in zip("abc", drawn, strict=False)
    }

    def reported(how):
        its = [recorded._Client.of(name, windows, RULES, quota_type, MB, MB) for name, windows in clients.items()]
        return how(its, Meter(RULES, quota_type, MB, 0)).run()

    assert reported(recorded._Retelling) == reported(_TriesAll)


@pytest.mark.parametrize("quota_type", ["produce", "fetch"])
@pytest.mark.parametrize(
    "reported",
    [
        "4000=0",
        "4000=1",
        "0=1",
        "3999=9000",
        "9007199254740991=2000",
        "4500=1e300",
        "4500=1e308,4600=1e308",
        "4500=2000",
        "4999=4999",
        "4900=1,4100=2,4100=3",
        ",".join(["4100=1000"] * 40),
    ],
)
@pytest.mark.parametrize("counts", ["900:3:1", "900:0:1", "900:1:1", "60000:3:1", "900:9007199254740991:1", "900:3:99"])
def test_what_is_told_of_throttled_requests_and_contradicts_their_second_is_told_within_it(
    quota_type, counts, reported
):
    windows = [
        Window(0, 10_000, 7_000.0, 5_000.0, 4, 1, 900, 900, f"100:2000 4100:5000:{counts}:{reported}"),
        Window(10_000, 20_000, 500.0, 500.0, 1, 0, 0, 0, "300:500"),
    ]
    events = retold({"a": windows}, RULES, quota_type, 500.0, 500.0)
    assert sum(event.value for event in events) == pytest.approx(7_500)
    assert all(event.value >= 0 for event in events)
    assert [event.at_ms for event in events] == sorted(event.at_ms for event in events)
