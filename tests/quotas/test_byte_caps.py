"""Byte caps: together readers get what the cap allows, each has its turn, and every wait ends."""

import heapq
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quotas.byte_caps import BURST_MS, ByteCap, Turnstile


class World:
    """Fake time: calls back what was asked for, in order."""

    def __init__(self):
        self.now_ms = 1_000
        self._events = []
        self._called_off = set()
        self.pumps = 0
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
    """Always has `size` bytes to read, `pause_ms` after the last ones."""

    def __init__(self, world, turnstile, size=1 << 30, pause_ms=0):
        self.world, self.turnstile, self.size, self.pause_ms = world, turnstile, size, pause_ms
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
            self.waiting_since = self.world.now_ms

    def turn_came(self, most_bytes):
        self.longest_wait_ms = max(self.longest_wait_ms, self.world.now_ms - self.waiting_since)
        self.waiting_since = None
        return self._take(most_bytes)

    def _take(self, room):
        read = min(room, self.size)
        self.read += read
        self.turns += 1
        self.world.after(max(self.pause_ms, 1), self.want)
        return read


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
