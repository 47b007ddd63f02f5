"""The status page over HTTP, on the admin listener."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from http import HTTPStatus
from typing import Any, Final

from aiohttp import hdrs, web

from kafka_throttle.proxy.observe.api import ClientWanted, ThrottledWanted
from kafka_throttle.proxy.observe.endpoints import BadParameter, parameters_in
from kafka_throttle.proxy.observe.explained import Form
from kafka_throttle.proxy.observe.known_clients import Names
from kafka_throttle.proxy.observe.page.live import Live, Sections
from kafka_throttle.proxy.observe.page.rendering import (
    Rendering,
    explain_path,
    past_path,
    samples_as_json,
    static_files,
)
from kafka_throttle.proxy.observe.page.sections import MAX_ROWS, Shown
from kafka_throttle.proxy.observe.past.moments import NO_HISTORY
from kafka_throttle.quotas.entities import is_ip

_STREAM_PART_OF_IDLE = 0.8
"""A stream ends before the listener would close its connection as idle. The browser then opens another one."""

_RETRY_MS = 1_000
_MAX_SEARCH_CHARACTERS = 256

_UNCHANGING: Final = {hdrs.CACHE_CONTROL: "private, max-age=31536000, immutable"}

_WORTH_A_SECTION = ("rule", "throttles", "throttled", "changes")
"""What a quota of an explanation must have to be shown in a section of its own."""

Handler = Callable[["StatusPage", web.Request], Awaitable[web.StreamResponse]]


def _with_error_page(handler: Handler) -> Handler:
    """Show what is wrong with a request as a page."""

    @wraps(handler)
    async def handled(self: "StatusPage", request: web.Request) -> web.StreamResponse:
        try:
            return await handler(self, request)
        except BadParameter as error:
            return self.page("error", {"problem": error.text}, HTTPStatus.BAD_REQUEST)
        except web.HTTPNotFound as error:
            return self.page("error", {"problem": error.text}, HTTPStatus.NOT_FOUND)

    return handled


class StatusPage:
    """The status page over HTTP. `explained` explains the quotas of a client, with the parameters of the API.

    `throttled_at` answers who was throttled in a second of the past; None if no history is written.

    The admin listener takes `max_connections` at a time and closes those that are silent for `idle_s`. Half of the
    connections may be open pages, so that others can always ask.
    """

    def __init__(
        self,
        shown: Shown,
        explained: Callable[[ClientWanted], Awaitable[Form]],
        max_connections: int,
        idle_s: float,
        throttled_at: Callable[[ThrottledWanted], Awaitable[Form]] | None = None,
    ) -> None:
        self.history = shown.history
        self._shown = shown
        self._explained = explained
        self._throttled_at = throttled_at
        self._files = static_files()
        self._rendering = Rendering(shown.name, self._files)
        self._sections = Sections(shown, self._rendering)
        self.live = Live(shown, self._sections, max(max_connections // 2, 1))
        self._stream_s = _STREAM_PART_OF_IDLE * idle_s

    def routes(self) -> list[web.RouteDef]:
        """The pages and what they load, for the admin listener."""
        handlers = {
            "/": self._index,
            "/live": self._live,
            "/history": self._history,
            "/search": self._search,
            "/explain": self._explain,
            "/ask": self._ask,
            "/past": self._past,
            "/static/{name}": self._static,
        }
        return [web.get(path, handler, allow_head=False) for path, handler in handlers.items()]

    def page(self, template: str, facts: Mapping[str, Any], status: int = 200) -> web.Response:
        """A whole page as the response."""
        has_past = self._throttled_at is not None
        given = {"text": "", "at": "", "has_past": has_past, "several": len(self._shown.clusters) > 1, **facts}
        text = self._rendering.html(template, given)
        return web.Response(text=text, status=status, content_type="text/html")

    @_with_error_page
    async def _index(self, request: web.Request) -> web.Response:
        made = await self._sections.present()
        return self.page("page", {"sections": {name: section.html for name, section in made.items()}})

    async def _history(self, request: web.Request) -> web.Response:
        text = samples_as_json(self.history.latest())
        return web.Response(text=text, content_type="application/json")

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """The sections as server-sent events, as they change."""
        if self.live.is_full:
            refused = web.HTTPServiceUnavailable(text="too many status pages are open")
            refused.force_close()  # half of the connections are for other requests
            raise refused
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "text/event-stream"})
        stream = self.live.open()
        try:
            async with asyncio.timeout(self._stream_s):
                await response.prepare(request)
                await response.write(f"retry: {_RETRY_MS}\n\n".encode())
                async for events in stream.events():
                    await response.write(events)
        except (TimeoutError, ConnectionError):
            pass  # the time of the stream is over, or the browser has closed it
        finally:
            self.live.close(stream)
        return response

    @_with_error_page
    async def _search(self, request: web.Request) -> web.StreamResponse:
        text = request.query.get("q", "").strip()[:_MAX_SEARCH_CHARACTERS]
        at = request.query.get("at", "").strip()[:_MAX_SEARCH_CHARACTERS]
        if not text:
            return _see(past_path(at) if at else "/")
        found = await self._shown.find(text)
        if found.only is not None:
            hit = found.only
            return _see(explain_path(hit.virtual_cluster, hit.user or None, hit.client_id or None, hit.ip or None, at))
        clusters = list(self._shown.clusters)
        return self.page(
            "search", {"text": text, "at": at, "found": found, "clusters": clusters, "is_address": is_ip(text)}
        )

    @_with_error_page
    async def _explain(self, request: web.Request) -> web.StreamResponse:
        """Which quotas apply to a client, and why; or the clients that fit, if these are several."""
        given = {name: value for name, value in request.query.items() if value or name == "client_id"}
        wanted = parameters_in(given, ClientWanted)
        form = await self._explained(wanted)
        names = wanted.names
        if form["others"]:
            return self.page("clients", {"form": form, "names": str(names), "asked": names, "at": given.get("at", "")})
        shown = [one for one in form["quotas"] if any(one.get(fact) for fact in _WORTH_A_SECTION)]
        free = [one for one in form["quotas"] if one not in shown]
        facts = {"form": form, "shown": shown, "free": free, "at_ms": self._shown.clock.epoch_ms()}
        return self.page("explain", {**facts, "asked": Names(**form["client"]), "at": given.get("at", "")})

    @_with_error_page
    async def _ask(self, request: web.Request) -> web.StreamResponse:
        """The way from the form to the explanation: what is left empty in it is not given."""
        given = {name: value.strip() for name, value in request.query.items() if value.strip()}
        wanted = parameters_in(given, ClientWanted)
        return _see(explain_path(wanted.virtual_cluster or "", *wanted.names, at=wanted.at or ""))

    @_with_error_page
    async def _past(self, request: web.Request) -> web.StreamResponse:
        """Who was throttled in a second of the past."""
        at = request.query.get("at", "").strip()
        if not at:
            return _see("/")
        if self._throttled_at is None:
            raise web.HTTPNotFound(text=NO_HISTORY)
        form = await self._throttled_at(parameters_in({"at": at, "limit": str(MAX_ROWS)}, ThrottledWanted))
        return self.page("past", {"form": form, "at": at})

    async def _static(self, request: web.Request) -> web.Response:
        file = self._files.get(request.match_info["name"])
        if file is None:
            raise web.HTTPNotFound(text="no such file")
        return web.Response(body=file.content, content_type=file.content_type, charset="utf-8", headers=_UNCHANGING)


def _see(path: str) -> web.Response:
    return web.Response(status=HTTPStatus.SEE_OTHER, headers={hdrs.LOCATION: path})
