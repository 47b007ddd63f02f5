"""What is measured on both makes runs, and measuring without a compiled one says what is missing."""

import os
import subprocess
import sys

import pytest

from tests.bench.makes import calls
from tests.bench.processes import ROOT


@pytest.mark.parametrize("title", calls())
def test_what_is_measured_runs(title):
    for now_ms in range(3):
        calls()[title](now_ms)


def test_without_compiled_modules_nothing_is_measured():
    environment = os.environ | {"KAFKA_THROTTLE_COMPILED": "", "KAFKA_THROTTLE_PURE": ""}
    command = [sys.executable, ROOT / "tests" / "bench" / "makes.py", "--rounds", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "must name what deploy/compiled.sh prints" in done.stderr


def test_a_relay_alone_is_measured():
    command = [sys.executable, ROOT / "tests" / "bench" / "relay_alone.py", "--rounds", "1", "--requests", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n| ") == 4
