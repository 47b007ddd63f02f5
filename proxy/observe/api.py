"""The JSON API for operators: the quotas in force, the clients that are throttled, and why a client is."""

import asyncio
import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Annotated, Any, Final, Protocol, TypeVar

from aiohttp import web

from kafka_throttle.common.printable import printable
from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.gate.admission import AddressStanding
from kafka_throttle.proxy.net.turns import finish_in_turns
from kafka_throttle.proxy.observe import throttled_now
from kafka_throttle.proxy.observe.endpoints import BadParameter, Endpoint, Parameters, Query, one_of, text_that, whole
from kafka_throttle.proxy.observe.explained import (
    MAX_THROTTLES,
    Cap,
    Observed,
    Origin,
    cap_form,
    costs_form,
    explained_form,
    explained_together,
    quotas_form,
)
from kafka_throttle.proxy.observe.forms import (
    CapsPage,
    CostsPage,
    ExplanationPage,
    PastExplanationPage,
    PastThrottledPage,
    QuotasPage,
    ThrottledPage,
)
from kafka_throttle.proxy.observe.known_clients import KnownClients, Names, as_measured, known_clients
from kafka_throttle.proxy.observe.last_throttles import LastThrottles
from kafka_throttle.proxy.observe.metrics import CapTotals
from kafka_throttle.proxy.observe.openapi import openapi
from kafka_throttle.proxy.observe.past.look_up import Past
from kafka_throttle.proxy.observe.past.moments import NO_HISTORY, BadMoment, NotHeld
from kafka_throttle.proxy.observe.throttled_now import MAX_THROTTLED, RANKS, throttled_form
from kafka_throttle.quotas.changes import Quotas, Tables
from kafka_throttle.quotas.client_quotas import WHOLE_CLUSTER, SensorKey
from kafka_throttle.quotas.connection_counts import NO_LIMIT
from kafka_throttle.quotas.connection_quotas import RateKey
from kafka_throttle.quotas.entities import Entity, QuotaType, Scope, is_ip
from kafka_throttle.quotas.explain import Client, Explanation, explain
from kafka_throttle.quotas.sources.entry_forms import entity_of

MAX_QUOTAS = 5_000
"""The most entities in one response."""

_MAX_NODES = 1_000
_BYTES_PER_STEP = 32 * 1_024
"""How much of a response is written as JSON in one step."""

AnyCluster = TypeVar("AnyCluster")
PastPage = TypeVar("PastPage")


class Cluster(throttled_now.Cluster, Protocol):
    """What the API needs of a virtual cluster."""

    last_throttles: LastThrottles
    user_names: Mapping[str, str]
    """Users by the names that logins show."""

    def clients(self) -> Iterable[Client]:
        """The client of each open connection that has sent a request, with its address."""

    def cap_totals(self) -> Iterable[CapTotals]:
        """The totals of each byte cap."""

    def node_ids(self) -> Iterable[int]:
        """The nodes at which clients may have been measured."""

    def standing_of(self, address: str, shadow: bool) -> AddressStanding:
        """The connection limits of an address, and what it uses of them."""


# ------------------------------------------------------------------ parameters

VirtualCluster = Annotated[str | None, text_that("a name", lambda text: True)]


Moment = Annotated[str | None, text_that("a time", lambda text: True, examples=["03:12:07", "-15m"])]


class OfCluster(Parameters):
    """What concerns one virtual cluster."""

    virtual_cluster: VirtualCluster = None
    """The virtual cluster. It may be left out if there is only one."""


def _entity(text: str) -> Entity:
    """The entity in a JSON object like those in responses. Raises ValueError."""
    try:
        return entity_of(json.loads(text))
    except RecursionError as error:
        raise ValueError from error


_NAME: Final = {"type": ["string", "null"], "minLength": 1}
_ADDRESS: Final = {
    "anyOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}, {"type": "null"}]
}
_ENTITY: Final = Query(
    'a JSON object like {"user": "alice", "client-id": null}',
    _entity,
    {
        "type": "object",
        "anyOf": [
            {"properties": {"user": _NAME, "client-id": _NAME}, "minProperties": 1, "additionalProperties": False},
            {"properties": {"ip": _ADDRESS}, "required": ["ip"], "additionalProperties": False},
        ],
    },
)


