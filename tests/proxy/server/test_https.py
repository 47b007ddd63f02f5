"""HTTP listeners with TLS, as a running proxy has them, and the commands that ask it."""

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
from types import SimpleNamespace

import aiohttp
import pytest
import uvloop
from click.testing import CliRunner
from structlog.testing import capture_logs

from demo.proxy_process import free_port_run
from kafka_throttle.proxy.cli.main import main
from kafka_throttle.proxy.clock import SystemClock
from kafka_throttle.proxy.config.load import load_config
from kafka_throttle.proxy.config.settings import LimitsConfig
from kafka_throttle.proxy.server import certificate_watcher
from kafka_throttle.proxy.server.service import Service
from tests.support.certificates import Authority, client_context
from tests.support.timeouts import TIMEOUT_S

READ_TOKEN, WRITE_TOKEN, NEW_TOKEN = "a-token-that-may-read", "a-token-that-may-write", "a-token-after-a-reload"


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
async def proxy(tmp_path, authority, monkeypatch):
    monkeypatch.setattr(certificate_watcher, "_LOOK_S", 0.05)
    async with running(tmp_path, authority) as proxy:
        yield proxy


@contextlib.asynccontextmanager
async def running(tmp_path, authority):
    """A running proxy whose two HTTP listeners speak TLS."""
    issued = authority.issue("localhost", name="http")
    tls = {"certificate_file": issued.certificate_file.name, "key_file": issued.key_file.name}
    port, _, metrics_port, admin_port = free_port_run(4)
    listener = {"name": "plain", "bind": "127.0.0.1", "port": port, "node_ids": [1]}
    cluster = {"name": "main", "upstream": {"bootstrap_servers": ["127.0.0.1:9"]}, "listeners": [listener]}
    for name, content in (("read", READ_TOKEN), ("write", WRITE_TOKEN), ("password", "secret")):
        (tmp_path / name).write_text(content)
    config = {
        "virtual_clusters": [cluster],
        "admin": {"port": admin_port, "token_file": "read", "write_token_file": "write", "tls": tls},
        "metrics": {"port": metrics_port, "username": "prometheus", "password_file": "password", "tls": tls},
        "limits": {"drain_s": 0},
    }
    path = tmp_path / "proxy.yaml"
    path.write_text(json.dumps(config))
    with pytest.MonkeyPatch.context() as patch, capture_logs():
        patch.setattr(LimitsConfig, "http_idle_timeout_ms", 1_000)
        patch.setattr(LimitsConfig, "max_http_connections", 4)
        service = Service(path, load_config(path), SystemClock())
        await service.start()
        yield SimpleNamespace(
            service=service,
            path=path,
            admin=f"https://localhost:{admin_port}/api/v1/quotas",
            metrics=f"https://localhost:{metrics_port}/metrics",
            admin_port=admin_port,
            read_token=tmp_path / "read",
            refused=lambda listener, reason: service._metrics.registry.get_sample_value(
                "kafka_throttle_http_refused_total", {"listener": listener, "reason": reason}
            ),
        )
        await service.stop()


async def status(url, authority, token=None, authorization=None):
    if token is not None:
        authorization = f"Bearer {token}"
    headers = {} if authorization is None else {"Authorization": authorization}
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, ssl=client_context(authority), headers=headers) as response,
    ):
        return response.status


async def until(condition):
    async with asyncio.timeout(TIMEOUT_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_both_listeners_speak_tls_and_know_their_tokens(proxy, authority):
    assert await status(proxy.admin, authority) == 401
    assert await status(proxy.admin, authority, READ_TOKEN) == 200
    assert await status(proxy.admin, authority, WRITE_TOKEN) == 200
    assert await status(proxy.metrics, authority) == 401
    by_password = aiohttp.encode_basic_auth("prometheus", "secret")
    assert await status(proxy.metrics, authority, authorization=by_password) == 200
    assert await status(proxy.metrics.replace("/metrics", "/livez"), authority) == 200
    curl = ["curl", "-sf", "--cacert", str(authority.file), "-u", "prometheus:secret", proxy.metrics]
    done = await asyncio.to_thread(subprocess.run, curl, capture_output=True, timeout=TIMEOUT_S)
    assert b"kafka_throttle_http_refused_total" in done.stdout


async def test_a_reload_takes_up_tokens_and_a_changed_file_the_certificate(proxy, authority):
    proxy.read_token.write_text(NEW_TOKEN)
    assert await status(proxy.admin, authority, READ_TOKEN) == 200
    assert await proxy.service.configuration.reload()
    assert await status(proxy.admin, authority, READ_TOKEN) == 401
    assert await status(proxy.admin, authority, NEW_TOKEN) == 200
    before = await certificate(proxy.admin_port)
    authority.issue("localhost", name="http")

    async def is_renewed():
        return await certificate(proxy.admin_port) != before

    await until(is_renewed)
    assert await status(proxy.admin, authority, NEW_TOKEN) == 200


async def certificate(port):
    pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
    return ssl.PEM_cert_to_DER_cert(pem)


async def test_what_is_not_tls_is_counted_and_harms_nobody(proxy, authority):
    for request in (b"GET /api/v1/quotas HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\0" * 100):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.admin_port)
        writer.write(request)
        async with asyncio.timeout(TIMEOUT_S):
            with contextlib.suppress(ConnectionResetError):
                assert b"HTTP" not in await reader.read()
        writer.close()

    async def are_counted():
        return proxy.refused("admin", "tls_failed") == 2

    await until(are_counted)
    assert await status(proxy.admin, authority, READ_TOKEN) == 200


