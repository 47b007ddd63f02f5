"""`Connection` with simulated streams and a simulated clock."""

import asyncio
import errno
import gc
import logging
import os
import weakref
from dataclasses import replace
from struct import pack
from types import SimpleNamespace

import pytest
import structlog
from structlog.testing import capture_logs

from kafka_throttle.protocol.api_key import CREATE_TOPICS, FIND_COORDINATOR, HEARTBEAT
from kafka_throttle.protocol.messages.api_versions import carried
from kafka_throttle.protocol.primitives import uvarint
from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts
from kafka_throttle.proxy.decisions.sasl import Identity
from kafka_throttle.proxy.observe.added_latency import AddedLatency
from kafka_throttle.proxy.observe.last_throttles import LastThrottles
from kafka_throttle.proxy.observe.throttle_episode import ThrottledClients
from kafka_throttle.proxy.relay.actions import OWN_REQUEST_ID, CloseReason, RelayLimits, Throttled
from kafka_throttle.proxy.relay.connection_timeouts import TimeOuts
from kafka_throttle.proxy.relay.relay import Relay
from kafka_throttle.proxy.relay.relay_counters import RelayCounters
from kafka_throttle.proxy.server.connection import Connection
from kafka_throttle.proxy.server.sharing import DecisionTurns
from kafka_throttle.proxy.side import Side
from kafka_throttle.proxy.upstream.node_socket import NodeSocket, NodeUnreachable
from kafka_throttle.quotas.changes import Limit
from kafka_throttle.quotas.entities import ANONYMOUS, Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.fair_queue import Whose, entity_of
from kafka_throttle.quotas.quota_table import QuotaTable
from tests.fakes.clock import FakeClock
from tests.fakes.stream import FakeStream
from tests.relay.frames import fetch, fetched, frame, heartbeat, heartbeaten, produce, produced, request
from tests.relay.script import FixedNodes, quota_manager_with
from tests.support.quota_frames import alter_request, altered, describe_request, described
from tests.support.sasl_frames import authenticate, authenticated, handshake, handshaken, plain, scram_first
from tests.support.topic_frames import create_topics, created, metadata_by_name, mutated, new_topic
from tests.support.waiting import until

pytestmark = pytest.mark.pure
"""A compiled connection takes no double of a stream."""

MALFORMED = b"\xff" * 4 + bytes(12)
"""A length prefix of -1."""


@pytest.fixture(autouse=True)
def all_levels(monkeypatch):
    monkeypatch.setattr("kafka_throttle.proxy.observe.logs._threshold", logging.DEBUG)


class Shell:
    """A connection whose two streams are fakes."""

    def __init__(self, reachable=True, limits=None, client=None, **quota):
        self.client, self.node, self.clock = client or FakeStream(), FakeStream(), FakeClock()
        self.ended, self.throttles, self.lingering = [], [], False
        self.written, self.altered = asyncio.Event(), 0
        quota_manager = quota_manager_with(**quota)
        self.last_throttles, self.throttled = LastThrottles(quota_manager, self.clock), ThrottledClients()
        self.latency = AddedLatency("main", "plain", {})
        self.decision_turns = DecisionTurns()
        self.alteration_turns = DecisionTurns()
        facts = ConnectionFacts(ListenerFacts("main", FixedNodes(), quota_manager, carried), 1, "ANONYMOUS")
        self.connection = Connection(
            Relay(quota_manager, RelayCounters(), limits or RelayLimits(), facts.bind),
            facts,
            self,
            self.clock,
            structlog.get_logger(),
        )
        self.reached = NodeSocket(None, 1) if reachable else NodeUnreachable("10.0.0.1:9092: Connection refused")
        self.connection.client_connected(None)

    def connect(self, connection, opening, reached):
        return asyncio.get_running_loop().call_soon(reached, self.reached)

    def open_stream(self, sock, side, owner):
        return self.client if side is Side.CLIENT else self.node

    async def alter_quotas(self, alteration_request, log):
        await self.written.wait()
        self.altered += len(alteration_request.alterations)
        return [None for _ in alteration_request.alterations]

    def note_throttle(self, connection, throttled, now_ms):
        self.throttles.append((throttled.client_id, connection.facts.user, now_ms))
        return self.last_throttles.note("10.0.0.1", throttled, connection.facts, now_ms)

    def is_worth_a_line(self, connection, reason, detail):
        return True

    def closed(self, connection, reason):
        self.ended.append(reason)

    def lingers(self, connection):
        self.lingering = True

    def gone(self, connection):
        assert self.lingering
        self.lingering = False

    async def client_sends(self, data):
        self.connection.bytes_came(Side.CLIENT, data)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_five_thousand_client_ids_may_come_in_one_read():
    shell = Shell(limits=RelayLimits(max_in_flight=10_000))
    requests = b"".join(heartbeat(i, client_id=b"c%d" % i) for i in range(5000))
    await shell.client_sends(requests)
    assert shell.node.written == requests
    assert shell.ended == []


async def test_a_node_that_cannot_be_reached_ends_the_connection_with_what_was_tried():
    with capture_logs() as logs:
        shell = Shell(reachable=False)
        await shell.client_sends(heartbeat(1))
    assert shell.ended == [CloseReason.NODE_UNREACHABLE]
    assert shell.client.closed
    assert logs[-1]["detail"] == "10.0.0.1:9092: Connection refused"


