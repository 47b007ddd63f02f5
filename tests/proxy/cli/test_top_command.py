"""`kafka-throttle top`: the table of throttled clients, and its errors."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from aiohttp import web
from click.testing import CliRunner

from demo.proxy_process import free_port_run
from kafka_throttle.proxy.cli import top as top_module
from kafka_throttle.proxy.cli.main import main
from tests.fakes.http import admin_listener, another_server

ETL = {
    "virtual_cluster": "main",
    "user": "alice",
    "client_id": "etl",
    "ip": "10.0.0.1",
    "node_id": 2,
    "quota_type": "produce",
    "unit": "bytes/s",
    "rule": {
        "quota": "producer_byte_rate",
        "entity": {"user": "alice", "client-id": None},
        "level": 2,
        "source": "file",
        "layer": "proxy.yaml",
    },
    "limit": 100,
    "share": None,
    "rate": 150.04,
    "bucket": None,
    "left_ms": 12_340,
    "since": "2026-01-02T03:04:05.678Z",
    "throttles": 3,
    "throttled_ms": 2000,
    "connections": 2,
}
MUTATIONS = {"unit": "partitions/s", "rate": None, "limit": 2, "bucket": {"tokens": -8.0, "burst": 22.0}}
SHARED = {**ETL, "share": 0.49}
BUCKET = {**ETL, **MUTATIONS, "client_id": "", "quota_type": "controller_mutation"}
REMOVED = {**ETL, "user": "eve\x1b[2J", "rate": None, "rule": {**ETL["rule"], "layer": None}}
NODE = {**ETL, "quota_type": "node", "unit": None, "rule": None, "limit": None, "rate": None, "left_ms": 0}


@pytest.fixture
def path(tmp_path):
    path, [port] = tmp_path / "proxy.yaml", free_port_run(1)
    clusters = [
        {
            "name": name,
            "upstream": {"bootstrap_servers": ["127.0.0.1:9"]},
            "listeners": [{"name": "plain", "bind": "127.0.0.1", "port": first, "node_ids": ["0-2"]}],
        }
        for name, first in (("main", 19092), ("other", 19192))
    ]
    path.write_text(json.dumps({"virtual_clusters": clusters, "admin": {"port": port}}))
    return path


class Proxy:
    """Serves a page of throttled clients at the admin port."""

    def __init__(self, path):
        self.form = {"sort": "left", "clients": 0, "total": 0, "more": 0, "throttled": []}
        self.asked = []
        self.listener = admin_listener([web.get("/api/v1/throttled", self._respond)])
        self.port = json.loads(path.read_text())["admin"]["port"]

    def throttle(self, *lines, more=0, clients=1):
        page = {"clients": clients, "total": len(lines) + more, "more": more, "throttled": lines}
        self.form = {**self.form, **page}

    async def _respond(self, request):
        self.asked.append(dict(request.query))
        return web.json_response(self.form)


@pytest.fixture
async def proxy(path):
    made = Proxy(path)
    await made.listener.start("127.0.0.1", made.port)
    yield made
    await made.listener.stop()


async def top(path, *arguments):
    done = await asyncio.to_thread(CliRunner().invoke, main, ["top", "-c", str(path), *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return SimpleNamespace(status=done.exit_code, out=done.stdout, err=done.stderr)


async def test_it_says_so_when_no_client_is_throttled(path, proxy):
    assert (await top(path, "--once")).out == "no client is throttled now\n"
    assert proxy.asked == [{"sort": "left", "limit": "20"}]


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"connections": 0}, "no client is connected"),
        ({"entities": 0}, "no quota is in force"),
        ({"connections": 0, "entities": 0}, "no client is connected; no quota is in force"),
        ({"connections": 1}, "1 connection is open, all within their quotas"),
        ({}, "7 connections are open, all within their quotas"),
        (
            {"other_instances": True, "connections": 0},
            "no client is connected; clients of other instances are shown there",
        ),
    ],
)
async def test_it_says_why_no_client_is_throttled(path, proxy, facts, why):
    proxy.form |= {"connections": 7, "entities": 2, "other_instances": False, "quotas_unknown": []} | facts
    assert (await top(path, "--once")).out == f"no client is throttled now: {why}\n"


async def test_quotas_that_are_not_known_yet_are_a_line_above(path, proxy):
    origin = {"virtual_cluster": "main", "source": "upstream", "known": False}
    problems = {"upstream cluster": "a:9092: Connection refused\x1b"}
    proxy.form["quotas_unknown"] = [{**origin, "problems": problems}, {**origin, "problems": {}}]
    assert (await top(path, "--once")).out.splitlines() == [
        r"the quotas of main are not known yet: upstream cluster: a:9092: Connection refused\x1b",
        "the quotas of main are not known yet: the source upstream has not been read",
        "no client is throttled now",
    ]


async def test_each_throttled_client_is_a_line(path, proxy):
    proxy.throttle(ETL, more=4, clients=3)
    shown = await top(path, "--once", "--sort", "rate", "--limit", "1", "--virtual-cluster", "main")
    assert proxy.asked == [{"sort": "rate", "limit": "1", "virtual_cluster": "main"}]
    title, names, client, more = shown.out.splitlines()
    assert title == "3 clients are throttled now, longest wait first"
    assert names.split() == [
        *("VIRTUAL", "CLUSTER", "LEFT", "SINCE", "USER", "CLIENT-ID", "NODE", "QUOTA", "USED", "LIMIT", "CONNS"),
        *("THROTTLED", "RULE"),
    ]
    assert client.split() == [
        *("main", "12.3", "s", "2026-01-02T03:04:05Z", "alice", "etl", "2", "produce", "150.0", "100", "bytes/s", "2"),
        *("2.0", "s", "user=alice,", "client-id=<default>,", "of", "proxy.yaml"),
    ]
    assert more == "and 4 more lines (--limit)"


async def test_what_a_client_has_not_is_left_empty_and_names_are_safe_to_print(path, proxy):
    proxy.throttle(BUCKET, REMOVED, NODE)
    _, _, bucket, removed, by_node = (await top(path, "--once")).out.splitlines()
    assert "  ''  " in bucket
    assert "-8.0 of 22.0 tokens left" in bucket
    assert r"eve\x1b[2J" in removed
    assert removed.endswith("user=alice, client-id=<default>, removed meanwhile")
    assert by_node.endswith("  2.0 s  the node throttles by itself")


async def test_with_one_virtual_cluster_its_name_is_left_out(path, proxy):
    config = json.loads(path.read_text())
    del config["virtual_clusters"][1]
    path.write_text(json.dumps(config))
    proxy.throttle(ETL)
    shown = await top(path, "--once")
    assert shown.out == (
        "1 client is throttled now, longest wait first\n"
        "  LEFT  SINCE                 USER   CLIENT-ID  NODE  QUOTA     USED        LIMIT  CONNS  THROTTLED  RULE\n"
        "12.3 s  2026-01-02T03:04:05Z  alice  etl           2  produce  150.0  100 bytes/s      2      2.0 s"
        "  user=alice, client-id=<default>, of proxy.yaml\n"
    )


async def test_an_instance_of_a_fleet_shows_what_it_enforces_and_the_whole_limit(path, proxy):
    proxy.throttle(SHARED)
    shown = await top(path, "--once")
    assert " 150.0  49 of 100 bytes/s  " in shown.out


async def test_its_json_is_passed_on_in_one_line(path, proxy):
    proxy.throttle(ETL)
    shown = await top(path, "--once", "--json")
    assert json.loads(shown.out) == json.loads(json.dumps(proxy.form))
    assert shown.out.count("\n") == 1


async def test_it_asks_again_until_it_is_interrupted(path, proxy, monkeypatch):
    def sleep(seconds):
        assert seconds == 0.5
        if len(proxy.asked) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(top_module, "sleep", sleep)
    shown = await top(path, "--every", "0.5")
    assert (shown.status, shown.out) == (0, "no client is throttled now\n" * 3)


async def test_a_proxy_that_cannot_be_reached_is_reported_with_its_address_and_setting(path):
    shown = await top(path, "--once")
    port = json.loads(path.read_text())["admin"]["port"]
    assert (shown.status, shown.out) == (1, "")
    assert shown.err == (
        f"no proxy answers at 127.0.0.1:{port}: Connection refused (the address is admin.bind and admin.port of"
        f" {path})\n"
    )


async def test_a_proxy_that_does_not_have_the_page_is_reported(path):
    async with another_server(json.loads(path.read_text())["admin"]["port"]):
        shown = await top(path, "--once")
    assert shown.status == 1
    assert "answers, but not as kafka-throttle does: status 404" in shown.err


async def test_a_virtual_cluster_that_is_not_configured_is_refused(path):
    shown = await top(path, "--virtual-cluster", "x")
    assert (shown.status, shown.err) == (2, "--virtual-cluster: expected main or other, got 'x'\n")
