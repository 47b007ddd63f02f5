"""Byte caps: together readers get what the cap allows, each has its turn, and every wait ends."""

import heapq
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.quotas.byte_caps import BURST_MS, ByteCap, Turnstile
from kafka_throttle.quotas.fair_queue import Whose


class World:
    """Fake time: calls back what was asked for, in order."""

    def __init__(self):
        self.now_ms = 1_000
        self._events = []
        self._called_off = set()
        self.pumps = 0
        self.turns = []
        """Who has read, in order."""
        self._order = count()

    def after(self, ms, call):
        number = next(self._order)
        heapq.heappush(self._events, (self.now_ms + ms, number, call))
        return lambda: self._called_off.add(number)

    def cap(self, limit=None):
        cap = ByteCap(lambda ms: self.after(ms, lambda: self.pump(cap)))
        cap.set_limit(limit, self.now_ms)
        return cap

    def pump(self, cap):
        self.pumps += 1
        cap.pump(self.now_ms)

    def run_until(self, end_ms):
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, number, call = heapq.heappop(self._events)
            if number not in self._called_off:
                call()
        self.now_ms = end_ms


class Greedy:
    """Always has `size` bytes to read, `pause_ms` after the last ones. Without an entity it is one for itself."""

    def __init__(self, world, turnstile, size=1 << 30, pause_ms=0, entity=None, client_id=""):
        self.world, self.turnstile, self.size, self.pause_ms = world, turnstile, size, pause_ms
        self.whose_turns = Whose(str(id(self)) if entity is None else entity, client_id)
        self.began_to_wait = None
        self.most_turns_waited = 0
        self.read = self.turns = 0
        self.waiting_since = None
        self.longest_wait_ms = 0
        world.after(0, self.want)

    def want(self):
        if not self.turnstile.caps:
            self._take(self.size)
            return
        room = self.turnstile.ask(self, self.world.now_ms)
        if room:
            self.turnstile.took(room, self._take(room), self.world.now_ms)
        else:
            self.waiting_since, self.began_to_wait = self.world.now_ms, len(self.world.turns)

    def whose(self):
        return self.whose_turns

    def turn_came(self, most_bytes):
        self.most_turns_waited = max(self.most_turns_waited, len(self.world.turns) - self.began_to_wait)
        self.longest_wait_ms = max(self.longest_wait_ms, self.world.now_ms - self.waiting_since)
        self.waiting_since = None
        return self._take(most_bytes)

    def _take(self, room):
        read = min(room, self.size)
        self.read += read
        self.turns += 1
        self.world.turns.append(self.whose_turns.entity)
        self.world.after(max(self.pause_ms, 1), self.want)
        return read


@pytest.mark.rule("cap")
@pytest.mark.parametrize("limit", [1, 100, 10_000, 1_000_000, 100_000_000])
@pytest.mark.parametrize("readers", [1, 2, 20])
def test_all_together_get_the_cap_and_each_the_same(limit, readers):
    world = World()
    turnstile = Turnstile([world.cap(limit)])
    turnstile.take_up()
    all_readers = [Greedy(world, turnstile) for _ in range(readers)]
    seconds = 10 if limit > 10_000 else 200_000 if limit < 10_000 else 100
    world.run_until(world.now_ms + 1000 * seconds)
    total = sum(reader.read for reader in all_readers)
    most_ahead = turnstile.caps[0].turn_bytes
    assert limit * seconds - most_ahead <= total <= limit * (seconds + BURST_MS / 1000) + most_ahead
    reads = [reader.read for reader in all_readers]
    assert max(reads) - min(reads) <= 2 * most_ahead


def test_a_reader_of_few_bytes_waits_no_longer_than_a_round():
    world = World()
    turnstile = Turnstile([world.cap(100_000)])
    turnstile.take_up()
    greedy = [Greedy(world, turnstile) for _ in range(20)]
    modest = Greedy(world, turnstile, size=50, pause_ms=500)
    world.run_until(60_000)
    round_ms = 1000 * 21 * turnstile.caps[0].turn_bytes / 100_000
    assert modest.turns > 40
    assert modest.longest_wait_ms <= round_ms + 100
    assert max(reader.longest_wait_ms for reader in greedy) <= round_ms + 100


def test_a_quiet_reader_leaves_its_share_to_others():
    world = World()
    turnstile = Turnstile([world.cap(100_000)])
    turnstile.take_up()
    greedy = Greedy(world, turnstile)
    Greedy(world, turnstile, size=10, pause_ms=100)
    world.run_until(101_000)
    assert greedy.read > 0.98 * 100_000 * 100


def test_the_smaller_of_two_caps_counts():
    world = World()
    of_listener, of_cluster = world.cap(50_000), world.cap(200_000)
    here, there = Turnstile([of_listener, of_cluster]), Turnstile([of_cluster])
    for turnstile in (here, there):
        turnstile.take_up()
    readers = [Greedy(world, here) for _ in range(4)]
    others = [Greedy(world, there) for _ in range(4)]
    world.run_until(101_000)
    assert sum(reader.read for reader in readers) == pytest.approx(50_000 * 100, rel=0.05)
    assert sum(reader.read for reader in others) == pytest.approx(150_000 * 100, rel=0.05)
    assert of_cluster.read_bytes == sum(reader.read for reader in (*readers, *others))


