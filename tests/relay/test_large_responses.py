"""Responses that are too large to be held: they stream, and the fields at their end are changed all the same.

The bodies are made from the shapes of the API table, which test_api_table.py holds against Kafka's own classes.
"""

import random
from dataclasses import replace
from struct import pack

import pytest

from kafka_throttle.protocol.api import (
    ARRAY,
    BYTES,
    COMPACT_ARRAY,
    COMPACT_BYTES,
    COMPACT_ENDPOINT,
    COMPACT_STRING,
    CONTROLLER,
    END,
    ENDPOINT,
    ENDPOINT_TYPE,
    FIXED,
    STRING,
    TAGS,
    THROTTLE,
)
from kafka_throttle.protocol.frames import MAX_HEAD_BYTES
from kafka_throttle.protocol.primitives import compact_string, uvarint
from kafka_throttle.protocol.walk import Walk
from kafka_throttle.proxy.decisions.decide import decide
from kafka_throttle.proxy.relay.actions import CloseReason, RelayLimits
from kafka_throttle.proxy.relay.plans import PLANS, ResponseKind, walk_response
from kafka_throttle.proxy.side import Side
from tests.relay.frames import frame, heartbeat, heartbeaten
from tests.relay.script import NOW_MS, Script
from tests.support.message_vectors import message_vectors

HOST = b"inside.example"
THROTTLE_MS = 20_000
EDGE = 3_000

LARGE = {
    f"{plan.name} v{plan.api_version}": plan
    for plan in PLANS.values()
    if plan.response in (ResponseKind.TAIL, ResponseKind.LAST) and plan.api_key not in (38, 41)
}


def body(shape, rng, depth=0, nodes=3):
    """A body of this shape: arrays of two, many partitions, records of some 100 KB, NodeEndpoints of some nodes."""
    return b"".join(_field(op, rng, depth, nodes) for op in shape)


def _field(op, rng, depth, nodes):
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
        count = nodes if endpoints else 2 if depth == 0 or _holds_records(op[1]) else 6000 if depth == 1 else 1
        elements = b"".join(body(op[1], rng, depth + 1, nodes) for _ in range(count))
        return (pack(">i", count) if code == ARRAY else uvarint(count + 1)) + elements
    if code == COMPACT_ENDPOINT:
        return pack(">i", rng.randrange(100)) + compact_string(HOST) + pack(">i", 9092)
    assert code == TAGS, op
    known = [uvarint(tag) + compact_sized(body(shape, rng, depth, nodes)) for tag, shape in op[1].items()]
    return uvarint(len(known)) + b"".join(known)


def compact_sized(value):
    return uvarint(len(value)) + value


def _holds_records(shape):
    return (COMPACT_BYTES,) in shape or (BYTES,) in shape


def large_response(plan, nodes=3):
    rng = random.Random(plan.api_key * 100 + plan.api_version)
    response = frame(pack(">i", 1) + b"\0" * plan.response_tags + body(plan.shape, rng, nodes=nodes))
    assert len(response) > MAX_HEAD_BYTES
    return response


def request_of(plan):
    for vector in message_vectors("4.3.1" if plan.api_version >= 3 or plan.api_key > 1 else "3.9.2"):
        wanted = (vector.key, vector.version, vector.is_response) == (plan.api_key, plan.api_version, False)
        if wanted and vector.acks != 0:
            return vector.frame[:8] + pack(">i", 1) + vector.frame[12:]
    raise AssertionError(plan)


def relayed(make_relay, plan, pieces, throttled):
    """What the client gets of a response that comes in these pieces, behind one with a throttle time or without."""
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
def test_a_large_response_streams_and_shows_no_inside_address(make_relay, plan):
    response = large_response(plan)
    at_once, _ = relayed(make_relay, plan, [response], throttled=False)
    tail_at = walk_response(plan, response).tail_at
    assert len(at_once) == len(response)
    assert at_once[:tail_at] == response[:tail_at]
    assert walk_response(plan, at_once).endpoints == []
    assert walk_response(plan, at_once).fits(len(response))
    for size in (777, 65_536):
        in_pieces, most_held = relayed(make_relay, plan, cut(response, size), throttled=False)
        assert in_pieces == at_once
        assert most_held <= MAX_HEAD_BYTES + size


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.nightly), 7])
def test_a_large_response_may_come_byte_by_byte_at_its_ends_and_in_few_between(make_relay, step):
    plan = LARGE["Produce v2"]
    response = large_response(plan)
    between = cut(response[EDGE:-EDGE], step)  # each byte of an element is where a piece begins, some time
    pieces = [*cut(response[:EDGE], 1), *between, *cut(response[-EDGE:], 1)]
    assert relayed(make_relay, plan, pieces, throttled=False)[0] == response


