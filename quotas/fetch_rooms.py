"""How much a Fetch may bring beside all others under the same quota, and whose turn it is when nothing is left.

A Fetch is charged when its response is here. Until then, what it is expected to bring is reserved: many connections
together bring no more than one alone. Each connection has a `Place` in the `Room` of its sensor. Where Fetches are
paced, those that find no room take turns, and each waits for a piece that is worth its way, not for a byte.
"""

from collections import deque
from math import ceil, inf
from typing import Final

from mypy_extensions import mypyc_attr

from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.sensors.windowed_rate import Sensors

BURST_S: Final = 1.0
"""Fetches that are paced bring at once what the quota allows in so many seconds at most, and go on at its limit. The
window would allow ten times as much, and then nothing for as long: readers are to have no such gaps."""

PIECE_S: Final = 0.2
"""A Fetch waits until there is room for what its quota allows in so many seconds, or for what it probably brings."""

BATCHES: Final = 20
"""A node ends a response amid a batch, and sends that batch again: on average half of one is in vain. So a Fetch asks
for as much as so many batches, or for 1 byte: then it brings one batch."""

_PROBE_EVERY: Final = 50
"""One Fetch of so many asks for 1 byte, if all that was asked for came before: so the size of a batch is learnt."""

_GROWTH: Final = 4
"""A Fetch is expected to bring so many times what the last one brought at most: one that has nothing to read takes
next to no room from others."""

RESERVED_MS: Final = 250
"""What a Fetch may bring is kept free for so long. One that has no response then waits for records to be written."""

_FADING: Final = 0.9
"""Where batches differ, the largest counts, less by so much with each further one."""

ROUND_S: Final = 4.0
"""Where many connections take turns, their pieces are so small that each comes once in so many seconds."""

LONGEST_MS: Final = 5_000
"""No connection is kept waiting by others for longer without a response: heartbeats of a group may come over it, too,
and clients leave their groups after 6 s at the earliest."""

_GRACE_MS: Final = 1_000
"""So much later than it was told to come a client still finds its turn."""

_LEAST_MS: Final = 100
"""How long a Fetch waits at least where time alone makes no room for it."""

_MOST_BYTES: Final = 2**31 - 1
_ROUNDING: Final = 0.01
"""If less than so much of a byte is lacking, nothing is."""


class Room:
    """What the Fetches under one sensor do now.

    - `places`: how many connections read here. `flying`: how many Fetches are in flight.
    - `reserved`: what these are expected to bring. `unheard`: what those may bring whose clients have left.
    - `sent`: the Fetches that room was reserved for, the oldest first, each with its place, its number and until when.
    - `booked`: the pieces of all turns so far. `over`: those of turns that were taken or lost. A turn that was given
      when `booked` was x comes when `over` is x.
    - `turns`: the turns in the order in which they were given, each with its place and its number, which is that x.
    - `batch`: how large one batch is, as far as is known; it is what a connection is expected to bring first.
    - `tokens`: what paced Fetches might bring at `at_ms`, under `limit`; negative, if they have brought too much.
    """

    __slots__ = (
        "at_ms",
        "batch",
        "booked",
        "flying",
        "limit",
        "over",
        "places",
        "reserved",
        "sensor",
        "sent",
        "tokens",
        "turns",
        "unheard",
    )

    def __init__(self, sensor: int) -> None:
        self.sensor = sensor
        self.places = 0
        self.flying = 0
        self.reserved = 0.0
        self.unheard = 0
        self.booked = 0.0
        self.over = 0.0
        self.batch = 0.0
        self.at_ms = 0
        self.limit = 0.0
        self.tokens = inf
        self.turns: deque[tuple[Place, float]] = deque()
        self.sent: deque[tuple[Place, int, int]] = deque()


