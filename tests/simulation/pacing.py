"""What the room of each Fetch must be, found out the slow way: from all that has come, not from sums that are kept.

What is free can be said within bounds only. A room refills up to its burst; whether what a Fetch brought was taken out
before or after that, when it was sent or when it came, is the product's own business, and so is the exact moment at
which a turn that nobody takes is lost.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, floor, inf

from kafka_throttle.quotas.fetch_rooms import FetchRooms, Place
from kafka_throttle.quotas.limits import UNLIMITED
from tests.simulation.oracle import Charge, Of, WatchedSensors, require

BURST_S, PIECE_S, ROUND_S = 1.0, 0.2, 4.0
BATCHES, PROBE_EVERY, FADING, GROWTH = 20, 50, 0.9, 4
RESERVED_MS, LONGEST_MS, GRACE_MS, FULL_MS = 250, 5000, 1000, 100
INT32_MAX = 2**31 - 1

Bounds = tuple[float, float]
"""The least and the most that a number can be."""


def _batch(came: list[float]) -> float:
    """How large one batch is, where these came one by one: the largest, less with each further one."""
    return max((value * FADING**age for age, value in enumerate(reversed(came))), default=0.0)


@dataclass(slots=True, eq=False)
class _Reader:
    """One connection that reads: what its Fetch in flight was granted and when, what is reserved for it, and what the
    last one brought (-1: there was none) of how much; the `batches` that came one by one; and since when it waits
    without a response (-1: it does not). The `piece` that its turn is for is sure until `sure_until_ms`. If it has come
    later than that, it may have another turn, behind those of all others.
    """

    place: Place
    batches: list[float]
    inside: bool = True
    granted: int = 0
    granted_ms: int = 0
    reserved: float = 0.0
    left: bool = False
    fetches: int = 0
    brought: int = -1
    brought_of: int = 0
    waits_since_ms: int = -1
    piece: Bounds = (0.0, 0.0)
    sure_until_ms: int = 0
    may_be_last: bool = False

    @property
    def probes(self) -> bool:
        """Whether its Fetch asks for 1 byte to learn the size of a batch."""
        return 2 * self.brought >= self.brought_of > 0 and not (self.batches and self.fetches % PROBE_EVERY)

    def expected(self, granted: int, batch: float) -> float:
        """What its Fetch is expected to bring: a batch first, then not much more than the last one brought."""
        if self.brought < 0:
            return max(granted, batch)
        return min(max(granted, self.brought), GROWTH * self.brought)


@dataclass(slots=True)
class _Known:
    """What is known of one room: its readers, those who wait in the order of their turns, the batches that came one by
    one, and what has come since its limit was changed: when it was granted, when it came, and how much. There were
    `begin` tokens at `begin_ms`. What is owed is what the limit allows in `most_owed_ms` at most, by all caps so far.
    """

    limit: float = -1.0
    most_owed_ms: Bounds = (inf, 0.0)
    begin_ms: int = 0
    begin: Bounds = (0.0, 0.0)
    readers: list[_Reader] = field(default_factory=list)
    turns: list[_Reader] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)
    came: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def slack(self) -> float:
        """What rounding may make."""
        return 0.02 + self.limit * 1e-6

    @property
    def places(self) -> int:
        """How many connections read here."""
        return sum(reader.inside for reader in self.readers)

    @property
    def reserved(self) -> float:
        """What is reserved for the Fetches in flight."""
        return sum(reader.reserved for reader in self.readers)

    def give_back(self, now_ms: int) -> None:
        """Nothing is reserved for long for a Fetch that may have a response."""
        for reader in self.readers:
            if now_ms >= reader.granted_ms + RESERVED_MS and not reader.left:
                reader.reserved = 0.0

    def tokens(self, now_ms: int) -> Bounds:
        """What Fetches might bring now: in no time may more come than the limit and a burst."""
        by_arrival = [(came_ms, value) for _, came_ms, value in self.came]
        by_departure = [(max(sent_ms, self.begin_ms), value) for sent_ms, _, value in self.came]
        (least, most), (smaller, larger) = self.begin, self.most_owed_ms
        return self._left(now_ms, least, by_arrival, larger), self._left(now_ms, most, by_departure, smaller)

    def _left(self, now_ms: int, begin: float, taken: list[tuple[int, int]], most_owed_ms: float) -> float:
        per_ms, full, least = self.limit / 1000, max(BURST_S * self.limit, 1.0), -most_owed_ms * self.limit / 1000
        left, left_ms = max(begin, least), self.begin_ms
        for at_ms, value in sorted(taken):
            left, left_ms = max(min(left + (at_ms - left_ms) * per_ms, full) - value, least), at_ms
        return min(left + (now_ms - left_ms) * per_ms, full)

    def before(self, reader: _Reader, now_ms: int) -> Bounds:
        """What the turns of others are for that come before the next Fetch of a reader."""
        others = [other for other in self.turns if other is not reader]
        sure = sum(one.piece[0] for one in others if now_ms < one.sure_until_ms)
        if reader not in self.turns:
            return sure, sum(other.piece[1] for other in others)
        if now_ms < reader.sure_until_ms and not reader.may_be_last:
            others = self.turns[: self.turns.index(reader)]
        return 0.0, sum(other.piece[1] for other in others)

    def free(self, reader: _Reader, now_ms: int) -> Bounds:
        """The room that is left for a reader."""
        self.give_back(now_ms)
        (least, most), (before, at_most_before) = self.tokens(now_ms), self.before(reader, now_ms)
        return least - self.reserved - at_most_before, most - self.reserved - before

    @property
    def worth(self) -> float:
        """What is worth the way of a Fetch."""
        return min(PIECE_S, ROUND_S / self.places) * self.limit

    def piece(self, reader: _Reader, most_bytes: int) -> float:
        """What a Fetch that asks for so much waits for: for no more than the last one has brought, and a byte."""
        piece = self.worth if reader.brought < 0 else min(self.worth, reader.brought)
        return max(min(piece, most_bytes), 1.0)

    def asked(self, reader: _Reader, free: Bounds) -> Bounds:
        """What a Fetch asks for: for an equal part and what is worth its way at least, and so for many batches, or for
        1 byte, which brings one batch.
        """
        least, most = (max(part / self.places, self.worth) for part in (free[0] - self.slack, free[1] + self.slack))
        enough = BATCHES * _batch(reader.batches)
        if reader.probes or most < enough - self.slack:
            return 1.0, 1.0
        return (1.0 if least < enough + self.slack else least), most


class WatchedRooms(FetchRooms):
    """Rooms whose every number is compared with the oracle; what they say is appended to the `journal`."""

    def __init__(self, sensors: WatchedSensors, now_ms: Callable[[], int]) -> None:
        super().__init__(sensors)
        self.journal = sensors.journal
        self._watched = sensors
        self._now_ms = now_ms
        self._known: dict[int, _Known] = {}
        self._readers: dict[Place, _Reader] = {}

    def enter(self, sensor: int, takes_turns: bool) -> Place:
        place = super().enter(sensor, takes_turns)
        known = self._known.setdefault(sensor, _Known())
        reader = self._readers[place] = _Reader(place, [_batch(known.batches)] if known.batches else [])
        known.readers.append(reader)
        return place

    def leave(self, place: Place) -> None:
        known, reader = self._of(place)
        super().leave(place)
        reader.inside = False
        _end_turn(known, reader)
        self._check(known, reader)

    def grant(self, place: Place, most_bytes: int, now_ms: int) -> None:
        known, reader = self._of(place)
        known.give_back(now_ms)
        places, reserved, sensor = known.places, known.reserved, place.room.sensor
        super().grant(place, most_bytes, now_ms)
        room, untold = self._watched.right_room(sensor, now_ms), self._watched.limit(sensor) * self._window_s
        free = (room - 1.001 * untold - 1 - reserved, room + 1 - reserved)
        self._note_granted(known, reader, most_bytes, (free[0] / places, free[1] / places), now_ms)

    def wait_ms(self, place: Place, most_bytes: int, now_ms: int) -> int:
        known, reader = self._of(place)
        self._note_limit(known, place, now_ms)
        free, piece = known.free(reader, now_ms), known.piece(reader, most_bytes)
        asked = known.asked(reader, free)
        wait_ms = super().wait_ms(place, most_bytes, now_ms)
        self._check_wait(known, wait_ms, (piece - free[1], piece - free[0]), now_ms)
        if wait_ms:
            self._note_waits(known, reader, piece, wait_ms, now_ms)
            self.journal.append(Charge(Of.WAITS, place.room.sensor, most_bytes, wait_ms))
            self._check(known, reader)
        else:
            self._note_granted(known, reader, most_bytes, asked, now_ms)
        return wait_ms

    def left_ms(self, place: Place, now_ms: int) -> int:
        """How long a wait may last is noted with it in the journal; 0: it has lasted for too long."""
        left_ms = super().left_ms(place, now_ms)
        right_ms = max(self._of(place)[1].waits_since_ms + self._longest_ms - now_ms, 0)
        require(left_ms == right_ms, f"a Fetch may wait for {left_ms} ms more, {right_ms} are right")
        self.journal[-1].throttle_ms = min(self.journal[-1].throttle_ms, left_ms)
        return left_ms

    def wait_anew_ms(self, place: Place, now_ms: int) -> int:
        wait_ms = super().wait_anew_ms(place, now_ms)
        self._of(place)[1].waits_since_ms = now_ms
        require(0 < wait_ms <= self._longest_ms, f"a Fetch waits anew for {wait_ms} ms")
        self.journal.append(Charge(Of.WAITS_ANEW, place.room.sensor, 0, wait_ms))
        return wait_ms

    def came(self, place: Place, value: int) -> None:
        if place.granted:
            known, reader = self._of(place)
            known.came.append((reader.granted_ms, self._now_ms(), value))
            reader.fetches, reader.brought, reader.brought_of = reader.fetches + 1, value, reader.granted
            if value > reader.granted:
                reader.batches.append(value)
                known.batches.append(value)
        super().came(place, value)

    def told_ms(self, place: Place, now_ms: int, told_ms: int = 0) -> int:
        known, reader = self._of(place)
        self._note_limit(known, place, now_ms)
        wait_ms, piece = super().told_ms(place, now_ms, told_ms), known.piece(reader, INT32_MAX)
        if known.limit >= UNLIMITED:
            require(wait_ms == told_ms, f"waits for {wait_ms} ms though nothing limits it")
        else:
            free = known.free(reader, now_ms)
            self._check_wait(known, wait_ms, (piece - free[1], piece - free[0]), now_ms, told_ms)
        if place.turn >= 0:
            self._note_waits(known, reader, piece, wait_ms, now_ms)
        self.journal.append(Charge(Of.TOLD, place.room.sensor, reader.brought, wait_ms))
        self._check(known, reader)
        return wait_ms

    def note_left(self, place: Place) -> None:
        super().note_left(place)
        if place.granted:
            known, reader = self._of(place)
            reader.left, reader.reserved = True, max(reader.reserved, reader.granted)
            self._check(known, reader)

    def release(self, place: Place) -> None:
        found = self._of(place) if place.granted else None
        super().release(place)
        if found is not None:
            found[1].granted, found[1].reserved, found[1].left = 0, 0.0, False
            self._check(*found)

    # ------------------------------------------------------------------- what is known

    def _of(self, place: Place) -> tuple[_Known, _Reader]:
        return self._known[place.room.sensor], self._readers[place]

    @property
    def _window_s(self) -> float:
        return self._watched.window_ms / 1000

    @property
    def _longest_ms(self) -> int:
        return min(LONGEST_MS, self._watched.max_throttle_ms)

    def _note_limit(self, known: _Known, place: Place, now_ms: int) -> None:
        """The tokens at the beginning are what the sensor has room for, and a piece at least. When the limit changes,
        those of before count as what the new one allows in the same time.
        """
        room, limit = place.room, self._watched.limit(place.room.sensor)
        owed_ms, (least_ms, most_ms) = max(self._watched.max_debt_ms, self._watched.max_throttle_ms), known.most_owed_ms
        known.most_owed_ms = min(least_ms, owed_ms), max(most_ms, owed_ms)
        if known.limit == limit:
            return
        if known.limit < 0 or room.tokens == inf:
            right = self._watched.right_room(room.sensor, now_ms)
            least, most = (
                min(max(tokens, PIECE_S * limit), BURST_S * limit)
                for tokens in (right - 1.001 * limit * self._window_s - 1, right)
            )
            known.begin_ms, known.begin = now_ms, (least, most)
        else:
            tokens = room.tokens * limit / room.limit if room.limit > 0 else 0.0
            known.begin_ms, known.begin = room.at_ms, (tokens, tokens)
        known.limit, known.came = limit, []

    def _note_granted(self, known: _Known, reader: _Reader, most_bytes: int, right: Bounds, now_ms: int) -> None:
        """A Fetch goes, with a byte at least, and no more than it asks for."""
        place = reader.place
        least, most = (max(min(part, most_bytes, INT32_MAX), 1) for part in right)
        is_right = floor(least) <= place.granted <= ceil(most)
        require(is_right, f"{place.granted} of {most_bytes} bytes are granted, {least} to {most} are right")
        reader.reserved = reader.expected(place.granted, _batch(known.batches))
        reader.granted, reader.granted_ms, reader.waits_since_ms = place.granted, now_ms, -1
        _end_turn(known, reader)
        self.journal.append(Charge(Of.GRANTED, place.room.sensor, place.granted, 0, asked=most_bytes))
        self._check(known, reader)

    def _note_waits(self, known: _Known, reader: _Reader, piece: float, wait_ms: int, now_ms: int) -> None:
        """It has a turn from now on, unless it had one, which is sure for a while behind its wait."""
        piece = max(piece, reader.brought)
        if reader not in known.turns:
            known.turns.append(reader)
            reader.piece, reader.may_be_last = (piece, piece), False
        elif now_ms >= reader.sure_until_ms:
            reader.piece, reader.may_be_last = (min(piece, reader.piece[0]), max(piece, reader.piece[1])), True
            reader.waits_since_ms = reader.place.waits_since_ms
        reader.sure_until_ms = now_ms + wait_ms + GRACE_MS
        if reader.waits_since_ms < 0:
            reader.waits_since_ms = now_ms

    # -------------------------------------------------------------------------- checks

    def _check_wait(self, known: _Known, wait_ms: int, lacking: Bounds, now_ms: int, told_ms: int = 0) -> None:
        """A Fetch waits until what it lacks is there, but no longer than anybody waits; without a lack it goes. Where
        there cannot be more tokens it waits for a response of another, a little longer. It may be told more.
        """
        if not wait_ms:
            require(lacking[0] <= known.slack, f"goes though room for {lacking[0]} bytes is lacking")
            return
        is_lacking = lacking[1] >= -known.slack
        require(is_lacking or wait_ms == told_ms, f"waits though there is room for {-lacking[1]} bytes more")
        full, right = BURST_S * known.limit, []
        surely, perhaps = known.tokens(now_ms - 1)[0], known.tokens(now_ms + 1)[1]
        for bytes_, tokens in ((lacking[0] - known.slack, surely), (lacking[1] + known.slack, perhaps)):
            least_ms = FULL_MS if tokens >= full else 0
            right.append(min(max(bytes_ / known.limit * 1000, least_ms), self._longest_ms))
        is_right = floor(right[0]) <= wait_ms <= max(ceil(right[1]), told_ms)
        require(is_right, f"waits for {wait_ms} ms, {right[0]} to {right[1]} are right")

    def _check(self, known: _Known, reader: _Reader) -> None:
        """What is reserved is what is expected of all Fetches in flight. A room is given up with its last reader."""
        room = reader.place.room
        right = abs(room.reserved - known.reserved) <= known.slack
        require(right, f"{room.reserved} is reserved, {known.reserved} is right")
        unheard = [one for one in known.readers if one.granted and one.left]
        may_bring = sum(one.granted for one in unheard)
        require(room.unheard == may_bring, f"{room.unheard} bytes go to nobody, {may_bring} are right")
        if not reader.inside and not reader.granted:
            known.readers.remove(reader)
            del self._readers[reader.place]
        if not known.readers:
            del self._known[room.sensor]
        require(len(self) == len(self._known), f"{len(self)} rooms, {len(self._known)} are right")


def _end_turn(known: _Known, reader: _Reader) -> None:
    if reader in known.turns:
        known.turns.remove(reader)
