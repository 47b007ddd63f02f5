"""The one client that is throttled among many is named everywhere at once, on real sockets; and 100,000 are bounded."""

import asyncio
import contextlib
import gc
import json
from contextlib import AsyncExitStack
from time import thread_time
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from demo.proxy_process import free_port_run
from kafka_throttle.proxy.cli.main import main
from kafka_throttle.proxy.clock import SystemClock
from kafka_throttle.proxy.config.load import config_of
from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts
from kafka_throttle.proxy.gate.admission import Admission
from kafka_throttle.proxy.gate.connection_gate import ConnectionGate
from kafka_throttle.proxy.net.poller import Poller
from kafka_throttle.proxy.observe.api import AdminApi
from kafka_throttle.proxy.observe.explained import Origin
from kafka_throttle.proxy.observe.last_throttles import LastThrottles
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.observe.throttle_episode import ThrottledClients, ThrottleEpisode
from kafka_throttle.proxy.observe.throttled_now import RANKS, throttled_form
from kafka_throttle.proxy.relay.actions import Throttled
from kafka_throttle.proxy.server.sockets import bind_all
from kafka_throttle.proxy.server.virtual_cluster import VirtualCluster
from kafka_throttle.quotas.changes import Limit, tables_of
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.connection_quotas import ConnectionLimits, ConnectionQuotas
from kafka_throttle.quotas.entities import Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from tests.fakes.clock import FakeClock
from tests.fakes.http import admin_listener
from tests.relay.frames import produce, produced
from tests.support.timeouts import TIMEOUT_S

CLIENTS = 26
NODE_ID = 1
LIMIT = 10_000
SOON_S = 2.0
"""Within this time of its first throttle a client is named."""


