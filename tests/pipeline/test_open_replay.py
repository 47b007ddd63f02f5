"""The short way gives what the long one gives."""

from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.candidate import Rules
from pipeline.meter import Meter
from pipeline.open_replay import OpenReplay, is_open
from pipeline.recorded import Event, demands
from pipeline.replay import SensorReplay
from pipeline.traced import Client

RULES = Rules()
EVENTS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from([0, 0, 1, 90, 700, 1_000, 4_000, 40_000]),
        st.sampled_from([0.0, 10.0, 1_000 / 3, 2_000.0, 30_000.0]),
    ),
    max_size=60,
)


def in_full(
    events: list[Event], quota_type: str, limit: float, until_ms: int, kind: Client = Client.PACED
) -> SensorReplay:
    """By the lanes and demands of the general replay."""
    replay = SensorReplay(Meter(RULES, quota_type, limit, 0))
    lanes = {}
    for lane, demand in demands(events, quota_type, kind):
        lanes.setdefault(id(lane), (lane, []))[1].append(demand)
    for lane, wanted in lanes.values():
        replay.add(lane, wanted)
    replay.run(until_ms)
    return replay


@pytest.mark.parametrize("quota_type", ["produce", "fetch", "request"])
@settings(max_examples=150, deadline=None)
@given(EVENTS, st.sampled_from([100.0, 1_000.0, 7_000.0]), st.sampled_from([3_000, 60_000, 10**9]))
def test_an_open_replay_is_the_full_one_to_the_last_bit(quota_type, drawn, limit, until_ms):
    now_ms, events = 0, []
    for client, step_ms, value in drawn:
        now_ms += step_ms
        events.append(Event(client, client, 1, now_ms, value, 0, 0))
    assert is_open(events, quota_type)
    full = in_full(events, quota_type, limit, until_ms)
    short = OpenReplay(Meter(RULES, quota_type, limit, 0), quota_type)
    short.run(events, until_ms)
    assert {name: asdict(of) for name, of in short.clients.items()} == {
        name: asdict(of) for name, of in full.clients.items()
    }
    assert asdict(short.all) == asdict(full.all)
    assert short.waiting == full.waiting


def test_what_was_held_is_not_open():
    free = [Event("a", "a", 1, at_ms, 10.0, 0, 0) for at_ms in (0, 5)]
    assert is_open(free, "produce")
    assert not is_open([free[0]._replace(throttle_ms=4), free[1]], "produce")
    assert not is_open([free[0]._replace(lanes=2), free[1]], "produce")
    assert not is_open(free[::-1], "produce")
    assert not is_open(free, "controller_mutation")
