"""The rule for changed files that cannot be used: report it once, and read them again after a while."""

from math import inf
from typing import Final

_AGAIN_S: Final = 30.0


class Rejection:
    """The problems of files that cannot be used now. With none noted, they are not read again by themselves.

    They are read again although they have not changed: what they lack may be in another file, or in the system.
    """

    def __init__(self) -> None:
        self._problems: list[str] = []
        self._again_at_ms = inf

    def note(self, problems: list[str], now_ms: float, again_s: float = _AGAIN_S) -> bool:
        """Note the problems, and that the files are read again in `again_s`. Returns whether to report them."""
        is_new = problems != self._problems
        self._problems, self._again_at_ms = problems, now_ms + again_s * 1000
        return is_new

    def is_due(self, now_ms: float) -> bool:
        """Whether to read the files again now."""
        return now_ms >= self._again_at_ms

    def forget(self) -> None:
        """Note that the files are in use, or have changed: the next problems are reported, the same ones too."""
        self._problems, self._again_at_ms = [], inf
