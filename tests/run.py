"""Run pytest and end with what failed, in so few words that they survive a log of which only the end is kept.

    python -m tests.run -m "not long" [argument of pytest ...]

Tests that may run beside others do so on all cores, then come the others, one at a time.

What failed while the machine stood still or was busy with something else (`tests.disturbance`) is run once more, in a
new process with new clusters; so are a few failures of tests with real processes, as not all that holds those up is
seen. It is said so, and said again in the end: who passes only then is to be looked into. Who fails again has failed,
and so has who fails undisturbed without any real process.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

LOGS = Path("build/test-logs")
MOST_TO_RUN_AGAIN = 10
"""If more fails than that, it is not the machine's doing."""
MOST_UNSEEN = 2
"""Of those, at most so many of which nobody knows that the machine held them up."""
_TESTS_FAILED = 1
_NO_TESTS = 5

_PYTEST = """
import os, sys, pytest
status = pytest.main(sys.argv[1:])
sys.stdout.flush()
sys.stderr.flush()
os._exit(status)
"""
"""Ends at once: clients that a test has left behind have threads that may crash an interpreter which takes its time."""


@dataclass(slots=True)
class Outcome:
    """pytest's exit status and the failures, as `tests/conftest.py` has them; of whom nothing is known it is empty."""

    status: int
    in_short: str = ""
    in_full: str = ""
    disturbances: dict[str, str] = field(default_factory=dict)
    """What else the machine did meanwhile, of each that failed; empty if nothing."""
    real: list[str] = field(default_factory=list)
    """Those of them that have real processes."""

    def __add__(self, other: "Outcome") -> "Outcome":
        """Of two runs of different tests; of which there may be none in one of them."""
        statuses = [outcome.status for outcome in (self, other) if outcome.status != _NO_TESTS] or [_NO_TESTS]
        return Outcome(
            max(statuses, key=abs),
            "\n".join(filter(None, (self.in_short, other.in_short))),
            "\n\n".join(filter(None, (self.in_full, other.in_full))),
            self.disturbances | other.disturbances,
            self.real + other.real,
        )

    @property
    def may_pass(self) -> bool:
        """Whether it makes sense to run once more what failed."""
        unseen = [name for name, disturbance in self.disturbances.items() if not disturbance]
        few = len(self.disturbances) <= MOST_TO_RUN_AGAIN and len(unseen) <= MOST_UNSEEN
        return self.status == _TESTS_FAILED and few and set(unseen) <= set(self.real)


def main(arguments: Sequence[str]) -> int:
    """Run once, and what the machine spoilt once more; the exit status."""
    outcome = run_pytest(["--side-by-side=yes", "-n", "logical", "--dist=loadscope", *arguments], "side-by-side")
    if outcome.status in (0, _TESTS_FAILED, _NO_TESTS):
        outcome += run_pytest(["--side-by-side=no", *arguments], "one-by-one")
    if outcome.may_pass:
        spoilt = outcome.disturbances
        print("== run once more, as the machine may have held them up:")
        print(*(f"{name}: {disturbance or 'unseen'}" for name, disturbance in spoilt.items()), sep="\n", flush=True)
        outcome = run_pytest(list(spoilt), "again")
        if not outcome.status:
            print("== passed only when run once more, to be looked into; how they failed is in build/test-logs:")
            print(*spoilt, sep="\n", flush=True)
    if outcome.status:
        for stream in (sys.stdout, sys.stderr):  # whichever of both is shown
            print(f"== what failed, in short; more of it is in {LOGS.absolute()}", file=stream)
            print(outcome.in_short or f"pytest ended with {outcome.status}", file=stream, flush=True)
    return outcome.status


def run_pytest(arguments: Sequence[str], name: str) -> Outcome:
    """Run it; what fails is written to a file of this name, with its output."""
    file = LOGS.absolute() / f"{name}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-c", _PYTEST, "--tb=no", f"--failures={file}", *arguments]
    status = subprocess.run(command, check=False).returncode
    outcome = Outcome(status, **(json.loads(file.read_text()) if file.exists() else {}))
    if outcome.in_full:
        file.with_suffix(".txt").write_text(outcome.in_full)
    return outcome


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
