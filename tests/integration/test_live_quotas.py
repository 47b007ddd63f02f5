"""Quotas as clients feel them: a noisy producer is held, a change of the file is felt, a bad change is not taken."""

import json
import threading
import time

import pytest
from confluent_kafka import Producer

from tests.integration.topics import make_topic
from tests.support.disturbance import undisturbed
from tests.support.timeouts import TIMEOUT_S

RATE = 500_000
_WINDOW_S = 11.0
_UNDER_WAY_BYTES = 2_000_000
"""As much as a producer here has waiting or sent; it may hear of it late."""
SHORT_DRAIN = {"drain_s": 1}
"""A throttled client is never idle while it waits, so that the end of the proxy takes the whole of this."""


class NoisyProducer:
    """Writes as fast as it may to one partition; `delivered_bytes` grows, `throttles_ms` has its throttle times."""

    def __init__(self, bootstrap, topic, client_id):
        self.delivered_bytes = 0
        self.throttles_ms = []
        self.error = None
        self._topic = topic
        self._value = b"x" * 10_000
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": client_id,
                "acks": 1,
                "linger.ms": 5,
                "batch.num.messages": 10,
                "queue.buffering.max.messages": 200,
                "request.timeout.ms": 60_000,
                "throttle_cb": lambda event: self.throttles_ms.append(event.throttle_time * 1000),
            }
        )
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join(TIMEOUT_S)
        self._producer.purge()
        self._producer.close()  # a failed test's frames would keep it alive, and it would go on to log lost peers

    def delivered_over(self, seconds):
        """Bytes that are acknowledged from now on for so long, and the time that this took."""
        began, before = time.monotonic(), self.delivered_bytes
        time.sleep(seconds)
        assert self.error is None, self.error
        return self.delivered_bytes - before, time.monotonic() - began

    def rate_over(self, seconds):
        """Bytes per second that are acknowledged from now on for so long."""
        delivered_bytes, took_s = self.delivered_over(seconds)
        return delivered_bytes / took_s

    def has_delivered(self, more_bytes):
        """Return when so many bytes more are acknowledged."""
        wanted, deadline = self.delivered_bytes + more_bytes, time.monotonic() + TIMEOUT_S
        while self.delivered_bytes < wanted:
            assert self.error is None, self.error
            assert time.monotonic() < deadline, f"{wanted - self.delivered_bytes} bytes are still to be delivered"
            time.sleep(0.05)

    def _delivered(self, error, message):
        if error is None:
            self.delivered_bytes += len(self._value)
        elif not self._done.is_set():
            self.error = error

    def _run(self):
        while not self._done.is_set():
            try:
                self._producer.produce(self._topic, self._value, partition=0, on_delivery=self._delivered)
                self._producer.poll(0)
            except BufferError:
                self._producer.poll(0.01)


def entry(client_id, rate):
    return {"client_id": client_id, "producer_byte_rate": rate}


@pytest.mark.rule("mute")
@pytest.mark.exclusive
@pytest.mark.nightly
def test_a_noisy_producer_is_held_to_its_rate_and_gets_throttle_times(start_proxy):
    proxy = start_proxy([entry("noisy", RATE)], limits=SHORT_DRAIN)
    leader = make_topic(proxy.bootstrap, "quota-noisy")[0]
    with NoisyProducer(proxy.bootstrap, "quota-noisy", "noisy") as noisy:
        time.sleep(_WINDOW_S)
        rate, no_process_stood_still = undisturbed(lambda: noisy.rate_over(_WINDOW_S))
    print(f"held at {rate / RATE:.3f} of {RATE} bytes/s, with {len(noisy.throttles_ms)} throttle times")
    # A client that stood still for a while has more left of its window afterwards.
    least, most = (0.85, 1.15) if no_process_stood_still else (0.1, 2.5)
    assert least < rate / RATE < most
    assert max(noisy.throttles_ms, default=0) > 0
    assert proxy.metric("throttled_seconds_total", quota_type="produce", node_id=str(leader)) > 5
    assert proxy.events("throttle_started")


