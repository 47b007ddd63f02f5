"""Run pytest and end with what failed, in so few words that they survive a log of which only the end is kept.

    python -m tests.run -m "not long" [argument of pytest ...]

What failed while the machine stood still or was busy with something else (`tests.disturbance`) is run once more, in a
new process with new clusters, and it is said so: who fails again, or failed undisturbed, has failed.
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
_TESTS_FAILED = 1

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


def main(arguments: Sequence[str]) -> int:
    """Run once, and what the machine spoilt once more; the exit status."""
    outcome = run_pytest(arguments, "first")
    spoilt = outcome.disturbances
    if outcome.status == _TESTS_FAILED and len(spoilt) <= MOST_TO_RUN_AGAIN and all(spoilt.values()):
        print("== run once more, as these failed while the machine stood still or others used it:")
        print(*(f"{name}: {disturbance}" for name, disturbance in spoilt.items()), sep="\n", flush=True)
        outcome = run_pytest(list(spoilt), "again")
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
