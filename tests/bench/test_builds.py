"""What is measured on both builds runs, and measuring without a compiled one says what is missing."""

import os
import subprocess
import sys

import pytest

from tests.bench.builds import calls
from tests.support.places import ROOT


@pytest.mark.parametrize("title", calls())
def test_what_is_measured_runs(title):
    for now_ms in range(3):
        calls()[title](now_ms)


def test_without_compiled_modules_nothing_is_measured():
    environment = os.environ | {"KAFKA_THROTTLE_COMPILED": "", "KAFKA_THROTTLE_PURE": ""}
    command = [sys.executable, ROOT / "tests" / "bench" / "builds.py", "--rounds", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "must name what deploy/compiled.sh prints" in done.stderr


def test_a_relay_alone_is_measured():
    command = [sys.executable, ROOT / "tests" / "bench" / "relay_alone.py", "--rounds", "1", "--requests", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n| ") == 4


def test_the_calls_of_a_request_below_a_quota_and_above_it_are_counted():
    environment = os.environ | {"KAFKA_THROTTLE_PURE": "1"}
    command = [sys.executable, ROOT / "tests" / "bench" / "relay_alone.py", "--counts"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in done.stdout.splitlines()[2:]]
    steps = {(title, step) for title, step, calls, codes in rows if int(codes) > int(calls) > 0}
    assert {("produce below its quota", "all"), ("produce over its quota", "end of the throttle")} <= steps
    assert len(steps) == len(rows)
