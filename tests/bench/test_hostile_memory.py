"""Hostile clients do not take the memory of the proxy."""

import json
import subprocess
import sys

import pytest

from tests.bench import hostile_memory

pytestmark = [pytest.mark.exclusive, pytest.mark.nightly]

MOST_MIB = 150


def test_no_attack_takes_more_memory_than_the_bound(tmp_path):
    file = tmp_path / "hostile.json"
    # in a process of its own: it forks, which threads of other tests would not survive
    command = [sys.executable, hostile_memory.__file__, "--seconds", "5", "--json", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stderr
    measured = json.loads(file.read_text())
    assert measured.keys() == hostile_memory.attacks().keys()
    assert {name: one["memory_above_rest_mib"] < MOST_MIB for name, one in measured.items()} == dict.fromkeys(
        measured, True
    )
    assert all(one["p99_beside_ms"] > 0 for one in measured.values())
    assert "DeleteTopics" in said
