"""Answers that are too large to be held: they stream, and what stands at their end is still taken care of.

The bodies are made from the shapes of the API table, which test_api_table.py holds against Kafka's own classes.
"""

import random
from struct import pack

import pytest

from protocol.api import (
    ARRAY,
    BYTES,
    COMPACT_ARRAY,
    COMPACT_BYTES,
    COMPACT_ENDPOINT,
    COMPACT_STRING,
    FIXED,
    STRING,
    TAGS,
    THROTTLE,
)
from protocol.primitives import compact_string, uvarint
from protocol.requests import MAX_HEAD_BYTES
from protocol.walk import Walk
from proxy.relay.actions import CloseReason, Side
from proxy.relay.plans import PLANS, AnswerKind, walk_answer
from tests.message_vectors import message_vectors
from tests.relay.frames import frame, heartbeat, heartbeaten
from tests.relay.script import NOW_MS, Script

HOST = b"inside.example"
THROTTLE_MS = 20_000
EDGE = 3_000

LARGE = {
    f"{plan.name} v{plan.api_version}": plan
    for plan in PLANS.values()
    if plan.answer in (AnswerKind.TAIL, AnswerKind.LAST) and plan.api_key not in (38, 41)
}


def body(shape, rng, depth=0):
    """A body of this shape: arrays of two, many partitions, records of some 100 KB, NodeEndpoints of three nodes."""
    return b"".join(_field(op, rng, depth) for op in shape)


def _field(op, rng, depth):
    code = op[0]
    if code == FIXED:
        return rng.randbytes(op[1])
    if code == THROTTLE:
        return pack(">i", 0)
    if code in (STRING, BYTES):
        text = rng.randbytes(30 if code == STRING else 100_000)
        return pack(">h" if code == STRING else ">i", len(text)) + text
    if code in (COMPACT_STRING, COMPACT_BYTES):
        return compact_string(rng.randbytes(30 if code == COMPACT_STRING else 100_000))
    if code in (ARRAY, COMPACT_ARRAY):
        endpoints = op[1][0] == (COMPACT_ENDPOINT,)
        count = 3 if endpoints else 2 if depth == 0 or _holds_records(op[1]) else 6000 if depth == 1 else 1
        elements = b"".join(body(op[1], rng, depth + 1) for _ in range(count))
        return (pack(">i", count) if code == ARRAY else uvarint(count + 1)) + elements
    if code == COMPACT_ENDPOINT:
        return pack(">i", rng.randrange(100)) + compact_string(HOST) + pack(">i", 9092)
    assert code == TAGS, op
    known = [uvarint(tag) + compact_sized(body(shape, rng, depth)) for tag, shape in op[1].items()]
    return uvarint(len(known)) + b"".join(known)


def compact_sized(value):
    return uvarint(len(value)) + value


def _holds_records(shape):
    return (COMPACT_BYTES,) in shape or (BYTES,) in shape


def large_answer(plan):
    rng = random.Random(plan.api_key * 100 + plan.api_version)
    answer = frame(pack(">i", 1) + b"\0" * plan.answer_tags + body(plan.shape, rng))
    assert len(answer) > MAX_HEAD_BYTES
    return answer


def request_of(plan):
    for vector in message_vectors("4.3.1" if plan.api_version >= 3 or plan.api_key > 1 else "3.9.2"):
        wanted = (vector.key, vector.version, vector.is_response) == (plan.api_key, plan.api_version, False)
        if wanted and vector.acks != 0:
            return vector.frame[:8] + pack(">i", 1) + vector.frame[12:]
    raise AssertionError(plan)


def relayed(make_relay, plan, pieces, throttled):
    """What the client gets of an answer that comes in these pieces, behind one with a throttle time or without."""
    script = Script(make_relay).connected()
    script.client(heartbeat(7) + request_of(plan))
    script.node(heartbeaten(7, throttle_time_ms=THROTTLE_MS if throttled else 0))
    before = len(script.sent[Side.CLIENT])
    most_held = 0
    for piece in pieces:
        script.node(piece)
        most_held = max(most_held, script.relay.held_bytes)
    assert script.closed is None
    assert script.relay.idle
    return bytes(script.sent[Side.CLIENT][before:]), most_held


def cut(data, size):
    return [data[i : i + size] for i in range(0, len(data), size)]


@pytest.mark.parametrize("plan", LARGE.values(), ids=LARGE.keys())
def test_a_large_answer_streams_and_shows_no_inside_address(make_relay, plan):
    answer = large_answer(plan)
    at_once, _ = relayed(make_relay, plan, [answer], throttled=False)
    tail_at = walk_answer(plan, answer).tail_at
    assert len(at_once) == len(answer)
    assert at_once[:tail_at] == answer[:tail_at]
    assert walk_answer(plan, at_once).endpoints == []
    assert walk_answer(plan, at_once).fits(len(answer))
    for size in (777, 65_536):
        in_pieces, most_held = relayed(make_relay, plan, cut(answer, size), throttled=False)
        assert in_pieces == at_once
        assert most_held <= MAX_HEAD_BYTES + size


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.long), 7])
def test_a_large_answer_may_come_byte_by_byte_at_its_ends_and_in_few_between(make_relay, step):
    plan = LARGE["Produce v2"]
    answer = large_answer(plan)
    between = cut(answer[EDGE:-EDGE], step)  # each byte of an element is where a piece begins, some time
    pieces = [*cut(answer[:EDGE], 1), *between, *cut(answer[-EDGE:], 1)]
    assert relayed(make_relay, plan, pieces, throttled=False)[0] == answer


@pytest.mark.parametrize("plan", LARGE.values(), ids=LARGE.keys())
def test_a_large_answer_gets_the_throttle_time(make_relay, plan):
    answer = large_answer(plan)
    throttled, _ = relayed(make_relay, plan, cut(answer, 50_000), throttled=True)
    plain, _ = relayed(make_relay, plan, [answer], throttled=False)
    at = walk_answer(plan, throttled).throttle_at
    assert throttled[at : at + 4] == pack(">i", THROTTLE_MS)
    assert throttled[:at] + bytes(4) + throttled[at + 4 :] == plain


def test_a_large_answer_that_ends_before_its_fields_do_is_cut_off(make_relay):
    plan = LARGE["Produce v11"]
    answer = large_answer(plan)
    script = Script(make_relay).connected()
    script.client(request_of(plan))
    script.node(pack(">i", len(answer) - 104) + answer[4:-100], NOW_MS)
    assert script.close_reason is CloseReason.ANSWER_MALFORMED
    assert len(script.sent[Side.CLIENT]) < len(answer) - 100


@pytest.mark.parametrize("name", [name for name, plan in LARGE.items() if plan.answer is AnswerKind.TAIL])
@pytest.mark.parametrize("piece_bytes", [100_000, 10_000_000])
def test_an_answer_that_ends_where_its_tail_should_begin_is_not_sent_to_its_end(make_relay, name, piece_bytes):
    plan = LARGE[name]
    answer = large_answer(plan)
    walk = Walk(plan.shape, 8 + plan.answer_tags)
    walk.advance(answer, 0, stop_at_tail=True)
    cut = frame(answer[4 : walk.tail_at])
    script = Script(make_relay).connected()
    script.client(request_of(plan))
    for start in range(0, len(cut), piece_bytes):
        if script.closed is None:
            script.node(cut[start : start + piece_bytes])
    assert script.close_reason is CloseReason.ANSWER_MALFORMED
    assert len(script.sent[Side.CLIENT]) < len(cut)
