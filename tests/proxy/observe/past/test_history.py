"""The history of a running proxy: seconds are noted without waiting for the disk; a disk that refuses harms nobody."""

import asyncio
import json
import shutil
import threading
from contextlib import AsyncExitStack

import pytest
from aiohttp import ClientSession
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from kafka_throttle.proxy.cli.main import main
from kafka_throttle.proxy.clock import SystemClock
from kafka_throttle.proxy.observe.explained import Origin
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.observe.past.history import History
from kafka_throttle.proxy.observe.past.look_up import Past
from kafka_throttle.proxy.observe.past.moments import second_text
from kafka_throttle.proxy.observe.past.ring import Ring
from kafka_throttle.quotas.changes import Limit
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType
from tests.proxy.observe.past.test_seconds import Cluster as Throttling
from tests.proxy.observe.test_throttled_now import LIMIT, Proxy, respond
from tests.relay.frames import produce
from tests.support.timeouts import TIMEOUT_S

KEEP_S = 3_600
EIGHT_MIB = 8 << 20


class Cluster(Throttling):
    """Clients of a virtual cluster that are throttled, with what the history needs beside."""

    name = "main"

    def __init__(self):
        super().__init__()
        self.quota_manager = self.manager
        self.quotas = {Entity(client_id=DEFAULT): {QuotaKey(QuotaType.PRODUCE): Limit(100.0, "proxy.yaml")}}
        self.quotas_since_ms = self.clock.epoch_ms()
        self.origin = Origin("main", "file", {})


class Monotonic:
    now_s = 1_000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def monotonic():
    return Monotonic()


@pytest.fixture
async def history(cluster, monotonic, tmp_path):
    history = History([cluster], Ring(tmp_path / "deep" / "past", EIGHT_MIB, KEEP_S), cluster.clock, monotonic)
    history.start()
    yield history
    await history.stop(TIMEOUT_S)


async def note(history, cluster):
    """A second is over."""
    second = cluster.clock.epoch_ms() // 1000
    cluster.clock.advance(1000)
    await history.note(second, second)
    await asyncio.to_thread(history.flush)
    return second


async def test_a_disk_that_refuses_is_reported_once_and_tried_again(cluster, history, monotonic, tmp_path):
    (tmp_path / "deep").touch()
    cluster.throttle("etl", 20_000)
    with capture_logs() as logs:
        for _ in range(5):
            await note(history, cluster)
            assert not history.totals().up
            assert history.problem == f"{tmp_path}/deep/past cannot be made: Not a directory"
        assert [(line["event"], line["problem"]) for line in logs] == [
            ("history_writing_failed", f"{tmp_path}/deep/past cannot be made: Not a directory")
        ]
        totals = history.totals()
        assert (totals.failures, totals.dropped_seconds, totals.written_seconds) == (1, 5, 0)

        (tmp_path / "deep").unlink()
        (tmp_path / "deep").mkdir()
        await note(history, cluster)
        assert history.totals().dropped_seconds == 6, "not before the next try is due"
        monotonic.now_s += 10
        second = await note(history, cluster)
        assert logs[-1]["event"] == "history_writing_resumed"
    totals = history.totals()
    assert (totals.up, totals.dropped_seconds, totals.written_seconds) == (True, 6, 1)
    assert totals.size_bytes > 0
    past = Past(tmp_path / "deep" / "past", KEEP_S, flush=history.flush)
    [client] = past.throttled(["main"], second_text(second), 10, second + 5)["throttled"]
    assert (client["client_id"], client["limit"], client["rule"]["layer"]) == ("etl", 100, "proxy.yaml")


async def test_a_disk_that_hangs_costs_no_more_than_a_minute_of_memory(cluster, monotonic, tmp_path):
    ring = Ring(tmp_path / "past", EIGHT_MIB, KEEP_S)
    hangs, written = threading.Event(), ring.put_seconds
    ring.put_seconds = lambda seconds: (hangs.wait(TIMEOUT_S), written(seconds))
    history = History([cluster], ring, cluster.clock, monotonic)
    history.start()
    cluster.throttle("etl", 200_000)
    for second in range(100):
        cluster.clock.advance(1000)
        await history.note(second, second)
    assert 35 <= history.totals().dropped_seconds <= 41
    hangs.set()
    await history.stop(TIMEOUT_S)


async def test_a_directory_that_is_removed_is_made_again_and_the_seconds_that_were_in_it_are_counted(
    cluster, history, monotonic, tmp_path
):
    (tmp_path / "deep").mkdir()
    cluster.throttle("etl", 200_000)
    for _ in range(3):
        await note(history, cluster)
    shutil.rmtree(tmp_path / "deep" / "past")
    (tmp_path / "deep" / "past").mkdir(mode=0o755)
    with capture_logs() as logs:
        second = await note(history, cluster)
        await note(history, cluster)
    assert [(line["event"], line["seconds"]) for line in logs] == [("history_segment_removed", 3)]
    totals = history.totals()
    assert (totals.up, totals.failures, totals.dropped_seconds) == (True, 0, 3)
    assert history.problem is None
    past = Past(tmp_path / "deep" / "past", KEEP_S, flush=history.flush)
    [client] = past.throttled(["main"], second_text(second), 10, second + 5)["throttled"]
    assert (client["client_id"], client["limit"]) == ("etl", 100)


async def test_the_metrics_say_whether_the_history_is_written(cluster, history):
    metrics = Metrics(CollectorRegistry())
    metrics.add_history(history.totals)
    cluster.throttle("etl", 20_000)
    await note(history, cluster)
    scraped = generate_latest(metrics.registry).decode()
    assert "kafka_throttle_history_up 0.0" in scraped
    assert "kafka_throttle_history_seconds_dropped_total 1.0" in scraped
    assert "kafka_throttle_history_write_failures_total 1.0" in scraped


