"""Byte caps of a whole listener, on real connections: the rate, everybody's share, and a cap that changes live."""

import json
import threading
import time

import pytest

from tests.disturbance import undisturbed
from tests.integration.proxy_process import HOST
from tests.integration.raw_client import RawClient
from tests.timeouts import TIMEOUT_S

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
