"""A log that is not read, or that cannot be written, delays no client."""

import os
import signal
import socket
import threading
from contextlib import contextmanager

import pytest

from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.small_node import api_versions_request, small_node
from tests.support.timeouts import TIMEOUT_S

MANY = 600
"""Connections that log more than a pipe holds (64 KiB), in each of two workers."""


class SometimesUnread(ProxyProcess):
    """Its log is read only while `is_read` is set."""

    def __init__(self, *args, **settings):
        self.is_read = threading.Event()
        self.is_read.set()
        super().__init__(*args, **settings)

    def _read(self, process):
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.is_read.wait()
                self._lines.append(line.rstrip("\n"))


class WithStreams(ProxyProcess):
    """Its standard streams are as the shell makes them."""

    def __init__(self, *args, streams, **settings):
        self._streams = streams
        super().__init__(*args, **settings)

    def command(self):
        return ["sh", "-c", f'exec "$@" {self._streams}', "sh", *super().command()]


@pytest.fixture
def node():
    with small_node() as address:
        yield address


@contextmanager
def client(proxy):
    with socket.create_connection((HOST, proxy.port), TIMEOUT_S) as sock:
        yield sock


def is_served(sock):
    sock.sendall(api_versions_request())
    return len(sock.recv(4_096)) > 20


def served(proxy, count):
    """How many of so many short connections are served."""
    done = 0
    for _ in range(count):
        with client(proxy) as sock:
            done += is_served(sock)
    return done


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_are_served_while_nobody_reads_the_log_and_what_is_lost_is_counted_and_said(node, workers):
    settings = {"listener": {"node_ids": [1]}, "log": {"level": "debug"}, "workers": workers}
    with SometimesUnread(node, **settings) as proxy, client(proxy) as early:
        assert is_served(early)
        proxy.is_read.clear()
        assert served(proxy, MANY * workers) == MANY * workers
        assert is_served(early)
        assert (proxy.status("livez"), proxy.status("readyz")) == (200, 200)
        assert proxy.metric("connections_closed_total") >= MANY
        dropped = proxy.metric("log_lines_dropped_total")
        proxy.is_read.set()
        said = lambda: sum(line["lines"] for line in proxy.events("log_lines_dropped"))  # noqa: E731
        proxy.wait_for(lambda: said() >= dropped, TIMEOUT_S, "word of what was dropped")
        served(proxy, 10)


def test_a_process_whose_log_nobody_reads_stops_when_it_is_told_to(node):
    with SometimesUnread(node, listener={"node_ids": [1]}, log={"level": "debug"}, workers=2) as proxy:
        proxy.is_read.clear()
        assert served(proxy, 2 * MANY) == 2 * MANY
        os.kill(proxy.pid, signal.SIGTERM)
        proxy.wait_for(lambda: not proxy.running, TIMEOUT_S, "its end")
        proxy.is_read.set()
        assert proxy.wait_for_exit() == 0
        proxy.kill()


@pytest.mark.parametrize("streams", ["2>&-", "0<&- 1>&- 2>&-", "2>/dev/full"])
@pytest.mark.parametrize("workers", [1, 2])
def test_clients_are_served_though_the_log_has_nowhere_to_go(node, streams, workers):
    with WithStreams(node, streams=streams, listener={"node_ids": [1]}, workers=workers) as proxy:
        assert served(proxy, 50) == 50
        dropped = proxy.metric("log_lines_dropped_total")
        assert dropped > 0 if "full" in streams else dropped == 0
        assert proxy.terminate() == 0
        proxy.kill()
