"""The log of a proxy at which nothing is wrong, started and ended in each way: no warning and no error is in it."""

import os
import signal
import socket
import threading
from contextlib import contextmanager

import pytest

from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.restarts import RelayedProxy
from tests.integration.small_node import api_versions_request, small_node
from tests.support.timeouts import TIMEOUT_S

SETTINGS = {"listener": {"node_ids": [1]}, "limits": {"drain_s": 1}}
FIRST_KEYS = ["timestamp", "level", "event", "pid"]
QUOTA = {"client_id": "etl", "producer_byte_rate": 1_000}


@pytest.fixture
def node():
    with small_node() as address:
        yield address


@contextmanager
def client(proxy):
    with socket.create_connection((HOST, proxy.port), TIMEOUT_S) as sock:
        sock.sendall(api_versions_request())
        assert len(sock.recv(4_096)) > 20
        yield sock


class Probed:
    """Asks for /readyz all the time, as an orchestrator does, from before the start to behind the end."""

    def __init__(self, proxy):
        self._proxy = proxy
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._done.set()
        self._thread.join(TIMEOUT_S)

    def _run(self):
        while not self._done.wait(0.02):
            self._proxy.status("readyz")


def alarms(proxy):
    return [line for line in proxy.log() if line["level"] not in ("debug", "info")]


def empty_keys(proxy):
    return [line for line in proxy.log() if any(value in (None, "", [], {}) for value in line.values())]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_proxy_that_starts_reloads_and_stops_raises_no_alarm(node, workers):
    proxy = ProxyProcess(node, [QUOTA], workers=workers, **SETTINGS)
    with Probed(proxy), proxy, client(proxy):
        proxy.write_config([{**QUOTA, "producer_byte_rate": 2_000}])
        os.kill(proxy.pid, signal.SIGHUP)
        proxy.wait_for(lambda: proxy.events("quota_changed"), TIMEOUT_S, "the new quota")
        proxy.stop()
    assert alarms(proxy) == [], alarms(proxy)
    assert empty_keys(proxy) == []
    assert {tuple(line)[:4] for line in proxy.log()} == {tuple(FIRST_KEYS)}
    of_workers = {line["pid"] for line in proxy.log() if "worker" in line}
    assert len(of_workers) == (0 if workers == 1 else workers)


def test_a_proxy_that_hands_over_raises_no_alarm_and_each_line_says_which_process_wrote_it(node):
    proxy = RelayedProxy(node, [QUOTA], **SETTINGS)
    with Probed(proxy), proxy:
        first = proxy.pid
        with client(proxy):
            proxy.take_over()
            ended = proxy.wait_for(
                lambda: [line for line in proxy.events("stopped") if line["pid"] == first],
                TIMEOUT_S,
                "the old one's end",
            )
            with client(proxy):
                pass
        pids = set(proxy.pids)
    assert len(ended) == 1
    assert alarms(proxy) == [], alarms(proxy)
    assert {line["pid"] for line in proxy.log()} == pids
    *_, not_ready = [line for line in proxy.events("not_ready") if line["pid"] == first]
    [second] = pids - {first}
    assert not_ready["reasons"] == [f"handed over to pid {second}"]
