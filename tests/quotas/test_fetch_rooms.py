"""Fetches that are paced: many readers of one quota, on simulated time."""

import heapq
import sys
from itertools import count, pairwise
from math import inf

import pytest

from kafka_throttle.quotas.fetch_rooms import BURST_S, LONGEST_MS, PIECE_S, RESERVED_MS, ROUND_S, FetchRooms
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.sensors.rows import WAITS_MS
from kafka_throttle.quotas.sensors.windowed_rate import Sensors

LIMIT = 500_000.0
ROUND_TRIP_MS = 5
POLL_MS = 500
MOST_BYTES = 50_000_000
EMPTY_BYTES = 60


class Reader:
    """Reads in a loop, and obeys what it is told. What is there comes in batches."""

    def __init__(self, rooms, sensor, batch_bytes, waiting_bytes=inf):
        self.rooms, self.batch_bytes, self.waiting_bytes = rooms, batch_bytes, waiting_bytes
        self.place = rooms.enter(sensor, takes_turns=True)
        self.ends = None
        """What becomes of it when it has its next response, in place of another Fetch."""
        self.came, self.empty = [], 0
        """When data came, and how much; how often it was told that it had waited for too long."""

    def bytes_after(self, at_ms):
        return sum(value for came_ms, value in self.came if came_ms >= at_ms)

    def gap_s(self, since_ms, until_ms):
        times = [since_ms, *(at_ms for at_ms, _ in self.came if at_ms >= since_ms), until_ms]
        return max(later - at_ms for at_ms, later in pairwise(times)) / 1000

    def brings(self):
        """What the node sends: as much as was granted, though it ends amid a batch, but one batch at least."""
        return min(max(self.place.granted, self.batch_bytes), self.waiting_bytes) or EMPTY_BYTES

    def whole(self, value):
        return value // self.batch_bytes * self.batch_bytes


class World:
    """Readers that share a sensor."""

    def __init__(self, limit=LIMIT):
        self.sensors = Sensors(8)
        self.sensor = self.sensors.open(limit, 0)
        self.rooms = FetchRooms(self.sensors)
        self.readers, self.sent_bytes = [], 0
        self._events, self._order = [], count()

    def add(self, number, batch_bytes, waiting_bytes=inf, at_ms=0):
        for _ in range(number):
            reader = Reader(self.rooms, self.sensor, batch_bytes, waiting_bytes)
            self.readers.append(reader)
            self.at(at_ms, self.fetch, reader)
        return self.readers[-number:]

    def at(self, at_ms, step, reader):
        heapq.heappush(self._events, (at_ms, next(self._order), step, reader))

    def run(self, until_ms):
        while self._events and self._events[0][0] <= until_ms:
            at_ms, _, step, reader = heapq.heappop(self._events)
            step(reader, at_ms)

    def fetch(self, reader, now_ms):
        wait_ms = self.rooms.wait_ms(reader.place, MOST_BYTES, now_ms)
        if not wait_ms:
            took_ms = ROUND_TRIP_MS if reader.waiting_bytes else POLL_MS
            self.at(now_ms + took_ms, self.respond, reader)
            return
        left_ms = self.rooms.left_ms(reader.place, now_ms)
        if left_ms:
            self.at(now_ms + min(wait_ms, left_ms), self.fetch, reader)
        else:
            reader.empty += 1
            self.at(now_ms + self.rooms.wait_anew_ms(reader.place, now_ms), self.fetch, reader)

    def respond(self, reader, now_ms):
        value = reader.brings()
        self.sent_bytes += value
        if reader.waiting_bytes:
            reader.came.append((now_ms, reader.whole(value)))
        throttle_ms = self.sensors.charge(self.sensor, value, now_ms)
        self.rooms.came(reader.place, value)
        throttle_ms = self.rooms.told_ms(reader.place, now_ms, throttle_ms)
        if reader.ends is None:
            self.at(now_ms + throttle_ms, self.fetch, reader)
        else:
            reader.ends(reader.place)


def jain(values):
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


@pytest.mark.rule("fetch")
@pytest.mark.parametrize("batch_bytes", [200, 16_000, 28_000, 100_000])
@pytest.mark.parametrize("readers", [1, 3, 10, 100])
def test_readers_of_one_quota_get_all_of_it_in_equal_parts_and_without_gaps(readers, batch_bytes):
    world = World()
    all_of_them = world.add(readers, batch_bytes)
    world.run(80_000)
    brought = [reader.bytes_after(20_000) for reader in all_of_them]
    assert 0.95 <= sum(brought) / 60 / LIMIT <= 1.01
    assert jain(brought) >= 0.99
    assert world.sent_bytes <= 1.05 * sum(reader.bytes_after(0) for reader in all_of_them)
    turn_s = max(batch_bytes / LIMIT, min(PIECE_S, ROUND_S / readers))
    assert max(reader.gap_s(2_000, 80_000) for reader in all_of_them) <= 1.2 * max(BURST_S, readers * turn_s)


