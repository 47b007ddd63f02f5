"""The status page for a second of the past."""

import pytest

from kafka_throttle.proxy.observe.past.look_up import Past, Trace
from kafka_throttle.proxy.observe.past.moments import second_text
from kafka_throttle.quotas.records.usage_record import TraceEvent
from tests.fakes.clock import FakeClock
from tests.proxy.observe.page.shown import Shown
from tests.proxy.observe.page.test_site import HOSTILE, served
from tests.proxy.observe.past.test_ring import KEEP_S, Ring, in_force, line, throttled

SECOND = 1_700_000_000


@pytest.fixture
def past(tmp_path):
    ring = Ring(tmp_path / "past", 8 << 20, KEEP_S, "one")
    ring.put_quotas(in_force(SECOND - 500, alice=1_000_000))
    ring.put_quotas(in_force(SECOND - 60, alice=2_000_000))
    lines = [line("etl", muted_ms=800), line(HOSTILE, muted_ms=700), line("self", quota_type=None, entity=None)]
    ring.put_seconds(throttled(SECOND - 9, *lines))
    event = TraceEvent(
        instance="x",
        epoch=1,
        sequence=1,
        at_ms=1,
        wall_ms=(SECOND - 9) * 1000 + 250,
        virtual_cluster="main",
        node_id=1,
        user="alice",
        client_id="etl",
        ip="",
        quota_type="produce",
        operation="charge",
        value=1500.0,
        throttle_ms=500,
        limit=2_000_000.0,
        rule="user=alice",
        sensor=1,
        shadow=0,
        count=1,
    )
    return Past(tmp_path / "past", KEEP_S, lambda cluster, second: Trace([event]))


@pytest.fixture
async def site(past):
    async with served(Shown(FakeClock(epoch_ms=SECOND * 1000)), past=past) as made:
        yield made


AT = second_text(SECOND - 9)


async def test_a_time_alone_shows_who_was_throttled_then_with_links_to_that_second(site):
    response = await site.get(f"/search?q=&at={AT}")
    assert response.status == 200
    assert f"Throttled at <time>{AT}</time>" in response.text
    assert response.text.index("<bdi>etl</bdi>") < response.text.index("<bdi>user=alice</bdi>")
    link = (
        "/explain?virtual_cluster=main&amp;user=alice&amp;client_id=etl&amp;ip=10.0.0.1&amp;at=2023-11-14T22%3A13%3A11Z"
    )
    assert f'<a href="{link}">' in response.text
    assert "2.00 MB/s" in response.text
    quiet = await site.get("/past?at=-20s")
    assert quiet.status == 404
    assert "the history has nothing of" in quiet.text


async def test_a_client_is_explained_as_of_that_second(site):
    text = (await site.get(f"/explain?user=alice&at={AT}")).text
    assert f"Clients with <bdi>user=&#39;alice&#39;</bdi>, throttled at <time>{AT}</time>" in text
    link = "/explain?virtual_cluster=main&amp;user=alice&amp;client_id=etl&amp;at=2023-11-14T22%3A13%3A11Z"
    assert f'<a href="{link}">' in text
    text = (await site.get(f"/explain?user=alice&client_id=etl&at={AT}")).text
    for expected in (
        f"<dd><time>{AT}</time></dd>",
        "exact, from the trace",
        "<code>producer_byte_rate</code>",
        "muted for <strong>800 ms</strong>, 2 throttles of 900 ms in all",
        "<bdi>user=alice</bdi> 2.00 MB/s",
        "before 1.00 MB/s",
        "charge 1,500",
        "throttled for 500 ms",
    ):
        assert expected in text
    text = (await site.get(f"/explain?user=alice&client_id=self&at={AT}")).text
    assert "by node 1: muted for 800 ms of this second" in text


async def test_the_search_keeps_the_time(site):
    text = (await site.get("/search?q=li&at=-9s")).text
    assert 'name="at"' in text
    assert 'value="-9s"' in text
    assert "&amp;at=-9s" in text


@pytest.mark.parametrize("path", [f"/past?at={AT}", f"/explain?user=alice&client_id=etl&at={AT}"])
async def test_names_cannot_break_out_of_it(site, path):
    text = (await site.get(path)).text
    assert "<img" not in text
    assert "\u202e" not in text
    assert " style=" not in text


async def test_a_wrong_time_is_shown_as_an_error(site):
    response = await site.get("/past?at=%3Cimg%3E")
    assert response.status == 400
    assert "at: expected a time like 03:12:07" in response.text
    assert "<img" not in response.text


async def test_without_a_history_no_time_is_asked_for():
    async with served(Shown(FakeClock())) as site:
        assert 'name="at"' not in (await site.get("/")).text
        assert (await site.get("/past?at=-1m")).status == 404
        assert (await site.get("/past")).status == 200