async def test_silent_peers_make_room_for_others_and_are_closed(proxy, authority):
    def connect():
        return socket.create_connection(("127.0.0.1", proxy.admin_port), TIMEOUT_S, ("127.0.0.2", 0))

    silent = [await asyncio.to_thread(connect) for _ in range(4)]
    assert await status(proxy.admin, authority, READ_TOKEN) == 200
    assert proxy.refused("admin", "too_many_connections") == 1
    for sock in silent:
        assert await asyncio.to_thread(closed, sock)


def test_it_is_the_same_on_the_loop_that_a_proxy_runs_on(tmp_path, authority):
    async def all_of_it():
        async with running(tmp_path, authority) as proxy:
            await test_both_listeners_speak_tls_and_know_their_tokens(proxy, authority)
            await test_what_is_not_tls_is_counted_and_harms_nobody(proxy, authority)
            await test_silent_peers_make_room_for_others_and_are_closed(proxy, authority)

    uvloop.run(all_of_it())


def closed(sock):
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True
    finally:
        sock.close()


# -------------------------------------------------------------------- commands


async def command(name, path, *options):
    done = await asyncio.to_thread(CliRunner().invoke, main, [name, "-c", str(path), *options])
    return SimpleNamespace(status=done.exit_code, out=done.stdout, err=done.stderr)


async def test_commands_trust_the_certificate_in_the_file_and_show_the_token(proxy):
    done = await command("top", proxy.path, "--once")
    assert (done.status, done.out) == (0, "no client is throttled now: no client is connected; no quota is in force\n")
    done = await command("explain", proxy.path)
    assert done.status == 0
    assert done.err.startswith(f"answered by the proxy at 127.0.0.1:{proxy.admin_port}")


async def test_commands_trust_an_authority_and_check_the_name(proxy, authority, tmp_path):
    at_localhost = ("--admin", f"localhost:{proxy.admin_port}")
    done = await command("top", proxy.path, "--once", "--ca-file", str(authority.file), *at_localhost)
    assert (done.status, done.err) == (0, "")
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    done = await command("explain", proxy.path, "--ca-file", str(other.file), *at_localhost)
    assert (done.status, done.out) == (1, "")
    assert "TLS: unable to get local issuer certificate" in done.err
    done = await command("explain", proxy.path, "--ca-file", str(authority.file))
    assert (done.status, done.out) == (1, "")
    assert "TLS: IP address mismatch" in done.err


async def test_a_server_with_another_certificate_does_not_get_the_token(proxy, authority):
    config = json.loads(proxy.path.read_text())
    other = authority.issue("localhost", name="other")
    config["admin"]["tls"]["certificate_file"] = other.certificate_file.name
    path = proxy.path.with_name("other.yaml")
    path.write_text(json.dumps(config))
    done = await command("top", path, "--once")
    assert (done.status, done.out) == (1, "")
    assert f"expected the certificate in {other.certificate_file}" in done.err


async def test_options_that_cannot_be_used_are_reported(proxy, tmp_path):
    done = await command("top", proxy.path, "--once", "--admin", "nonsense")
    assert (done.status, done.err) == (2, "--admin: expected HOST:PORT, got 'nonsense'\n")
    done = await command("top", proxy.path, "--once", "--ca-file", str(tmp_path / "nothing"))
    assert done.status == 1
    assert done.err == f"--ca-file: {tmp_path / 'nothing'} cannot be used: No such file or directory\n"


def test_check_finds_what_is_wrong_with_files_of_http_listeners(tmp_path, authority):
    issued = authority.issue("localhost")
    files = {"certificate_file": str(issued.certificate_file), "key_file": "nothing.key"}
    listener = {"name": "plain", "bind": "127.0.0.1", "port": 9092, "node_ids": [1]}
    cluster = {"name": "main", "upstream": {"bootstrap_servers": ["127.0.0.1:9"]}, "listeners": [listener]}
    config = {
        "virtual_clusters": [cluster],
        "admin": {"token_file": "t", "tls": files},
        "metrics": {"username": "a", "password_file": "p", "tls": files},
    }
    path = tmp_path / "proxy.yaml"
    path.write_text(json.dumps(config))
    done = CliRunner().invoke(main, ["check", "-c", str(path)])
    assert done.exit_code == 2
    assert {line.partition(": ")[0] for line in done.stderr.splitlines()} == {
        "admin.token_file",
        "admin.tls.key_file",
        "metrics.password_file",
        "metrics.tls.key_file",
    }