async def test_a_connection_takes_the_turns_of_its_client_id_at_its_address_and_with_a_user_those_of_the_user():
    one, other = Shell(), Shell()
    for shell in (one, other):
        shell.connection.facts.address = "2001:db8::1"
    assert one.connection.whose().entity == other.connection.whose().entity == entity_of(ANONYMOUS, "2001:db8::2")
    assert one.connection.whose().part != other.connection.whose().part
    for shell in (one, other):
        await shell.client_sends(heartbeat(1, client_id=b"etl"))
    assert one.connection.whose() == other.connection.whose() == Whose(entity_of(ANONYMOUS, "2001:db8::1"), b"etl")
    await one.client_sends(heartbeat(2, client_id=b"report"))
    assert one.connection.whose().part == b"report"
    for user, visible, entity in (("alice", True, entity_of("alice", "")), ("?GSSAPI", False, "2001:db8::/64")):
        one.connection.facts.become(Identity(user, "PLAIN", visible))
        assert one.connection.whose().entity == entity


ETL = (("client-id", "etl"),)
SET_ETL = alter_request([(ETL, [("producer_byte_rate", 7.0, False)])])


async def test_the_response_to_an_alteration_comes_when_it_is_written():
    shell = Shell()
    shell.connection.facts.may_alter = True
    shell.written = asyncio.Event()
    await shell.client_sends(SET_ETL + heartbeat(2))
    assert (shell.client.written, shell.node.written) == (b"", b"")
    shell.written.set()
    await until(lambda: shell.node.written)
    assert altered(bytes(shell.client.written)) == [(0, None, ETL)]
    assert shell.node.written == heartbeat(2)


async def test_a_source_that_is_slow_to_write_holds_up_no_other_decision():
    altering, describing = Shell(), Shell()
    describing.decision_turns = altering.decision_turns
    quotas = {Entity(f"u{i}"): {QuotaKey(QuotaType.PRODUCE): Limit(1.0, "file")} for i in range(500)}
    facts = describing.connection.facts
    facts.listener = replace(facts.listener, quotas=lambda: quotas)
    altering.connection.facts.may_alter = describing.connection.facts.may_describe = True
    altering.written = asyncio.Event()
    many = [((("client-id", "c" * 200 + str(i)),), [("producer_byte_rate", 7.0, False)]) for i in range(4_000)]
    await altering.client_sends(alter_request(many))
    await describing.client_sends(describe_request([]))
    await until(lambda: describing.client.written)
    assert described(bytes(describing.client.written)).error_code == 0
    assert not altering.client.written
    altering.written.set()
    await until(lambda: altering.client.written)
    assert len(altered(bytes(altering.client.written))) == 4_000


async def test_an_idle_connection_keeps_nothing_of_a_decision_that_took_long():
    shell, before = Shell(), asyncio.all_tasks()
    shell.connection.facts.may_alter = True
    await shell.client_sends(SET_ETL)
    [task] = map(weakref.ref, asyncio.all_tasks() - before)
    shell.written.set()
    await until(lambda: shell.client.written)
    await asyncio.sleep(0)
    gc.collect()
    assert task() is None


async def test_an_alteration_is_written_though_its_client_is_gone():
    shell = Shell()
    shell.connection.facts.may_alter = True
    shell.written = asyncio.Event()
    await shell.client_sends(SET_ETL)
    shell.connection.lost(Side.CLIENT, None)
    shell.written.set()
    await until(lambda: shell.altered)
    assert shell.altered == 1
    assert shell.ended[0] is CloseReason.CLIENT_LOST
    assert CloseReason.INTERNAL_ERROR not in shell.ended


async def test_the_addresses_of_a_response_are_not_put_in_for_a_client_that_is_gone():
    coordinators = b"".join(b"\1" + pack(">i", i) + b"\2h" + pack(">ih", 9092, 0) + b"\1\0" for i in range(10_000))
    response = frame(pack(">i", 1) + b"\0" + pack(">i", 0) + uvarint(10_001) + coordinators + b"\0")
    shell = Shell()
    await shell.client_sends(request(FIND_COORDINATOR, 4, b"\0\2\1\0", corr=1, tags=True))
    shell.connection.bytes_came(Side.NODE, response)
    learned = shell.connection.facts.listener.nodes.learned
    await until(lambda: len(learned) > 1_000)
    shell.connection.lost(Side.CLIENT, None)
    found = len(learned)
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert len(learned) == found < 10_000
    assert shell.ended == [CloseReason.CLIENT_LOST]


async def test_nothing_is_decided_for_a_client_that_is_found_to_be_gone_just_before():
    """Its response cannot be written, and behind it in the same read is the response to our own request for its next
    request.
    """
    shell = Shell()
    quota_manager = shell.connection.facts.listener.quota_manager
    quota_manager.replace(QuotaTable({Entity(client_id="etl"): {QuotaType.CONTROLLER_MUTATION: 1.0}}), 0)
    await shell.client_sends(heartbeat(1) + create_topics(7, [new_topic(7, b"t", 5)], corr=2))
    shell.client.write = lambda pieces: shell.connection.lost(Side.CLIENT, BrokenPipeError())
    shell.connection.bytes_came(Side.NODE, heartbeaten(1) + metadata_by_name(OWN_REQUEST_ID, {b"t": -1}))
    assert shell.ended == [CloseReason.CLIENT_LOST]
    [(_, bucket)] = quota_manager.bucket_readings(shell.clock.now_ms())
    assert bucket.total == 0


