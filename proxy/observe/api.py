"""The JSON API for operators: the quotas in force, the clients that are throttled, and why a client is."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from hmac import compare_digest
from typing import Final, Protocol

from aiohttp import hdrs, web

from common.printable import printable
from proxy.clock import Clock
from proxy.config.kinds import is_loopback
from proxy.decisions.client_ids import measured_client_id
from proxy.gate.admission import AddressStanding
from proxy.net.turns import finish_in_turns
from proxy.observe.explained import (
    MAX_THROTTLES,
    Cap,
    Form,
    Observed,
    Origin,
    costs_form,
    explained_form,
    quotas_form,
)
from proxy.observe.http_listener import MAX_BODY_BYTES
from proxy.observe.last_throttles import LastThrottles
from proxy.observe.metrics import CapTotals
from proxy.observe.past.look_up import Past
from proxy.observe.past.moments import BadMoment, NotHeld
from proxy.observe.throttle_episode import ThrottledClients
from proxy.observe.throttled_now import MAX_THROTTLED, RANKS, throttled_form
from quotas.changes import Quotas, Tables
from quotas.client_quotas import WHOLE_CLUSTER, ClientQuotaManager, SensorKey
from quotas.entities import Entity, QuotaType, is_ip
from quotas.explain import Client, Explanation, explain
from quotas.sources.entry_forms import InvalidEntry, entity_of

MAX_QUOTAS = 5_000
"""The most entities in one response."""

_SOME_QUOTAS = 1_000
_SOME_THROTTLED = 100
_MAX_NODES = 1_000

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Cluster(Protocol):
    """What the API needs of a virtual cluster."""

    name: str
    quota_manager: ClientQuotaManager
    last_throttles: LastThrottles
    throttled: ThrottledClients

    @property
    def quotas(self) -> Quotas:
        """The quotas in force."""

    @property
    def origin(self) -> Origin:
        """The source of the quotas, and its problems."""

    def cap_totals(self) -> Iterable[CapTotals]:
        """The totals of each byte cap."""

    def node_ids(self) -> Iterable[int]:
        """The nodes at which clients may have been measured."""

    def standing_of(self, address: str, shadow: bool) -> AddressStanding:
        """The connection limits of an address, and what it uses of them."""


class BadParameter(Exception):
    """A request parameter is wrong. The text names the parameter and says what was expected."""


class AdminApi:
    """The API of these virtual clusters.

    With a `token`, requests must present it as a bearer token. Without one, requests must name this machine as their
    host.
    """

    def __init__(self, clusters: Sequence[Cluster], clock: Clock) -> None:
        self.token: str | None = None
        self.past: Past | None = None
        """What answers for seconds of the past; None if no history is written."""
        self._clusters = {cluster.name: cluster for cluster in clusters}
        self._clock = clock
        self._looking_up = asyncio.Lock()
        """Answers for the past are worked out one after the other, because each reads much from the disk."""

    def application(self) -> web.Application:
        """The aiohttp application with all pages."""
        application = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_as_json, self._admit])
        for page, handler in _PAGES.items():
            application.router.add_get(f"/api/v1/{page}", partial(handler, self), allow_head=False)
        return application

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the token. If none is set, the Host header must name this machine, which stops DNS rebinding."""
        if self.token is None:
            if not _names_this_machine(request.headers.get(hdrs.HOST, "")):
                raise web.HTTPForbidden(text="Host: expected localhost or a loopback address, as there is no token")
        elif not compare_digest(
            request.headers.get(hdrs.AUTHORIZATION, "").encode(errors="surrogateescape"),
            f"Bearer {self.token}".encode(),
        ):
            raise web.HTTPUnauthorized(
                text="Authorization: expected 'Bearer' and the token of admin.token_file",
                headers={hdrs.WWW_AUTHENTICATE: 'Bearer realm="kafka-throttle"'},
            )
        return await handler(request)

    async def _quotas(self, request: web.Request) -> web.Response:
        parameters = _parameters(request, {"virtual_cluster", "offset", "limit", "entity"})
        cluster = self._cluster(parameters)
        quotas = cluster.quotas
        if (text := parameters.get("entity")) is not None:
            entity = _entity(text)
            quotas = {entity: quotas[entity]} if entity in quotas else {}
        offset = _whole(parameters, "offset", 0, 0, 2**31 - 1)
        most = _whole(parameters, "limit", _SOME_QUOTAS, 1, MAX_QUOTAS)
        return _response(quotas_form(cluster.origin, quotas, offset, most))

    async def _caps(self, request: web.Request) -> web.Response:
        cluster = self._cluster(_parameters(request, {"virtual_cluster"}))
        return _response({"virtual_cluster": cluster.name, "caps": [asdict(cap) for cap in cluster.cap_totals()]})

    async def _request_costs(self, request: web.Request) -> web.Response:
        cluster = self._cluster(_parameters(request, {"virtual_cluster"}))
        return _response(costs_form(cluster.name, cluster.quota_manager.costs))

    async def _throttled(self, request: web.Request) -> web.Response:
        order = set[str]() if "at" in request.query else {"sort"}
        parameters = _parameters(request, {"virtual_cluster", "limit", "at"} | order)
        named = "virtual_cluster" in parameters
        clusters = [self._cluster(parameters)] if named else list(self._clusters.values())
        sort = parameters.get("sort", "left")
        if sort not in RANKS:
            raise BadParameter(f"sort: expected one of {', '.join(RANKS)}, got {printable(repr(sort))}")
        most = _whole(parameters, "limit", _SOME_THROTTLED, 1, MAX_THROTTLED)
        if (at := parameters.get("at")) is not None:
            names = [cluster.name for cluster in clusters]
            return _response(await self._of_the_past(lambda past, now_s: past.throttled(names, at, most, now_s)))
        return _response(await finish_in_turns(throttled_form(clusters, sort, most, self._clock)))

    async def _explain(self, request: web.Request) -> web.Response:
        return _response(
            await self.explained(_parameters(request, {"virtual_cluster", "user", "client_id", "ip", "at"}))
        )

    async def explained(self, parameters: Mapping[str, str]) -> Form:
        """The quotas of a client, now or `at` a second of the past. Raises BadParameter or HTTPNotFound."""
        cluster = self._cluster(parameters)
        client = _client(parameters)
        if (at := parameters.get("at")) is not None:
            name = cluster.name
            return await self._of_the_past(lambda past, now_s: past.explained(name, client, at, now_s))
        return explained_by(cluster, _as_measured(client, cluster.quota_manager), self._clock)

    async def _of_the_past(self, answer: Callable[[Past, float], Form]) -> Form:
        """An answer for a second of the past, worked out in a thread."""
        if self.past is None:
            raise web.HTTPNotFound(text="at: nothing is held of the past, as history.directory is not set")
        try:
            async with self._looking_up:
                return await asyncio.to_thread(answer, self.past, self._clock.epoch_ms() / 1000)
        except BadMoment as error:
            raise BadParameter(str(error)) from error
        except NotHeld as error:
            raise web.HTTPNotFound(text=str(error)) from error

    def _cluster(self, parameters: Mapping[str, str]) -> Cluster:
        """The virtual cluster of a request; the parameter may be left out if there is only one."""
        name = parameters.get("virtual_cluster")
        if name is None and len(self._clusters) == 1:
            return next(iter(self._clusters.values()))
        expected = f"virtual_cluster: expected one of {', '.join(self._clusters)}, got "
        if name is None:
            raise BadParameter(f"{expected}nothing")
        if name not in self._clusters:
            raise web.HTTPNotFound(text=f"{expected}{printable(repr(name))}")
        return self._clusters[name]


