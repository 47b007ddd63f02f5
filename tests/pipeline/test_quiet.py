"""What is left out of a replay could not have been throttled."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.pipeline.simulate.backlog import Window, replay_run
from kafka_throttle.pipeline.simulate.candidate import Rules
from kafka_throttle.pipeline.simulate.quiet import Most, line_of, loud_windows, memory_of
from kafka_throttle.quotas.fetch_rooms import PIECE_S
from kafka_throttle.quotas.records.usage_record import SecondOfUse, profile_text

LIMIT = 1_000.0
MEMORY = memory_of(Rules(), "produce")
BEGIN_MS = 1_795_000_000_000


def window(begin_ms: int, length_ms: int, seconds: dict[int, float], first_ms: int, reported: bool) -> Window:
    """One with so much in these of its seconds; `reported`: as the profile says."""
    used, peak = sum(seconds.values()), max(seconds.values())
    profile = profile_text(SecondOfUse(second * 1000 + first_ms, amount) for second, amount in sorted(seconds.items()))
    return Window(begin_ms, begin_ms + length_ms, used, peak, 40, 0, 0, 0, profile if reported else "")


AMOUNTS = st.sampled_from([0.0, 500.0, 830.0, 900.0, 1_000.0, 3_300.0, 4_900.0, 9_900.0]) | st.floats(0, 4_000)
WINDOWS = st.builds(
    window,
    st.just(0),
    st.sampled_from([10_000, 10_000, 10_000, 3_000, 700]),
    st.one_of(
        st.dictionaries(st.integers(0, 9), AMOUNTS, min_size=1),
        st.builds(lambda amount: dict.fromkeys(range(10), amount), st.floats(0, 1_100)),
        st.builds(lambda amount: dict.fromkeys(range(10), amount) | {9: 3_000.0}, st.floats(0, 800)),
    ),
    st.integers(0, 999),
    st.booleans(),
)
LEAST_LIMITS = {"fetch": 1 / PIECE_S}
"""Below it a piece has less than a byte, and a fetch waits for a whole one."""
OTHER_TYPES = ("fetch", "request", "controller_mutation")
CLIENTS = st.lists(st.lists(st.tuples(st.integers(0, 2), WINDOWS), min_size=1, max_size=8), min_size=1, max_size=3)


def in_their_order(drawn) -> list[Window]:
    """Windows one behind the other, some with gaps between."""
    begin_ms, windows = BEGIN_MS, []
    for gap, one in drawn:
        begin_ms += gap * 10_000
        number = max(one.length_ms // 1000, 1)
        seconds = [(at, used) for at, used, *_ in one.seconds() if at < number * 1000] if one.profile else None
        if seconds is not None:
            seconds = seconds or [(0, one.used)]
            used, peak = sum(amount for _, amount in seconds), max(amount for _, amount in seconds)
            profile = profile_text(SecondOfUse(min(at, one.length_ms - 1), amount) for at, amount in seconds)
            one = one._replace(used=used, peak=peak, profile=profile)
        windows.append(one._replace(begin_ms=begin_ms, end_ms=begin_ms + one.length_ms))
        begin_ms += 10_000
    return windows


def summed(clients: dict[str, list[Window]]) -> tuple[np.ndarray, np.ndarray, Most]:
    """What `simulation.runs_of` adds up: all sharers' windows by their begin."""
    sums: dict[int, list[float]] = {}
    for one in (one for windows in clients.values() for one in windows):
        line = line_of(one.used, one.peak, one.length_ms / 1000, bool(one.profile))
        of = sums.setdefault(one.begin_ms, [0, 0.0, 0.0, 0.0])
        of[0] = max(of[0], one.end_ms)
        for i, value in enumerate((one.used, *line), 1):
            of[i] += value
    columns = [np.array(column) for column in zip(*(sums[begin_ms] for begin_ms in sorted(sums)), strict=True)]
    return np.array(sorted(sums)), columns[0].astype(np.int64), Most(*columns[1:])


@pytest.mark.parametrize(
    "quota_type", ["produce", *(pytest.param(of, marks=pytest.mark.nightly) for of in OTHER_TYPES)]
)
@settings(max_examples=60, deadline=None)
@given(CLIENTS)
def test_a_sensor_without_a_loud_window_never_throttles(quota_type, drawn):
    memory = memory_of(Rules(), quota_type)
    factor = 10 if quota_type == "request" else 1
    clients = {str(i): in_their_order(windows) for i, windows in enumerate(drawn)}
    begin_ms, end_ms, most = summed(clients)
    # As quiet as can be: by a hair below the least limit that leaves no window loud.
    low, high = LEAST_LIMITS.get(quota_type, 0.0), 1_000_000.0
    for _ in range(30):
        middle = (low + high) / 2
        loud = loud_windows(begin_ms, end_ms, most, middle, memory).any()
        low, high = (middle, high) if loud else (low, middle)
    last_ms = max(windows[-1].end_ms for windows in clients.values())
    outcome = replay_run(clients, Rules(), quota_type, high / factor, last_ms)
    assert (outcome.sensor.throttles, outcome.greedy_sensor.throttles) == (0, 0)


def test_two_peaks_with_an_even_window_between_them_are_loud():
    """Each of the three for itself could go on for ever."""
    first = window(BEGIN_MS, 10_000, {9: 2_300.0}, 0, True)
    even = window(BEGIN_MS + 10_000, 10_000, dict.fromkeys(range(10), 760.0), 0, False)
    last = window(BEGIN_MS + 20_000, 10_000, {0: 2_300.0}, 0, True)
    begin_ms, end_ms, most = summed({"a": [first, even, last]})
    assert loud_windows(begin_ms, end_ms, most, LIMIT, MEMORY).tolist() == [False, False, True]
    outcome = replay_run({"a": [first, even, last]}, Rules(), "produce", LIMIT, BEGIN_MS + 30_000)
    assert outcome.sensor.throttles > 0


def test_an_even_load_is_quiet_up_to_five_sixths_of_its_limit():
    def loud(rate: float) -> bool:
        windows = [window(BEGIN_MS + i * 10_000, 10_000, dict.fromkeys(range(10), rate), 0, False) for i in range(9)]
        begin_ms, end_ms, most = summed({"a": windows})
        return bool(loud_windows(begin_ms, end_ms, most, LIMIT, MEMORY).any())

    assert loud(0.8334 * LIMIT)
    assert not loud(0.8333 * LIMIT)