@pytest.mark.parametrize("kept", [True, False], ids=["response", "closed by the node"])
async def test_a_node_is_read_until_its_response_to_a_charged_mutation_has_come(kept):
    shell = Shell()
    quota_manager = shell.connection.facts.listener.quota_manager
    quota_manager.replace(QuotaTable({Entity(client_id="etl"): {QuotaType.CONTROLLER_MUTATION: 1.0}}), 0)
    await shell.client_sends(create_topics(7, [new_topic(7, b"t", 2_000_000_000)]))
    shell.connection.bytes_came(Side.NODE, metadata_by_name(OWN_REQUEST_ID, {b"t": -1}))
    shell.connection.lost(Side.CLIENT, ConnectionResetError())
    assert (shell.ended, shell.node.closed, shell.lingering) == ([CloseReason.CLIENT_LOST], False, True)
    [(_, bucket)] = quota_manager.bucket_readings(shell.clock.now_ms())
    assert bucket.tokens == -60
    if kept:
        response = mutated(CREATE_TOPICS, 7, [created(7, b"t", 37)])
        shell.connection.bytes_came(Side.NODE, response[:20])
        assert not shell.node.closed
        shell.connection.bytes_came(Side.NODE, response[20:])
    else:
        shell.connection.eof_came(Side.NODE)
    assert shell.node.closed
    [(_, bucket)] = quota_manager.bucket_readings(shell.clock.now_ms())
    assert bucket.tokens == (11 if kept else -60)
    shell.connection.lost(Side.NODE, None)
    assert not shell.lingering


def fetch_sensor(shell):
    sensors = shell.connection.facts.bind(b"etl", shell.clock.now_ms())
    return shell.connection.facts.listener.quota_manager.sensors.reading(sensors.fetch, shell.clock.now_ms())


@pytest.mark.parametrize(
    ("ends", "charged"),
    [
        (lambda connection: connection.bytes_came(Side.NODE, fetched(1, size=500)), 500),
        (lambda connection: connection.lost(Side.NODE, ConnectionResetError()), 0),
        (lambda connection: connection.eof_came(Side.NODE), 0),
        (lambda connection: connection.abort(), 100),
    ],
    ids=["response", "reset by the node", "closed by the node", "not waited for any longer"],
)
async def test_a_node_is_read_until_the_size_of_a_fetch_is_known_whose_client_has_gone(ends, charged):
    shell = Shell(fetch=100)
    await shell.client_sends(fetch(1))
    shell.connection.lost(Side.CLIENT, ConnectionResetError())
    assert (shell.ended, shell.node.closed, shell.lingering) == ([CloseReason.CLIENT_LOST], False, True)
    ends(shell.connection)
    assert fetch_sensor(shell).total == charged
    assert not shell.connection.relay.unsettled
    if shell.lingering:
        shell.connection.lost(Side.NODE, None)
    assert (shell.lingering, fetch_sensor(shell).total) == (False, charged)


async def test_a_charged_mutation_is_forgotten_with_its_node():
    shell = Shell()
    quota_manager = shell.connection.facts.listener.quota_manager
    quota_manager.replace(QuotaTable({Entity(client_id="etl"): {QuotaType.CONTROLLER_MUTATION: 1.0}}), 0)
    await shell.client_sends(create_topics(7, [new_topic(7, b"t", 2_000_000_000)]))
    shell.connection.bytes_came(Side.NODE, metadata_by_name(OWN_REQUEST_ID, {b"t": -1}))
    shell.connection.lost(Side.CLIENT, ConnectionResetError())
    assert shell.connection.relay.unsettled
    shell.connection.lost(Side.NODE, ConnectionResetError())
    assert (shell.connection.relay.unsettled, shell.lingering) == (False, False)


async def test_a_client_is_heard_out_while_its_node_is_connected_to():
    shell = Shell()
    connection = shell.connection
    assert not connection.hears_client_out
    connection.bytes_came(Side.CLIENT, produce(1, acks=0))
    assert (connection.hears_client_out, shell.client.reading, shell.client.noticed) == (True, False, 0)
    await asyncio.sleep(0.01)
    assert (connection.hears_client_out, shell.client.reading, shell.client.noticed) == (False, True, 1)
    assert shell.node.written == produce(1, acks=0)


async def test_a_muted_client_that_has_left_is_seen_when_its_mute_ends():
    shell = Shell(fetch=100)
    shell.connection.facts.listener.quota_manager.sensors.charge(
        shell.connection.facts.bind(b"etl", shell.clock.now_ms()).fetch, 1001, shell.clock.now_ms()
    )
    await shell.client_sends(fetch(1))
    assert shell.throttles
    shell.client.peer_ended = True
    shell.clock.advance(10)
    await until(lambda: shell.ended)
    assert (shell.ended, shell.node.written) == ([CloseReason.CLIENT_CLOSED], b"")