_PAGES: Final[Mapping[str, Callable[[AdminApi, web.Request], Awaitable[web.StreamResponse]]]] = {
    "caps": AdminApi._caps,
    "explain": AdminApi._explain,
    "quotas": AdminApi._quotas,
    "request-costs": AdminApi._request_costs,
    "throttled": AdminApi._throttled,
}


def explained_by(cluster: Cluster, client: Client, clock: Clock) -> Form:
    """The explanation of a client's quotas in a running virtual cluster, with current use."""
    quota_manager, now_ms = cluster.quota_manager, clock.now_ms()
    tables = Tables(quota_manager.table, quota_manager.shadow)
    hosts = () if client.ip is None else cluster.standing_of(client.ip, shadow=False).hosts
    reported = [
        _observed_address(cluster, explanation, client.ip)
        if client.ip is not None and explanation.key.quota_type is QuotaType.CONNECTION
        else (explanation, _observed(cluster, explanation, now_ms))
        for explanation in explain(cluster.quotas, tables, client, hosts, known=cluster.origin.known)
    ]
    by_nodes = cluster.last_throttles.by_nodes(client.user, client.client_id, MAX_THROTTLES)
    caps = [
        Cap(cap.listener, cap.direction, cap.limit, cap.waits, cap.waited_ms, cap.waiting)
        for cap in cluster.cap_totals()
        if cap.limit is not None
    ]
    return explained_form(cluster.origin, client, reported, by_nodes, clock.epoch_ms(), caps)