@pytest.mark.parametrize("plan", LARGE.values(), ids=LARGE.keys())
def test_a_large_response_gets_the_throttle_time(make_relay, plan):
    response = large_response(plan)
    throttled, _ = relayed(make_relay, plan, cut(response, 50_000), throttled=True)
    plain, _ = relayed(make_relay, plan, [response], throttled=False)
    at = walk_response(plan, throttled).throttle_at
    assert throttled[at : at + 4] == pack(">i", THROTTLE_MS)
    assert throttled[:at] + bytes(4) + throttled[at + 4 :] == plain


def test_a_large_response_that_ends_before_its_fields_do_is_cut_off(make_relay):
    plan = LARGE["Produce v11"]
    response = large_response(plan)
    script = Script(make_relay).connected()
    script.client(request_of(plan))
    script.node(pack(">i", len(response) - 104) + response[4:-100], NOW_MS)
    assert script.close_reason is CloseReason.RESPONSE_MALFORMED
    assert len(script.sent[Side.CLIENT]) < len(response) - 100


@pytest.mark.parametrize("name", [name for name, plan in LARGE.items() if plan.response is ResponseKind.TAIL])
@pytest.mark.parametrize("piece_bytes", [100_000, 10_000_000])
def test_a_response_that_ends_where_its_tail_should_begin_is_not_sent_to_its_end(make_relay, name, piece_bytes):
    plan = LARGE[name]
    response = large_response(plan)
    walk = Walk(plan.shape, 8 + plan.response_tags)
    walk.advance(response, 0, stop_at_tail=True)
    cut = frame(response[4 : walk.tail_at])
    script = Script(make_relay).connected()
    script.client(request_of(plan))
    for start in range(0, len(cut), piece_bytes):
        if script.closed is None:
            script.node(cut[start : start + piece_bytes])
    assert script.close_reason is CloseReason.RESPONSE_MALFORMED
    assert len(script.sent[Side.CLIENT]) < len(cut)


@pytest.mark.parametrize("nodes", [700, 6_000])
@pytest.mark.parametrize("name", [name for name, plan in LARGE.items() if plan.response is ResponseKind.TAIL])
def test_the_addresses_of_any_number_of_nodes_are_hidden_behind_a_large_response(make_relay, name, nodes):
    plan = LARGE[name]
    if plan.api_key in (0, 1) and not has_hints(plan.shape):
        return
    response = large_response(plan, nodes)
    reported, most_held = relayed(make_relay, plan, cut(response, 60_000), throttled=False)
    walk = walk_response(plan, reported)
    assert (len(reported), walk.endpoints, walk.fits(len(response))) == (len(response), [], True)
    assert most_held <= len(response) - walk_response(plan, response).tail_at + MAX_HEAD_BYTES + 60_000


def has_hints(shape):
    return any(op[0] == TAGS and op[1] for op in shape)


# ---------------------------------------------------------------- addresses all along

OUR_HOST = b"proxy.example"
HEADS = {
    f"{plan.name} v{plan.api_version}": plan
    for plan in PLANS.values()
    if plan.response is ResponseKind.HEAD and plan.api_key != 18 and (plan.api_key != 10 or plan.lists_to_the_end)
}
REST = random.Random(5).randbytes(50_000)


def listing(plan, nodes, host=HOST, port=9092, rest=b""):
    """A response that lists so many nodes, or coordinators."""

    def written(shape, number):
        return b"".join(one(op, number) for op in shape)

    def one(op, number):
        code = op[0]
        if code in (ARRAY, COMPACT_ARRAY):
            elements = b"".join(written(op[1], i) for i in range(nodes))
            return (pack(">i", nodes) if code == ARRAY else uvarint(nodes + 1)) + elements
        if code in (ENDPOINT, COMPACT_ENDPOINT):
            text = compact_string(host) if code == COMPACT_ENDPOINT else pack(">h", len(host)) + host
            return pack(">i", number) + text + pack(">i", port if host == HOST else 20_000 + number % 1000)
        plain = {
            FIXED: bytes(op[1] if code == FIXED else 0),
            THROTTLE: bytes(4),
            CONTROLLER: bytes(4),
            ENDPOINT_TYPE: b"\1",
            TAGS: b"\0",
        }
        plain |= {STRING: b"\0\3key", COMPACT_STRING: b"\4key", END: rest}
        return plain[code]

    return frame(pack(">i", 1) + b"\0" * plan.response_tags + written(plan.shape, 0))