def test_a_cap_that_is_removed_ends_all_waits_and_a_raised_one_counts_at_once():
    world = World()
    cap = world.cap(1)
    turnstile = Turnstile([cap])
    turnstile.take_up()
    readers = [Greedy(world, turnstile, size=1000, pause_ms=1000) for _ in range(5)]
    world.run_until(50_000)
    assert cap.waiting == 5
    cap.set_limit(1_000_000, world.now_ms)
    world.run_until(53_000)
    assert all(reader.turns > 1 for reader in readers)
    cap.set_limit(2, world.now_ms)
    world.run_until(60_000)
    cap.set_limit(None, world.now_ms)
    turnstile.take_up()
    assert cap.waiting == 0
    assert turnstile.caps == ()


def test_a_reader_that_is_gone_when_its_turn_comes_takes_nothing_from_the_others():
    world = World()
    cap = world.cap(1000)
    turnstile = Turnstile([cap])
    turnstile.take_up()
    gone = [Greedy(world, turnstile) for _ in range(10)]
    for reader in gone:
        reader._take = lambda _room: 0
    world.run_until(2_000)
    stays = Greedy(world, turnstile)
    world.run_until(102_000)
    assert stays.read == pytest.approx(100_000, rel=0.05)


def capped(world, limit=1_000_000):
    turnstile = Turnstile([world.cap(limit)])
    turnstile.take_up()
    return turnstile


@pytest.mark.rule("cap")
def test_beside_two_hundred_connections_of_one_entity_a_small_client_waits_for_two_turns_at_most():
    world = World()
    turnstile = capped(world)
    tenant = [Greedy(world, turnstile, entity="tenant") for _ in range(200)]
    small = Greedy(world, turnstile, size=200, pause_ms=300, entity="small")
    world.run_until(60_000)
    assert small.turns > 100
    assert small.most_turns_waited <= 2
    assert small.longest_wait_ms <= 2 * 1000 * turnstile.caps[0].turn_bytes / 1_000_000 + 10
    assert max(one.read for one in tenant) - min(one.read for one in tenant) <= 2 * turnstile.caps[0].turn_bytes


def test_a_client_waits_for_one_turn_of_each_other_entity_at_most():
    world = World()
    turnstile = capped(world)
    for number in range(10):
        for _ in range(1 + 7 * number):
            Greedy(world, turnstile, entity=f"tenant {number}")
    small = Greedy(world, turnstile, size=200, pause_ms=300, entity="small")
    world.run_until(60_000)
    assert small.turns > 50
    assert small.most_turns_waited <= 11


def test_at_one_address_a_client_waits_for_one_turn_of_each_other_client_id_at_most():
    world = World()
    turnstile = capped(world)
    for number in range(200):
        Greedy(world, turnstile, entity="192.0.2.1", client_id=f"batch {number % 2}")
    small = Greedy(world, turnstile, size=200, pause_ms=300, entity="192.0.2.1", client_id="small")
    world.run_until(60_000)
    assert small.turns > 100
    assert small.most_turns_waited <= 3


def test_an_entity_of_small_reads_gets_what_it_asks_for_beside_one_of_large_reads():
    world = World()
    turnstile = capped(world)
    bulk = Greedy(world, turnstile, entity="bulk")
    small = [Greedy(world, turnstile, size=500, pause_ms=50, entity="small") for _ in range(40)]
    began_ms = world.now_ms
    world.run_until(began_ms + 60_000)
    wanted = 40 * 500 * 60_000 / 50
    assert sum(one.read for one in small) > 0.6 * wanted  # each of its reads also waits for a turn of the other
    assert max(one.longest_wait_ms for one in small) <= 3 * 1000 * turnstile.caps[0].turn_bytes / 1_000_000
    assert bulk.read > 0.5 * 1_000_000 * 60


def test_entities_that_all_want_more_get_about_the_same_bytes_however_small_their_reads_are():
    world = World()
    turnstile = capped(world)
    of = {
        entity: [Greedy(world, turnstile, size, entity=entity) for _ in range(number)]
        for entity, size, number in (("large", 1 << 30, 3), ("middle", 7_000, 30), ("small", 700, 300))
    }
    world.run_until(101_000)
    read = {entity: sum(one.read for one in readers) for entity, readers in of.items()}
    assert max(read.values()) < 2 * min(read.values()), read


