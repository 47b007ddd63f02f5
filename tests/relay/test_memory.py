"""The memory for messages held whole is bounded: a relay without room waits, is not read, and gets its turn."""

import random

import pytest

from kafka_throttle.protocol.frames import MAX_ASKED_BYTES, MAX_SASL_BYTES
from kafka_throttle.proxy.relay.actions import AwaitMemory, CloseReason, RelayLimits
from kafka_throttle.proxy.relay.connection_timeouts import WaitingFor
from kafka_throttle.proxy.relay.memory import MEMORY_BYTES, SMALL_BYTES, Holding, Memory
from kafka_throttle.proxy.relay.relay import Relay
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.entities import Entity, QuotaType
from kafka_throttle.quotas.fair_queue import Whose
from tests.relay.script import NOW_US, Script, manager_of
from tests.support.sasl_frames import authenticate, log_in
from tests.support.topic_frames import delete_topics, metadata_by_name

MIB = 1 << 20
ALL_AT_ONCE = MEMORY_BYTES // 2 // (2 * MIB)
OF_ONE = MEMORY_BYTES // 8 // (2 * MIB)


class Client:
    """The owner of a holding."""

    def __init__(self, entity):
        self.whose = Whose(entity, self)


def request(size_bytes):
    """A request about topics of so many bytes, or a few less."""
    return delete_topics(5, [b"t" * 200] * (size_bytes // 202))


def frames_of(data):
    """The frames that these bytes are."""
    frames = []
    while data:
        size_bytes = 4 + int.from_bytes(data[:4], "big")
        frames.append(bytes(data[:size_bytes]))
        data = data[size_bytes:]
    return frames


LARGE = request(MIB - 1000)
MUTATIONS = {Entity(client_id="etl"): {QuotaType.CONTROLLER_MUTATION: 1e6}}


class Party:
    """Relays that share a memory."""

    def __init__(self):
        self.memory = Memory()
        self.quota_manager = manager_of(MUTATIONS)
        self.scripts = []

    def script(self, entity):

        def make(*arguments):
            return Relay(*arguments, self.memory, Client(entity))

        script = Waiting(make, self.quota_manager, checks_usage=False)
        self.scripts.append(script)
        return script.connected()

    def serve(self):
        served = self.memory.serve()
        for holding in served:
            if holding.wake is not None:
                holding.wake()
        return len(served)

    @property
    def held_bytes(self):
        return sum(max(one.relay.held_bytes - SMALL_BYTES, 0) for one in self.scripts)


class Waiting(Script):
    """A script that is woken when there is room."""

    def do(self, actions, *times):
        for action in actions:
            if isinstance(action, AwaitMemory):
                action.holding.wake = lambda: self.do(self.relay.on_memory(NOW_US))
        super().do(actions, *times)


@pytest.fixture
def party():
    return Party()


def test_frames_that_never_end_of_many_entities_are_collected_a_few_at_a_time(party):
    scripts = [party.script(f"10.0.0.{number}") for number in range(3 * ALL_AT_ONCE)]
    for script in scripts:
        script.client(LARGE[:500])
        if script.reads[Side.CLIENT]:
            script.client(LARGE[500:-1])
    assert sum(script.reads[Side.CLIENT] for script in scripts) == ALL_AT_ONCE
    assert party.held_bytes <= MEMORY_BYTES // 4
    assert party.memory.waiting == 2 * ALL_AT_ONCE


def test_one_entity_has_its_own_bound_so_that_others_do_not_wait(party):
    hostile = [party.script("10.0.0.1") for _ in range(150)]
    for script in hostile:
        script.client(LARGE[:500])
    assert sum(script.reads[Side.CLIENT] for script in hostile) == OF_ONE
    assert not party.memory.crowded
    other = party.script("10.0.0.2")
    other.client(LARGE)
    assert other.sent[Side.NODE]


def test_a_small_request_never_waits(party):
    for number in range(2 * ALL_AT_ONCE):
        party.script(f"10.0.0.{number}").client(LARGE[:500])
    assert party.memory.crowded
    small = party.script("10.0.1.1")
    small.client(delete_topics(5, [b"t"]))
    assert small.sent[Side.NODE]


def test_the_turn_comes_when_another_has_ended(party):
    scripts = [party.script(f"10.0.0.{number}") for number in range(ALL_AT_ONCE + 1)]
    for script in scripts:
        script.client(LARGE[:500])
    last = scripts[-1]
    assert (last.reads[Side.CLIENT], last.relay.waiting_for) == (False, WaitingFor.NOTHING)
    assert scripts[0].relay.waiting_for is WaitingFor.CROWDED_REQUEST
    scripts[0].do(scripts[0].relay.on_lost(CloseReason.REQUEST_TIMEOUT, "", NOW_US))
    assert party.serve() == 1
    assert (last.reads[Side.CLIENT], scripts[1].relay.waiting_for) == (True, WaitingFor.REQUEST)
    last.client(LARGE[500:])
    assert last.sent[Side.NODE]


def test_who_waits_for_its_own_entity_does_not_hasten_others(party):
    scripts = [party.script("10.0.0.1") for _ in range(OF_ONE + 1)]
    for script in scripts:
        script.client(LARGE[:500])
    assert scripts[0].relay.waiting_for is WaitingFor.REQUEST
    scripts[0].do(scripts[0].relay.on_eof(Side.CLIENT, NOW_US))
    assert party.serve() == 1
    assert scripts[-1].reads[Side.CLIENT]


def test_of_those_that_wait_for_their_own_entity_one_that_hangs_up_lets_the_next_one_come():
    memory = Memory(100 * SMALL_BYTES)
    holdings = [Holding(memory, Client("one")) for _ in range(3)]
    assert [one.may_hold_request(10 * SMALL_BYTES) for one in holdings] == [True, False, False]
    holdings[0].close()
    holdings[1].close()
    assert memory.serve() == [holdings[2]]


def test_of_those_that_wait_for_their_own_entity_only_as_many_are_looked_at_as_there_is_room_for():
    memory, owner = Memory(100 * SMALL_BYTES), Client("one")
    waiting = [Holding(memory, owner) for _ in range(50)]
    assert sum(one.may_hold_request(10 * SMALL_BYTES) for one in waiting) == 1
    waiting[0].close()
    assert memory.crowded
    assert memory.serve() == [waiting[1]]
    small = Holding(memory, owner)
    small.settle(0, 0, 2 * SMALL_BYTES)
    small.settle(0, 0, 0)
    assert not memory.crowded


def test_who_waits_and_hangs_up_has_no_turn_any_more(party):
    scripts = [party.script(f"10.0.0.{number}") for number in range(ALL_AT_ONCE + 2)]
    for script in scripts:
        script.client(LARGE[:500])
    scripts[-2].do(scripts[-2].relay.on_lost(CloseReason.CLIENT_LOST, "", NOW_US))
    scripts[0].do(scripts[0].relay.on_lost(CloseReason.CLIENT_LOST, "", NOW_US))
    assert party.serve() == 1
    assert scripts[-1].reads[Side.CLIENT]


@pytest.mark.parametrize("entities", [1, 300])
def test_what_has_come_of_requests_that_wait_does_not_keep_them_from_their_turns(party, entities):
    """A read takes up to a quarter of a MiB: what has come of 300 requests is more than the memory."""
    waiting = [party.script(f"10.0.{number % entities}.1") for number in range(300)]
    for script in waiting:
        script.client(LARGE[:262_144])
    assert party.memory.taken_bytes > MEMORY_BYTES
    for _ in range(300 // OF_ONE):
        for script in waiting:
            if script.reads[Side.CLIENT]:
                script.do(script.relay.on_lost(CloseReason.CLIENT_LOST, "", NOW_US))
        waiting = [script for script in waiting if script.closed is None]
        party.serve()
    assert waiting == []
    assert (party.memory.taken_bytes, party.memory.waiting) == (0, 0)


def test_who_waits_has_room_that_a_request_no_longer_takes_though_more_is_kept_for_it(party):
    memory, changes = Memory(100 * SMALL_BYTES), []
    memory.on_change = lambda: changes.append(memory.serve())
    first, second = (Holding(memory, Client(name)) for name in ("first", "second"))
    assert first.may_hold_request(20 * SMALL_BYTES)
    assert not second.may_hold_request(20 * SMALL_BYTES)
    first.settle(0, 0, 60 * SMALL_BYTES)
    assert changes[-1] == [second]


def test_what_was_taken_for_a_request_is_given_back_when_it_is_no_longer_needed_whole(party):
    script = party.script("10.0.0.1")
    script.client(LARGE[:500])
    assert party.memory.taken_bytes == 2 * (len(LARGE) - 4)
    party.quota_manager.replace(manager_of().table, 0)
    script.client(LARGE[500:1000])
    assert party.memory.taken_bytes == 0


def test_a_frame_of_an_authentication_is_as_large_as_at_a_broker():
    whole = authenticate(bytes(MAX_SASL_BYTES))
    script = Script(Relay).connected()
    script.client(whole[:100])
    assert (script.close_reason, script.closed.detail) == (
        CloseReason.REQUEST_TOO_LARGE,
        f"SaslAuthenticate: {len(whole) - 4} bytes announced, 524288 allowed",
    )
    assert MAX_SASL_BYTES < MAX_ASKED_BYTES
    log_in(Script(Relay).connected())


def test_what_a_client_that_reads_nothing_is_still_to_get_counts_beyond_what_any_may_buffer(party):
    script, limits = party.script("10.0.0.1"), RelayLimits()
    script.do(script.relay.on_blocked(Side.CLIENT, 2 * limits.max_kept_bytes + 20 * MIB))
    assert party.memory.taken_bytes == 20 * MIB
    script.do(script.relay.on_writable(Side.CLIENT, NOW_US))
    assert party.memory.taken_bytes == 0


def test_there_is_room_for_one_response_more_than_there_is_room_for(party):
    memory = Memory(100 * SMALL_BYTES)
    holdings = [Holding(memory, Client(str(number))) for number in range(3)]
    assert [one.may_hold_response(40 * SMALL_BYTES) for one in holdings] == [True, True, False]
    holdings[0].settle(0, 0, 0)
    assert memory.serve() == []  # there is room for a fifth, and the second has what exceeds it
    holdings[1].settle(0, 0, 0)
    assert memory.serve() == [holdings[2]]


def test_a_response_does_not_wait_for_a_request_which_waits_until_there_was_a_response(party):
    """Requests to delete topics hold a half of the memory until the node has said how many partitions they have."""
    holders = [party.script(f"10.0.0.{number}") for number in range(ALL_AT_ONCE)]
    for script in holders:
        script.client(LARGE)
    last = party.script("10.0.1.1")
    last.client(LARGE[:500])
    assert not last.reads[Side.CLIENT]
    for script in holders:
        [asked] = frames_of(script.sent[Side.NODE])
        corr = int.from_bytes(asked[8:12], "big", signed=True)
        script.node(metadata_by_name(corr, {b"%d" % number: 1 for number in range(1000)}))
        party.serve()
    assert [len(frames_of(script.sent[Side.NODE])) for script in holders] == [2] * len(holders)
    assert last.reads[Side.CLIENT]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_clients_do_all_hold_no_more_than_the_bound_and_each_whole_request_gets_its_turn(party, seed):
    """Clients that send a large request whole, in pieces, or never to its end, and that hang up; those that hinder
    others are closed, as the timeout does it."""
    rng = random.Random(seed)
    frames = [request(rng.randrange(1000, MIB - 1000)) for _ in range(5)]
    clients = []
    for number in range(60):
        frame, ends = rng.choice(frames), rng.random() < 0.6
        clients.append([party.script(f"10.0.0.{rng.randrange(1 + number // 2)}"), frame, 0, ends])
    for _ in range(20_000):
        open_ones = [one for one in clients if one[0].closed is None and not one[0].sent[Side.NODE]]
        if not open_ones:
            break
        one = rng.choice(open_ones)
        script, frame, at, ends = one
        if rng.random() < 0.002:
            script.do(script.relay.on_lost(CloseReason.CLIENT_LOST, "", NOW_US))
        elif script.reads[Side.CLIENT] and at < len(frame) - (not ends):
            size = min(rng.choice((512, 65_536, 262_144)), len(frame) - (not ends) - at)
            one[2] = at + size
            script.client(frame[at : at + size])
        elif script.relay.waiting_for is WaitingFor.CROWDED_REQUEST or (not ends and rng.random() < 0.1):
            script.do(script.relay.on_lost(CloseReason.REQUEST_TIMEOUT, "", NOW_US))
        party.serve()
        assert party.memory.taken_bytes <= MEMORY_BYTES
        assert party.held_bytes <= party.memory.taken_bytes
    assert not open_ones
    assert all(script.sent[Side.NODE] for script, _, _, ends in clients if ends and script.closed is None)
    for script, *_ in clients:
        script.do(script.relay.on_lost(CloseReason.SHUTDOWN, "", NOW_US)) if script.closed is None else None
    assert (party.memory.taken_bytes, party.memory.waiting) == (0, 0)
