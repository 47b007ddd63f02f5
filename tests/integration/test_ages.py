"""Kafka of six ages, one node each: the proxy's own questions, the tools of that age, and quotas of every type.

Each quota is set with `kafka-configs` of that age and of the newest. Until Kafka 2.5 that one writes to ZooKeeper,
so there the proxy follows ZooKeeper. `pytest -s` prints the rows of the table in docs/proofs/conformance.md.
"""

import asyncio
import re
import subprocess
from contextlib import ExitStack, closing
from struct import pack

import pytest

from demo.kafka_cluster import KafkaCluster, java_argv, logging_properties, modes_of
from kafka_throttle.common.jars import kafka_jars, release
from kafka_throttle.protocol.api_key import CREATE_TOPICS, FETCH, METADATA
from kafka_throttle.protocol.messages.client_quotas import all_quotas_request
from kafka_throttle.proxy.usage.kafka_topic import KafkaTopic
from kafka_throttle.quotas.sources.cluster_connection import ClusterConnection, Credentials
from kafka_throttle.quotas.sources.cluster_faults import ConnectionFault
from kafka_throttle.quotas.sources.cluster_nodes import default_partitions_of
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.raw_client import RawClient
from tests.support.timeouts import TIMEOUT_S

pytestmark = pytest.mark.kafka

AGES = ("2.1.1", "2.5.1", "2.8.2", "3.6.2", "3.9.2", "4.3.1")
NEWEST = AGES[-1]
TOPIC, GROUP, RECORDS = "ages", "ages-group", 50
RECORD = "x" * 1000
FIRST_WITH_QUOTA_API = (2, 6)
FIRST_WITH_ALL_TYPES = (2, 8)
"""controller_mutation_rate came with 2.7, and `--entity-type ips` of kafka-configs with 2.8."""

BYTE_RATES = "producer_byte_rate=1000,consumer_byte_rate=1000"
MUTATION_RATE = "controller_mutation_rate=0.1"
ALL_TOPICS = pack(">i", -1)


class Age:
    """One node, its tools, and a proxy in front of it."""

    def __init__(self, version, stack, tmp_path):
        self.release = release(version)
        mode = "kraft" if self.release >= (3, 7) else modes_of(version)[-1]
        self.cluster = stack.enter_context(KafkaCluster(version, mode, 1))
        self.tmp_path = tmp_path
        self._stack = stack

    def proxy(self, **source):
        """A proxy that is ready."""
        return self._stack.enter_context(ProxyProcess(self.cluster, source=source, limits={"drain_s": 1}))

    def tool(self, name, *args, stdin=""):
        return self.cluster.tool(name, *args, stdin=stdin)

    def configs(self, *args):
        """`kafka-configs` of this age."""
        return self.tool("kafka-configs", *args)

    def newest_configs(self, *args):
        """`kafka-configs` of the newest Kafka."""
        logging = self.tmp_path / "log4j2.properties"
        logging.write_text(logging_properties(NEWEST, "WARN", "ERR"))
        options = ("-XX:TieredStopAtLevel=1",)
        jars = kafka_jars(NEWEST)
        command = java_argv(jars, "kafka.admin.ConfigCommand", *args, heap="256m", options=options, logging=logging)
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(params=AGES)
def age(request, tmp_path):
    with ExitStack() as stack:
        yield Age(request.param, stack, tmp_path)


@pytest.mark.nightly
def test_a_kafka_of_any_age_is_served_and_all_its_quotas_hold(age, tmp_path):
    proxy = age.proxy(state_file=str(tmp_path / "state.json"), admin_listeners=["plain"])
    assert not proxy.events("cluster_unreachable")
    own_requests_succeed(age)
    records_go_through(age, proxy)
    to = ("--bootstrap-server", proxy.bootstrap)
    set_quotas(age.newest_configs, to, "newest", "127.0.0.21", all_types=True)
    newest = types_in_force(proxy, "newest", "127.0.0.21", all_types=True)
    described = age.newest_configs(*to, "--describe", "--entity-type", "users")
    assert described == ""
    all_types = age.release >= FIRST_WITH_ALL_TYPES
    if age.release < FIRST_WITH_QUOTA_API:
        proxy = age.proxy(source="zookeeper", zookeeper={"servers": [age.cluster.zookeeper]})
        to = ("--zookeeper", f"{age.cluster.zookeeper}/kafka-throttle/main")
    set_quotas(age.configs, to, "same", "127.0.0.22", all_types)
    own = types_in_force(proxy, "same", "127.0.0.22", all_types)
    speaks_to = "the proxy" if to[0] == "--bootstrap-server" else f"`{to[0]}`"
    print(f"\n| {age.cluster.version} | {age.cluster.mode} | {', '.join(own)} | {speaks_to} | {', '.join(newest)} |")


