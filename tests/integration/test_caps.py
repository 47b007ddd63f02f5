"""Byte caps of a whole listener, on real connections: the rate, everybody's share, whose turn it is, and a cap that
changes live.
"""

import contextlib
import json
import selectors
import socket
import statistics
import threading
import time
from struct import pack

import pytest

from tests.integration.proxy_process import HOST
from tests.integration.raw_client import RawClient, produce_request
from tests.support.disturbance import undisturbed
from tests.support.timeouts import TIMEOUT_S

RATE = 3_000_000
REQUEST_BYTES = 30_000
MEASURED_BYTES = 4 * RATE


class Flood(threading.Thread):
    """Sends Produce requests one after another, until `stop` is called."""

    def __init__(self, port, number, stop):
        super().__init__(daemon=True)
        self.sent = 0
        self.throttled_ms = 0
        self._client = RawClient((HOST, port), f"flood-{number}")
        self._client.prepare([REQUEST_BYTES])
        self._stop_asked = stop

    def run(self):
        with self._client as client:
            while not self._stop_asked.is_set():
                self.throttled_ms += client.produce(REQUEST_BYTES).throttle_time_ms
                self.sent += REQUEST_BYTES


def rate_and_shares(proxy, floods):
    """Bytes/s over so many bytes as the cap allows in 4 s at the least, never more than it was; and each one's part."""
    began_s, before = time.monotonic(), proxy.metric("cap_bytes_total", listener="plain", direction="ingress")
    sent_before = [flood.sent for flood in floods]
    proxy.wait_for(
        lambda: sum(flood.sent for flood in floods) > sum(sent_before) + MEASURED_BYTES, TIMEOUT_S, "what is measured"
    )
    sent = [flood.sent - sent for flood, sent in zip(floods, sent_before, strict=True)]
    after, ended_s = proxy.metric("cap_bytes_total", listener="plain", direction="ingress"), time.monotonic()
    return (after - before) / (ended_s - began_s), sent


@pytest.mark.rule("cap")
@pytest.mark.exclusive
@pytest.mark.parametrize("connections", [pytest.param(2, marks=pytest.mark.nightly), 20])
def test_all_together_get_what_the_cap_allows_and_each_the_same(start_proxy, connections):
    proxy = start_proxy()
    stop = threading.Event()
    floods = [Flood(proxy.node_ports[1], number, stop) for number in range(connections)]
    for flood in floods:
        flood.start()
    proxy.wait_for(lambda: all(flood.sent for flood in floods), 20, "the first responses")
    config = proxy.config()
    config["virtual_clusters"][0]["listeners"][0]["caps"] = {"ingress_bytes_per_s": RATE}
    proxy.write_text(json.dumps(config))
    proxy.wait_for(lambda: proxy.events("config_reloaded"), 10, "the cap")
    sent_before = [flood.sent for flood in floods]
    for flood, sent in zip(floods, sent_before, strict=True):
        proxy.wait_for(lambda flood=flood, sent=sent: flood.sent > sent, 20, "a response under the cap")
    (rate, sent), no_process_stood_still = undisturbed(lambda: rate_and_shares(proxy, floods))
    stop.set()
    for flood in floods:
        flood.join(TIMEOUT_S)
    print(f"{connections} connections: {rate / RATE:.3f} of the cap; shares {min(sent)} to {max(sent)} bytes")
    assert rate < 1.05 * RATE
    assert rate > 0.85 * RATE or not no_process_stood_still, "what the cap allowed while a process stood still is lost"
    assert min(sent) > 0.5 * max(sent)
    assert not any(flood.throttled_ms for flood in floods)
    assert proxy.metric("cap_waits_total", direction="ingress") > 0
    assert proxy.metric("cap_waited_seconds_total", direction="ingress") > 0
    assert proxy.metric("throttles_total") == 0


class ManyConnections(threading.Thread):
    """Connections of one client-id that always have bytes for the proxy to read."""

    def __init__(self, address, number, client_id):
        super().__init__(daemon=True)
        request = produce_request(client_id, 0, REQUEST_BYTES)
        self._request = pack(">i", len(request)) + request
        self._done = threading.Event()
        self._rest = {}
        for _ in range(number):
            connected = socket.create_connection(address, TIMEOUT_S)
            connected.setblocking(False)
            self._rest[connected] = b""

    def run(self):
        with selectors.DefaultSelector() as selector:
            for connected in self._rest:
                selector.register(connected, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while not self._done.wait(0.01):
                for key, events in selector.select(0):
                    with contextlib.suppress(BlockingIOError):
                        if events & selectors.EVENT_READ:
                            key.fileobj.recv(1 << 18)
                        if events & selectors.EVENT_WRITE:
                            rest = self._rest[key.fileobj] or self._request
                            self._rest[key.fileobj] = rest[key.fileobj.send(rest) :]

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self.join()
        for connected in self._rest:
            connected.close()


def median_wait_s(proxy, client_id, source):
    """How long a small request takes beside other connections, once these wait at the cap."""
    proxy.wait_for(lambda: proxy.metric("cap_waits_total", direction="ingress") > 100, TIMEOUT_S, "waits at the cap")
    with RawClient((HOST, proxy.node_ports[1]), client_id, source) as client:
        client.prepare([200])
        client.produce(200)
        answered = [client.produce(200) for _ in range(15)]
    return statistics.median(one.answered_s - one.sent_s for one in answered)


@pytest.mark.exclusive
@pytest.mark.parametrize(
    ("client_id", "source"),
    [
        pytest.param("tenant", "127.0.0.2", id="another address"),
        pytest.param("small", HOST, id="another client-id", marks=pytest.mark.nightly),
    ],
)
def test_beside_two_hundred_connections_a_small_client_waits_as_long_as_beside_two(start_proxy, client_id, source):
    waited_s = {}
    for number in (2, 200):
        proxy = start_proxy(listener={"caps": {"ingress_bytes_per_s": RATE // 3}})
        with ManyConnections((HOST, proxy.node_ports[1]), number, b"tenant"):
            waited_s[number] = median_wait_s(proxy, client_id, source)
        proxy.stop()
    print(f"beside 2 connections {waited_s[2]:.3f} s, beside 200 {waited_s[200]:.3f} s")
    assert waited_s[200] < 5 * max(waited_s[2], 0.02), "200 turns of a 50th of a second would be 4 s"
