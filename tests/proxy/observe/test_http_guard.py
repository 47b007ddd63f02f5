"""Who gets what from an HTTP listener, and what is refused: real requests over real sockets, also by curl."""

import asyncio
import contextlib
import json
import subprocess
from base64 import b64encode
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from yarl import URL

from kafka_throttle.proxy.observe import http_guard
from kafka_throttle.proxy.observe.http_access import Access, Account, Right
from kafka_throttle.proxy.observe.http_listener import HttpListener
from kafka_throttle.proxy.observe.http_refusals import Refusal
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.observe.metrics_site import MetricsSite
from tests.support.timeouts import TIMEOUT_S

READ_TOKEN, WRITE_TOKEN = "a-token-that-may-read", "a-token-that-may-write"
READER, WRITER = Account(Right.READ, READ_TOKEN), Account(Right.WRITE, WRITE_TOKEN)
WITH_TOKENS = Access((READER, WRITER), None)
SECRET = "what only operators may see"
EXPECTED = {"error": "Authorization: expected 'Bearer' and the token of admin.token_file"}


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def basic(user, password):
    return {"Authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"}


async def page(request):
    return web.Response(text=f"<p>{SECRET}", content_type="text/html")


async def endpoint(request):
    return web.json_response({"secret": SECRET, "body": (await request.read()).decode()})


async def fail(request):
    raise ZeroDivisionError(SECRET)


