"""Windowed rate, throttle time, precedence and sharing: equal to Kafka's own classes, bit for bit."""

import pytest

from tests.conformance.quota_oracle import differences

VERSIONS = ["3.9.2", "4.3.1"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("samples", [11, 2])
def test_fifty_thousand_random_charges_are_answered_as_by_kafka(version, samples, tmp_path):
    assert differences(version, tmp_path, seed=samples, events=50_000, fractions=0.2, samples=samples)[:3] == []


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_million_random_charges_are_answered_as_by_kafka(version, tmp_path):
    assert differences(version, tmp_path, seed=1, events=1_000_000, fractions=0.2)[:3] == []
