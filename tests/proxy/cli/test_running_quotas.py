"""`kafka-throttle quotas` asks the running proxy: for what is in force, and whether a change is."""

import asyncio
import json
import socket
from types import SimpleNamespace

import pytest
from aiohttp import web
from click.testing import CliRunner

from kafka_throttle.proxy.cli import running_quotas
from kafka_throttle.proxy.cli.main import main


@pytest.fixture
def path(tmp_path):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    cluster = {
        "name": "main",
        "upstream": {"bootstrap_servers": ["127.0.0.1:9"]},
        "listeners": [{"name": "plain", "bind": "127.0.0.1", "port": 19092, "node_ids": ["0-2"]}],
        "quotas": {"state_file": "state.json", "entries": [{"user": "alice", "producer_byte_rate": 1000}]},
    }
    path = tmp_path / "proxy.yaml"
    path.write_text(json.dumps({"virtual_clusters": [cluster], "admin": {"port": port}}))
    return path


class Proxy:
    """Serves the page of quotas at the admin port, two entities a page."""

    def __init__(self, path):
        self.port = json.loads(path.read_text())["admin"]["port"]
        self.entries = []
        self.known, self.asked, self.status = True, 0, 200
        self.when_asked = lambda: None

    def set(self, key, limit, layer="state.json", **parts):
        names = {part.replace("_", "-"): name for part, name in parts.items()}
        self.entries = [entry for entry in self.entries if entry["entity"] != names]
        self.entries.append({"entity": names, "limits": {key: {"limit": limit, "layer": layer}}})

    async def respond(self, request):
        self.asked += 1
        self.when_asked()
        if self.status != 200:
            return web.json_response(
                {"error": "virtual_cluster: expected one of other, got 'main'"}, status=self.status
            )
        entries, offset = self.entries, int(request.query.get("offset", 0))
        if "entity" in request.query:
            entries = [entry for entry in entries if entry["entity"] == json.loads(request.query["entity"])]
        origin = {"virtual_cluster": "main", "source": "file", "known": self.known, "problems": {}}
        page = entries[offset : offset + 2]
        return web.json_response({**origin, "total": len(entries), "offset": offset, "quotas": page})


@pytest.fixture
async def proxy(path):
    made, application = Proxy(path), web.Application()
    application.router.add_get("/api/v1/quotas", made.respond)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", made.port).start()
    yield made
    await runner.cleanup()


async def quotas(path, command, *arguments):
    done = await asyncio.to_thread(CliRunner().invoke, main, ["quotas", command, "-c", str(path), *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return SimpleNamespace(status=done.exit_code, out=done.stdout, err=done.stderr)


async def test_what_is_in_force_in_the_running_proxy_is_shown_page_by_page(path, proxy):
    for number in range(5):
        proxy.set("producer_byte_rate", number + 1, user=f"u{number}", client_id=None)
    proxy.set("request_percentage", None, user=None)
    done = await quotas(path, "describe")
    assert (done.status, done.err) == (0, f"answered by the proxy at 127.0.0.1:{proxy.port}\n")
    assert done.out.splitlines()[:3] == [
        "virtual cluster main, source file: 6 entities",
        "user=<default>",
        "  request_percentage  no limit  state.json",
    ]
    assert "user=u4, client-id=<default>\n  producer_byte_rate  5  state.json\n" in done.out
    assert (await quotas(path, "describe", "--user", "u3")).out.count("user=") == 1
    proxy.known = False
    assert (await quotas(path, "describe")).status == 1


async def test_without_a_proxy_that_answers_the_source_is_shown_with_a_message(path):
    done = await quotas(path, "describe")
    assert done.status == 0
    assert done.err.startswith("no proxy answers at 127.0.0.1:")
    assert done.err.endswith(": Connection refused: these quotas are those of the source\n")
    assert "user=alice\n  producer_byte_rate  1000  proxy.yaml" in done.out


async def test_of_a_proxy_that_does_not_have_the_virtual_cluster_the_source_is_shown(path, proxy):
    proxy.status = 404
    done = await quotas(path, "describe")
    assert done.status == 0
    assert done.err.startswith("the proxy cannot be asked, these quotas are those of the source: 127.0.0.1:")
    assert "user=alice\n" in done.out
    done = await quotas(path, "set", "--user", "bob", "producer_byte_rate=7")
    assert done.status == 0
    assert done.err.startswith("saved; the proxy cannot be asked, so it is not confirmed that it uses it: 127.0.0.1:")


async def test_a_change_that_the_proxy_takes_up_is_said_to_be_in_force(path, proxy):
    def take_up():
        if proxy.asked == 3:
            proxy.set("producer_byte_rate", 7, user="bob")

    proxy.when_asked = take_up
    done = await quotas(path, "set", "--user", "bob", "producer_byte_rate=7")
    assert (done.status, done.out) == (0, "user=bob\n  producer_byte_rate  7  state.json\n")
    assert (done.err, proxy.asked) == (f"in force in the proxy at 127.0.0.1:{proxy.port}\n", 3)
    proxy.entries.clear()
    done = await quotas(path, "unset", "--user", "bob", "producer_byte_rate")
    assert done.err == f"in force in the proxy at 127.0.0.1:{proxy.port}\n"


async def test_a_change_that_the_proxy_does_not_take_up_is_warned_about(path, proxy, monkeypatch):
    monkeypatch.setattr(running_quotas, "_TAKEN_UP_WITHIN_S", 0.3)
    proxy.set("producer_byte_rate", 5, user="bob")
    done = await quotas(path, "set", "--user", "bob", "producer_byte_rate=7")
    warning = f"warning: the proxy at 127.0.0.1:{proxy.port} has not taken up within 0.3 s: producer_byte_rate\n"
    assert (done.status, done.err) == (0, warning)
