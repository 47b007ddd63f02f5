"""Decides which requests an HTTP listener serves, and sends the headers that keep browsers careful.

Each page and each endpoint of a listener is behind it: what a request may do is checked here and nowhere else.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from http import HTTPStatus
from typing import Final

from aiohttp import hdrs, web

from kafka_throttle.proxy.config.kinds import is_loopback
from kafka_throttle.proxy.observe.http_access import Access, Right, right_for
from kafka_throttle.proxy.observe.http_refusals import HttpRefusals, Refusal

MAX_BODY_BYTES: Final = 1_024
MAX_HEADER_BYTES: Final = 16 * 1_024
"""The most that all headers of a request may have."""
_RETRY_AFTER_S = "1"
"""When it is worth to ask again for what cannot be had now."""
BODY_WITHIN_S: Final = 5.0
"""How long the body of a request may take."""

_PATH: Final = re.compile(r"(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*/?")
"""The paths that exist at all: without escapes, empty parts and parts that begin with a dot."""

_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_STATUS: Final[Mapping[Refusal, HTTPStatus]] = {
    Refusal.MALFORMED: HTTPStatus.BAD_REQUEST,
    Refusal.HEADERS_TOO_LARGE: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    Refusal.PATH: HTTPStatus.BAD_REQUEST,
    Refusal.HOST: HTTPStatus.FORBIDDEN,
    Refusal.CROSS_SITE: HTTPStatus.FORBIDDEN,
    Refusal.NO_CREDENTIALS: HTTPStatus.UNAUTHORIZED,
    Refusal.WRONG_CREDENTIALS: HTTPStatus.UNAUTHORIZED,
    Refusal.NO_RIGHT: HTTPStatus.FORBIDDEN,
    Refusal.BODY_TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Refusal.BODY_TOO_SLOW: HTTPStatus.REQUEST_TIMEOUT,
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Refused(Exception):
    """A request is refused; the text says what was expected of it."""

    def __init__(self, refusal: Refusal, expected: str) -> None:
        super().__init__(expected)
        self.refusal = refusal


class HttpGuard:
    """Checks each request to one HTTP listener before its handler is called. `access` may be replaced at any time.

    A request to an endpoint needs the right to read if its method is GET or HEAD, and the right to write otherwise.
    `open_paths` need neither a right nor a known host.
    """

    def __init__(self, refusals: HttpRefusals, open_paths: Collection[str] = ()) -> None:
        self.access = Access()
        self._refusals = refusals
        self._open_paths = open_paths
        self._asked: set[asyncio.BaseProtocol] = set()

    def is_asked(self, connection: asyncio.Protocol) -> bool:
        """Whether a request is under way on a connection: admitted, here whole, and not responded to yet."""
        return connection in self._asked

    def application(self, routes: Iterable[web.AbstractRouteDef]) -> web.Application:
        """The aiohttp application that serves these routes, behind this guard."""
        application = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._check])
        application.on_response_prepare.append(_prepare)
        application.add_routes(routes)
        return application

    @web.middleware
    async def _check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Call the handler if the request is admitted. Errors become JSON responses that say what was expected."""
        try:
            self._admit(request)
            await _take_body(request)
            return await self._respond(request, handler)
        except Refused as refused:
            self._refusals.note_request(refused.refusal, request.remote or "", request.path)
            status = _STATUS[refused.refusal]
            return _error(status, str(refused), self._challenges() if status is HTTPStatus.UNAUTHORIZED else ())
        except web.HTTPException as error:
            if error.status < HTTPStatus.BAD_REQUEST:
                raise
            headers = [(hdrs.ALLOW, error.headers[hdrs.ALLOW])] if hdrs.ALLOW in error.headers else []
            if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
                headers.append((hdrs.RETRY_AFTER, _RETRY_AFTER_S))
            response = _error(error.status, _why(error, request), headers)
            if error.keep_alive is False:
                response.force_close()
            return response

    async def _respond(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = request.protocol
        self._asked.add(connection)
        try:
            return await handler(request)
        finally:
            self._asked.discard(connection)

    def _admit(self, request: web.Request) -> None:
        """Raise Refused unless the request may be served."""
        if not _PATH.fullmatch(request.raw_path.partition("?")[0]):
            raise Refused(Refusal.PATH, "path: expected names between slashes, without '.', '..' and escapes")
        if sum(len(name) + len(value) for name, value in request.raw_headers) > MAX_HEADER_BYTES:
            raise Refused(Refusal.HEADERS_TOO_LARGE, f"headers: expected at most {MAX_HEADER_BYTES} bytes")
        if _is_from_another_site(request) and not _opens_a_page(request):
            raise Refused(Refusal.CROSS_SITE, "expected a request that does not come from a page of another site")
        if request.path in self._open_paths:
            return
        self._admit_host(request)
        self._admit_right(request)

    def _admit_host(self, request: web.Request) -> None:
        """Refuse a Host that nobody has this machine know by: DNS rebinding leads browsers here by such names."""
        hosts, named = self.access.hosts, request.headers.getall(hdrs.HOST, [])
        if len(named) > 1:
            raise Refused(Refusal.HOST, "Host: expected once")
        if hosts is None:
            return
        name = _host_name(named[0]) if named else ""
        if not _is_this_machine(name) and name not in hosts:
            others = f", or {', '.join(sorted(hosts))}" if hosts else ", as there is no token"
            raise Refused(Refusal.HOST, f"Host: expected localhost or a loopback address{others}")

    def _admit_right(self, request: web.Request) -> None:
        exists = request.match_info.http_exception is None
        needed = right_for(request.method) if exists else Right.READ
        access, authorization = self.access, request.headers.get(hdrs.AUTHORIZATION, "")
        granted = access.granted(authorization)
        if max(granted, access.free) >= needed:
            return
        if granted is Right.READ or not access.gives(needed):
            raise Refused(Refusal.NO_RIGHT, "Authorization: expected the token of admin.write_token_file")
        refusal = Refusal.WRONG_CREDENTIALS if authorization else Refusal.NO_CREDENTIALS
        raise Refused(refusal, f"Authorization: expected {self._expected()}")

    def _expected(self) -> str:
        if self.access.asks_for_a_user():
            return f"'Basic' with {self._refusals.listener}.username and its password"
        return f"'Bearer' and the token of {self._refusals.listener}.token_file"

    def _challenges(self) -> list[tuple[str, str]]:
        """The ways to present credentials; browsers ask their users for a name and a password because of `Basic`."""
        schemes = ("Basic",) if self.access.asks_for_a_user() else ("Bearer", "Basic")
        return [(hdrs.WWW_AUTHENTICATE, f'{scheme} realm="kafka-throttle"') for scheme in schemes]


async def _take_body(request: web.Request) -> None:
    """Read the body, so that a handler has it at once. Raises Refused if it is too large or too slow."""
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            await request.read()
    except TimeoutError as error:
        raise Refused(Refusal.BODY_TOO_SLOW, f"body: expected within {BODY_WITHIN_S:g} s") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise Refused(Refusal.BODY_TOO_LARGE, f"body: expected at most {MAX_BODY_BYTES} bytes") from error
    except web.RequestPayloadError as error:
        raise Refused(Refusal.MALFORMED, "body: expected as HTTP/1.1 sends it") from error


def _is_from_another_site(request: web.Request) -> bool:
    """Whether a browser sends the request for a page of another site. Other clients do not say where they come from."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get(hdrs.ORIGIN)
    return origin is not None and origin.partition("://")[2].lower() != request.headers.get(hdrs.HOST, "").lower()


def _opens_a_page(request: web.Request) -> bool:
    """Whether a browser opens a page, as with a link: the page of another site does not get to see the response."""
    about = (request.method, request.headers.get("Sec-Fetch-Mode"), request.headers.get("Sec-Fetch-Dest"))
    return about == (hdrs.METH_GET, "navigate", "document") and not request.path.startswith("/api/")


def _host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower()


def _is_this_machine(name: str) -> bool:
    try:
        return is_loopback(name)
    except ValueError:
        return name in ("localhost", "localhost.localdomain")


# ------------------------------------------------------------------- responses


def _why(error: web.HTTPException, request: web.Request) -> str:
    if error.status == HTTPStatus.NOT_FOUND and request.match_info.http_exception is not None:
        paths = {resource.canonical for resource in request.app.router.resources()}
        return f"no such page; there are {', '.join(sorted(paths))}"
    return error.text or error.reason


def _error(status: int, problem: str, headers: Iterable[tuple[str, str]] = ()) -> web.Response:
    response = web.json_response({"error": problem}, status=status)
    for name, value in headers:
        response.headers.add(name, value)
    return response


async def _prepare(_request: web.BaseRequest, response: web.StreamResponse) -> None:
    make_careful(response)


def make_careful(response: web.StreamResponse) -> None:
    """Add the headers that keep browsers careful with a response. Those that it has already stay."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault(hdrs.CACHE_CONTROL, "no-store")
    response.headers[hdrs.SERVER] = "kafka-throttle"


def refused_as_malformed() -> web.Response:
    """The response to bytes that are not HTTP, or have a line that is too long. The connection is closed after it."""
    response = _error(HTTPStatus.BAD_REQUEST, "expected HTTP/1.1, each line with at most 8190 bytes")
    make_careful(response)
    response.force_close()
    return response


def failed() -> web.Response:
    """The response if the proxy has failed at a request; the log says how."""
    response = _error(HTTPStatus.INTERNAL_SERVER_ERROR, "the proxy has failed at this request; its log says how")
    make_careful(response)
    response.force_close()
    return response
