"""Usage records replayed: what is quiet is quiet, runs may be cut apart, and the model is close to what was lived."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.candidate import Rules
from pipeline.record_replay import (
    allowed,
    fitted,
    memory_of,
    most_in_span,
    replay_clients,
    replay_run,
    runs,
)
from pipeline.recorded import EVEN, SHAPES, RecordedClient, Window, lanes_of
from pipeline.traced import Client
from quotas.entities import DEFAULT, Entity, QuotaType
from quotas.quota_table import QuotaTable
from tests.pipeline.live_runs import Connection, bursty, greedy, live_run, steady

MB = 1_000_000
RULES = Rules()
MEMORY = memory_of(RULES, "produce")


def one_user(rate: float) -> QuotaTable:
    return QuotaTable({Entity(user=DEFAULT): {QuotaType.PRODUCE: rate}})


def windows_of(records) -> dict[tuple[str, str], list[Window]]:
    clients = defaultdict(list)
    for r in records:
        clients[r.user, r.client_id].append(
            Window(r.begin_ms, r.end_ms, r.used, r.peak, r.requests, r.throttles, r.throttled_ms)
        )
    return dict(clients)


LOADS = {
    "greedy": [Connection("a", "x", greedy(100_000))],
    "three greedy of 1 MB": [Connection("a", "x", greedy(MB)) for _ in range(3)],
    "five greedy": [Connection("a", "x", greedy(100_000)) for _ in range(5)],
    "open, 30 % too much": [Connection("a", "x", steady(1.3 * MB, 20_000))],
    "open, 5 % too much": [Connection("a", "x", steady(1.05 * MB, 20_000))],
    "open, below": [Connection("a", "x", steady(0.95 * MB, 20_000))],
    "bursts of 13 s": [Connection("a", "x", bursty(13 * MB, 100_000, 10_000))],
}


@pytest.mark.parametrize("load", LOADS)
def test_the_quotas_in_force_give_the_recorded_throttle_times_within_2_per_cent(load):
    run = live_run(one_user(MB), LOADS[load], 600)
    clients = windows_of(run.records)
    shape, share = fitted(clients, RULES, "produce", MB)
    replayed = replay_run(clients, RULES, "produce", MB, dict.fromkeys(clients, shape))
    assert replayed.sensor.throttled_ms == pytest.approx(sum(r.throttled_ms for r in run.records), rel=0.02)
    assert share == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("connections", [1, 5])
def test_a_greedy_load_under_a_doubled_quota_meets_its_greedy_bound(connections):
    load = [Connection("a", "x", greedy(100_000)) for _ in range(connections)]
    before, after = live_run(one_user(MB), load, 300), live_run(one_user(2 * MB), load, 300)
    clients = windows_of(before.records)
    replayed = replay_run(clients, RULES, "produce", 2 * MB, {})
    assert replayed.greedy_sensor.used == pytest.approx(sum(r.used for r in after.records), rel=0.1)
    assert replayed.sensor.used == pytest.approx(sum(r.used for r in before.records), rel=1e-6)


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
    most = [most_in_span(w.used, w.peak, w.length_ms / 1000, MEMORY) for w in windows]
    begin, end = (np.array([getattr(w, name) for w in windows]) for name in ("begin_ms", "end_ms"))
    return runs(begin, end, np.array(most), np.array([w.used for w in windows]), limit, MEMORY)


@settings(max_examples=150, deadline=None)
@given(_WINDOWS)
def test_what_is_quiet_is_never_throttled(drawn):
    windows = _windows(drawn)
    found = _runs(windows, MB)
    if (found < 0).all():
        assert replay_run({"a": windows}, RULES, "produce", MB, {}).sensor.throttles == 0


@settings(max_examples=100, deadline=None)
@given(_WINDOWS)
def test_runs_apart_give_what_all_windows_give_together(drawn):
    windows = _windows(drawn)
    found = _runs(windows, MB)
    end_ms = windows[-1].end_ms
    together = replay_run({"a": windows}, RULES, "produce", MB, {}, end_ms).sensor
    apart = [
        [window for window, number in zip(windows, found, strict=True) if number == run]
        for run in sorted(set(found.tolist()) - {-1})
    ]
    sums = [replay_run({"a": part}, RULES, "produce", MB, {}, end_ms).sensor for part in apart]
    assert sum(part.throttled_ms for part in sums) == pytest.approx(together.throttled_ms, rel=0.01, abs=20)
    assert sum(part.throttles for part in sums) == pytest.approx(together.throttles, rel=0.02, abs=1)


def test_what_is_used_is_what_was_recorded_whatever_the_shape():
    window = Window(0, 10_000, 3_000_000.0, 900_000.0, 77, 20, 6_000)
    for shape in SHAPES:
        client = RecordedClient("a", "produce", [window], 1e6, shape)
        demands = [demand for _, demand in client.next_window()]
        assert sum(demand.value for demand in demands) == pytest.approx(window.used)
        assert all(demand.due_ms < window.end_ms for demand in demands)


def test_as_many_lanes_as_were_muted_at_the_same_time():
    assert lanes_of([Window(i * 10_000, (i + 1) * 10_000, 1.0, 1.0, 9, 9, 49_500) for i in range(10)]) == 5
    assert lanes_of([Window(i * 10_000, (i + 1) * 10_000, 1.0, 1.0, 9, 9, 9_900) for i in range(10)]) == 1


def test_a_refused_mutation_comes_again():
    rules = Rules(bucket_samples=2)
    window = Window(0, 10_000, 40.0, 40.0, 40, 0, 0)
    later = Window(60_000, 70_000, 1.0, 1.0, 1, 0, 0)
    replay = replay_clients({"a": [window, later]}, rules, "controller_mutation", 2.0, {"a": EVEN}, Client.PACED)
    assert replay.all.used == 41.0
    assert replay.all.throttles > 0


def test_the_most_in_a_span_is_what_no_spread_exceeds():
    assert most_in_span(10.0, 1.0, 10.0, MEMORY) == pytest.approx(13.0)
    assert most_in_span(10.0, 10.0, 10.0, MEMORY) == pytest.approx(30.0)
    assert allowed(1.0, MEMORY) == pytest.approx(10.0)
