"""`request_percentage` at a real cluster: a client over it waits one window at most; a stalled node charges none."""

import time

import pytest

from tests.integration.proxy_process import HOST
from tests.integration.raw_client import RawClient
from tests.support.timeouts import TIMEOUT_S

_LONGEST_MS = 1000
"""One window: Kafka cuts throttle times for request time to it."""

_THROTTLES = 5
_SIZE_BYTES = 200


def request_quota(client_id, percent):
    return {"client_id": client_id, "request_percentage": percent}


def use_of(proxy, client_id):
    """Percent of a thread, as the proxy measures it now."""
    return proxy.metric("entity_rate", quota_type="request", client_id=client_id)


@pytest.mark.rule("request")
def test_a_busy_client_gets_its_percentage_of_a_thread_and_another_one_feels_nothing(start_proxy):
    percent = 0.5
    proxy = start_proxy([request_quota("busy", percent), request_quota("modest", 1000)])
    port = proxy.node_ports[1]
    throttles, into_the_mute, uses = [], [], []
    with RawClient((HOST, port), "busy") as busy, RawClient((HOST, port), "modest") as modest:
        until_s = time.monotonic() + TIMEOUT_S
        while len(uses) < _THROTTLES and time.monotonic() < until_s:
            answered = busy.produce(_SIZE_BYTES)
            if throttles and throttles[-1].throttle_time_ms:
                into_the_mute.append((throttles[-1], answered))
            throttles.append(answered)
            if answered.throttle_time_ms:
                uses.append(use_of(proxy, "busy"))
            assert modest.produce(_SIZE_BYTES).throttle_time_ms == 0
    times_ms = [answered.throttle_time_ms for answered in throttles if answered.throttle_time_ms]
    assert len(times_ms) == _THROTTLES
    assert max(times_ms) <= _LONGEST_MS
    for throttled, following in into_the_mute:
        assert (following.answered_s - throttled.sent_s) * 1000 >= throttled.throttle_time_ms
    # Beyond its percentage there is one request at most; unthrottled it would use fifty times as much.
    assert max(uses) < 3 * percent
    assert proxy.metric("throttles_total", quota_type="request") == len(times_ms)


def test_a_node_that_stands_still_charges_no_client(newest_kafka, start_proxy):
    proxy = start_proxy([request_quota("waiting", 1000)])
    with RawClient((HOST, proxy.node_ports[1]), "waiting") as client:
        for _ in range(50):
            client.produce(_SIZE_BYTES)
        before = use_of(proxy, "waiting")
        newest_kafka.freeze(1)
        try:
            client.send_produce(_SIZE_BYTES)
            time.sleep(0.5)
        finally:
            newest_kafka.thaw(1)
        answered = client.receive(throttle_at=-4)
        assert answered.answered_s - answered.sent_s >= 0.5
        [node] = [reported for reported in proxy.admin("request-costs")["nodes"] if reported["node_id"] == 1]
        cost_us = node["apis"]["Produce"]["base_us"] + node["apis"]["Produce"]["per_kib_us"]
        # A use is a sum by 10 to 11 s, as the windows stand: so much has been charged meanwhile at least.
        grown_us = (use_of(proxy, "waiting") * 10 - before * 11) * 10_000
        assert grown_us <= cost_us + 1
    assert proxy.metric("throttles_total", quota_type="request") == 0
