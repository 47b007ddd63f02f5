"""Which clients wait by themselves, held to Kafka's own response classes."""

import subprocess

import pytest

from kafka_throttle.protocol.api_table import APIS
from kafka_throttle.protocol.messages.client_waits import CLIENT_WAITS_SINCE, client_waits
from tests.support.java_program import java_program


@pytest.mark.parametrize("kafka_version", ["3.9.2", "4.3.1"])
def test_the_table_is_that_of_kafkas_classes(kafka_version):
    command = java_program("ClientWaits", kafka_version)
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    lines = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert len(lines) > 80
    for key, *versions in lines:
        waits = [version for version in versions if client_waits(key, version)]
        assert versions == waits, key
        assert not versions or versions == list(range(versions[0], versions[-1] + 1)), key
        assert versions or key not in CLIENT_WAITS_SINCE, key


def test_below_its_version_clients_do_not_wait():
    assert not any(client_waits(key, since - 1) for key, since in CLIENT_WAITS_SINCE.items())
    assert set(CLIENT_WAITS_SINCE) <= set(APIS)
