"""`kafka-throttle explain`, with a proxy that responds, without one, and with another server at its port."""

import asyncio
import json
import socket
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from kafka_throttle.proxy.cli.admin_client import AdminEndpoint
from kafka_throttle.proxy.cli.main import main
from kafka_throttle.proxy.config.settings import AdminConfig
from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts
from kafka_throttle.proxy.gate.admission import AddressStanding
from kafka_throttle.proxy.observe.api import AdminApi
from kafka_throttle.proxy.observe.explained import Origin
from kafka_throttle.proxy.observe.http_access import Access, Account, Right
from kafka_throttle.proxy.observe.last_throttles import LastThrottles
from kafka_throttle.proxy.observe.metrics import CapTotals
from kafka_throttle.proxy.observe.throttle_episode import ThrottledClients
from kafka_throttle.proxy.relay.actions import Throttled
from kafka_throttle.quotas.changes import Limit, tables_of
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.explain import Client
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from kafka_throttle.quotas.shares.division import Claim
from kafka_throttle.quotas.shares.member import Explained, Why
from tests.fakes.clock import FakeClock
from tests.fakes.http import admin_listener, another_server

TOKEN = "a-token-of-24-characters"
PRODUCE, SHADOW = QuotaKey(QuotaType.PRODUCE), QuotaKey(QuotaType.PRODUCE, shadow=True)


def write_config(path, admin):
    cluster = {
        "name": "main",
        "upstream": {"bootstrap_servers": ["127.0.0.1:9"]},
        "listeners": [{"name": "plain", "bind": "127.0.0.1", "port": 19092, "node_ids": ["0-2"]}],
        "quotas": {
            "entries": [{"user": "alice", "producer_byte_rate": 1000}, {"client_id": "etl", "producer_byte_rate": 5}]
        },
    }
    path.write_text(json.dumps({"virtual_clusters": [cluster], "admin": admin}))