async def test_when_one_side_ends_both_are_closed():
    shell = Shell()
    await shell.client_sends(heartbeat(1))
    shell.connection.eof_came(Side.CLIENT)
    assert shell.ended == [CloseReason.CLIENT_CLOSED]
    assert shell.node.closed
    assert shell.client.closed
    shell.connection.lost(Side.CLIENT, None)
    assert shell.lingering
    shell.connection.lost(Side.NODE, None)
    assert (shell.ended, shell.lingering) == ([CloseReason.CLIENT_CLOSED], False)


@pytest.mark.parametrize(("answered", "hung_up"), [(2, True), (1, False)])
async def test_a_node_that_owes_nothing_is_not_waited_for(answered, hung_up):
    shell = Shell()
    await shell.client_sends(heartbeat(1) + heartbeat(2))
    for number in range(answered):
        shell.connection.bytes_came(Side.NODE, heartbeaten(number + 1))
    shell.connection.eof_came(Side.CLIENT)
    assert (shell.node.closed, shell.node.hung_up) == (True, hung_up)


async def test_half_a_request_keeps_its_node_until_that_has_closed_too():
    shell = Shell()
    await shell.client_sends(produce(1, size=1000)[:900])
    shell.connection.eof_came(Side.CLIENT)
    assert (shell.node.closed, shell.node.hung_up) == (True, False)


async def test_a_client_that_leaves_while_the_node_is_being_connected_to_is_not_waited_for():
    shell = Shell()
    never = asyncio.get_running_loop().create_future()
    shell.connect = lambda connection, opening, reached: never
    await shell.client_sends(heartbeat(1))
    shell.connection.lost(Side.CLIENT, ConnectionResetError())
    assert never.cancelled()
    assert (shell.ended, shell.lingering) == ([CloseReason.CLIENT_LOST], False)


async def test_a_muted_client_is_read_in_small_pieces_and_woken_by_the_timer():
    shell = Shell(produce=1_000_000, max_throttle_ms=30)
    await shell.client_sends(produce(1, size=20_000_000)[:100])
    assert shell.connection.read_bytes() > 100_000
    await shell.client_sends(produce(1, size=20_000_000)[100:] + heartbeat(2))
    assert shell.connection.read_bytes() == 512
    assert not shell.client.reading
    shell.clock.advance(30)
    await until(lambda: shell.client.reading)
    assert shell.node.written.endswith(heartbeat(2))
    assert shell.client.reading


async def test_a_connection_that_is_to_leave_goes_when_its_response_has_gone_out():
    shell = Shell()
    await shell.client_sends(heartbeat(1))
    shell.connection.leave()
    assert not shell.ended
    shell.connection.bytes_came(Side.NODE, heartbeaten(1))
    assert shell.ended == [CloseReason.SHUTDOWN]
    assert shell.client.written == heartbeaten(1)


async def test_a_connection_that_is_to_leave_stays_while_its_client_has_sent_something_that_is_not_read():
    shell = Shell()
    await shell.client_sends(heartbeat(1))
    shell.connection.leave()
    shell.client.unread = True
    shell.connection.bytes_came(Side.NODE, heartbeaten(1))
    await shell.client_sends(heartbeat(2))
    shell.client.unread = False
    shell.connection.leave()
    assert not shell.ended
    shell.connection.bytes_came(Side.NODE, heartbeaten(2))
    assert shell.ended == [CloseReason.SHUTDOWN]


async def test_a_muted_client_that_has_nothing_under_way_may_leave_at_once():
    shell = Shell(produce=100)
    await shell.client_sends(produce(1, size=1500))
    shell.connection.bytes_came(Side.NODE, produced(1))
    shell.connection.leave()
    assert shell.ended == [CloseReason.SHUTDOWN]


async def test_a_connection_that_finishes_is_closed_though_its_client_goes_on_sending():
    shell = Shell()
    await shell.client_sends(heartbeat(1))
    shell.connection.finish()
    await shell.client_sends(heartbeat(2))
    shell.client.unread = True
    shell.connection.bytes_came(Side.NODE, heartbeaten(1))
    shell.connection.finish()
    assert shell.ended == [CloseReason.SHUTDOWN]
    assert shell.client.written == heartbeaten(1)
    assert shell.node.written == heartbeat(1)


async def test_a_connection_is_new_until_its_first_response_and_for_a_second_at_most():
    silent, served = Shell(), Shell()
    await served.client_sends(heartbeat(1))
    assert silent.connection.is_new
    assert served.connection.is_new
    served.connection.bytes_came(Side.NODE, heartbeaten(1))
    assert not served.connection.is_new
    silent.clock.advance(1000)
    assert not silent.connection.is_new


async def test_a_connection_that_finishes_waits_until_quotas_are_written():
    shell = Shell()
    shell.connection.facts.may_alter = True
    await shell.client_sends(SET_ETL)
    shell.connection.finish()
    assert not shell.ended
    shell.written.set()
    await until(lambda: shell.client.written)
    shell.connection.finish()
    assert shell.ended == [CloseReason.SHUTDOWN]


async def test_a_throttle_is_logged_once_with_the_client_and_the_reason():
    with capture_logs() as logs:
        shell = Shell(produce=100)
        await shell.client_sends(produce(1, size=1500))
        shell.connection.give_up(CloseReason.SHUTDOWN)
    started, ended, _ = logs
    assert started["event"] == "throttle_started"
    assert (started["client_id"], started["entity"], started["limit"]) == ("etl", "client-id=etl", 100.0)
    assert (started["throttle_time_ms"], ended["throttles"]) == (5000, 1)


