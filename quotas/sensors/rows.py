"""Sensors as fixed-size rows in one flat buffer; each is accessed by a handle.

The buffer consists of 8-byte words: *float* words are IEEE doubles, the others signed integers, in the machine's byte
order. It begins with a head of 16 words (0: rows, 1: words of a row, 2: N, 3: window in ms,
others 0). All rows have as many words, and they begin alike:

====  ====================================================
word  content
====  ====================================================
0     generation: odd while the row is in use
1     pace: at how many times the limit clients go on while they wait for a larger one; 0: they do not (float)
2     limit in units/s (float)
====  ====================================================

A handle combines the generation with the position of the row in words.
"""

from math import inf
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final

from mypy_extensions import mypyc_attr

HEAD_WORDS: Final = 16
ROW_BITS: Final = 40
ROW_MASK: Final = (1 << ROW_BITS) - 1

GENERATION: Final = 0
PACE: Final = 1
LIMIT: Final = 2

WAITS_MS: Final = 1000
"""While clients wait for a larger limit, a throttle that the pace does not ask for is cut to this, so that they hear of
the larger limit soon."""

_WORD_BYTES: Final = 8
_ROWS: Final = 0
_WORDS_OF_ROW: Final = 1
_N: Final = 2
_WINDOW_MS: Final = 3


class SensorsFull(Exception):
    """Every row is in use."""


class StaleSensor(LookupError):
    """The row of this handle is closed."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Rows:
    """A table of `capacity` rows of `words_of_row` words each. Not thread-safe.

    `samples` and `window_ms` are a broker's `quota.window.num` and `quota.window.size.seconds`, or the settings that
    begin with `controller.`. There are `scratch_rows` additional rows behind the last one.
    """

    def __init__(self, capacity: int, samples: int, window_ms: int, words_of_row: int, scratch_rows: int = 0) -> None:
        if capacity < 1 or samples < 1 or window_ms < 1:
            raise ValueError(f"expected at least 1 row, sample and ms, got {capacity}, {samples}, {window_ms}")
        self.capacity = capacity
        self.samples = samples
        self.window_ms = window_ms
        self.used = 0
        self.pressed: dict[int, int] | None = None
        """Handles of rows that gave a throttle time or refused since this was emptied, each with the end of the latest
        throttle. None: nobody asks."""
        self._words_of_row = words_of_row
        # The kernel provides zeroed pages at their first use: rows that are never opened cost no memory.
        words = HEAD_WORDS + (capacity + scratch_rows) * words_of_row
        self._buffer = mmap(-1, words * _WORD_BYTES, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        self._ints = memoryview(self._buffer).cast("q")
        self._floats = memoryview(self._buffer).cast("d")
        self._ints[_ROWS], self._ints[_WORDS_OF_ROW] = capacity, words_of_row
        self._ints[_N], self._ints[_WINDOW_MS] = samples, window_ms
        self._untouched = HEAD_WORDS
        self._closed: list[int] = []

    def close(self, handle: int) -> None:
        """Free the row. Its handle is stale from now on."""
        row = self._row(handle)
        self._ints[row + GENERATION] += 1
        self._closed.append(row)
        self.used -= 1

    def limit(self, handle: int) -> float:
        """The limit of the row, in units/s."""
        return self._floats[self._row(handle) + LIMIT]

    def set_pace(self, handle: int, pace: float) -> None:
        """A larger limit is about to come, perhaps: throttle times are cut to WAITS_MS, as long as all clients of the
        row together do not get more than `pace` times the limit since the oldest sample of the row: without a burst in
        a new row, with that of one window at most in another one. 0: throttle times are not cut."""
        if not 0 <= pace < inf:
            raise ValueError(f"expected a pace from 0, got {pace}")
        self._floats[self._row(handle) + PACE] = pace

    def copied(self, handle: int) -> bytes:
        """A copy of the row's words, for `overwrite`, also in a table of another process with the same windows."""
        row = self._row(handle)
        return self._ints[row : row + self._words_of_row].tobytes()

    def overwrite(self, handle: int, copied: bytes) -> None:
        """Give the row the content of a copy that `copied` made, of this row or another one. The handle stays valid.

        The row keeps its pace: whether clients wait here says nothing about the row that was copied. Raises ValueError
        if the copy has another size.
        """
        row = self._row(handle)
        generation, pace = self._ints[row + GENERATION], self._floats[row + PACE]
        self._ints[row : row + self._words_of_row] = memoryview(copied).cast("q")
        self._ints[row + GENERATION], self._floats[row + PACE] = generation, pace

    def _open_row(self, limit: float) -> int:
        """The handle of a new row, which is zero except for its limit. Raises SensorsFull if no row is free."""
        if self.used == self.capacity:
            raise SensorsFull(self.capacity)
        if self._closed:
            row = self._closed.pop()
        else:
            row = self._untouched
            self._untouched += self._words_of_row
        generation = self._ints[row + GENERATION] + 1
        self._ints[row : row + self._words_of_row] = self._blank
        self._ints[row + GENERATION] = generation
        self._floats[row + LIMIT] = limit
        self.used += 1
        return generation << ROW_BITS | row

    def _press(self, row: int, until_ms: int) -> None:
        if self.pressed is not None:
            self.pressed[self._ints[row + GENERATION] << ROW_BITS | row] = until_ms

    @property
    def _blank(self) -> memoryview:
        return memoryview(bytes(self._words_of_row * _WORD_BYTES)).cast("q")

    def _row(self, handle: int) -> int:
        row = handle & ROW_MASK
        if self._ints[row] != handle >> ROW_BITS:
            raise StaleSensor(handle)
        return row
