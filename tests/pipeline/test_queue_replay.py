"""What one queue sends alone is what the general replay has it send."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.simulate.candidate import Rules
from pipeline.simulate.meter import Meter
from pipeline.simulate.queue_replay import QueueReplay, is_queue
from pipeline.simulate.record_replay import in_full
from pipeline.simulate.recorded import Event
from pipeline.simulate.traced import Client
from tests.pipeline.test_open_replay import LIMITS, STEPS_MS, UNTIL_MS, VALUES, outcome

RULES = Rules()
EVENTS = st.lists(
    st.tuples(st.sampled_from("ab"), STEPS_MS, VALUES, st.sampled_from([0, 0, 1, 60, 900, 20_000])),
    min_size=1,
    max_size=60,
)


@pytest.mark.parametrize("kind", Client)
@pytest.mark.parametrize("quota_type", ["produce", "request"])
@settings(max_examples=150, deadline=None)
@given(EVENTS, st.sampled_from([1, 2, 5]), LIMITS, UNTIL_MS)
def test_a_queue_alone_is_replayed_as_in_full_to_the_last_bit(quota_type, kind, drawn, lanes, limit, until_ms):
    now_ms, events = 0, []
    for client, step_ms, value, throttle_ms in drawn:
        now_ms += step_ms
        events.append(Event(client, "a", lanes, now_ms, value, throttle_ms, 0))
    assert is_queue(events, quota_type)
    full = in_full(Meter(RULES, quota_type, limit, 0), events, quota_type, kind, until_ms)
    short = QueueReplay(Meter(RULES, quota_type, limit, 0))
    short.run(events, kind, until_ms)
    assert outcome(short) == outcome(full)


def test_what_goes_by_two_queues_or_may_be_refused_is_none():
    one = Event("a", "a", 1, 0, 10.0, 4, 0)
    assert is_queue([one, one._replace(client="b")], "produce")
    assert not is_queue([one, one._replace(lane="b")], "produce")
    assert not is_queue([one], "fetch")
    assert not is_queue([one], "connection")
    assert not is_queue([one], "controller_mutation")
    assert not is_queue([], "produce")