NAMES = {"user": "ANONYMOUS", "client_id": "etl", "entity": "client-id=etl", "quota_type": "produce", "node_id": 1}


def episodes_in(logs):
    """The log lines of throttle episodes, in their order: whether it is the start, and the keys."""
    return [(line["event"] == "throttle_started", line) for line in logs if line["event"].startswith("throttle_")]


async def test_both_log_lines_of_a_throttle_name_the_client_the_rule_and_the_node():
    with capture_logs() as logs:
        shell = Shell(produce=100)
        await shell.client_sends(produce(1, size=1500))
        shell.clock.advance(2000)
        shell.connection.give_up(CloseReason.SHUTDOWN)
    (_, started), (_, ended) = episodes_in(logs)
    assert started.items() >= NAMES.items()
    assert ended.items() >= NAMES.items()


async def test_of_a_mute_in_which_the_connection_closes_only_the_time_until_then_is_logged():
    with capture_logs() as logs:
        shell = Shell(produce=100)
        await shell.client_sends(produce(1, size=1500))
        shell.clock.advance(2000)
        assert len(shell.throttled) == 1
        shell.connection.give_up(CloseReason.SHUTDOWN)
    ended = episodes_in(logs)[1][1]
    assert (ended["duration_ms"], ended["throttled_ms"], ended["longest_throttle_time_ms"]) == (2000, 2000, 5000)
    assert len(shell.throttled) == 0


def throttle(shell, throttle_time_ms, client_id=b"etl", quota_type=QuotaType.PRODUCE):
    shell.connection._note_throttle(Throttled(quota_type, throttle_time_ms, client_id), shell.clock.now_us())


def look_after(shell):
    shell.connection.look_after(shell.clock.now_ms(), 1000, TimeOuts(0, 0, 0, 0))


async def test_an_episode_that_is_prolonged_is_one_and_ends_a_window_after_its_last_mute():
    with capture_logs() as logs:
        shell = Shell(produce=100)
        throttle(shell, 3000)
        shell.clock.advance(1000)
        throttle(shell, 4000)
        shell.clock.advance(6000)
        throttle(shell, 500)
        for _ in range(11):
            shell.clock.advance(1000)
            look_after(shell)
        assert len(shell.throttled) == 1
        shell.clock.advance(1000)
        look_after(shell)
    (is_start, _), (is_start_again, ended) = episodes_in(logs)
    assert (is_start, is_start_again) == (True, False)
    assert (ended["throttles"], ended["throttled_ms"], ended["duration_ms"]) == (3, 5500, 7500)
    assert len(shell.throttled) == 0


async def test_each_quota_that_throttles_a_connection_has_an_episode():
    with capture_logs() as logs:
        shell = Shell(produce=100, fetch=100)
        throttle(shell, 1000)
        throttle(shell, 2000, quota_type=QuotaType.FETCH)
        throttle(shell, 3000, quota_type=None)
        throttle(shell, 4000, b"another")
        assert len(shell.throttled) == 4
        shell.connection.give_up(CloseReason.SHUTDOWN)
    named = [(line["quota_type"], line["client_id"], line["entity"]) for start, line in episodes_in(logs) if start]
    rule = "client-id=etl"
    assert named == [
        *(("produce", "etl", rule), ("fetch", "etl", rule)),
        *(("node", "etl", None), ("produce", "another", None)),
    ]
    assert [start for start, _ in episodes_in(logs)] == [True] * 4 + [False] * 4


async def test_a_connection_has_few_episodes_at_a_time_and_ends_the_one_that_is_over_first():
    with capture_logs() as logs:
        shell = Shell()
        for number in range(20):
            throttle(shell, 100 + number, b"c%d" % number)
    assert len(shell.throttled) == 16
    assert [line["client_id"] for start, line in episodes_in(logs) if not start] == ["c0", "c1", "c2", "c3"]


async def test_a_bug_in_a_throttled_connection_leaves_no_client_in_the_list():
    with capture_logs():
        shell = Shell(produce=100)
        throttle(shell, 1000)
        shell.connection.relay = SimpleNamespace(on_lost=lambda reason: [])
        await shell.client_sends(heartbeat(1))
    assert shell.ended == [CloseReason.INTERNAL_ERROR]
    assert len(shell.throttled) == 0


@pytest.mark.rule("any bytes")
async def test_a_bug_of_ours_ends_this_connection_and_leaves_a_traceback():
    with capture_logs() as logs:
        shell = Shell()
        shell.connection.facts.listener.quota_manager = None
        await shell.client_sends(heartbeat(1))
    assert shell.ended == [CloseReason.INTERNAL_ERROR]
    assert logs[0]["event"] == "internal_error"
    assert shell.client.closed


async def test_a_bug_amid_what_a_relay_has_ended_with_leaves_nothing_open():
    shell = Shell()
    await shell.client_sends(heartbeat(1))
    shell.node.write = lambda pieces: 1 / 0
    with capture_logs():
        await shell.client_sends(heartbeat(2) + MALFORMED)
    assert shell.ended == [CloseReason.INTERNAL_ERROR]
    assert (shell.client.closed, shell.node.closed) == (True, True)


