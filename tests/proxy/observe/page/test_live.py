"""Open pages: what they get, how little of it waits for a slow one, and that nothing goes on without one."""

import asyncio

import pytest

from kafka_throttle.proxy.observe.page.live import Live, Sections, Stream, event_of
from kafka_throttle.proxy.observe.page.rendering import Rendering, static_files
from kafka_throttle.proxy.observe.page.sections import SECTIONS, Page
from tests.support.timeouts import TIMEOUT_S


@pytest.fixture
def page(shown):
    return Page(shown.process())


@pytest.fixture
def sections(page):
    return Sections(page, Rendering("proxy-1", static_files()))


@pytest.fixture
def live(page, sections):
    return Live(page, sections, most=2)


async def first(stream):
    async with asyncio.timeout(TIMEOUT_S):
        return await anext(aiter(stream.events()))


def test_an_event_is_lines_of_data():
    assert event_of("state", "<p>\nReady</p>\n") == b"event: state\ndata: <p>\ndata: Ready</p>\n\n"


async def test_of_each_section_only_the_latest_event_waits():
    stream = Stream()
    for number in range(1000):
        stream.offer("state", b"<%d>" % number)
        stream.offer("hour", b"[%d]" % number)
    assert await first(stream) == b"<999>[999]"


async def test_an_event_is_sent_once():
    stream, event = Stream(), b"event"
    stream.offer("state", event)
    await first(stream)
    stream.offer("state", event)
    stream.offer("hour", b"hour")
    assert await first(stream) == b"hour"


async def test_sections_are_made_at_most_once_a_second(sections, shown, clock):
    before = dict(await sections.present())
    shown.reasons.append("stopping")
    assert dict(await sections.present()) == before
    clock.advance(1000)
    assert "stopping" in (await sections.present())["state"].html
    assert list(before) == [section.name for section in SECTIONS]


async def test_what_has_very_many_rows_is_made_less_often(sections, page, shown, clock):
    shown.addresses *= 15_000
    await sections.present()
    assert page.most_used.choice.looked_at >= 15_000
    shown.addresses.clear()
    shown.clusters[0].throttle("alice", "etl")
    clock.advance(2_000)
    assert "etl" in (await sections.present())["throttled"].html
    assert page.most_used.choice.looked_at >= 15_000
    clock.advance(2_000)
    await sections.present()
    assert page.most_used.choice.looked_at < 10


async def test_a_section_that_is_the_same_is_the_same_event(sections, clock):
    before = (await sections.present())["nodes"]
    clock.advance(1000)
    assert (await sections.present())["nodes"] is before


async def test_an_open_page_gets_all_sections_and_then_what_changes(live, sections, shown, clock):
    stream = live.open()
    events = aiter(stream.events())
    async with asyncio.timeout(TIMEOUT_S):
        everything = await anext(events)
        for section in SECTIONS:
            assert b"event: %s\n" % section.name.encode() in everything
        assert b"event: samples\n" in everything
        shown.reasons.append("stopping")
        clock.advance(1000)
        changed = await anext(events)
    assert b"stopping" in changed
    assert b"event: nodes\n" not in changed
    live.close(stream)


async def test_there_are_so_many_open_pages_and_no_more(live):
    streams = [live.open(), live.open()]
    assert live.is_full
    live.close(streams[0])
    assert not live.is_full
    live.close(streams[1])


async def test_without_an_open_page_nothing_is_made(live, sections, clock):
    live.close(live.open())
    await asyncio.sleep(0)
    assert not len(live)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