class Place:
    """One connection that reads under a sensor. At most one Fetch of it is in flight.

    - `takes_turns`: whether its Fetches are paced.
    - `granted`: the most that the Fetch in flight may bring; 0: there is none. `reserved`: what it is expected to.
      `left`: whether its client has left.
    - `brought`: what the last Fetch brought; -1: there was none. `fills`: whether that was at least half of what it
      might have been. `batch`: how large one batch is, as far as is known. `fetches`: how many there were.
    - `turn`: the number of its turn; -1: it has none. `piece`: what that is for. `late_ms`: when it is lost.
      `waits_since_ms`: since when it has waited for it without a response.
    """

    __slots__ = (
        "batch",
        "brought",
        "fetches",
        "fills",
        "granted",
        "late_ms",
        "left",
        "piece",
        "reserved",
        "room",
        "takes_turns",
        "turn",
        "waits_since_ms",
    )

    def __init__(self, room: Room, takes_turns: bool) -> None:
        self.room = room
        self.takes_turns = takes_turns
        self.granted = 0
        self.reserved = 0.0
        self.left = False
        self.brought = -1
        self.fills = False
        self.batch = room.batch
        self.fetches = 0
        self.turn = -1.0
        self.piece = 0.0
        self.late_ms = 0
        self.waits_since_ms = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class FetchRooms:
    """The rooms of all sensors of a table that measure Fetches."""

    def __init__(self, sensors: Sensors) -> None:
        self._sensors = sensors
        self._rooms: dict[int, Room] = {}

    def __len__(self) -> int:
        """In how many rooms there is a connection, or a Fetch in flight."""
        return len(self._rooms)

    def enter(self, sensor: int, takes_turns: bool) -> Place:
        """A place for one connection, which has to `leave` it."""
        room = self._rooms.get(sensor)
        if room is None:
            room = self._rooms[sensor] = Room(sensor)
        room.places += 1
        return Place(room, takes_turns)

    def leave(self, place: Place) -> None:
        """No further Fetch comes from this place. What one in flight may bring stays reserved until it is over."""
        self._end_turn(place)
        place.room.places -= 1
        self._close_if_unused(place.room)

    def unheard_bytes(self, sensor: int) -> int:
        """What Fetches in flight may bring whose clients have left."""
        room = self._rooms.get(sensor)
        return 0 if room is None else room.unheard

    # ------------------------------------------------------------- before a Fetch

    def grant(self, place: Place, most_bytes: int, now_ms: int) -> None:
        """Let a Fetch that asks for `most_bytes` go at once, with what there is room for. With 1 byte a node sends one
        batch. Raises StaleSensor.
        """
        room = place.room
        self._give_back(room, now_ms)
        free = self._sensors.room(room.sensor, now_ms) - room.reserved
        self._reserve(place, free / room.places, most_bytes, now_ms)

    def wait_ms(self, place: Place, most_bytes: int, now_ms: int) -> int:
        """For how long a Fetch that asks for `most_bytes` waits from now; 0: it may go, and is granted what it may
        bring. Raises StaleSensor.
        """
        piece = self._piece(place, most_bytes)
        free = self._free(place, now_ms)
        if piece - free > _ROUNDING:
            return self._book(place, piece, piece - free, now_ms)
        granted = max(free / place.room.places, self._worth(place))
        self._reserve(place, self._asked(place, granted), most_bytes, now_ms)
        return 0

    def _worth(self, place: Place) -> float:
        """What is worth the way of a Fetch: so much that all have had their turn before anybody has waited too long."""
        room = place.room
        return min(PIECE_S, ROUND_S / room.places) * self._sensors.limit(room.sensor)

    def _asked(self, place: Place, granted: float) -> float:
        """What of `granted` bytes a Fetch asks for, so that little is sent in vain."""
        is_probe = place.fills and (not place.batch or not place.fetches % _PROBE_EVERY)
        return 1.0 if is_probe or granted < BATCHES * place.batch else granted

    def _piece(self, place: Place, most_bytes: int) -> float:
        """What a Fetch waits for. A connection that has next to nothing to read needs next to no room."""
        piece = self._worth(place)
        if place.brought >= 0:
            piece = min(piece, place.brought)
        return max(min(piece, most_bytes), 1.0)

    def _free(self, place: Place, now_ms: int) -> float:
        """The room that is left for a place: not reserved, and not for those whose turn comes before."""
        room = place.room
        self._end_lost_turns(room, now_ms)
        self._give_back(room, now_ms)
        self._fill(room, now_ms)
        return room.tokens - room.reserved - max((room.booked if place.turn < 0 else place.turn) - room.over, 0.0)

    def _fill(self, room: Room, now_ms: int) -> None:
        """Add the tokens since the last time. The first ones are what the sensor has room for, but a piece at least, as
        the first Fetch of a connection waits for what is owed anyway.

        Under another limit they are as many as that allows in the same time: what was used under the old one, the
        sensor knows. What is owed is no more than a sensor lets debts be.
        """
        sensors = self._sensors
        limit = sensors.limit(room.sensor)
        if room.tokens == inf:
            tokens = max(sensors.room(room.sensor, now_ms), PIECE_S * limit)
        else:
            if limit != room.limit:
                room.tokens *= limit / room.limit if room.limit > 0 else 0.0
            most_owed = limit * max(sensors.max_debt_ms, sensors.max_throttle_ms) / 1000
            tokens = max(room.tokens, -most_owed) + limit * ((now_ms - room.at_ms) / 1000)
        room.tokens, room.at_ms, room.limit = min(tokens, max(BURST_S * limit, 1.0)), now_ms, limit

    def _reserve(self, place: Place, granted: float, most_bytes: int, now_ms: int) -> None:
        """Let a Fetch bring so much, but what it asks for at most, and a byte at least."""
        room = place.room
        self._end_turn(place)
        place.granted = max(min(int(min(granted, _MOST_BYTES)), most_bytes), 1)
        if place.brought < 0:
            place.reserved = max(float(place.granted), room.batch)
        else:
            place.reserved = float(min(max(place.granted, place.brought), _GROWTH * place.brought))
        room.reserved += place.reserved
        room.flying += 1
        room.sent.append((place, place.fetches, now_ms + RESERVED_MS))

    def _give_back(self, room: Room, now_ms: int) -> None:
        """Room that was reserved and not used for so long is free again, unless the client has left."""
        sent = room.sent
        while sent and now_ms >= sent[0][2]:
            place, number, _ = sent.popleft()
            if place.granted and place.fetches == number and not place.left:
                room.reserved -= place.reserved
                place.reserved = 0.0

    def _book(self, place: Place, piece: float, lacking: float, now_ms: int, told_ms: int = 0) -> int:
        """Give a place a turn, unless it has one; return how long it takes until then, at most `longest_ms`.

        Its client is told to wait for `told_ms` at least.
        """
        room, limit, longest_ms = place.room, self._sensors.limit(place.room.sensor), self.longest_ms
        wait_ms = min(ceil(lacking / limit * 1000), longest_ms) if lacking < limit * longest_ms else longest_ms
        if room.tokens >= BURST_S * limit:  # only a response makes room: it is not looked for each millisecond
            wait_ms = max(wait_ms, min(_LEAST_MS, longest_ms))
        wait_ms = self._sensors.note_wait(room.sensor, wait_ms, now_ms)
        if place.turn < 0:
            place.turn, place.piece, place.waits_since_ms = room.booked, max(piece, place.brought), now_ms
            room.booked += place.piece
            room.turns.append((place, place.turn))
        place.late_ms = now_ms + max(wait_ms, told_ms) + _GRACE_MS
        return wait_ms

    @property
    def longest_ms(self) -> int:
        """For how long a connection is kept waiting by others at most before it gets a response."""
        return min(LONGEST_MS, self._sensors.max_throttle_ms)

    def left_ms(self, place: Place, now_ms: int) -> int:
        """How much of the longest wait is left to a place that waits."""
        return max(place.waits_since_ms + self.longest_ms - now_ms, 0)

    def wait_anew_ms(self, place: Place, now_ms: int) -> int:
        """A place that has waited for too long gets a response without data, and keeps its turn. For how long it waits
        from now."""
        wait_ms = place.late_ms - _GRACE_MS - now_ms
        place.waits_since_ms = now_ms
        return wait_ms

    def _end_turn(self, place: Place) -> None:
        if place.turn >= 0:
            place.room.over += place.piece
            place.turn = -1.0

    def _end_lost_turns(self, room: Room, now_ms: int) -> None:
        turns = room.turns
        while turns:
            place, number = turns[0]
            if place.turn == number:
                if now_ms < place.late_ms:
                    break
                self._end_turn(place)
            turns.popleft()

    # -------------------------------------------------------------- after a Fetch

    def came(self, place: Place, value: int) -> None:
        """The response to the Fetch in flight is here, and `value` bytes long."""
        room = place.room
        if place.granted:
            place.brought = value
            room.tokens -= value
            place.fills = 2 * value >= place.granted
            place.fetches += 1
            if value > place.granted:  # no more than one batch comes then
                place.batch = max(float(value), place.batch * _FADING)
                room.batch = max(float(value), room.batch * _FADING)
            self.release(place)

    def told_ms(self, place: Place, now_ms: int, told_ms: int = 0) -> int:
        """For how long the connection waits before its next Fetch, as far as can be said now: `told_ms` at least, which
        it is told for another reason. Raises StaleSensor.
        """
        if self._sensors.limit(place.room.sensor) >= UNLIMITED:
            return told_ms
        piece = self._piece(place, _MOST_BYTES)
        free = self._free(place, now_ms)
        if piece - free <= _ROUNDING:
            return told_ms
        return max(self._book(place, piece, piece - free, now_ms, told_ms), told_ms)

    def note_left(self, place: Place) -> None:
        """The client of the Fetch in flight has left. From now on all that this may bring is reserved."""
        if place.granted and not place.left:
            place.left = True
            room = place.room
            room.unheard += place.granted
            more = max(place.granted - place.reserved, 0.0)
            place.reserved += more
            room.reserved += more

    def release(self, place: Place) -> None:
        """The response of the Fetch in flight is here, or not waited for any more."""
        room = place.room
        if place.granted:
            if place.left:
                room.unheard -= place.granted
            room.flying -= 1
            room.reserved = room.reserved - place.reserved if room.flying else 0.0
            place.granted, place.reserved, place.left = 0, 0.0, False
            self._close_if_unused(room)

    def _close_if_unused(self, room: Room) -> None:
        if not room.places and not room.flying:
            self._rooms.pop(room.sensor, None)
