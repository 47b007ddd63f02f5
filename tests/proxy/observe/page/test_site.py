"""The status page over HTTP: what it shows, that names cannot break out of it, and its streams."""

import asyncio
import contextlib
import json
from types import SimpleNamespace

import aiohttp
import pytest

from kafka_throttle.proxy.observe.api import AdminApi
from kafka_throttle.proxy.observe.fleet_metrics import FleetTotals
from kafka_throttle.proxy.observe.page.sections import Page
from kafka_throttle.proxy.observe.page.site import StatusPage
from kafka_throttle.quotas.changes import Limit
from kafka_throttle.quotas.entities import Entity
from kafka_throttle.quotas.shares.division import Claim
from kafka_throttle.quotas.shares.member import Explained, Why
from tests.fakes.http import admin_listener
from tests.proxy.observe.page.shown import NODE, PRODUCE, QUOTAS, Cluster, Shown
from tests.support.timeouts import TIMEOUT_S

HOSTILE = "</script><img src=x onerror=alert(1)>'\"\u202e"


@contextlib.asynccontextmanager
async def served(shown, most=8, idle_s=30.0, past=None):
    process = shown.process()
    api = AdminApi(process.clusters, process.clock)
    api.past = past
    page = StatusPage(Page(process), api.explain, most, idle_s, None if past is None else api.throttled)
    listener = admin_listener([*api.routes(), *page.routes()], most=most, idle_s=idle_s)
    port = await listener.start("127.0.0.1", 0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

        async def get(path, **options):
            async with session.get(path, **options) as response:
                return SimpleNamespace(status=response.status, headers=response.headers, text=await response.text())

        yield SimpleNamespace(get=get, page=page, session=session, port=port, listener=listener)
    await listener.stop()


@pytest.fixture
async def site(shown):
    async with served(shown) as made:
        yield made


async def test_a_throttled_client_is_first_on_the_page_with_its_reason_and_a_link_to_its_explanation(site, shown):
    shown.clusters[0].throttle("alice", "etl")
    response = await site.get("/")
    assert response.status == 200
    text = response.text
    assert text.index("<bdi>etl</bdi>") < text.index("The last hour")
    for expected in ("user=alice", "in <bdi>proxy.yaml</bdi>", "produce", f"at node {NODE}", "1.00 MB/s"):
        assert expected in text
    assert '<a href="/explain?virtual_cluster=main&amp;user=alice&amp;client_id=etl&amp;ip=10.0.0.1">' in text


async def test_the_page_has_quotas_connections_refusals_nodes_sources_and_shadows(site, shown):
    cluster = shown.clusters[0]
    cluster.use("alice", "etl", 5_000_000)
    cluster.use("alice", "etl", 5_000, "shadow_fetch")
    text = (await site.get("/")).text
    for expected in (
        "500 kB/s of 1.00 MB/s",
        "50 %",
        "4 connections/s of 5 connections/s",
        "request_not_kafka",
        "kafka-1:9092",
        "gone</span> for 1 min 1 s",
        "in the cluster",
        "3.0 s ago",
        "Ready",
    ):
        assert expected in text
    assert "client_closed" not in text
    shadows = text[text.index('id="shadows"') :]
    assert "3 throttles" in shadows


async def test_reasons_of_not_being_ready_stand_at_the_top(site, shown):
    shown.reasons.append("virtual cluster main: the cluster is unreachable: no route")
    text = (await site.get("/")).text
    assert text.index("the cluster is unreachable: no route") < text.index("Throttled now")


async def test_the_bars_are_those_used_most_and_the_rest_is_counted(site, shown):
    shown.addresses = []
    cluster = shown.clusters[0]
    for number in range(70):
        cluster.use("bob", f"client-{number:02}", 1_000 * number)
    text = (await site.get("/")).text
    quotas = text[text.index('id="quotas"') : text.index('id="connections"')]
    assert "<bdi>client-69</bdi>" in quotas
    assert "<bdi>client-10</bdi>" not in quotas
    assert "and 20 more" in quotas


@pytest.mark.parametrize("path", ["/", "/search?q=img", "/explain?user=%3Cimg%3E&client_id=%3C/script%3E"])
async def test_names_cannot_break_out_of_the_page(site, shown, path):
    cluster = shown.clusters[0]
    cluster.quotas = {**QUOTAS, Entity(HOSTILE): {PRODUCE: Limit(1.0, HOSTILE)}}
    cluster.throttle(HOSTILE, HOSTILE)
    shown.reasons.append(HOSTILE)
    cluster.trouble = HOSTILE
    response = await site.get(path)
    assert response.status == 200
    assert "<img" not in response.text
    assert "</script><" not in response.text.replace("></script>\n", "")
    assert "\u202e" not in response.text


async def test_responses_forbid_scripts_from_elsewhere_and_embedding(site):
    for path in ("/", "/search?q=x", "/explain", "/history", "/static/page.js", "/nothing"):
        response = await site.get(path)
        if response.status == 200:
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_no_page_has_inline_scripts_or_styles(site, shown):
    shown.clusters[0].throttle("alice", "etl")
    for path in ("/", "/search?q=alice", "/explain?user=alice&client_id=etl"):
        text = (await site.get(path)).text
        assert " style=" not in text
        assert " onclick=" not in text
        assert "<style" not in text
        assert text.count("<script") == text.count("<script defer src=")


async def test_the_explanation_has_the_rule_those_it_beats_and_the_throttles(site, shown):
    shown.clusters[0].throttle("alice", "etl")
    text = (await site.get("/explain?user=alice&client_id=etl")).text
    for expected in ("producer_byte_rate", "level 3", "client-id=&lt;default&gt;", "level 3 comes before level 8"):
        assert expected in text
    assert "Last throttles by this quota" in text


async def test_an_instance_of_a_fleet_shows_its_share_and_the_fleet(site, shown):
    cluster = shown.clusters[0]
    cluster.throttle("alice", "etl")
    cluster.share = Explained(0.25, 0.24, 0.3, {"b<i>#2": Claim(0.7, 0.7)}, Why.CLAIMED)
    counts = dict.fromkeys(("moves", "raises", "lowers", "conflicts", "excesses", "refused", "writes"), 0)
    volume = {"heard_ms_ago": 9_000, "written_bytes": 0, "read_bytes": 0}
    state = {"members": 3, "is_cut_off": True, "trouble": "zk:2181: down", "keys": 2, "claimed": 0.3}
    cluster.fleet = FleetTotals("main", **counts, **volume, **state)
    text = (await site.get("/")).text
    of_fleet = ("Ready, but:", "at most 1/3 of each limit", "3 instances", "2 limits")
    for expected in ("250 kB/s, 25 % of 1.00 MB/s", *of_fleet):
        assert expected in text
    text = (await site.get("/explain?user=alice&client_id=etl")).text
    assert "share 25.0%: the claim of this instance is in force; it claims 24.0% and wants 30.0%" in text
    assert "others claim 70.0% (b&lt;i&gt;#2 70.0%)" in text


async def test_an_explanation_names_the_logins_that_are_this_user(site, shown):
    shown.clusters[0].user_names = {"<b>AKIA": "alice"}
    text = (await site.get("/explain?user=alice")).text
    assert "logins that show &#39;&lt;b&gt;AKIA&#39; are this user, by sasl.user_names" in text


async def test_an_explanation_of_an_address_and_bad_requests(site):
    assert "open connections from 10.0.0.1" in (await site.get("/explain?ip=10.0.0.1")).text
    wrong = await site.get("/explain?ip=nonsense")
    assert wrong.status == 400
    assert "expected an IP address" in wrong.text
    assert (await site.get("/explain?virtual_cluster=other")).status == 404


async def test_a_name_that_several_clients_have_leads_to_each_of_them(site, shown):
    cluster = shown.clusters[0]
    cluster.throttle("alice", "etl")
    cluster.throttle("alice", "")
    cluster.open = [("bob", "10.0.0.2"), ("<i>", "10.0.0.3")]
    text = (await site.get("/explain?client_id=etl")).text
    assert "<h1>Clients with <bdi>client_id=&#39;etl&#39;</bdi></h1>" in text
    link = '<a href="/explain?virtual_cluster=main&amp;user=alice&amp;client_id=etl"><bdi>alice</bdi>'
    assert f"<li>{link}" in text
    assert '<span class="tag">throttled</span></li>' in text
    assert text.index("user=alice") < text.index("user=bob")
    assert "<i>" not in text
    index = (await site.get("/")).text
    assert "/explain?virtual_cluster=main&amp;user=alice&amp;client_id=&amp;ip=10.0.0.1" in index
    one = (await site.get("/explain?user=bob")).text
    assert "Which quotas apply to this client" in one
    nobody = (await site.get("/explain?client_id=web")).text
    assert "no client with client_id=&#39;web&#39; is connected" in nobody
    assert 'action="/ask"' in nobody


async def test_what_is_left_empty_in_the_form_is_not_asked_for(site):
    asked = {"virtual_cluster": "main", "user": "", "client_id": "etl", "ip": " ", "at": ""}
    found = await site.get("/ask", params=asked, allow_redirects=False)
    assert (found.status, found.headers["Location"]) == (303, "/explain?virtual_cluster=main&client_id=etl")
    assert (await site.get("/ask", params={"ip": "nonsense"})).status == 400


async def test_a_search_leads_to_the_one_client_that_is_meant_or_lists_several(site, shown):
    shown.clusters[0].open = [("carol", "10.1.2.3"), ("dora", "10.1.2.4")]
    one = await site.get("/search", params={"q": "carol"}, allow_redirects=False)
    assert (one.status, one.headers["Location"]) == (303, "/explain?virtual_cluster=main&user=carol&client_id=etl")
    several = await site.get("/search", params={"q": "10.1.2"})
    assert "10.1.2.3" in several.text
    assert "10.1.2.4" in several.text
    unknown = await site.get("/search", params={"q": "nobody & co"})
    assert "No client, quota or connection" in unknown.text
    assert "/explain?virtual_cluster=main&amp;user=nobody+%26+co" in unknown.text
    nothing = await site.get("/search", params={"q": " "}, allow_redirects=False)
    assert (nothing.status, nothing.headers["Location"]) == (303, "/")


async def test_several_virtual_clusters_are_told_apart(clock):
    clusters = [Cluster("blue", clock), Cluster("green", clock)]
    clusters[1].throttle("alice", "etl")
    async with served(Shown(clock, *clusters)) as site:
        text = (await site.get("/")).text
        assert "<bdi>green</bdi>" in text[: text.index("The last hour")]
        assert (await site.get("/explain?user=alice")).status == 400
        assert (await site.get("/explain?user=alice&virtual_cluster=green")).status == 200


async def test_quotas_that_are_not_known_are_said_loudly(site, shown):
    cluster = shown.clusters[0]
    cluster.origin = cluster.origin._replace(known=False)
    assert "are not known yet, so none of its clients is throttled" in (await site.get("/")).text


async def test_the_history_is_columns_of_the_samples(site, clock):
    clock.advance(5_000)
    site.page.history.sample()
    history = json.loads((await site.get("/history")).text)
    assert history["samples"]["connections"] == [4]
    assert history["every_s"] == 5
    assert {field for chart in history["charts"].values() for field in chart["lines"]} < set(history["samples"])


# ------------------------------------------------------------------------ live


async def heard(response, wanted):
    """What a stream sends until `wanted` has come."""
    text = b""
    async with asyncio.timeout(TIMEOUT_S):
        while wanted not in text:
            text += await response.content.readany()
    return text


async def test_a_stream_sends_sections_as_they_change(site, shown, clock):
    async with site.session.get("/live") as stream:
        assert stream.content_type == "text/event-stream"
        assert b"retry: 1000\n" in await heard(stream, b"event: samples\n")
        shown.clusters[0].throttle("alice", "etl")
        clock.advance(1_000)
        await heard(stream, b"<bdi>etl</bdi>")


async def test_a_closed_page_is_forgotten(site, clock):
    async with site.session.get("/live") as stream:
        await heard(stream, b"event: samples\n")
        assert len(site.page.live) == 1
    async with asyncio.timeout(TIMEOUT_S):
        while len(site.page.live):
            clock.advance(1_000)
            await asyncio.sleep(0.01)


async def test_open_pages_leave_connections_for_others(shown):
    async with served(shown, most=4) as site, contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(site.session.get("/live"))
        refused = await site.get("/live")
        assert (refused.status, refused.headers["Connection"]) == (503, "close")
        assert refused.headers["Retry-After"] == "1"
        assert (await site.get("/explain")).status == 200


async def test_a_stream_ends_by_itself_before_its_connection_would_be_closed_as_idle(shown):
    async with served(shown, idle_s=1.0) as site, site.session.get("/live") as stream, asyncio.timeout(TIMEOUT_S):
        assert b"event: state\n" in await stream.content.read()
        assert len(site.page.live) == 0


async def test_a_page_that_reads_nothing_holds_little(shown, clock):
    shown.reasons.extend(f"reason {number} {'x' * 900}" for number in range(400))
    async with served(shown) as site:
        _, writer = await asyncio.open_connection("127.0.0.1", site.port, limit=1024)
        writer.transport.pause_reading()
        writer.write(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for number in range(60):
            shown.reasons[0] = f"now {number}"
            clock.advance(1_000)
            await site.get("/")
        [stream] = site.page.live._streams
        assert sum(map(len, stream._waiting.values())) < 1_000_000
        writer.transport.abort()


async def test_open_pages_do_not_delay_the_end_of_the_process(shown):
    async with served(shown) as site, site.session.get("/live") as stream:
        await heard(stream, b"event: samples\n")
        began = asyncio.get_running_loop().time()
        site.page.live.end()
        await site.listener.stop()
        assert asyncio.get_running_loop().time() - began < 0.9
        assert len(site.page.live) == 0
