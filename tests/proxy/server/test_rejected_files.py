"""A configuration that was rejected is read again, because a file that it names may be right by then."""

import asyncio
import contextlib
import copy

import pytest
import yaml
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from kafka_throttle.proxy.config.load import load_config
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.server import config_watch
from kafka_throttle.proxy.server.config_watch import ConfigWatch
from tests.fakes.clock import FakeClock
from tests.proxy.config.test_config import MINIMAL
from tests.support.certificates import Authority
from tests.support.waiting import until


class Watched:
    """A configuration file with a certificate, and what a running proxy does with it."""

    def __init__(self, path, issued):
        self.path = path
        self.clock = FakeClock()
        self.in_force = []
        self.certificate_file = issued.certificate_file
        self.use_key(issued.key_file)
        metrics = Metrics(CollectorRegistry())
        self.watch = ConfigWatch(path, load_config(path), self.clock, metrics, self._apply, lambda *_: None)

    async def _apply(self, loaded):
        self.in_force.append(loaded.config)

    def use_key(self, key_file):
        data = copy.deepcopy(MINIMAL)
        tls = {"certificate_file": str(self.certificate_file), "key_file": str(key_file)}
        data["virtual_clusters"][0]["listeners"][0]["tls"] = tls
        aside = self.path.with_suffix(".new")
        aside.write_text(yaml.safe_dump(data))
        aside.replace(self.path)

    def a_minute_later(self, condition):
        """Let a minute pass; whether the condition holds."""
        self.clock.advance(60_000)
        return condition()


@pytest.fixture
def issued(tmp_path):
    return Authority(tmp_path).issue("localhost", name="own")


@pytest.fixture
def watched(tmp_path, issued, monkeypatch):
    monkeypatch.setattr(config_watch, "_WATCH_S", 0)
    return Watched(tmp_path / "proxy.yaml", issued)


@contextlib.asynccontextmanager
async def watching(watched):
    with capture_logs() as logs:
        task = asyncio.create_task(watched.watch.watch())
        yield logs
        task.cancel()


def rejected(logs):
    return [line["problems"] for line in logs if line["event"] == "config_rejected"]


async def test_a_rejected_configuration_is_in_force_when_a_file_that_it_names_is_right(watched, issued, tmp_path):
    late_key = tmp_path / "late.key"
    async with watching(watched) as logs:
        watched.use_key(late_key)
        await until(lambda: rejected(logs))
        late_key.write_bytes(issued.key_file.read_bytes())
        await until(lambda: watched.a_minute_later(lambda: watched.in_force))
    assert len(rejected(logs)) == 1


async def test_what_is_still_wrong_is_reported_once_until_somebody_asks(watched, tmp_path, monkeypatch):
    reads = []
    load = config_watch.load_with_files
    monkeypatch.setattr(config_watch, "load_with_files", lambda path: (reads.append(path), load(path))[1])
    async with watching(watched) as logs:
        watched.use_key(tmp_path / "gone.key")
        await until(lambda: watched.a_minute_later(lambda: len(reads) > 2))
        assert len(rejected(logs)) == 1
        watched.watch.reload_asked.set()
        await until(lambda: len(rejected(logs)) == 2)