async def test_a_bug_amid_closing_leaves_what_is_open_to_be_aborted():
    shell = Shell()
    await shell.client_sends(heartbeat(1))
    shell.node.close = lambda: 1 / 0
    with capture_logs():
        await shell.client_sends(MALFORMED)
    assert (shell.ended, shell.lingering) == ([CloseReason.REQUEST_MALFORMED], True)


async def test_a_bug_amid_telling_an_end_leaves_nothing_open():
    shell = Shell()
    await shell.client_sends(heartbeat(1))
    shell.connection._tell_end = lambda close: 1 / 0
    with capture_logs():
        await shell.client_sends(MALFORMED)
    assert shell.ended == [CloseReason.INTERNAL_ERROR]
    assert (shell.client.closed, shell.node.closed) == (True, True)


class LostSocket(FakeStream):
    """A stream whose descriptor is not open any more, without its doing: whatever asks the kernel fails."""

    unread = taken_bytes = property(lambda self: self._fail(), lambda self, value: None)

    def _fail(self):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def close(self):
        self._fail()

    abort = close


async def test_a_socket_that_cannot_be_aborted_leaves_the_other_one_to_be():
    with capture_logs() as logs:
        shell = Shell(client=LostSocket())
        await shell.client_sends(heartbeat(1))
        shell.connection.abort()
    assert (shell.node.aborted, [line["event"] for line in logs]) == (True, ["internal_error"])


@pytest.mark.parametrize(
    "ask",
    [
        lambda connection: connection.leave(),
        lambda connection: connection.look_after(1000, 1000, TimeOuts()),
    ],
    ids=["leave", "look_after"],
)
async def test_a_socket_that_is_lost_ends_its_connection_and_nothing_around_it(ask):
    with capture_logs() as logs:
        shell = Shell(client=LostSocket())
        shell.client.unsent_bytes = 1
        ask(shell.connection)
    assert (shell.ended, shell.lingering) == ([CloseReason.INTERNAL_ERROR], True)
    assert {line["event"] for line in logs} == {"internal_error", "connection_closed"}


async def test_responses_reach_the_client():
    shell = Shell()
    await shell.client_sends(heartbeat(1))
    shell.connection.bytes_came(Side.NODE, heartbeaten(1))
    assert shell.client.written == heartbeaten(1)


def look(shell, seconds, **time_outs):
    """Look after a connection once a second."""
    for _ in range(seconds):
        shell.clock.advance(1000)
        shell.connection.look_after(shell.clock.now_ms(), 1000, TimeOuts(**time_outs))


async def test_a_client_that_is_too_slow_is_closed_once_and_logged_with_the_reason():
    with capture_logs() as logs:
        shell = Shell()
        look(shell, 60, first_byte_ms=5000)
    assert shell.ended == [CloseReason.FIRST_BYTE_TIMEOUT]
    assert (logs[-1]["reason"], logs[-1]["duration_ms"]) == ("first_byte_timeout", 6000)


@pytest.mark.parametrize("reset", [False, True])
async def test_a_connection_without_any_bytes_is_logged_at_debug(reset):
    with capture_logs() as logs:
        shell = Shell()
        if reset:
            shell.connection.lost(Side.CLIENT, ConnectionResetError())
        else:
            shell.connection.eof_came(Side.CLIENT)
    assert shell.ended == [CloseReason.CLIENT_SENT_NOTHING]
    assert [(line["reason"], line["log_level"]) for line in logs] == [("client_sent_nothing", "debug")]


@pytest.mark.parametrize(
    "sent", [heartbeat(1)[:6], produce(1, size=2_000)[:500], heartbeat(1)], ids=["a head", "a body", "one request"]
)
@pytest.mark.parametrize(("news", "level"), [(True, "info"), (False, "debug")])
async def test_a_client_that_leaves_after_one_request_or_less_is_logged_like_a_mistake(sent, news, level):
    with capture_logs() as logs:
        shell = Shell()
        shell.is_worth_a_line = lambda connection, reason, detail: news
        await shell.client_sends(sent)
        shell.connection.eof_came(Side.CLIENT)
    assert [(line["reason"], line["log_level"]) for line in logs] == [("client_closed", level)]


async def test_a_client_that_leaves_after_several_requests_and_a_while_has_a_line():
    with capture_logs() as logs:
        shell = Shell()
        shell.is_worth_a_line = lambda connection, reason, detail: False
        await shell.client_sends(heartbeat(1) + heartbeat(2))
        shell.clock.advance(1_000)
        shell.connection.eof_came(Side.CLIENT)
    assert [(line["reason"], line["log_level"]) for line in logs] == [("client_closed", "info")]


async def test_time_in_which_a_cap_keeps_the_client_from_being_read_is_not_its_own():
    shell = Shell()
    await shell.client_sends(heartbeat(1)[:6])
    for _ in range(60):
        shell.connection.reading_waits(Side.CLIENT)
        look(shell, 1, request_ms=5000)
    assert shell.ended == []
    look(shell, 6, request_ms=5000)
    assert shell.ended == [CloseReason.REQUEST_TIMEOUT]


async def test_a_client_that_reads_none_of_its_responses_is_closed():
    shell = Shell()
    await shell.client_sends(heartbeat(1))
    shell.client.unsent_bytes = 1000
    for sent in range(3):
        shell.client.taken_bytes = sent
        look(shell, 5, unread_ms=5000)
    assert shell.ended == []
    look(shell, 1, unread_ms=5000)
    assert shell.ended == [CloseReason.CLIENT_READS_NOTHING]


