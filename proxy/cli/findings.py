"""What `kafka-throttle check --connect` finds."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from common.printable import printable
from common.problems import Problem

_MOST_CHARACTERS = 1_000
_SOON_S = 14 * 86_400
"""A certificate that expires within this time is worth a warning."""


class Finding(NamedTuple):
    """A difference between the file and what is there. A warning does not keep the proxy from serving clients."""

    problem: Problem
    is_warning: bool = False

    def shown(self) -> Problem:
        """The problem without characters that only a terminal would understand: clusters choose names and texts."""
        return self.problem._replace(problem=printable(self.problem.problem, _MOST_CHARACTERS))


def ends_soon(path: str, what: str, ends_s: float) -> Iterator[Finding]:
    """A warning if a certificate that is valid until `ends_s` (epoch, s) expires soon."""
    if 0 < ends_s - time.time() < _SOON_S:
        day = datetime.fromtimestamp(ends_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
        yield Finding(Problem(path, f"{what} expires soon, at {day}"), is_warning=True)
