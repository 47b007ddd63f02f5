"""Keeps open status pages up to date: each section is made at most once a second, for all of them together."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

import structlog
from markupsafe import Markup

from kafka_throttle.proxy.observe.page.rendering import Rendering, samples_as_json
from kafka_throttle.proxy.observe.page.sections import SECTIONS, Section, Shown

_EVERY_S = 1.0
_LEAST_PAUSE_MS = 900
_LOOKED_AT_PER_MS = 5
"""How many sensors or throttled clients may be looked at in a ms, on average: a few percent of the processor."""

_LATEST_SAMPLES = 12
"""The samples of the last minute are sent each time. So a page that misses some of these events misses no sample."""


log = structlog.get_logger()


class Made(NamedTuple):
    """A section as HTML, and as an event that takes it to a browser."""

    html: Markup
    event: bytes


class Sections:
    """All sections, each made anew when it is needed and due."""

    def __init__(self, page: Shown, rendering: Rendering) -> None:
        self._page = page
        self._rendering = rendering
        self._made: dict[str, Made] = {}
        self._due_ms: dict[str, int] = {}
        self._making = asyncio.Lock()

    async def present(self) -> Mapping[str, Made]:
        """All sections by name. What has very many rows is made less often than once a second."""
        async with self._making:
            for section in SECTIONS:
                if self._page.clock.now_ms() >= self._due_ms.get(section.name, 0):
                    await self._make(section)
        return self._made

    async def _make(self, section: Section) -> None:
        facts = await self._page.facts(section)
        html = self._rendering.html(section.name, facts)
        before = self._made.get(section.name)
        if before is None or before.html != html:
            self._made[section.name] = Made(Markup(html), event_of(section.name, html))
        pause_ms = max(_LEAST_PAUSE_MS, facts.get("looked_at", 0) // _LOOKED_AT_PER_MS)
        self._due_ms[section.name] = self._page.clock.now_ms() + pause_ms
        await asyncio.sleep(0)


class Stream:
    """What one open page is still to get. Of each section only the latest event waits, however slowly it is read."""

    def __init__(self) -> None:
        self._waiting: dict[str, bytes] = {}
        self._offered: dict[str, bytes] = {}
        self._news = asyncio.Event()
        self._ended = False

    def offer(self, name: str, event: bytes) -> None:
        """Send an event, if it is another than before."""
        if self._offered.get(name) is not event:
            self._offered[name] = self._waiting[name] = event
            self._news.set()

    def end(self) -> None:
        """Send nothing more."""
        self._ended = True
        self._news.set()

    async def events(self) -> AsyncIterator[bytes]:
        """The events as they come, until the stream ends."""
        while True:
            await self._news.wait()
            if self._ended:
                return
            self._news.clear()
            waiting, self._waiting = self._waiting, {}
            yield b"".join(waiting.values())


class Live:
    """The open pages. While there is one, sections are made once a second."""

    def __init__(self, page: Shown, sections: Sections, most: int) -> None:
        self._page = page
        self._sections = sections
        self._most = most
        self._streams: set[Stream] = set()
        self._task: asyncio.Task[None] | None = None
        self._latest_samples = b""

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def is_full(self) -> bool:
        """Whether there are as many open pages as there may be."""
        return len(self._streams) >= self._most

    def open(self) -> Stream:
        """Another page is open."""
        stream = Stream()
        self._streams.add(stream)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._keep_up_to_date())
            self._task.add_done_callback(self._tell_failure)
        return stream

    def close(self, stream: Stream) -> None:
        """A page was closed."""
        self._streams.discard(stream)
        if not self._streams and self._task is not None:
            self._task.cancel()
            self._task = None

    def end(self) -> None:
        """The process ends: end the streams of all open pages."""
        for stream in self._streams:
            stream.end()

    def _tell_failure(self, task: asyncio.Task[None]) -> None:
        """After a bug, end the streams: browsers open new ones by themselves."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("status_page_failed", exc_info=error)
            self.end()

    async def _keep_up_to_date(self) -> None:
        while True:
            made = await self._sections.present()
            samples = event_of("samples", samples_as_json(self._page.history.latest(_LATEST_SAMPLES)))
            if samples != self._latest_samples:
                self._latest_samples = samples
            for stream in self._streams:
                for name, section in made.items():
                    stream.offer(name, section.event)
                stream.offer("samples", self._latest_samples)
            await asyncio.sleep(_EVERY_S)


def event_of(name: str, data: str) -> bytes:
    """A server-sent event."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines())
    return f"event: {name}\n{lines}\n".encode()
