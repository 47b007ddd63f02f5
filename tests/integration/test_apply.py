"""`usage plan` and `usage apply` at a proxy, at Kafka itself and in ZooKeeper."""

import json

import pytest
from click.testing import CliRunner

from kafka_throttle.proxy.cli.main import main
from tests.integration import logins
from tests.integration.proxy_process import HOST
from tests.integration.quota_client import QuotaClient
from tests.support.waiting import wait_until

ENTRIES = [
    {"user": "ü =/,", "producer_byte_rate": 2_000_000_000_000},
    {"default_user": True, "consumer_byte_rate": 3_000_000_000_000},
    {"client_id": "a b", "request_percentage": 1234.5},
    {"default_client_id": True, "controller_mutation_rate": 1e6},
    {"user": "u", "client_id": "c", "producer_byte_rate": 1_000_000_000_000},
    {"user": "u", "default_client_id": True, "producer_byte_rate": 1_000_000_000_000},
    {"default_user": True, "client_id": "c", "producer_byte_rate": 1_000_000_000_000},
    {"default_user": True, "default_client_id": True, "producer_byte_rate": 1_000_000_000_000},
    {"ip": "10.1.2.3", "connection_creation_rate": 1_000_000},
    {"default_ip": True, "connection_creation_rate": 1_000_000},
]
"""Every shape of entity and every key, with limits too high to have an effect."""


def usage(*arguments):
    done = CliRunner().invoke(main, ["usage", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout + done.stderr


@pytest.fixture
def quotas(tmp_path):
    """A file of entries, called `name`."""

    def write(entries, name="quotas.yaml"):
        (tmp_path / name).write_text(json.dumps({"entries": entries}))
        return tmp_path / name

    return write


def reported(address):
    """Entities with their quotas, as Kafka's API describes them."""
    with QuotaClient(address) as client:
        return {frozenset(entity): values for entity, values in client.describe().entries.items()}


def as_reported(entries):
    expected = {}
    for entry in entries:
        names = {"user": entry.get("user"), "client-id": entry.get("client_id"), "ip": entry.get("ip")}
        given = {part: name for part, name in names.items() if name or f"default_{part.replace('-', '_')}" in entry}
        expected[frozenset(given.items())] = {
            key: float(value) for key, value in entry.items() if key.endswith(("_rate", "_percentage"))
        }
    return expected


def plan_apply_and_take_back(place, address, path, folder, before=None):
    """All of it, with what is in force after each step, as the proxy or broker that enforces it describes it."""
    before = before or {}
    wanted = as_reported(ENTRIES)
    plan = folder / "plan.json"
    status, out = usage("plan", "--quotas", path, *place, "--out", plan)
    assert status == 0, out
    status, out = usage("apply", plan, *place, "--dry-run")
    assert status == 0, out
    assert reported(address) == before
    status, out = usage("apply", plan, *place)
    assert status == 0, out
    assert "10 applied" in out
    wait_until(lambda: reported(address) == before | wanted)
    status, out = usage("apply", plan, *place)
    assert (status, out.partition(":")[0]) == (0, "nothing to do")
    status, out = usage("apply", folder / "plan.rollback.json", *place)
    assert status == 0, out
    wait_until(lambda: reported(address) == before)
    lines = [json.loads(line) for line in (folder / "quota-audit.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == (["intended"] * 10 + ["applied"] * 10) * 2


def test_a_proxy_is_asked_by_kafkas_api(start_proxy, quotas, tmp_path):
    kept = [{"user": "kept", "producer_byte_rate": 10**12}]
    source = {"state_file": str(tmp_path / "state.json"), "admin_users": ["ANONYMOUS"]}
    proxy = start_proxy(kept, source=source)
    place = "--bootstrap-server", proxy.bootstrap
    plan_apply_and_take_back(place, (HOST, proxy.port), quotas(ENTRIES), tmp_path, as_reported(kept))
    plan = tmp_path / "prune.json"
    status, out = usage("plan", "--quotas", quotas(ENTRIES[:1]), *place, "--prune", "--out", plan)
    assert status == 0, out
    assert usage("apply", plan, *place)[0] == 0
    assert reported((HOST, proxy.port)) == as_reported(ENTRIES[:1])


def test_a_proxy_that_does_not_let_us_says_so(start_proxy, quotas, tmp_path):
    proxy = start_proxy()
    place = "--bootstrap-server", proxy.bootstrap
    status, out = usage("plan", "--quotas", quotas(ENTRIES), *place)
    assert status == 1
    assert out.startswith(f"{proxy.bootstrap}: not allowed: CLUSTER_AUTHORIZATION_FAILED (error 31): DescribeConfigs")
    source = {"state_file": str(tmp_path / "state.json"), "describe_users": ["ANONYMOUS"]}
    reader = start_proxy(source=source)
    place = "--bootstrap-server", reader.bootstrap
    assert usage("plan", "--quotas", quotas(ENTRIES), *place, "--out", tmp_path / "plan.json")[0] == 0
    for further in ((), ("--dry-run",)):
        status, out = usage("apply", tmp_path / "plan.json", *place, *further)
        assert status == 1
        assert "CLUSTER_AUTHORIZATION_FAILED (error 31): AlterConfigs" in out
    assert reported((HOST, reader.port)) == {}


def test_a_cluster_is_asked_by_its_own_api(kafka, quotas, tmp_path):
    place = "--bootstrap-server", kafka.bootstrap_servers
    plan_apply_and_take_back(place, kafka.address(1), quotas(ENTRIES), tmp_path)


def test_a_cluster_is_asked_with_a_login(newest_kafka, quotas, tmp_path):
    config = tmp_path / "client.properties"
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="{}";'
    text = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n"
    place = "--bootstrap-server", newest_kafka.bootstrap(logins.LISTENER), "--command-config", config
    config.write_text(text.format(logins.PASSWORDS["alice"]))
    status, out = usage("plan", "--quotas", quotas(ENTRIES), *place)
    assert status == 0, out
    config.write_text(text.format("wrong"))
    status, out = usage("plan", "--quotas", quotas(ENTRIES), *place)
    assert status == 1
    assert "look at sasl.username, sasl.password" in out


def test_a_broker_describes_what_is_written_to_zookeeper(zookeeper_kafka, quotas, tmp_path):
    place = "--zookeeper", zookeeper_kafka.zookeeper
    plan_apply_and_take_back(place, zookeeper_kafka.address(1), quotas(ENTRIES), tmp_path)
    assert usage("plan", "--quotas", quotas(ENTRIES), "--zookeeper", "127.0.0.1:1")[0] == 1