async def respond(reader, writer):
    """A node that has only Produce."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            writer.write(produced(int.from_bytes(frame[4:8], "big")))
    writer.close()


class Proxy:
    """A virtual cluster with one node, its metrics and its admin listener, in this process."""

    def __init__(self, node_port, path):
        bootstrap, self.port, admin_port = free_port_run(3)
        cluster = {
            "name": "main",
            "upstream": {"bootstrap_servers": [f"127.0.0.1:{node_port}"]},
            "listeners": [{"name": "plain", "bind": "127.0.0.1", "port": bootstrap, "node_ids": [NODE_ID]}],
            "quotas": {"entries": [{"default_client_id": True, "producer_byte_rate": LIMIT}]},
        }
        content = {"virtual_clusters": [cluster], "admin": {"port": admin_port}}
        path.write_text(json.dumps(content))
        self.path, self.config, clock = path, config_of(content), SystemClock()
        self.metrics = Metrics(CollectorRegistry(), top_entities=20)
        gate = ConnectionGate(Admission(ConnectionQuotas(ConnectionLimits(), clock.now_ms()), 10), clock)
        [settings] = self.config.virtual_clusters
        self.cluster = VirtualCluster(settings, path, 100, Poller(), clock, self.metrics, lambda: True, gate)
        self.cluster.upstream.directory.learn(NODE_ID, "127.0.0.1", node_port)
        self.metrics.add_entities(self.cluster.entities(clock))
        self.api = AdminApi([self.cluster], clock)
        self.admin = admin_listener(self.api.routes())

    async def start(self, stack):
        await self.cluster.book.start()
        stack.push_async_callback(self.cluster.book.stop)
        await self.admin.start("127.0.0.1", self.config.admin.port)
        stack.push_async_callback(self.admin.stop)
        [listener] = self.cluster.listeners
        listener.set_limits(self.config.limits)
        listener.serve(bind_all("127.0.0.1", [self.port]))
        stack.callback(listener.stop_accepting)

    def top(self, *arguments):
        done = CliRunner().invoke(main, ["top", "-c", str(self.path), "--once", *arguments])
        assert done.exit_code == 0, done.stderr
        return done.stdout


@pytest.fixture
async def proxy(tmp_path):
    async with AsyncExitStack() as stack:
        node = await asyncio.start_server(respond, "127.0.0.1", 0)
        stack.callback(node.close)
        made = Proxy(node.sockets[0].getsockname()[1], tmp_path / "proxy.yaml")
        await made.start(stack)
        yield made


async def test_the_one_client_of_many_that_is_throttled_is_named_everywhere_at_once(proxy):
    names = [f"client-{number}" for number in range(CLIENTS)]
    victim = names[17]
    loop = asyncio.get_running_loop()
    with capture_logs() as logs:
        clients = [await asyncio.open_connection("127.0.0.1", proxy.port) for _ in names]
        for name, (reader, writer) in zip(names, clients, strict=True):
            size = 15 * LIMIT if name == victim else 2 * LIMIT
            writer.write(produce(1, size=size, client_id=name.encode()))
            await asyncio.wait_for(reader.readexactly(40), TIMEOUT_S)
        throttled_at = loop.time()
        [client] = json.loads(await asyncio.to_thread(proxy.top, "--json"))["throttled"]
        text = await asyncio.to_thread(proxy.top)
        scraped = generate_latest(proxy.metrics.registry).decode().splitlines()
        assert loop.time() - throttled_at < SOON_S
        for _, writer in clients:
            writer.close()
            await writer.wait_closed()

    assert (client["client_id"], client["user"], client["node_id"]) == (victim, "ANONYMOUS", NODE_ID)
    assert (client["quota_type"], client["limit"], client["connections"]) == ("produce", LIMIT, 1)
    assert client["rule"]["entity"] == {"client-id": None}
    assert (client["rule"]["source"], client["rule"]["layer"]) == ("file", "proxy.yaml")
    assert client["rate"] > LIMIT
    assert 0 < client["left_ms"] <= 5_100
    assert text.startswith("1 client is throttled now, longest wait first\n")
    assert f"{victim} " in text
    series = [line for line in scraped if line.startswith("kafka_throttle_entity_throttle_seconds_total{")]
    [of_victim] = [line for line in series if not line.endswith(" 0.0")]
    assert f'client_id="{victim}"' in of_victim
    [throttled] = [line for line in scraped if line.startswith("kafka_throttle_throttled_entities{")]
    assert throttled.endswith(" 1.0")
    started = [line for line in logs if line["event"] == "throttle_started"]
    assert [(line["client_id"], line["entity"], line["node_id"]) for line in started] == [
        (victim, "client-id=<default>", NODE_ID)
    ]


# -------------------------------------------------------------------- very many

MANY = 100_000
LONGEST_STEP_S = 0.02


def throttle_time_ms(number):
    return 1 + number * 7919 % 100_003


@pytest.fixture(scope="module")
def crowd():
    """A virtual cluster with 100,000 throttled client-ids of a user, half of them with two connections."""
    clock, manager = FakeClock(), ClientQuotaManager(Sensors(64), QuotaTable())
    quotas = {Entity("alice"): {QuotaKey(QuotaType.PRODUCE): Limit(100.0, "proxy.yaml")}}
    manager.replace(tables_of(quotas).enforced, clock.now_ms())
    facts = ConnectionFacts(ListenerFacts("main", None, manager, None), NODE_ID, "alice")
    manager.sensors.charge(facts.bind(b"etl", clock.now_ms()).produce, 1_500, clock.now_ms())
    last_throttles, throttled = LastThrottles(manager, clock), ThrottledClients()
    for number in range(MANY):
        cause = Throttled(QuotaType.PRODUCE, throttle_time_ms(number), b"client-%d" % number)
        past = last_throttles.note("10.0.0.1", cause, facts, clock.now_ms())
        for _ in range(1 + number % 2):
            episode = ThrottleEpisode(past, clock.now_ms() - number, clock.now_ms())
            episode.note(cause.throttle_time_ms, clock.now_ms())
            throttled.add(episode)
    gc.collect()
    gc.freeze()  # as the service does with what stays
    yield SimpleNamespace(
        name="main",
        quota_manager=manager,
        throttled=throttled,
        share_of=lambda row: None,
        quotas=quotas,
        origin=Origin("main", "file", {}),
        open_connections=0,
        is_one_of_several=False,
        clock=clock,
    )
    gc.unfreeze()


def steps_of(cluster, sort, most):
    """The page, and how long each of its steps took, in s of this thread's time."""
    steps, took = throttled_form([cluster], sort, most, cluster.clock), []
    while True:
        began = thread_time()
        try:
            next(steps)
        except StopIteration as end:
            return end.value, [*took, thread_time() - began]
        finally:
            took.append(thread_time() - began)


@pytest.mark.parametrize("sort", RANKS)
def test_no_step_over_very_many_throttled_clients_is_long(crowd, sort):
    runs = [steps_of(crowd, sort, most=1000) for _ in range(2)]
    form = runs[0][0]
    assert (form["total"], len(form["throttled"]), form["more"]) == (MANY, 1000, MANY - 1000)
    assert min(max(took) for _, took in runs) < LONGEST_STEP_S


def test_the_first_of_very_many_are_those_of_all(crowd):
    form, _ = steps_of(crowd, "left", most=100)
    expected = sorted(map(throttle_time_ms, range(MANY)), reverse=True)[:100]
    assert [client["left_ms"] for client in form["throttled"]] == expected
    assert {client["rate"] for client in form["throttled"]} == {150.0}