@pytest.mark.parametrize("plan", HEADS.values(), ids=HEADS.keys())
def test_a_response_may_list_very_many_addresses(make_relay, plan):
    response, expected = listing(plan, 6_000, rest=REST), listing(plan, 6_000, OUR_HOST, rest=REST)
    assert len(response) - len(REST) > MAX_HEAD_BYTES
    for size in (60_001, len(response)):
        reported, most_held = relayed(make_relay, plan, cut(response, size), throttled=False)
        assert reported == expected
        assert most_held <= len(response) + size


@pytest.mark.parametrize("plan", [plan for plan in HEADS.values() if plan.throttle_at >= 0][::3])
def test_a_response_with_very_many_addresses_gets_the_throttle_time(make_relay, plan):
    response, expected = listing(plan, 6_000, rest=REST), listing(plan, 6_000, OUR_HOST, rest=REST)
    reported, _ = relayed(make_relay, plan, cut(response, 100_000), throttled=True)
    at = plan.throttle_at
    assert reported == expected[:at] + pack(">i", THROTTLE_MS) + expected[at + 4 :]


@pytest.mark.parametrize("name", ["Metadata v1", "Metadata v9", "DescribeCluster v1", "FindCoordinator v4"])
def test_a_response_with_many_addresses_may_be_cut_anywhere(make_relay, name, monkeypatch):
    monkeypatch.setattr("kafka_throttle.proxy.relay.response_direction.MAX_HEAD_BYTES", 40)
    monkeypatch.setattr("kafka_throttle.proxy.decisions.decide._WALKED_AT_ONCE", 7)
    plan = HEADS[name]
    rest = b"the rest of it"
    behind = heartbeaten(9)
    response, expected = listing(plan, 9, rest=rest) + behind, listing(plan, 9, OUR_HOST, rest=rest) + behind
    for at in range(len(response) + 1):
        for size in (1, 1000):
            script = Script(make_relay).connected()
            script.client(request_of(plan) + heartbeat(9))
            for piece in (*cut(response[:at], size), response[at:]):
                script.node(piece)
            assert bytes(script.sent[Side.CLIENT]) == expected
            assert script.relay.idle


@pytest.mark.parametrize("name", ["Metadata v9", "FindCoordinator v4"])
def test_a_list_of_addresses_that_does_not_end_is_not_sent_on(make_relay, name):
    plan = HEADS[name]
    whole = listing(plan, 12_000)
    script = Script(make_relay).connected()
    script.client(request_of(plan))
    script.node(frame(whole[4:-50]))
    assert script.close_reason is CloseReason.RESPONSE_MALFORMED
    assert script.sent[Side.CLIENT] == b""


@pytest.mark.parametrize("name", ["Metadata v9", "FindCoordinator v4"])
def test_no_more_is_held_for_addresses_than_a_frame_may_have(make_relay, name):
    plan = HEADS[name]
    script = Script(make_relay, limits=RelayLimits(max_frame_bytes=200_000)).connected()
    script.client(request_of(plan))
    for piece in cut(listing(plan, 12_000), 50_000):
        if script.closed is None:
            script.node(piece)
    assert script.close_reason is CloseReason.RESPONSE_TOO_LARGE
    assert script.relay.held_bytes == 0


def test_very_many_coordinators_are_rewritten_in_steps(make_relay):
    plan = HEADS["FindCoordinator v4"]
    response = listing(plan, 12_000)
    script = Script(make_relay).connected()
    script.client(request_of(plan))
    script.hold_decisions = True
    script.node(response[: MAX_HEAD_BYTES + 1])
    [first] = script.asks
    assert decide(first, script.facts, NOW_MS).more == len(response)
    script.hold_decisions = False
    ask = replace(first, frame=response)
    work = decide(ask, script.facts, NOW_MS)
    assert sum(1 for _ in work.steps) > len(response) // 9_000


def test_a_client_that_goes_while_a_response_is_gathered_leaves_nothing(make_relay):
    plan = HEADS["FindCoordinator v4"]
    script = Script(make_relay).connected()
    script.client(request_of(plan))
    for piece in cut(listing(plan, 12_000)[:-1], 50_000):
        script.node(piece)
    assert not script.relay.idle
    script.do(script.relay.on_lost(CloseReason.CLIENT_LOST, "", 0))
    assert script.relay.held_bytes == 0