@pytest.mark.rule("live")
def test_a_change_of_the_file_is_felt_by_a_live_connection(start_proxy):
    """First no client is throttled; then one is, so much that its bytes almost stop; then the limit is removed.

    How soon that has an effect is measured by test_quota_changes.
    """
    proxy = start_proxy(limits=SHORT_DRAIN)
    make_topic(proxy.bootstrap, "quota-live")
    with NoisyProducer(proxy.bootstrap, "quota-live", "noisy") as noisy:
        noisy.has_delivered(20_000_000)
        assert noisy.throttles_ms == []
        opened = proxy.metric("connections_opened_total")
        proxy.write_config([entry("noisy", 20_000)])
        proxy.wait_for(lambda: proxy.metric("throttles_total", quota_type="produce") > 0, 10, "the first throttle")
        proxy.wait_for(lambda: noisy.throttles_ms, 10, "the client's throttle time")
        held, took_s = noisy.delivered_over(2)
        assert held < _UNDER_WAY_BYTES + 10 * 20_000 * took_s
        proxy.write_config([])
        proxy.wait_for(lambda: len(proxy.events("config_reloaded")) == 2, 10, "the second reload")
        assert proxy.metric("config_reloads_total", result="applied") == 2
        assert proxy.metric("connections_opened_total") == opened, "it was not the same connection"
    print(f"held at {held:,.0f} bytes in {took_s:.1f} s")


@pytest.mark.rule("reload")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("virtual_clusters: [", "line 1, column 20: "),
        ("virtual_clusters: []\n", "virtual_clusters: expected a list with at least one entry"),
        ("", "expected a mapping"),
    ],
    ids=["no YAML", "no cluster", "empty"],
)
def test_a_bad_file_changes_nothing_and_is_reported(start_proxy, text, problem):
    proxy = start_proxy([entry("noisy", RATE)])
    proxy.write_text(text)
    proxy.wait_for(lambda: proxy.events("config_rejected"), 10, "the log line about the bad file")
    [line] = proxy.events("config_rejected")
    assert line["level"] == "error"
    assert any(problem in found for found in line["problems"])
    assert proxy.metric("config_reloads_total", result="rejected") == 1
    assert proxy.metric("config_reloads_total", result="applied") == 0
    assert proxy.metric("config_last_reload_successful") == 0
    read_s = proxy.metric("config_last_reload_success_timestamp_seconds")
    assert proxy.status("readyz") == 200
    proxy.write_config([entry("noisy", RATE // 2)])
    proxy.wait_for(lambda: proxy.events("config_reloaded"), 10, "the reload of the mended file")
    assert proxy.metric("config_last_reload_successful") == 1
    assert proxy.metric("config_last_reload_success_timestamp_seconds") > read_s


def test_the_old_limit_holds_while_the_file_is_bad_or_needs_a_restart(start_proxy):
    proxy = start_proxy([entry("noisy", 50_000)], limits=SHORT_DRAIN)
    topic = "quota-bad-file"
    make_topic(proxy.bootstrap, topic)
    moved = proxy.config([])
    moved["virtual_clusters"][0]["listeners"][0]["port"] += 10
    with NoisyProducer(proxy.bootstrap, topic, "noisy") as noisy:
        proxy.wait_for(lambda: noisy.throttles_ms, 10, "the first throttle")
        proxy.write_text(json.dumps(moved))
        proxy.wait_for(lambda: proxy.events("config_rejected"), 10, "word of the change")
        [problem] = proxy.events("config_rejected")[0]["problems"]
        assert problem == "virtual_clusters[0].listeners[0].port (needs a restart)"
        reported = len(noisy.throttles_ms)
        proxy.wait_for(lambda: len(noisy.throttles_ms) > reported, 22, "a further throttle")


def test_others_are_not_held_with_the_noisy_one(start_proxy):
    proxy = start_proxy([entry("noisy", 20_000)], limits=SHORT_DRAIN)
    make_topic(proxy.bootstrap, "quota-others")
    with (
        NoisyProducer(proxy.bootstrap, "quota-others", "noisy") as noisy,
        NoisyProducer(proxy.bootstrap, "quota-others", "other") as others,
    ):
        proxy.wait_for(lambda: noisy.throttles_ms, 10, "the noisy one to be throttled")
        others.has_delivered(5_000_000)
        assert others.throttles_ms == []