def _observed(cluster: Cluster, explanation: Explanation, now_ms: int) -> Observed:
    key, tags, rule = explanation.key, explanation.tags, explanation.rule
    if tags is None:
        return Observed()
    quota_manager, entity = cluster.quota_manager, None if rule is None else rule.entity
    of_cluster = key.quota_type is QuotaType.CONTROLLER_MUTATION
    uses = []
    for node_id in [WHOLE_CLUSTER] if of_cluster else sorted(cluster.node_ids())[:_MAX_NODES]:
        found = quota_manager.find(SensorKey(cluster.name, node_id, key.quota_type, tags, shadow=key.shadow), entity)
        if found is not None and (reading := quota_manager.reading(found, now_ms)) is not None:
            uses.append((found, reading))
    throttles = [] if key.shadow else cluster.last_throttles.of_sensor(key.quota_type, tags, MAX_THROTTLES)
    return Observed(uses, throttles)


def _observed_address(cluster: Cluster, explanation: Explanation, ip: str) -> tuple[Explanation, Observed]:
    """Complete the explanation of an address: what it is measured as, and how many connections it has open."""
    key, standing = explanation.key, cluster.standing_of(ip, explanation.key.shadow)
    notes = explanation.notes
    if not key.shadow:
        allowed = "" if standing.most is None else f", {standing.most} at a time are allowed"
        notes = (*notes, f"open connections from {standing.origin}: {standing.connections}{allowed}")
    if explanation.tags is None:
        return replace(explanation, notes=notes), Observed()
    sensor = SensorKey(cluster.name, WHOLE_CLUSTER, key.quota_type, explanation.tags, shadow=key.shadow)
    uses = [] if standing.reading is None else [(sensor, standing.reading)]
    sharers = f"all connections from {standing.origin}, at all listeners"
    return replace(explanation, shared_by=sharers, notes=notes), Observed(uses)


# ------------------------------------------------------------------ parameters


def _parameters(request: web.Request, known: set[str]) -> dict[str, str]:
    parameters = dict(request.query)
    for name in parameters:
        if name not in known:
            raise BadParameter(f"{printable(name)}: unknown parameter, expected {', '.join(sorted(known))}")
        if len(request.query.getall(name)) > 1:
            raise BadParameter(f"{name}: expected once, got {len(request.query.getall(name))} times")
    return parameters


def _whole(parameters: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = parameters.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and low <= int(text) <= high):
        raise BadParameter(f"{name}: expected a whole number from {low} to {high}, got {printable(repr(text))}")
    return int(text)


def _entity(text: str) -> Entity:
    """The entity in a JSON object like those in responses: names by entity type, null for the default."""
    try:
        return entity_of(json.loads(text))
    except (InvalidEntry, ValueError, RecursionError) as error:
        expected = 'entity: expected a JSON object like {"user": "alice", "client-id": null}'
        raise BadParameter(f"{expected}, got {printable(repr(text))}") from error


def _client(parameters: Mapping[str, str]) -> Client:
    """The client of a request."""
    user, client_id, ip = parameters.get("user", "ANONYMOUS"), parameters.get("client_id", ""), parameters.get("ip")
    if not user:
        raise BadParameter("user: expected a name, got an empty one")
    if ip is not None and not is_ip(ip):
        raise BadParameter(f"ip: expected an IP address, got {printable(repr(ip))}")
    return Client(user, client_id, ip)


def _as_measured(client: Client, quota_manager: ClientQuotaManager) -> Client:
    """The client with its client-id as it is measured."""
    raw = client.client_id.encode(errors="replace")
    return client._replace(client_id=measured_client_id(raw, quota_manager.table))


def _names_this_machine(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return is_loopback(name)
    except ValueError:
        return name.lower() in ("localhost", "localhost.localdomain")


# ------------------------------------------------------------------- responses


def _response(form: Form, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    text = json.dumps(form)
    return web.Response(
        text=text,
        status=status,
        content_type="application/json",
        headers={**(headers or {}), hdrs.CACHE_CONTROL: "no-store", "X-Content-Type-Options": "nosniff"},
    )


@web.middleware
async def _as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors into JSON responses that say what was wrong."""
    try:
        return await handler(request)
    except BadParameter as error:
        return _response({"error": str(error)}, 400)
    except web.HTTPException as error:
        kept = (hdrs.WWW_AUTHENTICATE, hdrs.ALLOW)
        headers = {str(name): error.headers[name] for name in kept if name in error.headers}
        text = error.text or error.reason
        if error.status == 404 and request.match_info.http_exception is not None:
            text = f"no such page; there are {', '.join(f'/api/v1/{page}' for page in _PAGES)}"
        return _response({"error": text}, error.status, headers)
