"""Hostile clients do not take the memory of the proxy."""

import json
import subprocess
import sys

import pytest

from kafka_throttle.protocol.messages.topic_partitions import (
    BY_NAME_VERSION,
    partitions_by_name_request,
    read_topic_partitions,
)
from tests.bench import hostile_memory

MOST_MIB = 150


def test_the_node_responds_about_topics_of_no_attack():
    response = hostile_memory._response(partitions_by_name_request([b"a", b"other"], 7)[4:], port=9092)
    assert [(topic.name, topic.partitions) for topic in read_topic_partitions(response, BY_NAME_VERSION)] == [
        (b"a", 0),
        (b"other", 0),
    ]


@pytest.mark.exclusive
@pytest.mark.nightly
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