# --------------------------------------------------------- over a running proxy


@pytest.fixture
async def proxy(tmp_path):
    """A proxy with a history, and a task that notes each second."""
    async with AsyncExitStack() as stack:
        node = await asyncio.start_server(respond, "127.0.0.1", 0)
        stack.callback(node.close)
        made = Proxy(node.sockets[0].getsockname()[1], tmp_path / "proxy.yaml")
        content = json.loads(made.path.read_text())
        content["history"] = {"directory": str(tmp_path / "past")}
        made.path.write_text(json.dumps(content))
        made.history = History([made.cluster], Ring(tmp_path / "past", EIGHT_MIB, KEEP_S), SystemClock())
        made.api.past = Past(tmp_path / "past", KEEP_S, flush=made.history.flush)
        await made.start(stack)
        made.history.start()
        running = asyncio.create_task(made.history.run())
        stack.push_async_callback(made.history.stop, TIMEOUT_S)
        stack.callback(running.cancel)
        yield made


def kafka_throttle(*arguments):
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code in (0, 1, 2), done.exception
    return done


async def test_the_second_of_a_throttle_is_explained_while_the_proxy_runs_and_after_it(proxy):
    second = await throttled_second(proxy, b"victim")
    ask = ("explain", "-c", proxy.path, "--client-id", "victim", "--at", second_text(second))
    done = await asyncio.to_thread(kafka_throttle, *ask)
    assert done.exit_code == 0, done.stderr
    assert (
        f"virtual cluster main, source file, at {second_text(second)} (to the second): user='ANONYMOUS'" in done.stdout
    )
    assert f"producer_byte_rate: {LIMIT} bytes/s\n  by client-id=<default>, level 8, of proxy.yaml" in done.stdout
    assert "throttled at node 1: user='ANONYMOUS', client_id='victim' from 127.0.0.1: muted for" in done.stdout
    done = await asyncio.to_thread(kafka_throttle, "top", "-c", proxy.path, "--at", second_text(second))
    assert done.stdout.startswith(f"1 client was throttled at {second_text(second)}, longest throttled first\n")
    assert "victim" in done.stdout
    done = await asyncio.to_thread(kafka_throttle, "top", "-c", proxy.path, "--at", second_text(second - 1))
    assert done.stdout == f"no client was throttled at {second_text(second - 1)}\n"

    await proxy.admin.stop()
    done = await asyncio.to_thread(kafka_throttle, *ask)
    assert done.stderr.endswith("this is from the files of the history\n")
    assert "client_id='victim' from 127.0.0.1: muted for" in done.stdout
    done = await asyncio.to_thread(kafka_throttle, "top", "-c", proxy.path, "--at", second_text(second))
    assert done.stderr.endswith("this is from the files of the history\n")
    assert "victim" in done.stdout
    done = await asyncio.to_thread(kafka_throttle, "top", "-c", proxy.path, "--at", "soon")
    assert (done.exit_code, done.stderr.splitlines()[-1][:29]) == (2, "--at: expected a time like 03")


async def throttled_second(proxy, client_id):
    """Have a client be throttled. Returns the second, which is over."""
    clock = SystemClock()
    await asyncio.sleep(2.2 - clock.epoch_ms() / 1000 % 1)
    second = clock.epoch_ms() // 1000
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(produce(1, size=15 * LIMIT, client_id=client_id))
    await asyncio.wait_for(reader.readexactly(40), TIMEOUT_S)
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep((second + 1) + 0.2 - clock.epoch_ms() / 1000)
    return second


async def test_the_api_refuses_times_that_it_cannot_answer_for(proxy):
    async def get(page, **parameters):
        async with session.get(f"http://127.0.0.1:{proxy.config.admin.port}/api/v1/{page}", params=parameters) as got:
            return got.status, (await got.json()).get("error")

    await throttled_second(proxy, b"victim")
    async with ClientSession() as session:
        status, error = await get("explain", at="soon")
        assert (status, error[:47]) == (400, "at: expected a time like 03:12:07, 2026-11-25T0")
        status, error = await get("throttled", at="2999-01-01T00:00:00Z")
        assert (status, error[:62]) == (400, "at: 2999-01-01T00:00:00Z is in the future; the history has 202")
        status, error = await get("throttled", at="-2d")
        assert (status, error[:31]) == (404, "at: the history has nothing of ")
        status, error = await get("throttled", at="-1s", sort="left")
        assert (status, error[:30]) == (400, "sort: expected nothing beside ")
        proxy.api.past = None
        status, error = await get("explain", at="-1s")
        assert (status, error) == (404, "at: there is no history, as history.directory is not set")


def test_without_a_history_the_command_says_so(tmp_path):
    path = tmp_path / "proxy.yaml"
    cluster = {
        "name": "main",
        "upstream": {"bootstrap_servers": ["127.0.0.1:9"]},
        "listeners": [{"name": "plain", "bind": "127.0.0.1", "port": 19092, "node_ids": ["0-2"]}],
    }
    path.write_text(json.dumps({"virtual_clusters": [cluster], "admin": {"port": 9}}))
    for command, options, address in (
        ("explain", (), "127.0.0.1:9"),
        ("top", ("--admin", "127.0.0.1:7"), "127.0.0.1:7"),
    ):
        done = kafka_throttle(command, "-c", path, "--at", "-1m", *options)
        assert (done.exit_code, done.stderr) == (
            1,
            f"no proxy answers at {address}: Connection refused, and no files hold the past: history.directory is not"
            " set\n",
        )