def own_requests_succeed(age):
    """The proxy's own requests beside those for its nodes: num.partitions, quotas, and usage records."""
    server = age.cluster.bootstrap_servers
    assert asyncio.run(default_partitions_of({1: server}, Credentials(), TIMEOUT_S)) == 1
    with closing(ClusterConnection(server, Credentials(), TIMEOUT_S)) as connection:
        if age.release >= FIRST_WITH_QUOTA_API:
            connection.ask(all_quotas_request())
        else:
            with pytest.raises(ConnectionFault, match="does not offer the API DescribeClientQuotas"):
                connection.ask(all_quotas_request())
    with closing(KafkaTopic("ages-usage", {"bootstrap_servers": [server]})) as topic:
        topic.send(b"instance", [b"{}"])


def records_go_through(age, proxy):
    """The console tools of that age write and read, as a group that commits offsets."""
    lines = [f"{i} {RECORD}" for i in range(RECORDS)]
    servers = "--bootstrap-server" if age.release >= (2, 5) else "--broker-list"
    age.tool("kafka-console-producer", servers, proxy.bootstrap, "--topic", TOPIC, stdin="\n".join(lines) + "\n")
    to = ("--bootstrap-server", proxy.bootstrap)
    reading = ("--from-beginning", "--max-messages", str(RECORDS), "--timeout-ms", "30000", "--group", GROUP)
    assert age.tool("kafka-console-consumer", *to, "--topic", TOPIC, *reading).splitlines() == lines
    group = age.tool("kafka-consumer-groups", *to, "--describe", "--group", GROUP)
    assert re.search(rf"{TOPIC}\s+0\s+{RECORDS}\s+{RECORDS}\s+0\b", group), group


def set_quotas(configs, to, prefix, ip, all_types):
    """One client-id for rates, one for request time, one address."""
    rates = f"{BYTE_RATES},{MUTATION_RATE}" if all_types else BYTE_RATES
    wanted = {("clients", f"{prefix}-rates"): rates, ("clients", f"{prefix}-time"): "request_percentage=0.01"}
    if all_types:
        wanted["ips", ip] = "connection_creation_rate=1"
    for (kind, name), limits in wanted.items():
        configs(*to, "--alter", "--entity-type", kind, "--entity-name", name, "--add-config", limits)


def types_in_force(proxy, prefix, ip, all_types):
    """Have each quota exceeded, and see its client throttled; the types."""
    rates, time = f"{prefix}-rates", f"{prefix}-time"
    proxy.wait_for(lambda: in_force(proxy, rates) and in_force(proxy, time), TIMEOUT_S, "quotas in force")
    exceed = Excess(proxy)
    exceed("produce", lambda client: client.send_produce(40_000), rates)
    exceed("fetch", lambda client: client.send(FETCH, 4, fetch_body()), rates)
    exceed("request", lambda client: [client.send(METADATA, 1, ALL_TOPICS) for _ in range(20)], time)
    if all_types:
        exceed("controller_mutation", lambda client: client.send(CREATE_TOPICS, 3, create_body(f"{prefix}-new")), rates)
        exceed.connections(ip)
    return exceed.seen


def in_force(proxy, client_id):
    return any(quota["entity"].get("client-id") == client_id for quota in proxy.admin("quotas")["quotas"])


def fetch_body():
    """Whatever there is of the topic."""
    limits = pack(">iiiib", -1, 500, 1, 1 << 20, 0)
    return limits + pack(">i", 1) + text(TOPIC) + pack(">iiqi", 1, 0, 0, 1 << 20)


def create_body(name):
    """One topic of five partitions."""
    return pack(">i", 1) + text(name) + pack(">ihii", 5, 1, 0, 0) + pack(">i?", 30_000, False)


def text(value):
    return pack(">h", len(value)) + value.encode()


class Excess:
    """Exceeds quotas at a node behind the proxy, and waits until a client is throttled for it."""

    def __init__(self, proxy):
        self.seen = []
        self._proxy = proxy
        self._address = HOST, proxy.node_ports[1]

    def __call__(self, quota_type, send, client_id):
        before = self._throttles(quota_type)
        with RawClient(self._address, client_id) as client:
            send(client)
            self._proxy.wait_for(
                lambda: self._throttles(quota_type) > before, TIMEOUT_S, f"a throttle for {quota_type}"
            )
        self.seen.append(quota_type)

    def connections(self, ip):
        def held():
            return self._proxy.metric("ip_connection_accept_throttles_total")

        before = held()
        with ExitStack() as stack:
            for _ in range(15):
                stack.enter_context(RawClient(self._address, "many", ip))
            self._proxy.wait_for(lambda: held() > before, TIMEOUT_S, f"connections of {ip} that are held")
        self.seen.append("connection")

    def _throttles(self, quota_type):
        return self._proxy.metric("throttles_total", quota_type=quota_type)