def explain(path, *arguments):
    done = CliRunner().invoke(main, ["explain", "-c", str(path), *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture
def path(tmp_path, free_port):
    path = tmp_path / "proxy.yaml"
    write_config(path, {"port": free_port})
    return path


def test_without_a_proxy_the_source_is_explained_with_a_message(path, free_port):
    status, out, err = explain(path, "--user", "alice", "--client-id", "etl", "--ip", "10.0.0.1")
    assert status == 0
    assert err == (
        f"no proxy answers at 127.0.0.1:{free_port}: Connection refused: this is from the source alone, without what is"
        " measured\n"
    )
    assert out.startswith(
        "virtual cluster main, source file: user='alice', client_id='etl', ip='10.0.0.1'\n"
        "\n"
        "producer_byte_rate: 1000 bytes/s\n"
        "  by user=alice, level 3, of proxy.yaml\n"
        "  not by client-id=etl, level 7, of proxy.yaml (5 bytes/s): level 3 comes before level 7\n"
        "  measured together: all client-ids of user=alice, at each node by itself\n"
        "\n"
        "consumer_byte_rate: no limit\n"
        "  no entity has this quota, so use is not measured\n"
    )
    assert out.endswith(
        "connection_creation_rate: no limit\n  no quota covers this address, so its connections are not measured\n"
    )


def test_without_a_proxy_the_logins_that_are_this_user_are_named_too(path):
    config = json.loads(path.read_text())
    config["virtual_clusters"][0]["sasl"] = {"user_names": {"AKIAIOSFODNN7EXAMPLE": "alice"}}
    path.write_text(json.dumps(config))
    _, out, _ = explain(path, "--user", "alice")
    assert "\nlogins that show 'AKIAIOSFODNN7EXAMPLE' are this user, by sasl.user_names\n" in out


def test_limits_are_shown_as_they_are_written(path):
    config = json.loads(path.read_text())
    config["virtual_clusters"][0]["quotas"]["entries"] = [
        {"user": "alice", "request_percentage": 0.2, "producer_byte_rate": 2**63 - 1},
        {"client_id": "etl", "request_percentage": 0.1},
    ]
    path.write_text(json.dumps(config))
    out = explain(path, "--user", "alice", "--client-id", "etl")[1]
    assert "request_percentage: 0.2 percent of a thread\n" in out
    assert "(0.1 percent of a thread)" in out
    assert "producer_byte_rate: no limit\n  by user=alice" in out


def test_json_says_that_it_is_not_from_a_proxy(path):
    form = json.loads(explain(path, "--json")[1])
    assert form["live"] is False
    assert form["client"] == {"user": "ANONYMOUS", "client_id": "", "ip": None}
    assert form["quotas"][0]["quota"] == "producer_byte_rate"


def test_caps_are_shown_though_they_are_no_quota(path):
    config = json.loads(path.read_text())
    [cluster] = config["virtual_clusters"]
    cluster["caps"] = {"egress_bytes_per_s": 5_000}
    cluster["listeners"][0]["caps"] = {"ingress_bytes_per_s": 700}
    path.write_text(json.dumps(config))
    reported = "  all listeners, egress: 5000 bytes/s\n  listener plain, ingress: 700 bytes/s\n"
    assert explain(path)[1].endswith(f"beyond which reads wait and no client is throttled:\n{reported}")
    unknown = {"waits": None, "waited_ms": None, "waiting": None}
    assert json.loads(explain(path, "--json")[1])["caps"] == [
        {"listener": "", "direction": "egress", "limit": 5_000, **unknown},
        {"listener": "plain", "direction": "ingress", "limit": 700, **unknown},
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--user", ""], "--user: expected a name, got an empty one\n"),
        (["--ip", "host"], "--ip: expected an IP address, got 'host'\n"),
        (["--virtual-cluster", "x"], "--virtual-cluster: expected main, got 'x'\n"),
    ],
)
def test_bad_input_ends_with_2(path, arguments, problem):
    assert explain(path, *arguments) == (2, "", problem)


def test_a_token_file_that_is_not_there_ends_with_2(path):
    write_config(path, {"token_file": "token"})
    status, _, err = explain(path)
    assert (status, err.split(":")[0]) == (2, "admin.token_file")


def test_a_source_that_cannot_be_read_ends_with_1(path):
    path.write_text(path.read_text().replace('"quotas": {', '"quotas": {"state_file": "state.json", '))
    path.with_name("state.json").write_text("{")
    status, out, err = explain(path)
    assert (status, out) == (1, "")
    assert err.endswith("the quotas of main cannot be read now\n")


# ------------------------------------------------------------- with a proxy


@pytest.fixture
def cluster():
    """A virtual cluster at work, in which alice was throttled."""
    quotas = {
        Entity("alice"): {PRODUCE: Limit(100.0, "proxy.yaml")},
        Entity(client_id=DEFAULT): {SHADOW: Limit(70.0, "state.json")},
    }
    clock, quota_manager = FakeClock(epoch_ms=1_700_000_000_000), ClientQuotaManager(Sensors(64), QuotaTable())
    tables = tables_of(quotas)
    quota_manager.replace(tables.enforced, 0, tables.shadow)
    throttles = LastThrottles(quota_manager, clock)
    facts = ConnectionFacts(ListenerFacts("main", None, quota_manager, None), 2, "alice")
    client_sensors = quota_manager.bind("main", 2, "alice", "etl", clock.now_ms())
    quota_manager.sensors.charge(client_sensors.produce, 1500, clock.now_ms())
    quota_manager.shadow_sensors.charge(client_sensors.shadow_produce, 1500, clock.now_ms())
    throttles.note("10.0.0.1", Throttled(QuotaType.PRODUCE, 5000, b"etl"), facts, clock.now_ms())
    throttles.note("10.0.0.1", Throttled(None, 250, b"etl"), facts, clock.now_ms())
    clock.advance(1000)
    return SimpleNamespace(
        name="main",
        clock=clock,
        quota_manager=quota_manager,
        last_throttles=throttles,
        quotas=quotas,
        origin=Origin("main", "file", {}),
        node_ids=lambda: [2],
        throttled=ThrottledClients(),
        clients=lambda: [],
        is_one_of_several=False,
        share_of=lambda sensor: None,
        standing_of=lambda address, shadow: AddressStanding(address, 3, 4, None),
        user_names={},
        cap_totals=lambda: [
            CapTotals("main", "", "ingress", 1_000_000, 5, 2, 1_500, 1),
            CapTotals("main", "plain", "egress", None, 5, 2, 1_500, 0),
        ],
    )


@pytest.fixture
async def proxy(path, cluster):
    """The cluster behind the admin API."""
    async with Serving(path, AdminApi([cluster], cluster.clock)) as listener:
        yield listener


class Serving:
    """Serves an API at the port that the configuration says."""

    def __init__(self, path, api):
        self.path, self.listener = path, admin_listener(api.routes())

    async def __aenter__(self):
        await self.listener.start("127.0.0.1", json.loads(self.path.read_text())["admin"]["port"])
        return self.listener

    async def __aexit__(self, *failure):
        await self.listener.stop()


async def test_a_running_proxy_reports_its_measurements(path, proxy):
    status, out, err = await asyncio.to_thread(explain, path, "--user", "alice", "--client-id", "etl")
    assert status == 0
    assert err.startswith("answered by the proxy at 127.0.0.1:")
    assert out.startswith(
        "virtual cluster main, source file: user='alice', client_id='etl'\n"
        "\n"
        "producer_byte_rate: 100 bytes/s\n"
        "  by user=alice, level 3, of proxy.yaml\n"
        "  measured together: all client-ids of user=alice, at each node by itself\n"
        "  node 2: 150.0 bytes/s used, 1 throttle, 5.0 s in all\n"
        "  throttled at node 2 at 2023-11-14T22:13:20.000Z for 5.0 s, 4.0 s left: user='alice', client_id='etl'"
        " from 10.0.0.1, measured 150.0 of 100 bytes/s\n"
        "\n"
        "shadow_producer_byte_rate: 70 bytes/s\n"
        "  by client-id=<default>, level 8, of state.json\n"
        "  measured together: client-id=etl of all users, at each node by itself\n"
        "  node 2: 150.0 bytes/s used, 1 throttle, 11.4 s in all\n"
    )
    assert out.endswith(
        "\n\nthrottled by node 2 itself at 2023-11-14T22:13:20.000Z for 0.2 s\n"
        "\nbytes/s of all clients together, beyond which reads wait and no client is throttled:\n"
        "  all listeners, ingress: 1000000 bytes/s; 2 reads have waited, 1.5 s in all, 1 wait now\n"
    )


async def test_the_share_of_an_instance_of_a_fleet_is_explained(path, cluster, proxy):
    others = {"proxy-b#2": Claim(0.48, 0.5), "proxy-c#3": Claim(0.01, 0.01)}
    cluster.share_of = lambda sensor: Explained(0.49, 0.485, 0.6, others, Why.CLAIMED)
    _, out, _ = await asyncio.to_thread(explain, path, "--user", "alice", "--client-id", "etl")
    assert (
        "  node 2: 150.0 bytes/s used, 1 throttle, 5.0 s in all\n"
        "    100 bytes/s here, share 49.0%: the claim of this instance is in force; it claims 48.5% and wants 60.0%;"
        " others claim 49.0% (proxy-b#2 48.0%, proxy-c#3 1.0%)\n"
    ) in out
    cluster.share_of = lambda sensor: Explained(0.495, None, None, {}, Why.UNCLAIMED)
    _, out, _ = await asyncio.to_thread(explain, path, "--user", "alice", "--client-id", "etl")
    assert "here, share 49.5%: no instance claims the limit, so that each has the same part\n" in out


async def test_a_client_id_alone_is_explained_for_each_user_that_has_it(path, cluster, proxy):
    cluster.clients = lambda: [Client(f"u{i:02}", "etl", "10.0.0.2") for i in range(11)]
    status, out, _ = await asyncio.to_thread(explain, path, "--client-id", "etl")
    assert status == 0
    assert out.startswith("virtual cluster main, source file: user='u00', client_id='etl'\n12 clients fit, first ")
    assert "\n\nuser='u01', client_id='etl'\n\nproducer_byte_rate: " in out
    assert "\n\nand 2 more clients: --user and --client-id choose one\n" in out
    status, out, _ = await asyncio.to_thread(explain, path, "--user", "alice")
    assert out.startswith("virtual cluster main, source file: user='alice', client_id='etl'\n\nproducer_byte_rate: 100")
    status, out, _ = await asyncio.to_thread(explain, path, "--user", "alice", "--client-id", "")
    assert out.startswith("virtual cluster main, source file: user='alice', client_id=''\n\nproducer_byte_rate: 100")


def test_without_a_proxy_it_is_said_whose_quotas_are_explained(path):
    status, out, _ = explain(path, "--client-id", "etl")
    assert status == 0
    assert out.startswith(
        "virtual cluster main, source file: user='ANONYMOUS', client_id='etl'\n"
        "without a proxy it is not known which clients are connected: what follows is for the user ANONYMOUS (clients "
        "that do not log in)\n\nproducer_byte_rate: 5 bytes/s\n"
    )


async def test_its_json_is_passed_on(path, proxy):
    _, out, _ = await asyncio.to_thread(explain, path, "--user", "alice", "--ip", "10.0.0.1", "--json")
    form = json.loads(out)
    assert form["live"] is True
    assert form["client"] == {"user": "alice", "client_id": "etl", "ip": "10.0.0.1"}
    assert form["quotas"][0]["use"][0]["rate"] == 150.0


async def test_the_token_is_shown(path, proxy):
    proxy.guard.access = Access((Account(Right.READ, TOKEN),))
    with capture_logs():
        status, out, err = await asyncio.to_thread(explain, path)
    assert (status, out) == (1, "")
    assert "Authorization: expected 'Bearer'" in err
    write_config(path, {**json.loads(path.read_text())["admin"], "token_file": "token"})
    path.with_name("token").write_text(TOKEN)
    assert (await asyncio.to_thread(explain, path))[0] == 0


async def test_a_proxy_that_does_not_know_the_virtual_cluster_refuses(path, proxy):
    path.write_text(path.read_text().replace('"main"', '"new"'))
    status, _, err = await asyncio.to_thread(explain, path)
    assert (status, err.partition(": ")[2]) == (
        1,
        "virtual_cluster: expected one of main, got 'new'\n",
    )


async def test_another_http_server_at_the_port_is_reported(path):
    async with another_server(json.loads(path.read_text())["admin"]["port"]):
        status, _, err = await asyncio.to_thread(explain, path)
    assert status == 1
    assert err.endswith("answers, but not as kafka-throttle does: status 404\n")


async def test_a_server_that_speaks_no_http_is_reported(path):
    async def response(reader, writer):
        writer.write(b"\0\0\0\x08nonsense\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(response, "127.0.0.1", json.loads(path.read_text())["admin"]["port"])
    status, _, err = await asyncio.to_thread(explain, path)
    server.close()
    assert status == 1
    assert err.endswith("answers, but not in HTTP: BadStatusLine\n")


@pytest.mark.parametrize(
    ("bind", "reached"),
    [("0.0.0.0", "127.0.0.1:1"), ("::", "[::1]:1"), ("10.1.1.1", "10.1.1.1:1"), ("::1", "[::1]:1")],
)
def test_it_is_reached_from_its_own_machine(bind, reached):
    assert str(AdminEndpoint().address_of(AdminConfig(bind=bind, port=1, token_file="token"))) == reached


async def test_a_token_bucket_is_shown_with_its_tokens(path):
    quotas = {Entity("alice"): {QuotaKey(QuotaType.CONTROLLER_MUTATION): Limit(2.0, "proxy.yaml")}}
    clock, quota_manager = (
        FakeClock(epoch_ms=1_700_000_000_000),
        ClientQuotaManager(Sensors(64), tables_of(quotas).enforced),
    )
    bucket = quota_manager.bind("main", 1, "alice", "etl", clock.now_ms()).mutation
    quota_manager.buckets.spend_strictly(bucket, 30, clock.now_ms())
    quota_manager.buckets.spend_strictly(bucket, 1, clock.now_ms())
    throttles = LastThrottles(quota_manager, clock)
    facts = ConnectionFacts(ListenerFacts("main", None, quota_manager, None), 1, "alice")
    throttles.note("10.0.0.1", Throttled(QuotaType.CONTROLLER_MUTATION, 4000, b"etl"), facts, clock.now_ms())
    cluster = SimpleNamespace(
        throttled=ThrottledClients(),
        clients=lambda: [],
        is_one_of_several=False,
        name="main",
        quota_manager=quota_manager,
        last_throttles=throttles,
        quotas=quotas,
        origin=Origin("main", "file", {}),
        node_ids=lambda: [1, 2],
        user_names={},
        cap_totals=lambda: [],
        share_of=lambda sensor: None,
    )
    async with Serving(path, AdminApi([cluster], clock)):
        _, out, _ = await asyncio.to_thread(explain, path, "--user", "alice")
    assert (
        "controller_mutation_rate: 2 partitions/s\n"
        "  by user=alice, level 3, of proxy.yaml\n"
        "  measured together: all client-ids of user=alice, at all nodes together\n"
        "  all nodes: -8.0 of 22.0 tokens left, 1 throttle, 4.0 s in all, 1 refusal\n"
        "  throttled at node 1 at 2023-11-14T22:13:20.000Z for 4.0 s, 4.0 s left: user='alice', client_id='etl'"
        " from 10.0.0.1, with -8.0 tokens\n"
    ) in out


def without_quotas(origin):
    """A virtual cluster in which no quota is in force."""
    clock, quota_manager = FakeClock(), ClientQuotaManager(Sensors(64), QuotaTable())
    return clock, SimpleNamespace(
        name="main",
        quota_manager=quota_manager,
        last_throttles=LastThrottles(quota_manager, clock),
        quotas={},
        origin=origin,
        node_ids=lambda: [1],
        user_names={},
        throttled=ThrottledClients(),
        clients=lambda: [],
        is_one_of_several=False,
        cap_totals=lambda: [],
    )


async def test_quotas_that_are_not_known_yet_are_not_called_no_limit_and_end_with_1(path):
    problems = {"upstream cluster": "10.0.0.1:9092: Connection refused"}
    clock, cluster = without_quotas(Origin("main", "upstream", problems, known=False))
    async with Serving(path, AdminApi([cluster], clock)):
        status, out, err = await asyncio.to_thread(explain, path, "--user", "alice")
    assert status == 1
    assert err.splitlines()[1:] == [
        "warning: upstream cluster: 10.0.0.1:9092: Connection refused",
        "the quotas of main are not known yet: their source has not been read",
    ]
    assert "\nproducer_byte_rate: not known yet\n  the source of the quotas has not been read yet\n" in out
    assert "no limit" not in out
    assert "no entity has this quota" not in out


async def test_a_problem_of_a_source_whose_last_good_quotas_are_in_force_is_a_warning(path):
    clock, cluster = without_quotas(Origin("main", "upstream", {"upstream cluster": "10.0.0.1:9092: down"}))
    async with Serving(path, AdminApi([cluster], clock)):
        status, out, err = await asyncio.to_thread(explain, path)
    assert status == 0
    assert err.splitlines()[1:] == ["warning: upstream cluster: 10.0.0.1:9092: down"]
    assert "\nproducer_byte_rate: no limit\n  no entity has this quota, so use is not measured\n" in out
