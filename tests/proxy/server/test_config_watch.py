"""The configuration file of a running process."""

import asyncio
import json

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from kafka_throttle.common import duties
from kafka_throttle.common.duties import Duty, troubles
from kafka_throttle.proxy.clock import SystemClock
from kafka_throttle.proxy.config.load import load_config
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.server.config_watch import ConfigWatch
from tests.support.timeouts import TIMEOUT_S


@pytest.fixture
def file(tmp_path):
    return tmp_path / "proxy.yaml"


def write(file, drain_s, **cluster):
    listener = {"name": "plain", "bind": "127.0.0.1", "port": 9092, "node_ids": [1]}
    cluster |= {"name": "main", "upstream": {"bootstrap_servers": ["127.0.0.1:9"]}, "listeners": [listener]}
    file.write_text(json.dumps({"virtual_clusters": [cluster], "limits": {"drain_s": drain_s}}))


@pytest.mark.rule("reload")
async def test_an_error_while_a_change_is_put_in_force_is_reported_and_the_next_change_is_taken_up(file, monkeypatch):
    monkeypatch.setattr(duties, "_AGAIN_S", 0)
    applied, may_fail = asyncio.Queue(), [True]

    async def apply(loaded):
        await applied.put(loaded.config.limits.drain_s)
        if may_fail:
            may_fail.clear()
            raise ValueError("a bug")

    write(file, 5)
    metrics = Metrics(CollectorRegistry())
    watch = ConfigWatch(file, load_config(file), SystemClock(), metrics, apply, lambda *states: None)
    watching = asyncio.create_task(Duty("watching").keep(watch.watch))
    async with asyncio.timeout(TIMEOUT_S):
        write(file, 6)
        assert await applied.get() == 6
        while not troubles():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        successful = "kafka_throttle_config_last_reload_successful"
        assert metrics.registry.get_sample_value(successful) == 0
        write(file, 7)
        assert await applied.get() == 7
        while metrics.registry.get_sample_value(successful) == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    watching.cancel()


async def test_files_that_a_running_proxy_could_not_write_are_in_the_log(file, tmp_path):
    async def apply(loaded):
        pass

    write(file, 5, quotas={"state_file": str(tmp_path), "entries": [{"user": "a", "producer_byte_rate": 1}]})
    watch = ConfigWatch(
        file, load_config(file), SystemClock(), Metrics(CollectorRegistry()), apply, lambda *states: None
    )
    with capture_logs() as logs:
        await watch.warn()
    problem = f"{tmp_path} is a directory, expected a file; changes of quotas are refused"
    assert logs == [
        {
            "event": "config_warning",
            "log_level": "warning",
            "problem": f"virtual_clusters[0].quotas.state_file: {problem}",
        }
    ]


async def test_a_token_that_is_replaced_in_its_file_is_in_force_without_a_reload_by_hand(file, tmp_path):
    applied = asyncio.Queue()

    async def apply(loaded):
        await applied.put([account.secret for account in loaded.access.admin.accounts])

    token = tmp_path / "token"
    token.write_text("the-first-token-of-all")
    write(file, 5)
    file.write_text(json.dumps({**json.loads(file.read_text()), "admin": {"token_file": "token"}}))
    metrics = Metrics(CollectorRegistry())
    watch = ConfigWatch(file, load_config(file), SystemClock(), metrics, apply, lambda *states: None)
    watching = asyncio.create_task(watch.watch())
    async with asyncio.timeout(TIMEOUT_S):
        token.write_text("another-token-that-is-longer")
        assert await applied.get() == ["another-token-that-is-longer"]
    watching.cancel()
