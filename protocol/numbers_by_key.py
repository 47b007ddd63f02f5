"""Finds numbers by their keys without storing the keys.

A message may name a million topics. A dictionary of their names holds the event loop for some ms whenever it grows, and
once more when it is freed. Here a key takes eight bytes in flat arrays, and is read anew where it lies.
"""

from array import array
from collections.abc import Callable

NO_NUMBER = -1

_MARKS = 251


class NumbersByKey:
    """Numbers from 0 on, for at most `most` different keys. `key_of` says which key a number has."""

    def __init__(self, most: int, key_of: Callable[[int], bytes]) -> None:
        self._key_of = key_of
        self._size = most + most // 2 + 1
        self._numbers = array("I", [0]) * self._size
        """The number of a key is at the place that its hash says, or at the next one that was free."""
        self._marks = bytearray(self._size)
        """For each place that is taken a little of the hash: few other keys are read in vain. 0: the place is free."""

    def get(self, key: bytes) -> int:
        """The number with this key; NO_NUMBER if there is none."""
        place = self._place(key)
        return self._numbers[place] if self._marks[place] else NO_NUMBER

    def put(self, key: bytes, number: int) -> None:
        """Have this number found by its key, in place of an earlier one with the same key."""
        place = self._place(key)
        self._numbers[place] = number
        self._marks[place] = hash(key) % _MARKS + 1

    def first(self, key: bytes, number: int) -> int:
        """The number that was first given for this key: this one, if there was none."""
        place = self._place(key)
        if not self._marks[place]:
            self._numbers[place] = number
            self._marks[place] = hash(key) % _MARKS + 1
        return self._numbers[place]

    def _place(self, key: bytes) -> int:
        """The place that a key has, or would get."""
        place, mark, marks = hash(key) % self._size, hash(key) % _MARKS + 1, self._marks
        while marks[place] and (marks[place] != mark or self._key_of(self._numbers[place]) != key):
            place = place + 1 if place + 1 < self._size else 0
        return place