@pytest.mark.parametrize("poll_ms", [POLL_MS, 30_000])
def test_a_reader_beside_many_that_have_nothing_to_read_gets_the_whole_limit(monkeypatch, poll_ms):
    monkeypatch.setattr(sys.modules[__name__], "POLL_MS", poll_ms)
    world = World()
    [busy] = world.add(1, 16_000)
    world.add(50, 16_000, waiting_bytes=0)
    world.run(40_000)
    assert 0.98 <= busy.bytes_after(10_000) / 30 / LIMIT <= 1.01
    assert busy.gap_s(10_000, 40_000) < 1.1


def test_readers_that_all_find_something_at_once_get_no_more_than_the_limit_in_the_long_run():
    world = World()
    readers = world.add(50, 16_000, waiting_bytes=0)
    world.run(10_000)
    for reader in readers:
        reader.waiting_bytes = inf
    world.run(70_000)
    assert sum(reader.bytes_after(10_000) for reader in readers) <= (60 + 50 * PIECE_S) * LIMIT
    assert 0.98 <= sum(reader.bytes_after(40_000) for reader in readers) / 30 / LIMIT <= 1.01


def test_a_batch_that_is_larger_than_the_room_comes_whole_and_is_waited_for():
    world = World()
    readers = world.add(3, 20 * int(LIMIT))
    world.run(300_000)
    assert sum(reader.bytes_after(100_000) for reader in readers) / 200 / LIMIT == pytest.approx(1, abs=0.15)
    assert all(reader.empty for reader in readers), "each hears something meanwhile"


def test_the_limit_may_change_meanwhile():
    world = World()
    readers = world.add(3, 16_000)
    world.run(20_000)
    world.sensors.set_limit(world.sensor, 4 * LIMIT, 20_000)
    world.run(50_000)
    assert sum(reader.bytes_after(30_000) for reader in readers) / 20 / (4 * LIMIT) == pytest.approx(1, abs=0.03)


def test_who_leaves_or_does_not_come_again_leaves_its_turn_to_others():
    world = World()
    gone, silent, stays = world.add(3, 100_000)
    world.run(20_000)
    gone.ends, silent.ends = world.rooms.leave, lambda place: None
    world.run(60_000)
    assert stays.bytes_after(30_000) / 30 / LIMIT == pytest.approx(1, abs=0.03)


def test_nothing_is_left_of_a_room_that_everybody_has_left():
    world = World()
    place = world.rooms.enter(world.sensor, takes_turns=False)
    world.rooms.grant(place, MOST_BYTES, 0)
    world.rooms.leave(place)
    assert len(world.rooms) == 1, "a Fetch is in flight"
    world.rooms.note_left(place)
    assert world.rooms.unheard_bytes(world.sensor) == place.granted == 10 * LIMIT
    world.rooms.came(place, 100)
    assert (len(world.rooms), world.rooms.unheard_bytes(world.sensor)) == (0, 0)


def test_what_clients_that_have_left_may_bring_is_kept_free():
    world = World()
    place = world.rooms.enter(world.sensor, takes_turns=True)
    assert world.rooms.wait_ms(place, MOST_BYTES, 0) == 0
    world.rooms.leave(place)
    world.rooms.note_left(place)
    [other] = world.add(1, 16_000)
    assert world.rooms.wait_ms(other.place, MOST_BYTES, 0) == PIECE_S * 1000
    world.rooms.came(place, 0)
    assert world.rooms.wait_ms(other.place, MOST_BYTES, 0) == 0


def test_without_turns_a_fetch_goes_at_once_and_asks_for_what_is_left_or_a_byte():
    world = World()
    places = [world.rooms.enter(world.sensor, takes_turns=False) for _ in range(2)]
    for place in places:
        world.rooms.grant(place, MOST_BYTES, 0)
    assert [place.granted for place in places] == [5 * LIMIT, 2.5 * LIMIT / 2 * 2]
    world.sensors.charge(world.sensor, 20 * LIMIT, 0)
    world.rooms.came(places[0], 100)
    world.rooms.grant(places[0], MOST_BYTES, 0)
    assert places[0].granted == 1


def test_without_turns_a_fetch_finds_the_room_that_idle_ones_have_not_used():
    world = World()
    idle, busy = (world.rooms.enter(world.sensor, takes_turns=False) for _ in range(2))
    world.rooms.grant(idle, MOST_BYTES, 0)
    world.rooms.grant(busy, MOST_BYTES, RESERVED_MS - 1)
    little = busy.granted
    world.rooms.came(busy, 0)
    world.rooms.grant(busy, MOST_BYTES, RESERVED_MS)
    assert busy.granted == 2 * little


@pytest.mark.parametrize("asked", [0, -1, -(2**31), 1])
def test_a_fetch_that_asks_for_nothing_waits_for_a_byte_at_most(asked):
    world = World()
    [reader] = world.add(1, 16_000)
    assert world.rooms.wait_ms(reader.place, asked, 0) == 0
    assert reader.place.granted == 1
    world.rooms.came(reader.place, int(BURST_S * LIMIT))
    assert world.rooms.wait_ms(reader.place, asked, 0) == 1