async def test_an_idle_connection_is_not_logged_as_a_fault():
    with capture_logs() as logs:
        shell = Shell()
        await shell.client_sends(heartbeat(1))
        shell.connection.bytes_came(Side.NODE, heartbeaten(1))
        look(shell, 60, idle_ms=5000)
    assert shell.ended == [CloseReason.IDLE_TIMEOUT]
    assert logs[-1]["log_level"] == "info"


async def test_the_end_of_a_connection_names_the_user_that_logged_in_and_how():
    with capture_logs() as logs:
        shell = Shell(limits=RelayLimits(authenticates=True))
        shell.connection.facts.user = ""
        for ask, response in ((handshake(), handshaken()), (authenticate(plain(b"ali\nce")), authenticated())):
            await shell.client_sends(ask)
            shell.connection.bytes_came(Side.NODE, response)
        shell.connection.eof_came(Side.CLIENT)
    [line] = [line for line in logs if line["event"] == "connection_closed"]
    assert (line["user"], line["mechanism"], line["reason"]) == ("ali\\nce", "PLAIN", "client_closed")
    assert "secret" not in repr(logs)


def api_versions(version, body, client_id=b"etl"):
    head = pack(">hhih", 18, version, 7, len(client_id)) + client_id
    return frame(head + (b"\0" if version >= 3 else b"") + body)


def compact(text):
    return bytes([len(text) + 1]) + text


SOFTWARE = compact(b"apache-kafka-java") + compact(b"4.3.1")


@pytest.mark.parametrize(
    ("first", "client"),
    {
        "version 3": (api_versions(3, SOFTWARE + b"\0"), ("etl", "apache-kafka-java", "4.3.1")),
        "version 4": (api_versions(4, SOFTWARE + b"\0"), ("etl", "apache-kafka-java", "4.3.1")),
        "a hostile name": (api_versions(3, compact(b"a\nb") + compact(b"\xff") + b"\0"), ("etl", "a\\nb", "\ufffd")),
        "before KIP-511": (api_versions(2, b""), ("etl", "", "")),
        "no client-id": (api_versions(3, SOFTWARE + b"\0", client_id=b""), ("", "apache-kafka-java", "4.3.1")),
        "another API": (heartbeat(1, client_id=b"etl"), ("etl", "", "")),
        "a large request": (produce(1, size=10_000, client_id=b"etl"), ("etl", "", "")),
    }.values(),
)
async def test_the_end_of_a_connection_names_the_client_id_and_the_software_of_the_client(first, client):
    with capture_logs() as logs:
        shell = Shell()
        await shell.client_sends(first)
        shell.connection.eof_came(Side.NODE)
    [line] = [line for line in logs if line["event"] == "connection_closed"]
    assert (line["client_id"], line["software_name"], line["software_version"]) == client


async def test_a_client_that_names_its_software_only_after_its_login_is_named():
    with capture_logs() as logs:
        shell = Shell(limits=RelayLimits(authenticates=True))
        await shell.client_sends(api_versions(0, b""))
        shell.connection.bytes_came(Side.NODE, frame(pack(">ihi", 7, 0, 0)))
        for ask, response in ((handshake(), handshaken()), (authenticate(plain(b"alice")), authenticated())):
            await shell.client_sends(ask)
            shell.connection.bytes_came(Side.NODE, response)
        await shell.client_sends(api_versions(4, SOFTWARE + b"\0"))
        await shell.client_sends(heartbeat(1, client_id=b"etl"))
        shell.connection.eof_came(Side.CLIENT)
    [line] = [line for line in logs if line["event"] == "connection_closed"]
    assert (line["user"], line["client_id"]) == ("alice", "etl")
    assert (line["software_name"], line["software_version"]) == ("apache-kafka-java", "4.3.1")


