"""Byte caps of a whole listener, on real connections: the rate, everybody's share, and a cap that changes live."""

import json
import threading
import time

import pytest

from tests.integration.proxy_process import HOST
from tests.integration.raw_client import RawClient

RATE = 3_000_000
REQUEST_BYTES = 30_000
SECONDS = 4.0


class Flood(threading.Thread):
    """Sends Produce requests one after another, until it is told to stop."""

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


@pytest.mark.parametrize("connections", [2, 20])
def test_all_together_get_what_the_cap_allows_and_each_the_same(start_proxy, connections):
    proxy = start_proxy()
    stop = threading.Event()
    floods = [Flood(proxy.node_ports[1], number, stop) for number in range(connections)]
    for flood in floods:
        flood.start()
    proxy.wait_for(lambda: all(flood.sent for flood in floods), 20, "the first answers")
    config = proxy.config()
    config["virtual_clusters"][0]["listeners"][0]["caps"] = {"ingress_bytes_per_s": RATE}
    proxy.write_text(json.dumps(config))
    proxy.wait_for(lambda: proxy.events("config_reloaded"), 10, "the cap")
    time.sleep(0.5)
    before, began_s = proxy.metric("cap_bytes_total", listener="plain", direction="ingress"), time.monotonic()
    sent_before = [flood.sent for flood in floods]
    time.sleep(SECONDS)
    after, ended_s = proxy.metric("cap_bytes_total", listener="plain", direction="ingress"), time.monotonic()
    sent = [flood.sent - sent for flood, sent in zip(floods, sent_before, strict=True)]
    stop.set()
    for flood in floods:
        flood.join(20)
    rate = (after - before) / (ended_s - began_s)
    print(f"{connections} connections: {rate / RATE:.3f} of the cap; shares {min(sent)} to {max(sent)} bytes")
    assert 0.85 * RATE < rate < 1.05 * RATE, "a machine that stands still now and then loses what the cap allowed then"
    assert min(sent) > 0.5 * max(sent)
    assert not any(flood.throttled_ms for flood in floods)
    assert proxy.metric("cap_waits_total", direction="ingress") > 0
    assert proxy.metric("cap_waited_seconds_total", direction="ingress") > 0
    assert proxy.metric("throttles_total") == 0
