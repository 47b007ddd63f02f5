"""Run the tests of a change, or one shard of the nightly ones; the last lines say in few words what failed.

    python -m tests.run [--shard 1..6] [argument of pytest ...]

Tests that may run beside others do so on all cores, then the exclusive ones run, one at a time.

What failed is run once more, in a new process with new clusters. A test that fails again has failed. A test that passes
then is flaky: the last lines name it, with what else the machine did when it failed (`tests.support.disturbance`), and
so does FLAKY. More than MOST_FLAKY of them fail the run. Durations are kept in DURATIONS, the slowest are printed.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.shards import SHARDS, known_durations, unknown_among

BUILD = Path("build")
LOGS = BUILD / "test-logs"
DURATIONS = BUILD / "durations.json"
"""Seconds by test, of the last run of each name."""
FLAKY = BUILD / "flaky.json"
"""What the machine did meanwhile by flaky test, of the last run of each name."""
MOST_FLAKY = 2
MOST_TO_RUN_AGAIN = 10
"""If more fails than that, it is not by chance."""
SLOWEST = 30
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
    """pytest's exit status, and what `tests/conftest.py` writes down."""

    status: int
    in_short: str = ""
    in_full: str = ""
    failed: dict[str, str] = field(default_factory=dict)
    """What else the machine did meanwhile, by test that failed; empty if nothing."""
    durations: dict[str, float] = field(default_factory=dict)

    def __add__(self, other: "Outcome") -> "Outcome":
        """Of two runs of different tests; of which there may be none in one of them."""
        statuses = [outcome.status for outcome in (self, other) if outcome.status != _NO_TESTS] or [_NO_TESTS]
        return Outcome(
            max(statuses, key=abs),
            "\n".join(filter(None, (self.in_short, other.in_short))),
            "\n\n".join(filter(None, (self.in_full, other.in_full))),
            self.failed | other.failed,
            self.durations | other.durations,
        )

    @property
    def may_be_flaky(self) -> bool:
        """Whether it makes sense to run once more what failed."""
        return self.status == _TESTS_FAILED and len(self.failed) <= MOST_TO_RUN_AGAIN


def main(arguments: Sequence[str]) -> int:
    """Run, and what failed once more; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.run", allow_abbrev=False)
    parser.add_argument("--shard", type=int, choices=range(1, SHARDS + 1), help="nightly tests, this part of them")
    options, rest = parser.parse_known_args(arguments)
    name = f"shard-{options.shard}" if options.shard else "test"
    chosen = ["-m", "nightly", f"--shard={options.shard}"] if options.shard else ["-m", "not nightly"]
    workers = ["-n", "logical", "--dist=loadscope", "--no-loadscope-reorder"]
    outcome = run_pytest(["--exclusive=no", *workers, *chosen, *rest], f"{name}-parallel")
    if outcome.status in (0, _TESTS_FAILED, _NO_TESTS):
        outcome += run_pytest(["--exclusive=yes", *chosen, *rest], f"{name}-exclusive")
    note(DURATIONS, name, outcome.durations)
    slowest = sorted(outcome.durations.items(), key=lambda each: -each[1])[:SLOWEST]
    print(f"== slowest tests, seconds; all are in {DURATIONS}")
    print(*(f"{seconds:7.1f} {test}" for test, seconds in slowest), sep="\n", flush=True)
    if options.shard and (warning := unknown_among(outcome.durations, known_durations())):
        print(f"== shards may take unequal times: {warning}", flush=True)
    flaky: dict[str, str] = {}
    if outcome.may_be_flaky:
        print("== run once more, to see which of them fail again:")
        print(*outcome.failed, sep="\n", flush=True)
        again = run_pytest(list(outcome.failed), f"{name}-again")
        flaky = {test: why for test, why in outcome.failed.items() if test not in again.failed}
        outcome = again
    note(FLAKY, name, flaky)
    if outcome.status:
        for stream in (sys.stdout, sys.stderr):  # whichever of both is shown
            print(f"== what failed, in short; more of it is in {LOGS.absolute()}", file=stream)
            print(outcome.in_short or f"pytest ended with {outcome.status}", file=stream, flush=True)
    elif len(flaky) > MOST_FLAKY:
        outcome.status = _TESTS_FAILED
        print(f"== failed: more than {MOST_FLAKY} tests are flaky", file=sys.stderr)
    if flaky and outcome.status in (0, _TESTS_FAILED):
        print(f"== flaky, to be looked into: failed, then passed when run once more; see {FLAKY} and {LOGS}")
        print(*(f"{test}{why and f' ({why})'}" for test, why in flaky.items()), sep="\n", flush=True)
    return outcome.status


def run_pytest(arguments: Sequence[str], name: str) -> Outcome:
    """Run it; its report and what failed, with its output, are written to files of this name."""
    file = LOGS.absolute() / f"{name}.json"
    file.unlink(missing_ok=True)
    report = f"--junitxml={file.with_suffix('.xml')}"
    command = [sys.executable, "-c", _PYTEST, "--tb=no", report, f"--outcome={file}", *arguments]
    status = subprocess.run(command, check=False).returncode
    outcome = Outcome(status, **(json.loads(file.read_text()) if file.exists() else {}))
    if outcome.in_full:
        file.with_suffix(".txt").write_text(outcome.in_full)
    return outcome


def note(file: Path, name: str, found: object) -> None:
    """Put what this run found into the file, beside what runs of other names found."""
    runs = json.loads(file.read_text()) if file.exists() else {}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(runs | {name: found}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
