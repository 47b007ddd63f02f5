"""What serves clients in one process."""

import asyncio
import gc
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from demo.proxy_process import free_port_run
from kafka_throttle.proxy.clock import SystemClock
from kafka_throttle.proxy.config.load import config_of
from kafka_throttle.proxy.config.settings import LimitsConfig
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.server import instance as instances
from kafka_throttle.proxy.server.connection import Connection
from kafka_throttle.proxy.server.instance import Instance
from kafka_throttle.proxy.server.passed_sockets import PassedSockets
from tests.support.timeouts import TIMEOUT_S


@pytest.fixture
async def instance(monkeypatch):
    """It serves, and looks after its connections all the time. No cluster is there."""
    monkeypatch.setattr(instances, "_SWEEP_S", 0.01)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(LimitsConfig, "first_byte_timeout_ms", 50)
    port = free_port_run(2)[0]
    listener = {"name": "plain", "bind": "127.0.0.1", "port": port, "node_ids": [1]}
    cluster = {"name": "main", "upstream": {"bootstrap_servers": ["127.0.0.1:9"]}, "listeners": [listener]}
    config = config_of({"virtual_clusters": [cluster], "limits": {"drain_s": 1}})
    made = Instance(Path("proxy.yaml"), config, SystemClock(), Metrics(CollectorRegistry()))
    made.bind(PassedSockets([]))
    yield made
    made.end_asked.set()
    made.stop_listening(stays_open=False)
    await made.drain(lambda: False)
    await made.finish()


async def test_an_error_with_one_connection_is_none_of_the_others_and_is_shown(instance, monkeypatch):
    look_after, spoiled = Connection.look_after, []

    def look(connection, *args):
        spoiled[:] = spoiled or [connection]
        if connection in spoiled:
            raise ValueError("a bug")
        look_after(connection, *args)

    monkeypatch.setattr(Connection, "look_after", look)
    instance.serve()
    port = instance.config.virtual_clusters[0].listeners[0].port
    clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
    reads = {asyncio.create_task(reader.read(1)) for reader, _ in clients}
    async with asyncio.timeout(TIMEOUT_S):
        while len(reads) > 1:
            _, reads = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
    [remark] = [one for one in instance.remarks() if "looking for timeouts" in one]
    assert "ValueError('a bug')" in remark
    assert instance.connections == 1
    for task in reads:
        task.cancel()
    for _, writer in clients:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
