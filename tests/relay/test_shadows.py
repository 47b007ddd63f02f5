"""Shadow quotas throttle no client, and their rows count what sensors in force would have been charged."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.client_quotas import SensorKey
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType, SensorTags
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from tests.relay.frames import fetch, fetched, heartbeat, heartbeaten, produce, produced
from tests.relay.script import NOW_MS, Script, manager_of

PRODUCE, FETCH = QuotaType.PRODUCE, QuotaType.FETCH
CAPS = {"max_throttle_ms": 20_000, "max_debt_ms": 60_000}


@dataclass(frozen=True)
class DecisionRequest:
    """One request, and how large its response is where that matters."""

    kind: str
    client_id: bytes = b"etl"
    size: int = 100
    acks: int = 1

    def frame(self, corr: int) -> bytes:
        if self.kind == "produce":
            return produce(corr, size=self.size, acks=self.acks, client_id=self.client_id)
        if self.kind == "fetch":
            return fetch(corr, client_id=self.client_id)
        return heartbeat(corr, client_id=self.client_id)

    def response(self, corr: int) -> bytes:
        if self.kind == "produce":
            return produced(corr) if self.acks else b""
        return fetched(corr, size=self.size) if self.kind == "fetch" else heartbeaten(corr)


@dataclass(frozen=True)
class Step:
    """After `wait_ms`, so many further bytes of what the client, or the node, has to send."""

    wait_ms: int
    side: Side
    most_bytes: int


class Conversation:
    """A client that sends its requests step by step, and a node that responds to those that have reached it."""

    def __init__(self, make_relay, quota_manager, asks):
        self.script = Script(make_relay, quota_manager).connected()
        self.asks = asks
        self.frames = [ask.frame(corr) for corr, ask in enumerate(asks)]
        self.to_say = b"".join(self.frames)
        self.now_ms = NOW_MS
        self.events = []
        self.taken, self.reached, self.answered = 0, 0, 0
        self.sent_at = {Side.NODE: 0, Side.CLIENT: 0}
        self.responses, self.to_answer, self.begun = [], b"", []

    def step(self, step):
        self.now_ms += step.wait_ms
        if self.script.wake_at is not None and self.now_ms >= self.script.wake_at:
            self.script.time(self.now_ms)
            self._note()
        if step.side is Side.CLIENT:
            said, self.to_say = self.to_say[: step.most_bytes], self.to_say[step.most_bytes :]
            self.script.client(said, self.now_ms)
        else:
            said, self.to_answer = self.to_answer[: step.most_bytes], self.to_answer[step.most_bytes :]
            self.script.node(said, self.now_ms)
        self._note()

    def _note(self):
        """Which responses have begun to go out, and which requests the node has whole: then a Produce is charged."""
        node, client = self.script.sent[Side.NODE], self.script.sent[Side.CLIENT]
        while self.sent_at[Side.NODE] < len(node):
            self.sent_at[Side.NODE] += len(self.frames[self.taken])
            self.taken += 1
        whole = self.taken - (self.sent_at[Side.NODE] > len(node))
        for corr in range(self.reached, whole):
            ask = self.asks[corr]
            if ask.kind == "produce":
                self.events.append((PRODUCE, ask.client_id, len(self.frames[corr]) - 4, self.now_ms))
            if response := ask.response(corr):
                self.responses.append((ask, response))
                self.to_answer += response
        self.reached = max(self.reached, whole)
        while self.sent_at[Side.CLIENT] < len(client):
            ask, response = self.responses[self.answered]
            if ask.kind == "fetch":
                self.events.append((FETCH, ask.client_id, len(response) - 4, self.now_ms))
            self.sent_at[Side.CLIENT] += len(response)
            self.answered += 1

    def felt(self):
        """All that clients and nodes can notice."""
        script = self.script
        return (
            {side: bytes(sent) for side, sent in script.sent.items()},
            (script.throttles, script.wake_at, script.reads, script.closed, script.relay.muted),
            (script.counters.throttles, script.counters.throttled_ms, script.relay.throttled_ms),
            self.events,
        )


def quota_manager(enforced, shadow):
    tables = [QuotaTable({entity: dict(limits) for entity, limits in quotas}) for quotas in (enforced, shadow)]
    return manager_of(tables[0], tables[1], **CAPS)


client_ids = st.sampled_from([b"etl", b"web", b""])
asks = st.one_of(
    st.builds(DecisionRequest, st.just("produce"), client_ids, st.integers(60, 3000), st.sampled_from([0, 1, 1, 1])),
    st.builds(DecisionRequest, st.just("fetch"), client_ids, st.integers(30, 3000)),
    st.builds(DecisionRequest, st.just("heartbeat"), client_ids),
)
alike = st.tuples(asks, st.integers(1, 12)).map(lambda drawn: [drawn[0]] * drawn[1])
conversations = st.lists(alike, max_size=12).map(lambda runs: [ask for run in runs for ask in run])
steps = st.lists(
    st.builds(
        Step,
        st.sampled_from([0, 0, 1, 90, 1000, 7000, 25_000]),
        st.sampled_from(Side),
        st.sampled_from([1, 7, 13, 40, 500, 2000, 100_000]),
    ),
    max_size=40,
)
entities = [Entity(client_id=DEFAULT), Entity(client_id="etl"), Entity(user=DEFAULT, client_id="etl")]
limits = st.dictionaries(st.sampled_from([PRODUCE, FETCH]), st.integers(1, 2000).map(float), min_size=1)


def quotas(least):
    quota = st.tuples(st.sampled_from(entities), limits)
    return st.lists(quota, min_size=least, max_size=2, unique_by=lambda quota: quota[0])


@pytest.mark.rule("shadow")
@settings(max_examples=150, deadline=None)
@given(conversations, steps, quotas(0), quotas(1))
def test_a_shadow_quota_changes_nothing_and_counts_what_an_enforced_one_would_be_charged(
    make_relay, asks, steps, enforced, shadow
):
    """What it counts is without the feedback of a mute: a client that is not held back goes on."""
    with_shadow = Conversation(make_relay, quota_manager(enforced, shadow), asks)
    without = Conversation(make_relay, quota_manager(enforced, ()), asks)
    for step in steps:
        with_shadow.step(step)
        without.step(step)
        assert with_shadow.felt() == without.felt()
    assert shadow_readings(with_shadow) == readings_if_enforced(with_shadow, shadow)


def shadow_readings(conversation):
    found = conversation.script.quota_manager.readings(conversation.now_ms)
    return {key: reading for key, reading in found if key.shadow and reading.charges}


def readings_if_enforced(conversation, shadow):
    table = QuotaTable(dict(shadow))
    sensors, handles = Sensors(64, **CAPS), {}
    for quota_type, client_id, value, at_ms in conversation.events:
        tags, limit, entity = table.tags_and_limit(quota_type, "ANONYMOUS", client_id.decode())
        if entity is None:
            continue
        key = SensorKey("main", 1, quota_type, tags, shadow=True)
        if key not in handles:
            handles[key] = sensors.open(limit, at_ms)
        sensors.charge(handles[key], value, at_ms)
    return {key: sensors.reading(handle, conversation.now_ms) for key, handle in handles.items()}


def shadow_reading(script, quota_type, now_ms=NOW_MS):
    return script.quota_manager.reading(SensorKey("main", 1, quota_type, SensorTags("", "etl"), shadow=True), now_ms)


@pytest.fixture
def script(make_relay):
    return Script(
        make_relay, quota_manager([], [(Entity(client_id="etl"), {PRODUCE: 100.0, FETCH: 100.0})])
    ).connected()


def test_runs_of_alike_requests_are_charged_to_a_shadow_one_by_one_where_they_are_too_much(script):
    run = b"".join(produce(corr, size=400) for corr in range(10))
    assert script.client(run) == run
    reading = shadow_reading(script, PRODUCE)
    assert (reading.charges, reading.total) == (10, 4000)
    assert reading.throttles == 8
    assert reading.throttled_ms == sum(min(10 * (400 * n - 1000), 20_000) for n in range(3, 11))
    assert script.throttles == []


def test_a_fetch_is_neither_clamped_nor_held_up_by_a_shadow(script):
    asked = b"".join(fetch(corr, max_bytes=50_000) for corr in range(3))
    assert script.client(asked) == asked
    responses = b"".join(fetched(corr, size=1500) for corr in range(3))
    assert script.node(responses) == responses
    reading = shadow_reading(script, FETCH)
    assert (reading.charges, reading.total, reading.throttles) == (3, 4500, 3)
    assert (script.throttles, script.wake_at) == ([], None)


def test_a_shadow_that_is_removed_while_a_response_is_under_way_is_charged_no_more(script):
    script.client(fetch(1))
    script.quota_manager.replace(QuotaTable(), NOW_MS)
    assert script.node(fetched(1, size=1500)) == fetched(1, size=1500)
    assert shadow_reading(script, FETCH) is None