class QuotasWanted(OfCluster):
    """A part of the quotas."""

    offset: Annotated[int, whole(0, 2**31 - 1)] = 0
    """How many entities to leave out at the beginning."""

    limit: Annotated[int, whole(1, MAX_QUOTAS)] = 1_000
    """The most entities in the response."""

    entity: Annotated[Entity | None, _ENTITY] = None
    """Only the quotas of this entity, which is given as in responses."""


class ThrottledWanted(Parameters):
    """A part of the throttled clients."""

    virtual_cluster: VirtualCluster = None
    """The virtual cluster; without it, clients of all virtual clusters are in the response."""

    sort: Annotated[str, one_of(*RANKS)] = "left"
    """Which client is first: the one with the longest time left, the highest use as a share of its limit, the oldest
    throttle, or the longest throttle time since then."""

    limit: Annotated[int, whole(1, MAX_THROTTLED)] = 100
    """The most lines in the response."""

    at: Moment = None
    """A second of the past, like 03:12:07, 2026-11-25T03:12:07Z or -15m (UTC, unless it ends with an offset), of which
    the history has who was throttled then. The first clients are those that were muted for longest; `sort` is not
    allowed beside it."""


class ClientWanted(OfCluster):
    """A client."""

    user: Annotated[str | None, text_that("a name", bool, minLength=1)] = None
    """The user of the client; ANONYMOUS for a client that does not log in. Without it, the users are explained that are
    connected or measured with this client-id."""

    client_id: Annotated[str | None, text_that("a client-id", lambda text: True)] = None
    """Its client-id, which may be empty. Without it, the client-ids of the user are explained."""

    ip: Annotated[str | None, text_that("an IP address", is_ip, anyOf=[{"format": "ipv4"}, {"format": "ipv6"}])] = None
    """Its address. Without it, quotas of addresses are left out. Without a user or a client-id, the clients are
    explained that are connected from there."""

    at: Moment = None
    """A second of the past, like 03:12:07, 2026-11-25T03:12:07Z or -15m (UTC, unless it ends with an offset), of which
    the history has the quotas and the throttles."""

    @property
    def names(self) -> Names:
        """What is said of the client, with its client-id as it is given."""
        return Names(self.user, self.client_id, self.ip)

    def of(self, client: Client) -> "ClientWanted":
        """The same question about one client."""
        return self.model_copy(update=client._asdict())


def named_cluster(clusters: Mapping[str, AnyCluster], name: str | None) -> AnyCluster:
    """The virtual cluster that a request names; it need not name the only one."""
    if name is None and len(clusters) == 1:
        return next(iter(clusters.values()))
    expected = f"virtual_cluster: expected one of {', '.join(clusters)}, got "
    if name is None:
        raise BadParameter(f"{expected}nothing")
    if name not in clusters:
        raise web.HTTPNotFound(text=f"{expected}{printable(repr(name))}")
    return clusters[name]


# ------------------------------------------------------------------- endpoints