@settings(max_examples=30, deadline=None)
@given(
    limits=st.tuples(st.integers(10_000, 10**7), st.none() | st.integers(10_000, 10**7)),
    readers=st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from("xy"), st.integers(1, 10**6), st.integers(0, 300)),
        min_size=2,
        max_size=30,
    ),
)
def test_whoever_reads_how_much_no_client_starves_and_no_byte_is_counted_twice(limits, readers):
    world = World()
    caps = [world.cap(limit) for limit in limits]
    turnstile = Turnstile(caps)
    turnstile.take_up()
    everybody = [Greedy(world, turnstile, size, pause, entity, name) for entity, name, size, pause in readers]
    began_ms, slowest = world.now_ms, min(limit for limit in limits if limit)
    entities = len({entity for entity, *_ in readers})
    longest_ms = 2 * 2 * (len(readers) + entities) * 1000 * max(cap.turn_bytes for cap in turnstile.caps) / slowest
    world.run_until(began_ms + 1000 + int(2 * longest_ms))
    assert all(reader.turns > 0 and reader.longest_wait_ms <= longest_ms + 500 for reader in everybody)
    for reader in everybody:
        turnstile.call_off(reader, world.now_ms)
    for cap in turnstile.caps:
        assert cap.waiting == 0
        assert cap.read_bytes == sum(reader.read for reader in everybody)


def test_a_reader_that_has_left_waits_no_longer_and_gives_back_what_was_reserved():
    world = World()
    of_listener, of_cluster = world.cap(1_000_000), world.cap(1_000)
    turnstile = Turnstile([of_listener, of_cluster])
    turnstile.take_up()
    readers = [Greedy(world, turnstile) for _ in range(100)]
    world.run_until(3_000)
    waiting = of_listener.waiting + of_cluster.waiting
    assert waiting > 90
    for reader in readers:
        turnstile.call_off(reader, world.now_ms)
        turnstile.call_off(reader, world.now_ms)
    assert of_listener.waiting == of_cluster.waiting == 0
    assert of_listener.read_bytes == of_cluster.read_bytes == sum(reader.read for reader in readers)


def test_a_turn_that_ends_the_connection_of_another_reader_takes_its_place_in_the_queue_away():
    world = World()
    cap = world.cap(1_000)
    turnstile = Turnstile([cap])
    turnstile.take_up()
    first, second = (Greedy(world, turnstile, entity="one") for _ in range(2))
    Greedy(world, turnstile, entity="other")
    world.run_until(1_002)
    assert cap.waiting == 3
    read = []

    def reads_and_ends(reader, other):
        def take(_room):
            read.append(reader)
            turnstile.call_off(other, world.now_ms)
            return 0

        reader._take = take

    reads_and_ends(first, second)
    reads_and_ends(second, first)
    cap.set_limit(None, world.now_ms)
    assert (cap.waiting, len(read)) == (0, 1)


@settings(max_examples=40, deadline=None)
@given(
    limits=st.tuples(*(st.none() | st.integers(1, 10**7),) * 2),
    readers=st.lists(st.tuples(st.integers(5_000, 10**6), st.integers(0, 3000)), min_size=1, max_size=12),
    changes=st.lists(
        st.tuples(st.integers(0, 20_000), st.integers(0, 1), st.none() | st.integers(1, 10**7)), max_size=5
    ),
)
def test_every_wait_ends_whatever_the_caps_become(limits, readers, changes):
    world = World()
    caps = [world.cap(limit) for limit in limits]
    turnstile = Turnstile(caps)

    def change(which, limit):
        caps[which].set_limit(limit, world.now_ms)
        turnstile.take_up()

    turnstile.take_up()
    everybody = [Greedy(world, turnstile, size, pause_ms) for size, pause_ms in readers]
    for at_ms, which, limit in changes:
        world.after(at_ms, lambda which=which, limit=limit: change(which, limit))
    world.run_until(30_000)
    slowest = min((cap.limit for cap in caps if cap.limit), default=10**7)
    a_round_ms = 1000 * (len(readers) + 2) * 2 * 262_144 // slowest + 5_000
    before = [reader.turns for reader in everybody]
    end_ms = 30_000 + min(2 * a_round_ms, 10**9) + 10_000
    step_ms = 1000
    while not (all_had_a_turn := all(reader.turns > turns for reader, turns in zip(everybody, before, strict=True))):
        if world.now_ms == end_ms:
            break
        world.run_until(min(world.now_ms + step_ms, end_ms))
        step_ms *= 2
    assert all_had_a_turn


def test_a_cap_behind_another_is_woken_no_more_often_than_turns_are_given():
    world = World()
    listeners, cluster = [world.cap(600_000), world.cap(600_000)], world.cap(1_000_000)
    readers = [Greedy(world, Turnstile([listeners[n % 2], cluster]), size=300 + 7 * n, pause_ms=1) for n in range(240)]
    world.run_until(world.now_ms + 1_000)
    turns_of_a_second = sum(reader.turns for reader in readers)
    pumped = world.pumps
    world.run_until(world.now_ms + 1_000)
    assert sum(reader.turns for reader in readers) > turns_of_a_second
    assert world.pumps - pumped <= 3_000  # at most one a millisecond for each cap
