"""Clients are turned away before descriptors run out."""

import resource

import pytest
from structlog.testing import capture_logs

from kafka_throttle.proxy.config.load import config_of
from kafka_throttle.proxy.server.descriptors import clients_within_descriptors
from kafka_throttle.proxy.server.service import Service
from tests.fakes.clock import FakeClock


@pytest.fixture
def limits(monkeypatch):
    """The system's limits, as the process finds and sets them."""
    found = [1_024, 20_000]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(found))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: found.__setitem__(slice(None), new))
    return found


def test_the_soft_limit_is_raised_as_far_as_it_takes(limits):
    assert clients_within_descriptors(1_000, 5) == 1_000
    assert limits == [2_133, 20_000]
    assert clients_within_descriptors(100, 5) == 100
    assert limits == [2_133, 20_000], "and never lowered"


def test_the_hard_limit_bounds_how_many_clients_there_are(limits):
    assert clients_within_descriptors(10_000, 10) == 9_931
    assert limits == [20_000, 20_000]
    limits[:] = [64, 64]
    assert clients_within_descriptors(10_000, 10) == 1


async def test_too_few_descriptors_are_reported_once_unless_the_numbers_change(tmp_path):
    listener = {"name": "plain", "bind": "127.0.0.1", "port": 9092, "node_ids": [1]}
    cluster = {"name": "main", "upstream": {"bootstrap_servers": ["127.0.0.1:9"]}, "listeners": [listener]}
    service = Service(tmp_path / "proxy.yaml", config_of({"virtual_clusters": [cluster]}), FakeClock())
    with capture_logs() as logged:
        for possible in (500, 500, 400, 400, 9_001, 9_000, 10_000):
            service.instance._max_sockets = possible
            service.instance.warn_of_descriptors()
    few = [line for line in logged if line["event"] == "few_descriptors"]
    assert [(line["max_connections"], line["log_level"]) for line in few] == [
        (500, "warning"),
        (400, "warning"),
        (9_001, "info"),
        (9_000, "warning"),
    ]
    assert few[0]["problem"].startswith("files that may be open allow 500 connections, not 10000: ")


def test_no_limit_is_none(limits):
    limits[:] = [resource.RLIM_INFINITY, resource.RLIM_INFINITY]
    assert clients_within_descriptors(1_000_000, 10) == 1_000_000
