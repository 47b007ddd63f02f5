"""What goes into a decision about shares, and what comes out of it."""

from typing import Any, Final, NamedTuple

from kafka_throttle.quotas.shares.history import ByAge, added, scaled

Key = tuple[Any, ...]
"""What one share divides: values that JSON has, such as the key of a `RowCopy` (quotas/row_copies.py). Never empty."""

EVERY_KEY: Final[Key] = ()
"""The key of a Move for all rows but those whose key has a Move of its own in the same list, or a share of its own
(`Member.has_own_share`)."""


class Use(NamedTuple):
    """One key at this instance, at one look."""

    key: Key
    rate: float
    """The mean since the last look, as part of the whole limit: 1.0 is the whole limit."""
    is_pressed: bool
    """A throttle or a refusal since the last look."""
    used: ByAge
    """What its window holds, in seconds of the whole limit; of a token bucket the missing tokens, at age 0."""
    held: float = 0.0
    """The part of the limit that cannot be given away now, such as open connections."""
    waits_ms: int = 0
    """How long the latest throttle lasts from now on."""
    unit: float = 0.0
    """The least part of the limit that is of use, as one connection of a number; 0: any is."""


class Move(NamedTuple):
    """What has to be done with the rows of a key, at once and in this order."""

    key: Key
    share: float
    """Enforce this part of the limit from now on; 1.0 is exactly the limit."""
    keep: float
    """Multiply by this what the window holds. Above 1 for EVERY_KEY only: when members have left, what they used of a
    key that nobody claimed is unknown, and taken to be as much as here."""
    gain: ByAge
    """Then add this, in seconds of the whole limit."""
    pace: float
    """The part of the whole limit that clients go on with while a larger share may be about to come; 0: it is not."""


class Enforced:
    """The shares that are enforced now, and the moves to them that nobody has taken yet."""

    def __init__(self, default: float) -> None:
        self.default = default
        """The share of all keys without a share of their own."""
        self.moved = 0
        """How many moves were taken."""
        self._shares: dict[Key, float] = {}
        self._paces: dict[Key, float] = {}
        self._moves: dict[Key, Move] = {}

    def of(self, key: Key) -> float:
        """The share of a key."""
        return self._shares.get(key, self.default)

    def has_own(self, key: Key) -> bool:
        """Whether the key has a share of its own."""
        return key in self._shares

    def pace(self, key: Key) -> float:
        """As in the last move of the key."""
        return self._paces.get(key, 0.0)

    @property
    def own(self) -> list[Key]:
        """All keys with a share of their own."""
        return list(self._shares)

    def set(self, key: Key, share: float, pace: float, gain: ByAge = ()) -> None:
        """The key has this share of its own. A lower share keeps the matching part of the window."""
        before = self.of(key)
        if not self.has_own(key) and key not in self._moves and EVERY_KEY in self._moves:
            self._moves[key] = self._moves[EVERY_KEY]._replace(key=key)
        self._shares[key] = share
        if share == before and pace == self.pace(key):
            return
        if pace:
            self._paces[key] = pace
        else:
            self._paces.pop(key, None)
        self._move(key, share, share / before if share < before else 1.0, gain, pace)

    def release(self, key: Key, gain: ByAge = ()) -> None:
        """The key has the share of all others again."""
        self.set(key, self.default, 0.0, gain)
        del self._shares[key]
        if EVERY_KEY in self._moves and key not in self._moves:
            self._moves[key] = Move(key, self.default, 1.0, (), 0.0)

    def set_default(self, share: float, keep: float) -> None:
        """All keys without a share of their own have this one, and keep the part `keep` of their windows."""
        if share == self.default:
            return
        self.default = share
        for key in [key for key in self._moves if key not in self._shares]:
            if key != EVERY_KEY:
                self._move(key, share, keep, (), 0.0)
        self._move(EVERY_KEY, share, keep, (), 0.0)

    def take(self) -> list[Move]:
        """The moves since the last call."""
        moves = list(self._moves.values())
        self._moves.clear()
        self.moved += len(moves)
        return moves

    def _move(self, key: Key, share: float, keep: float, gain: ByAge, pace: float) -> None:
        before = self._moves.get(key)
        if before is not None:
            keep, gain = before.keep * keep, added(scaled(before.gain, keep), gain)
        self._moves[key] = Move(key, share, keep, gain, pace)