class Served:
    """A listener with a page, an endpoint to read and one to write."""

    def __init__(self):
        self.metrics = Metrics(CollectorRegistry())
        routes = [
            web.get("/", page),
            web.get("/api/v1/things", endpoint, allow_head=False),
            web.post("/api/v1/things", endpoint),
            web.get("/fails", fail),
        ]
        self.listener = HttpListener("admin", routes, self.metrics.http_refused)

    async def start(self):
        self.port = await self.listener.start("127.0.0.1", 0)
        self.session = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}")

    async def stop(self):
        await self.session.close()
        await self.listener.stop()

    def allow(self, *accounts, hosts=None):
        self.listener.guard.access = Access(accounts, hosts)

    async def ask(self, path="/api/v1/things", method="GET", data=None, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, path, data=data, headers=headers) as response:
            text = await response.text()
            assert (SECRET in text) == (response.status == 200)
            content = json.loads(text) if response.content_type == "application/json" else text
            return SimpleNamespace(status=response.status, content=content, headers=response.headers)

    async def status(self, *args, **options):
        return (await self.ask(*args, **options)).status

    async def raw(self, request):
        """The response to these very bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        async with asyncio.timeout(TIMEOUT_S):
            response = await reader.read()
        writer.close()
        assert SECRET.encode() not in response
        head, _, body = response.partition(b"\r\n\r\n")
        return SimpleNamespace(status=int(head.split()[1]), head=head.decode(), content=json.loads(body))

    def refused(self, refusal):
        labels = {"listener": "admin", "reason": refusal.value}
        return self.metrics.registry.get_sample_value("kafka_throttle_http_refused_total", labels)


@pytest.fixture
async def served():
    served = Served()
    await served.start()
    yield served
    await served.stop()


def get(path="/api/v1/things", host="localhost", version="1.1", *more):
    lines = [f"GET {path} HTTP/{version}", *([f"Host: {host}"] if host else []), "Connection: close", *more]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


# ---------------------------------------------------------------- credentials


async def test_with_a_token_only_requests_that_bear_it_get_a_response(served):
    served.listener.guard.access = WITH_TOKENS
    assert await served.status(**bearer(READ_TOKEN), Host="proxy.example") == 200
    assert await served.status(Authorization=f"bearer  {READ_TOKEN} ") == 200
    wrong = (
        f"Bearer {READ_TOKEN}x",
        f"Bearer {READ_TOKEN[:-1]}",
        READ_TOKEN,
        "Bearer",
        "Bearer é",
        "é",
        "Digest x",
        "",
    )
    for authorization in wrong:
        answer = await served.ask(Authorization=authorization)
        assert (answer.status, answer.content) == (401, EXPECTED), authorization
    assert served.refused(Refusal.WRONG_CREDENTIALS) == len(wrong) - 1
    assert served.refused(Refusal.NO_CREDENTIALS) == 1
    assert (await served.raw(get("/", "x", "1.1", "Authorization: Bearer \xff"))).status == 401


async def test_what_is_there_and_what_is_not_looks_the_same_without_a_token(served):
    served.listener.guard.access = WITH_TOKENS
    for path, method in (("/nothing", "GET"), ("/", "DELETE"), ("/fails", "GET")):
        answer = await served.ask(path, method)
        assert (answer.status, answer.content) == (401, EXPECTED)


async def test_a_browser_asks_for_the_token_as_a_password_and_any_user_will_do(served):
    served.listener.guard.access = WITH_TOKENS
    challenges = (await served.ask("/")).headers.getall("WWW-Authenticate")
    assert challenges == ['Bearer realm="kafka-throttle"', 'Basic realm="kafka-throttle"']
    for user in ("", "admin", "alice"):
        assert await served.status("/", **basic(user, READ_TOKEN)) == 200
    wrong = (basic("admin", "x"), basic(READ_TOKEN, ""), {"Authorization": "Basic é"}, {"Authorization": "Basic YQ=="})
    for headers in wrong:
        assert await served.status("/", **headers) == 401


async def test_curl_gets_in_by_user_and_by_token(served):
    served.listener.guard.access = WITH_TOKENS

    def curl(*options):
        command = ["curl", "-s", "-o", "-", "-w", "%{http_code}", *options, f"http://127.0.0.1:{served.port}/"]
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S).stdout

    assert (await asyncio.to_thread(curl)).endswith("401")
    assert (await asyncio.to_thread(curl, "-u", f"me:{READ_TOKEN}")).endswith("200")
    assert (await asyncio.to_thread(curl, "-H", f"Authorization: Bearer {READ_TOKEN}")).endswith("200")


async def test_the_right_to_write_includes_the_right_to_read_and_not_the_other_way_round(served):
    served.listener.guard.access = WITH_TOKENS
    assert await served.status(**bearer(WRITE_TOKEN)) == 200
    assert await served.status(method="POST", data="x", **bearer(WRITE_TOKEN)) == 200
    assert await served.status(method="POST", data="x") == 401
    answer = await served.ask(method="POST", data="x", **bearer(READ_TOKEN))
    assert answer.status == 403
    assert answer.content == {"error": "Authorization: expected the token of admin.write_token_file"}
    assert served.refused(Refusal.NO_RIGHT) == 1


async def test_without_a_token_for_it_nobody_may_write(served):
    served.allow()
    assert await served.status() == 200
    assert await served.status(method="POST") == 403
    served.allow(READER)
    assert await served.status(method="POST", **bearer(READ_TOKEN)) == 403


async def test_a_token_to_write_leaves_reading_free(served):
    served.allow(WRITER)
    assert await served.status() == 200
    assert await served.status(method="POST") == 401
    assert await served.status(method="POST", **bearer(WRITE_TOKEN)) == 200


async def test_a_method_that_an_endpoint_does_not_have_needs_no_right_to_write(served):
    answer = await served.ask("/", method="POST")
    assert (answer.status, answer.headers["Allow"]) == (405, "GET,HEAD")
    served.listener.guard.access = WITH_TOKENS
    assert await served.status("/", method="POST") == 401
    assert await served.status("/", method="POST", **bearer(READ_TOKEN)) == 405


# ------------------------------------------------------------------------ hosts


@pytest.mark.parametrize(
    "host", ["evil.example", "10.0.0.1:9405", "127.0.0.1.evil.example", "[::2]:9405", "localhost.evil.example", "["]
)
async def test_without_a_token_a_browser_that_was_led_here_gets_nothing(served, host):
    answer = await served.ask(Host=host)
    assert answer.status == 403
    assert answer.content["error"].startswith("Host: expected localhost or a loopback address")
    assert served.refused(Refusal.HOST) == 1


@pytest.mark.parametrize("host", ["localhost:9405", "LOCALHOST", "127.0.0.1", "[::1]:9405"])
async def test_this_machine_is_known_by_its_names(served, host):
    assert await served.status(Host=host) == 200


async def test_a_host_is_named_once(served):
    for access in (Access(), Access(hosts=None)):
        served.listener.guard.access = access
        assert (await served.raw(get("/nothing", "localhost", "1.1", "Host: localhost"))).status in (400, 403)


async def test_a_request_without_a_host_is_refused_where_hosts_are_known(served):
    assert (await served.raw(get("/nothing", "", "1.0"))).status == 403
    served.allow()
    assert (await served.raw(get("/nothing", "", "1.0"))).status == 404


async def test_with_a_token_hosts_may_be_listed(served):
    served.allow(READER, hosts=frozenset({"proxy.example", "10.0.0.1", "fd00::1"}))
    for host in ("proxy.example", "PROXY.example:9405", "10.0.0.1:9405", "[fd00::1]:9405", "127.0.0.1"):
        assert await served.status(Host=host, **bearer(READ_TOKEN)) == 200
    answer = await served.ask(Host="other.example", **bearer(READ_TOKEN))
    names = "10.0.0.1, fd00::1, proxy.example"
    assert answer.content == {"error": f"Host: expected localhost or a loopback address, or {names}"}


# ------------------------------------------------------------------ other sites

API, PAGE = "/api/v1/things", "/"
NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (API, {"Sec-Fetch-Site": "same-origin"}, 200),
        (API, {"Sec-Fetch-Site": "none"}, 200),
        (API, {"Sec-Fetch-Site": "same-site"}, 403),
        (API, {"Sec-Fetch-Site": "cross-site"}, 403),
        (API, {"Sec-Fetch-Site": "cross-site", **NAVIGATION}, 403),
        (PAGE, {"Sec-Fetch-Site": "cross-site", **NAVIGATION}, 200),
        (PAGE, {"Sec-Fetch-Site": "same-site", **NAVIGATION}, 200),
        (PAGE, {"Sec-Fetch-Site": "cross-site", **NAVIGATION, "Sec-Fetch-Dest": "iframe"}, 403),
        (PAGE, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403),
        (PAGE, {"Sec-Fetch-Site": "x"}, 403),
        (API, {"Origin": "http://evil.example"}, 403),
        (API, {"Origin": "null"}, 403),
        (API, {"Origin": ""}, 403),
        (API, {"Origin": "http://localhost:9405", "Host": "localhost:9405"}, 200),
        (API, {"Origin": "https://LOCALHOST:9405", "Host": "localhost:9405"}, 200),
        (API, {"Origin": "http://localhost:3000", "Host": "localhost:9405"}, 403),
    ],
)
async def test_a_page_of_another_site_gets_nothing_but_a_link_to_a_page(served, path, headers, status):
    assert await served.status(path, **headers) == status
    assert served.refused(Refusal.CROSS_SITE) == (status == 403)


async def test_a_form_of_another_site_changes_nothing_though_the_browser_sends_the_password(served):
    served.listener.guard.access = WITH_TOKENS
    by_user = basic("me", WRITE_TOKEN)
    assert await served.status(method="POST", **by_user) == 200
    assert await served.status(method="POST", Origin="http://evil.example", **by_user) == 403
    navigation = {"Sec-Fetch-Site": "cross-site", **NAVIGATION}
    assert await served.status("/", method="POST", **navigation, **by_user) == 403


# ------------------------------------------------------------- malformed requests

TRICKS = (
    "/api/v1/../things",
    "/api/v1/%2e%2e/things",
    "/api/v1/%2E%2E%2Fthings",
    "/api/./v1/things",
    "/api/v1/things/..",
    "//api/v1/things",
    "//evil.example/api/v1/things",
    "/api//v1/things",
    "/api/v1/things%00",
    "/api/v1/things%2500",
    "/api\\v1\\things",
    "/api/v1/;/things",
    "/api/v1/thing%73",
    "/.git/config",
    "/api/v1/things#x",
    "http://localhost/api/v1/things",
    "http://evil.example/api/v1/things",
    "*",
    "x",
)


@pytest.mark.parametrize("path", TRICKS)
async def test_paths_that_are_spelled_in_an_odd_way_are_refused(served, path):
    answer = await served.raw(get(path))
    assert answer.status == 400
    assert served.refused(Refusal.PATH) + served.refused(Refusal.MALFORMED) == 1


async def test_a_path_with_a_nul_is_refused(served):
    assert (await served.raw(get("/api/v1/things\0"))).status == 400


@pytest.mark.parametrize(
    ("lines", "refusal", "status"),
    [
        ([f"X: {'x' * 65_536}"], Refusal.MALFORMED, 400),
        ([f"X-{number}: {'x' * 4_096}" for number in range(16)], Refusal.HEADERS_TOO_LARGE, 431),
        ([f"X-{number}: x" for number in range(1_000)], Refusal.MALFORMED, 400),
        ([f"Cookie: {'x' * 8_000}"] * 3, Refusal.HEADERS_TOO_LARGE, 431),
    ],
    ids=["one", "sixteen", "a thousand", "cookies"],
)
async def test_headers_have_a_bound(served, lines, refusal, status):
    answer = await served.raw(get("/api/v1/things", "localhost", "1.1", *lines))
    assert answer.status == status
    assert served.refused(refusal) == 1
    assert "xxx" not in json.dumps(answer.content)


async def test_a_body_has_a_bound_in_size(served):
    served.listener.guard.access = WITH_TOKENS
    for data in ("x" * 1_025, "x" * 100_000):
        assert await served.status(method="POST", data=data, **bearer(WRITE_TOKEN)) == 413
    assert served.refused(Refusal.BODY_TOO_LARGE) == 2
    answer = await served.ask(method="POST", data="x" * 1_024, **bearer(WRITE_TOKEN))
    assert answer.content["body"] == "x" * 1_024


async def test_a_body_has_a_bound_in_time_however_often_something_comes(served, monkeypatch):
    monkeypatch.setattr(http_guard, "BODY_WITHIN_S", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(get("/api/v1/things", "localhost", "1.1", "Content-Length: 1000"))

    async def drip():
        while True:
            writer.write(b"x")
            await asyncio.sleep(0.01)

    dripping = asyncio.create_task(drip())
    async with asyncio.timeout(TIMEOUT_S):
        assert (await reader.readuntil(b"\r\n")).split()[1] == b"408"
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
    dripping.cancel()
    assert served.refused(Refusal.BODY_TOO_SLOW) == 1


async def test_nobody_without_a_right_has_a_body_read(served):
    served.listener.guard.access = WITH_TOKENS
    assert (await served.raw(get("/api/v1/things", "localhost", "1.1", "Content-Length: 1000"))).status == 401


@pytest.mark.parametrize("body", [b"zz\r\n", b"5\r\nab", b"-1\r\nx\r\n0\r\n\r\n"])
async def test_a_body_in_bad_chunks_is_refused(served, body, monkeypatch):
    monkeypatch.setattr(http_guard, "BODY_WITHIN_S", 0.1)
    answer = await served.raw(get("/api/v1/things", "localhost", "1.1", "Transfer-Encoding: chunked") + body)
    assert answer.status in (400, 408)


async def test_an_upgrade_is_not_taken_up(served):
    request = get("/api/v1/nothing", "localhost", "1.1", "Upgrade: websocket", "Connection: Upgrade")
    assert (await served.raw(request + b"x" * 100)).status in (400, 404)


# --------------------------------------------------------------- what browsers do

CAREFUL = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Server": "kafka-throttle",
}


@pytest.mark.parametrize(
    ("path", "status"), [("/", 200), ("/api/v1/things", 200), ("/nothing", 404), ("/fails", 500), ("/%2e", 400)]
)
async def test_each_response_has_browsers_be_careful(served, path, status):
    answer = await served.ask(URL(path, encoded=True))
    assert answer.status == status
    assert {name: answer.headers[name] for name in CAREFUL} == CAREFUL


async def test_what_is_not_http_gets_a_response_that_has_browsers_be_careful_and_says_nothing(served):
    answer = await served.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n: <script>\r\n\r\n")
    assert (answer.status, answer.content) == (400, {"error": "expected HTTP/1.1, each line with at most 8190 bytes"})
    lines = [line for line in answer.head.split("\r\n")[1:] if line.partition(": ")[0] in CAREFUL]
    assert sorted(lines) == sorted(f"{name}: {value}" for name, value in CAREFUL.items())
    assert "aiohttp" not in answer.head


async def test_a_failure_of_ours_is_in_the_log_only(served, caplog):
    answer = await served.ask("/fails")
    assert answer.content == {"error": "the proxy has failed at this request; its log says how"}
    [record] = caplog.records
    assert record.exc_info[0] is ZeroDivisionError


# ------------------------------------------------------------------------- log


async def test_refusals_are_logged_once_a_minute_for_each_reason_without_what_is_secret(served):
    served.listener.guard.access = WITH_TOKENS
    with capture_logs() as logs:
        for _ in range(3):
            await served.status("/api/v1/things?user=alice", **bearer("not-the-token-at-all"))
            await served.status("/")
    about = {"event": "http_requests_refused", "listener": "admin", "requests": 1}
    address = {"last_address": "127.0.0.1"}
    assert logs == [
        {**about, "log_level": "warning", "reason": "wrong_credentials", **address, "last_path": "/api/v1/things"},
        {**about, "log_level": "info", "reason": "no_credentials", **address, "last_path": "/"},
    ]
    assert served.refused(Refusal.WRONG_CREDENTIALS) == 3


# ---------------------------------------------------------- the metrics listener


@pytest.fixture
async def metrics():
    site = MetricsSite(Metrics(CollectorRegistry()), list)
    port = await site.start("127.0.0.1", 0)

    async def status(path, **headers):
        async with session.get(f"http://127.0.0.1:{port}{path}", headers=headers) as response:
            return response.status, response.headers.getall("WWW-Authenticate", [])

    async with aiohttp.ClientSession() as session:
        yield SimpleNamespace(status=status, guard=site.listener.guard)
    await site.stop()


async def test_metrics_may_need_a_password_and_probes_never_do(metrics):
    metrics.guard.access = Access((Account(Right.READ, "pass:word é", "prometheus"),), None)
    assert (await metrics.status("/metrics"))[0] == 401
    wrong = (basic("prometheus", "password"), basic("x", "pass:word é"), basic("", ""), bearer("pass:word é"))
    for headers in (*wrong, bearer("prometheus:pass:word é")):
        assert await metrics.status("/metrics", **headers) == (401, ['Basic realm="kafka-throttle"'])
    assert (await metrics.status("/metrics", **basic("prometheus", "pass:word é")))[0] == 200
    assert [(await metrics.status(path))[0] for path in ("/livez", "/readyz")] == [200, 200]


async def test_metrics_of_this_machine_are_for_its_own_names_and_probes_for_any(metrics):
    assert (await metrics.status("/metrics", Host="evil.example"))[0] == 403
    assert (await metrics.status("/readyz", Host="10.0.0.1:9404"))[0] == 200
    metrics.guard.access = Access(hosts=None)
    assert (await metrics.status("/metrics", Host="metrics.example"))[0] == 200
