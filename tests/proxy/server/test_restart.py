"""What a process does if the one that has started it, so that it takes over, does not go through with it."""

import os
import socket

import pytest
from prometheus_client import CollectorRegistry

from kafka_throttle.proxy.config.load import config_of
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.server.handover import PAIR
from kafka_throttle.proxy.server.restart import Restart
from tests.fakes.clock import FakeClock
from tests.proxy.config.test_config import MINIMAL
from tests.proxy.server.test_sensors_file import sensing


@pytest.fixture
def restart():
    clock = FakeClock()
    return Restart(sensing(clock), clock, Metrics(CollectorRegistry()))


def given_a_pair(monkeypatch, parent):
    """The old process's end; the other one is passed to this process, as if `parent` had started it."""
    ours, theirs = socket.socketpair()
    monkeypatch.setenv(PAIR, f"{theirs.detach()}:{parent}")
    return ours


async def until_ready():
    raise AssertionError


async def test_it_ends_if_the_other_one_was_stopped_before_it_said_that_it_wants_a_successor(restart, monkeypatch):
    with given_a_pair(monkeypatch, os.getppid()) as ours, socket.create_server(("127.0.0.1", 0)) as listening:
        socket.send_fds(ours, [b"."], [listening.fileno()])
        sockets = restart.passed_sockets(config_of(MINIMAL))
    with pytest.raises(ConfigErrors, match="the other process has ended"):
        await restart.take_over(None, until_ready)
    assert len(sockets.close_rest()) == 1


def test_it_ends_if_the_other_one_has_ended_before_it_looked(restart, monkeypatch):
    with given_a_pair(monkeypatch, os.getppid() + 1), pytest.raises(ConfigErrors, match="the other process has ended"):
        restart.passed_sockets(config_of(MINIMAL))