class AdminApi:
    """The API of these virtual clusters."""

    def __init__(self, clusters: Sequence[Cluster], clock: Clock) -> None:
        self.past: Past | None = None
        """What answers for seconds of the past; None if no history is written."""
        self._clusters = {cluster.name: cluster for cluster in clusters}
        self._clock = clock
        self._looking_up = asyncio.Lock()
        """Answers for the past are worked out one after the other, because each reads much from the disk."""

    def routes(self) -> list[web.RouteDef]:
        """The endpoints, and their description, for an HTTP listener."""
        return routes_of(self)

    async def caps(self, wanted: OfCluster) -> CapsPage:
        """The byte caps of a virtual cluster, and what they delay."""
        cluster = named_cluster(self._clusters, wanted.virtual_cluster)
        return {"virtual_cluster": cluster.name, "caps": [cap_form(cap) for cap in cluster.cap_totals()]}

    async def explain(self, wanted: ClientWanted) -> ExplanationPage | PastExplanationPage:
        """The quotas of a client, why they apply, and what is measured of it.

        A request that does not name both a user and a client-id is about all clients that fit it, throttled ones first.
        """
        cluster, names = named_cluster(self._clusters, wanted.virtual_cluster), wanted.names
        if (at := wanted.at) is not None:
            return await self._of_the_past(lambda past, now_s: past.explained(cluster.name, names, at, now_s))
        return await finish_in_turns(explained_for(cluster, names, self._clock))

    async def clients(self, wanted: ClientWanted) -> KnownClients:
        """The clients that fit the names in a question: for the process that asks several workers."""
        cluster = named_cluster(self._clusters, wanted.virtual_cluster)
        return await finish_in_turns(known_clients(cluster, wanted.names, self._clock.now_ms()))

    async def quotas(self, wanted: QuotasWanted) -> QuotasPage:
        """The quotas in force, entity by entity."""
        return await quotas_page(named_cluster(self._clusters, wanted.virtual_cluster), wanted)

    async def request_costs(self, wanted: OfCluster) -> CostsPage:
        """What requests cost at each node, by the model that limits request times."""
        cluster = named_cluster(self._clusters, wanted.virtual_cluster)
        return await finish_in_turns(costs_form(cluster.name, cluster.quota_manager.costs))

    async def throttled(self, wanted: ThrottledWanted) -> ThrottledPage | PastThrottledPage:
        """The clients that are throttled now: one line for each client, quota and node."""
        name = wanted.virtual_cluster
        clusters = list(self._clusters.values()) if name is None else [named_cluster(self._clusters, name)]
        if (at := wanted.at) is None:
            return await finish_in_turns(throttled_form(clusters, wanted.sort, wanted.limit, self._clock))
        names = [cluster.name for cluster in clusters]
        if self.past is not None and "sort" in wanted.model_fields_set:
            raise BadParameter("sort: expected nothing beside at, as those are first that were muted for longest")
        return await self._of_the_past(lambda past, now_s: past.throttled(names, at, wanted.limit, now_s))

    async def _of_the_past(self, answer: Callable[[Past, float], PastPage]) -> PastPage:
        """An answer for a second of the past, worked out in a thread."""
        if self.past is None:
            raise web.HTTPNotFound(text=NO_HISTORY)
        try:
            async with self._looking_up:
                return await asyncio.to_thread(answer, self.past, self._clock.epoch_ms() / 1000)
        except BadMoment as error:
            raise BadParameter(str(error)) from error
        except NotHeld as error:
            raise web.HTTPNotFound(text=str(error)) from error


ENDPOINTS: Final = (
    Endpoint("/api/v1/caps", AdminApi.caps),
    Endpoint("/api/v1/explain", AdminApi.explain),
    Endpoint("/api/v1/quotas", AdminApi.quotas),
    Endpoint("/api/v1/request-costs", AdminApi.request_costs),
    Endpoint("/api/v1/throttled", AdminApi.throttled),
)


def routes_of(api: object) -> list[web.RouteDef]:
    """The routes to the methods of an `api` like AdminApi, and to their description."""
    described = web.get("/api/v1/openapi.json", partial(_describe, _document()), allow_head=False)
    return [described, *(endpoint.route(api, _response) for endpoint in ENDPOINTS)]


class WithQuotas(Protocol):
    """What a page of quotas needs of a virtual cluster."""

    @property
    def quotas(self) -> Quotas:
        """The quotas in force."""

    @property
    def origin(self) -> Origin:
        """The source of the quotas, and its problems."""


async def quotas_page(cluster: WithQuotas, wanted: QuotasWanted) -> QuotasPage:
    """The quotas in force of a virtual cluster, as far as they are wanted."""
    quotas, entity = cluster.quotas, wanted.entity
    if entity is not None:
        quotas = {entity: quotas[entity]} if entity in quotas else {}
    return await finish_in_turns(quotas_form(cluster.origin, quotas, wanted.offset, wanted.limit))


def explained_for(cluster: Cluster, names: Names, clock: Clock) -> Generator[None, None, ExplanationPage]:
    """The explanation of the client with these names, or of all that fit them. In steps."""
    if names.client is not None:
        return (yield from explained_by(cluster, names.client, clock))
    known = yield from known_clients(cluster, names, clock.now_ms())
    clients, notes = known.explained(names, cluster.is_one_of_several)
    pages = []
    for client in clients:
        pages.append((yield from explained_by(cluster, client, clock)))
    return explained_together(pages, known.more, notes)


