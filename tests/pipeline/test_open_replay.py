"""The short way gives what the long one gives."""

from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.simulate.candidate import Rules
from pipeline.simulate.meter import Meter
from pipeline.simulate.open_replay import OpenReplay, is_open
from pipeline.simulate.record_replay import in_full
from pipeline.simulate.recorded import Event
from pipeline.simulate.traced import Client

RULES = Rules()
STEPS_MS = st.sampled_from([0, 0, 1, 90, 700, 1_000, 4_000, 40_000])
VALUES = st.sampled_from([0.0, 10.0, 1_000 / 3, 2_000.0, 30_000.0])
LIMITS = st.sampled_from([100.0, 1_000.0, 7_000.0])
UNTIL_MS = st.sampled_from([3_000, 60_000, 10**9])
EVENTS = st.lists(st.tuples(st.sampled_from("abc"), STEPS_MS, VALUES), max_size=60)


def outcome(replay):
    """All that a replay tells."""
    return {name: asdict(of) for name, of in replay.clients.items()}, asdict(replay.all), replay.waiting


@pytest.mark.parametrize("quota_type", ["produce", "fetch", "request"])
@settings(max_examples=150, deadline=None)
@given(EVENTS, LIMITS, UNTIL_MS)
def test_an_open_replay_is_the_full_one_to_the_last_bit(quota_type, drawn, limit, until_ms):
    now_ms, events = 0, []
    if quota_type == "fetch":
        drawn = [(client, step_ms, min(value, limit)) for client, step_ms, value in drawn]
    for client, step_ms, value in drawn:
        now_ms += step_ms
        events.append(Event(client, client, 1, now_ms, value, 0, 0))
    assert is_open(events, quota_type)
    full = in_full(Meter(RULES, quota_type, limit, 0), events, quota_type, Client.PACED, until_ms)
    short = OpenReplay(Meter(RULES, quota_type, limit, 0), quota_type)
    short.run(events, until_ms)
    assert outcome(short) == outcome(full)


def test_what_was_held_is_not_open():
    free = [Event("a", "a", 1, at_ms, 10.0, 0, 0) for at_ms in (0, 5)]
    assert is_open(free, "produce")
    assert not is_open([free[0]._replace(throttle_ms=4), free[1]], "produce")
    assert not is_open([free[0]._replace(lanes=2), free[1]], "produce")
    assert not is_open(free[::-1], "produce")
    assert is_open(free, "fetch")
    assert not is_open([free[0], free[1]._replace(refused_ms=3)], "fetch")
    assert not is_open(free, "controller_mutation")
