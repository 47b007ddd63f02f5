"""What `kafka-throttle check` finds beside the settings themselves."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from kafka_throttle.common.printable import printable
from kafka_throttle.common.problems import Problem
from kafka_throttle.protocol.identity.distinguished_names import Validity

_MOST_CHARACTERS = 1_000


class Finding(NamedTuple):
    """A difference between the file and what it names. A warning does not keep the proxy from serving clients."""

    problem: Problem
    is_warning: bool = False

    def shown(self) -> Problem:
        """The problem without characters that only a terminal would understand: clusters choose names and texts."""
        return self.problem._replace(problem=printable(self.problem.problem, _MOST_CHARACTERS))


def validity_findings(path: str, what: str, validity: Validity) -> Iterator[Finding]:
    """What is wrong with the time of the certificate `what`."""
    now_s = time.time()
    urgency = validity.urgency(now_s)
    if now_s < validity.begins_s:
        yield Finding(Problem(path, f"{what} is not valid before {_shown(validity.begins_s)}"))
    elif urgency >= 0:
        when = "expires soon" if urgency < 1 else "has expired"
        yield Finding(Problem(path, f"{what} {when}, at {_shown(validity.ends_s)}"), is_warning=urgency < 1)


def _shown(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