def explained_by(cluster: Cluster, client: Client, clock: Clock) -> Generator[None, None, ExplanationPage]:
    """The explanation of a client's quotas in a running virtual cluster, with current use. In steps."""
    quota_manager, now_ms = cluster.quota_manager, clock.now_ms()
    client = client._replace(client_id=as_measured(client.client_id, quota_manager.table))
    tables = Tables(quota_manager.table, quota_manager.shadow)
    hosts = () if client.ip is None else cluster.standing_of(client.ip, shadow=False).hosts
    reported = []
    for explanation in explain(cluster.quotas, tables, client, hosts, known=cluster.origin.known):
        if client.ip is not None and explanation.key.quota_type is QuotaType.CONNECTION:
            reported.append(_observed_address(cluster, explanation, client.ip))
        else:
            reported.append((explanation, _observed(cluster, explanation, now_ms)))
        yield
    by_nodes = cluster.last_throttles.by_nodes(client.user, client.client_id, MAX_THROTTLES)
    caps = [
        Cap(cap.listener, cap.direction, cap.limit, cap.waits, cap.waited_ms, cap.waiting)
        for cap in cluster.cap_totals()
        if cap.limit is not None
    ]
    throttled = cluster.throttled.throttles_client(client.user, client.client_id)
    return explained_form(
        cluster.origin,
        client,
        reported,
        by_nodes,
        clock.epoch_ms(),
        caps,
        user_names=cluster.user_names,
        throttled=throttled,
    )


def _observed(cluster: Cluster, explanation: Explanation, now_ms: int) -> Observed:
    key, tags, rule = explanation.key, explanation.tags, explanation.rule
    if tags is None:
        return Observed()
    quota_manager, entity = cluster.quota_manager, None if rule is None else rule.entity
    table = quota_manager.shadow if key.shadow else quota_manager.table
    of_cluster = table.scope_of(key.quota_type, entity) is Scope.CLUSTER
    uses = []
    for node_id in [WHOLE_CLUSTER] if of_cluster else sorted(cluster.node_ids())[:_MAX_NODES]:
        found = quota_manager.find(SensorKey(cluster.name, node_id, key.quota_type, tags, shadow=key.shadow), entity)
        if found is not None and (reading := quota_manager.reading(found, now_ms)) is not None:
            uses.append((found, reading, cluster.share_of(found)))
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
    uses = []
    if (reading := standing.reading) is not None:
        share = cluster.share_of(RateKey(cluster.name, "", standing.origin, key.shadow))
        if share is not None and reading.limit < NO_LIMIT:
            reading = replace(reading, limit=reading.limit * share.share)
        uses.append((sensor, reading, share))
    sharers = f"all connections from {standing.origin}, at all listeners"
    return replace(explanation, shared_by=sharers, notes=notes), Observed(uses)


# ------------------------------------------------------------------- responses


async def _response(form: Mapping[str, Any]) -> web.Response:
    body = await finish_in_turns(as_json(form))
    return web.Response(body=body, content_type="application/json", charset="utf-8")


def as_json(form: Mapping[str, Any]) -> Generator[None, None, bytes]:
    """A JSON object as text, in steps: the elements of its lists are written one by one."""
    fields = []
    unsaid = 0
    for name, value in form.items():
        elements = value if isinstance(value, list) else []
        texts = []
        for element in elements:
            texts.append(json.dumps(element))
            unsaid += len(texts[-1])
            if unsaid > _BYTES_PER_STEP:
                unsaid = 0
                yield
        text = f"[{', '.join(texts)}]" if isinstance(value, list) else json.dumps(value)
        fields.append(f"{json.dumps(name)}: {text}")
    return f"{{{', '.join(fields)}}}".encode()


@cache
def _document() -> bytes:
    """The OpenAPI document."""
    return json.dumps(openapi(ENDPOINTS)).encode()


async def _describe(document: bytes, request: web.Request) -> web.Response:
    return web.Response(body=document, content_type="application/json", charset="utf-8")