def test_a_limit_of_0_lets_nothing_through():
    world = World(limit=0.0)
    [reader] = world.add(1, 16_000)
    world.run(60_000)
    assert (reader.came, reader.empty) == ([], 60_000 // LONGEST_MS)


def test_while_a_larger_limit_is_about_to_come_nobody_is_told_to_wait_for_long():
    world = World(limit=1.0)
    [reader] = world.add(1, 16_000)
    world.sensors.pressed = {}
    world.sensors.set_pace(world.sensor, 5.0)
    assert world.rooms.wait_ms(reader.place, MOST_BYTES, 0) == 0
    world.rooms.came(reader.place, 16_000)
    assert world.rooms.told_ms(reader.place, 0) == WAITS_MS
    assert world.sensors.pressed == {world.sensor: WAITS_MS}


def test_who_has_lost_its_turn_waits_from_the_beginning():
    world = World()
    one, other = world.add(2, 16_000)
    assert world.rooms.wait_ms(one.place, MOST_BYTES, 0) == 0
    world.rooms.came(one.place, int(2 * LIMIT))
    assert world.rooms.told_ms(one.place, 0) == 1_200
    assert world.rooms.left_ms(one.place, 1_000) == LONGEST_MS - 1_000
    assert world.rooms.wait_ms(other.place, MOST_BYTES, 60_000) == 0
    world.rooms.came(other.place, int(2 * LIMIT))
    assert world.rooms.wait_ms(one.place, MOST_BYTES, 60_000) > 0
    assert world.rooms.left_ms(one.place, 60_000) == LONGEST_MS


def test_where_only_a_response_makes_room_a_fetch_does_not_look_for_it_each_millisecond():
    world = World()
    busy, idle = (world.rooms.enter(world.sensor, takes_turns=True) for _ in range(2))
    for place, value in ((idle, 20), (busy, int(BURST_S * LIMIT))):
        assert world.rooms.wait_ms(place, MOST_BYTES, 0) == 0
        world.rooms.came(place, value)
    assert world.rooms.wait_ms(busy, MOST_BYTES, 10_000) == 0
    assert busy.reserved == BURST_S * LIMIT
    assert world.rooms.wait_ms(idle, MOST_BYTES, 10_000) == 100
    world.rooms.came(busy, 20)
    assert world.rooms.wait_ms(idle, MOST_BYTES, 10_100) == 0


def until_it_goes(world, place, now_ms=0):
    while wait_ms := world.rooms.wait_ms(place, MOST_BYTES, now_ms):
        now_ms += wait_ms
    return now_ms


def test_what_is_owed_when_a_limit_is_lowered_takes_as_long_as_under_the_old_one():
    world = World()
    place = world.rooms.enter(world.sensor, takes_turns=True)
    assert world.rooms.wait_ms(place, MOST_BYTES, 0) == 0
    world.rooms.came(place, int(1.1 * LIMIT))  # owes 0.1 s, and waits for a piece of 0.2 s
    world.rooms.told_ms(place, 0)
    world.sensors.set_limit(world.sensor, LIMIT / 1000, 0)
    assert until_it_goes(world, place) == 300


def test_nothing_is_owed_for_longer_than_a_sensor_lets_debts_be():
    world = World(limit=100)
    place = world.rooms.enter(world.sensor, takes_turns=True)
    assert world.rooms.wait_ms(place, MOST_BYTES, 0) == 0
    world.rooms.came(place, 1_000_000)
    assert until_it_goes(world, place) == world.sensors.max_debt_ms + 200


def test_a_quota_that_was_away_has_forgotten_what_was_owed():
    world = World(limit=100)
    place = world.rooms.enter(world.sensor, takes_turns=True)
    assert world.rooms.wait_ms(place, MOST_BYTES, 0) == 0
    world.sensors.set_limit(world.sensor, UNLIMITED, 0)
    world.rooms.came(place, 1_000_000)
    assert world.rooms.told_ms(place, 0) == 0
    world.sensors.set_limit(world.sensor, 1_000, 100_000)
    assert world.rooms.wait_ms(place, MOST_BYTES, 100_000) == 0


def test_a_client_that_is_told_to_wait_for_longer_by_its_sensor_finds_its_turn():
    world = World()
    place = world.rooms.enter(world.sensor, takes_turns=True)
    assert world.rooms.wait_ms(place, MOST_BYTES, 0) == 0
    world.rooms.came(place, int(1.5 * LIMIT))
    assert world.rooms.told_ms(place, 0, told_ms=9_000) == 9_000
    turn = place.turn
    world.rooms.wait_ms(world.rooms.enter(world.sensor, takes_turns=True), MOST_BYTES, 8_999)
    assert place.turn == turn >= 0


def test_a_share_of_less_than_a_byte_per_second_lets_a_fetch_through_in_time():
    world = World(limit=0.25)
    place = world.rooms.enter(world.sensor, takes_turns=True)
    assert until_it_goes(world, place) == 0
    world.rooms.came(place, 1)
    assert until_it_goes(world, place) == 4_000
