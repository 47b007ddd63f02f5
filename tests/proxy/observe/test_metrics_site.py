import asyncio
import contextlib
import time

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge

from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.installed import build_in_use
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.observe.metrics_site import MetricsSite, measure_lag


@pytest.fixture
def reasons():
    return ["listeners are not bound yet"]


@pytest.fixture
def remarks():
    return []


@pytest.fixture
def not_live():
    return []


@pytest.fixture
async def get(reasons, remarks, not_live):
    metrics = Metrics(CollectorRegistry())
    server = MetricsSite(metrics, lambda: reasons, remarks=lambda: remarks, not_live=lambda: not_live)
    port = await server.start("127.0.0.1", 0)

    async def get(path, method="GET", **headers):
        async with session.request(method, f"http://127.0.0.1:{port}{path}", headers=headers) as response:
            return response.status, response.headers["Content-Type"], await response.read()

    async with aiohttp.ClientSession() as session:
        yield get
    await server.stop()


async def test_metrics_come_as_plain_text_unless_asked_otherwise(get):
    status, content_type, body = await get("/metrics")
    assert status == 200
    assert content_type.startswith("text/plain; version=0.0.4")
    assert b"kafka_throttle_event_loop_lag_seconds" in body
    assert f'build="{build_in_use()}"'.encode() in body
    assert not body.endswith(b"# EOF\n")


async def test_metrics_come_as_openmetrics_if_asked_for(get):
    status, content_type, body = await get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert status == 200
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize("accept", ["text/plain; version=x", "application/openmetrics-text; version=", ";;,,", "é" * 9])
async def test_a_strange_accept_header_still_gets_metrics(get, accept):
    status, _, body = await get("/metrics", Accept=accept)
    assert status == 200
    assert b"kafka_throttle_build_info" in body


async def test_a_process_that_responds_is_alive(get):
    assert (await get("/livez"))[::2] == (200, b'{"live": true}')


async def test_a_process_that_had_better_be_started_again_is_not_live(get, not_live):
    not_live.append("worker 1 has not run for 30 s")
    assert (await get("/livez"))[::2] == (503, b'{"live": false, "reasons": ["worker 1 has not run for 30 s"]}')


async def test_a_process_is_ready_once_nothing_stands_against_it(get, reasons):
    not_ready = b'{"ready": false, "reasons": ["listeners are not bound yet"]}'
    assert (await get("/readyz"))[::2] == (503, not_ready)
    reasons.clear()
    assert (await get("/readyz"))[::2] == (200, b'{"ready": true, "reasons": []}')


async def test_what_is_wrong_with_a_ready_process_is_said_beside_it(get, reasons, remarks):
    reasons.clear()
    remarks.append("cut off")
    assert (await get("/readyz"))[::2] == (200, b'{"ready": true, "reasons": [], "remarks": ["cut off"]}')


async def test_nothing_else_is_served(get):
    assert (await get("/"))[0] == 404
    assert (await get("/metrics", method="POST"))[0] == 405
    assert (await get("/metrics", method="HEAD"))[0] == 200


async def test_a_port_in_use_is_reported_with_its_setting():
    first = MetricsSite(Metrics(CollectorRegistry()), list)
    port = await first.start("127.0.0.1", 0)
    second = MetricsSite(Metrics(CollectorRegistry()), list)
    with pytest.raises(ConfigErrors) as caught:
        await second.start("127.0.0.1", port)
    await second.stop()
    await first.stop()
    await first.stop()
    assert str(caught.value) == f"metrics.port: expected a free port of 127.0.0.1, got {port}, which is in use"


async def test_an_address_of_another_machine_is_reported_with_its_setting():
    server = MetricsSite(Metrics(CollectorRegistry()), list)
    with pytest.raises(ConfigErrors) as caught:
        await server.start("192.0.2.1", 0)
    assert str(caught.value) == "metrics.bind: expected an address of this machine, got '192.0.2.1'"


async def test_the_lag_of_the_event_loop_is_measured():
    gauge = Gauge("lag", "Lag.", registry=CollectorRegistry())
    task = asyncio.create_task(measure_lag(gauge))
    await asyncio.sleep(0.05)
    time.sleep(0.5)  # noqa: ASYNC251 - the loop is to be late
    await asyncio.sleep(0.05)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert gauge._value.get() > 0.25