@pytest.mark.parametrize(
    ("requests", "lasted_ms", "end", "is_counted"),
    [
        (1, 60_000, "close", True),
        (5, 999, "close", True),
        (5, 1_000, "close", False),
        (5, 60_000, "reset", True),
    ],
)
async def test_an_end_that_a_client_can_repeat_without_limit_is_counted_before_it_is_logged(
    requests, lasted_ms, end, is_counted
):
    shell, asked = Shell(), []
    shell.is_worth_a_line = lambda connection, reason, detail: asked.append((reason, detail))
    for number in range(requests):
        await shell.client_sends(heartbeat(number))
        shell.connection.bytes_came(Side.NODE, heartbeaten(number))
    shell.clock.advance(lasted_ms)
    if end == "reset":
        shell.connection.lost(Side.CLIENT, ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
    else:
        shell.connection.eof_came(Side.CLIENT)
    ends = {"reset": (CloseReason.CLIENT_LOST, "Connection reset by peer"), "close": (CloseReason.CLIENT_CLOSED, "")}
    assert asked == [ends[end]] * is_counted


async def test_a_client_that_sent_no_whole_head_has_no_name():
    with capture_logs() as logs:
        shell = Shell()
        await shell.client_sends(b"\0\0")
        shell.connection.eof_came(Side.CLIENT)
    assert (logs[-1]["event"], logs[-1]["client_id"]) == ("connection_closed", "")


async def logs_in_and_ends(*steps, news=True):
    """The log line of a connection that its node ends, and the events that were to be logged."""
    reported = []
    with capture_logs() as logs:
        shell = Shell(limits=RelayLimits(authenticates=True))
        shell.connection.facts.user = ""
        shell.is_worth_a_line = lambda connection, reason, detail: reported.append((reason, detail)) or news
        for ask, response in steps:
            await shell.client_sends(ask)
            shell.connection.bytes_came(Side.NODE, response)
        shell.connection.eof_came(Side.NODE)
    assert "secret" not in repr(logs)
    [line] = [line for line in logs if line["event"] == "connection_closed"]
    return line, reported


ASKED = (handshake(), handshaken())


async def test_a_login_that_failed_is_logged_with_the_mechanism_the_claimed_user_and_the_nodes_message():
    refused = authenticated(error=58, text=b"Authentication failed: Invalid\nusername or password")
    line, reported = await logs_in_and_ends(ASKED, (authenticate(plain(b"ali\nce")), refused))
    assert (line["user"], line["reason"], line["log_level"]) == (None, "authentication_failed", "warning")
    assert (line["mechanism"], line["claimed_user"]) == ("PLAIN", "ali\\nce")
    assert line["error"] == "SASL_AUTHENTICATION_FAILED"
    assert line["error_message"] == "Authentication failed: Invalid\\nusername or password"
    [(reason, detail)] = reported
    assert reason is CloseReason.AUTHENTICATION_FAILED
    assert detail.startswith("PLAIN, ali\\nce, SASL_AUTHENTICATION_FAILED, ")


FAILURES = {
    "an unknown mechanism": (
        ((handshake("OTHER"), handshaken(error=33)),),
        "OTHER",
        None,
        "UNSUPPORTED_SASL_MECHANISM",
    ),
    "a node that only closes": (
        ((handshake(version=0), handshaken()), (frame(plain(b"a" * 999)), b"")),
        "PLAIN",
        "a" * 127 + "…",
        None,
    ),
    "SCRAM": (
        (
            (handshake("SCRAM-SHA-256"), handshaken()),
            (authenticate(scram_first("alice")), authenticated(b"e=unknown-user")),
        ),
        "SCRAM-SHA-256",
        "alice",
        None,
    ),
}


@pytest.mark.parametrize("case", FAILURES)
async def test_a_login_may_fail_in_other_ways(case):
    steps, mechanism, claimed, error = FAILURES[case]
    line, _ = await logs_in_and_ends(*steps)
    assert line["reason"] == "authentication_failed"
    assert (line["mechanism"], line["claimed_user"], line["error"]) == (mechanism, claimed, error)
    assert line["error_message"] == ("unknown-user" if case == "SCRAM" else None)


async def test_the_same_mistake_of_a_client_again_is_logged_at_debug():
    line, _ = await logs_in_and_ends(ASKED, (authenticate(plain(b"alice")), authenticated(error=58)), news=False)
    assert line["log_level"] == "debug"


@pytest.mark.rule("mute")
async def test_a_client_over_its_quota_is_throttled_until_its_throttle_time_is_over():
    shell = Shell(produce=100.0)
    await shell.client_sends(produce(1, size=10_000))
    now_ms = shell.clock.now_ms()
    assert shell.connection.is_throttled(now_ms)
    assert not shell.connection.is_throttled(now_ms + 3_600_000)
    assert not Shell().connection.is_throttled(now_ms)


def latencies(shell):
    """How many requests and responses of each API were measured, and the sum of their times in ms."""
    return {
        (side, api_key): (sum(histogram.counts), histogram.sum_us / 1000)
        for (side, api_key), histogram in shell.latency.histograms.items()
    }


async def test_the_latency_of_a_sample_is_measured_until_all_is_written():
    shell = Shell(produce=100)
    await shell.client_sends(heartbeat(1))
    assert latencies(shell) == {}
    shell.connection.bytes_came(Side.NODE, heartbeaten(1))
    began_us = shell.clock.now_us()
    shell.clock.advance(3)
    written = shell.connection.sampled_bytes_came(Side.CLIENT, heartbeat(2) + heartbeat(3), began_us)
    shell.clock.advance(4)
    written()
    assert latencies(shell) == {(Side.CLIENT, HEARTBEAT): (2, 14)}
    written = shell.connection.sampled_bytes_came(Side.NODE, heartbeaten(2), shell.clock.now_us() - 2000)
    written()
    assert latencies(shell)[Side.NODE, HEARTBEAT] == (1, 2)


async def test_what_a_mute_holds_back_is_not_in_the_measured_latency():
    shell = Shell(produce=100)
    await shell.client_sends(produce(1, size=1500))
    began_us = shell.clock.now_us()
    shell.connection.sampled_bytes_came(Side.CLIENT, heartbeat(2), began_us)()
    assert shell.node.written == produce(1, size=1500)
    assert latencies(shell) == {}


async def test_the_log_line_at_the_end_has_only_the_part_of_a_mute_until_then():
    with capture_logs() as logs:
        shell = Shell(produce=100)
        await shell.client_sends(produce(1, size=1500))
        shell.clock.advance(2000)
        shell.connection.give_up(CloseReason.SHUTDOWN)
    [closed] = [line for line in logs if line["event"] == "connection_closed"]
    assert closed["throttled_ms"] == 2000
