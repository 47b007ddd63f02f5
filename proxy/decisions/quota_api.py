"""DescribeClientQuotas and AlterClientQuotas: the proxy responds to them with the quotas that it enforces.

Requests are checked as a KRaft controller does, with its messages, except for these differences:

- A connection rate of 0 is accepted, as a ban.
- Refused are values that are not numbers or are infinite, and values below 1 where whole numbers are required.
- An ip is an address; host names are refused. Two spellings of one address are one entity, which Describe shows in the
  shortest spelling.
- Of several problems of one entity, the first is reported.
- Shadow quotas are not part of Kafka's API: they are never described, and their keys are unknown.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from kafka_throttle.protocol.messages.client_quotas import (
    ANY,
    DEFAULT,
    EXACT,
    AlteredEntity,
    AlterReader,
    AlterRequest,
    AlterWriter,
    DescribedEntity,
    DescribeRequest,
    DescribeWriter,
    EntityOperations,
    EntityPart,
    FilterComponent,
    alter_response,
    describe_refusal,
)
from kafka_throttle.proxy.decisions.facts import ConnectionFacts
from kafka_throttle.proxy.decisions.steps import ITEMS_PER_STEP, QuotaAlteration, Steps, collected
from kafka_throttle.proxy.relay.actions import Decision
from kafka_throttle.quotas import entities
from kafka_throttle.quotas.changes import Alteration, AlterationRefused, Limit, SourceUnavailable
from kafka_throttle.quotas.entities import BYTE_RATES, Entity, InvalidQuota, QuotaKey, QuotaType, is_ip, plain_ip
from kafka_throttle.quotas.limits import MAX_CONNECTION_RATE, UNLIMITED, WHOLE_WITHIN

USER, CLIENT_ID, IP = "user", "client-id", "ip"

NONE = 0
UNKNOWN_SERVER_ERROR = -1
REQUEST_TIMED_OUT = 7
CLUSTER_AUTHORIZATION_FAILED = 31
UNSUPPORTED_VERSION = 35
INVALID_REQUEST = 42
POLICY_VIOLATION = 44

_HOST_NAME = re.compile(r"(?!.{254})[A-Za-z0-9._-]*[A-Za-z][A-Za-z0-9-]*")
"""What may be meant as a host name: its last part has letters, which an IP address in decimals does not have."""

_ORDER = (CLIENT_ID, USER, IP)
_IP_KEYS: dict[str, QuotaType] = {QuotaType.CONNECTION.value: QuotaType.CONNECTION}
_CLIENT_KEYS: dict[str, QuotaType] = {
    quota_type.value: quota_type for quota_type in QuotaType if quota_type is not QuotaType.CONNECTION
}


class ApiError(NamedTuple):
    """Kafka's error code and message."""

    code: int
    message: str | None


_WELL = ApiError(NONE, None)
_NOT_AUTHORISED = ApiError(CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
_OTHERS_NOT_AUTHORISED = ApiError(
    CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed, also for all entities that are not listed."
)

DECISIVE_COMPONENTS = 4
"""One more than the entity types: a filter with so many components is always refused."""
_NAMED_ELEMENTS = 100
"""How many entities, parts and operations of a refused request are read."""


# -------------------------------------------------------------------- describe


def describe(request: DescribeRequest, facts: ConnectionFacts) -> Steps[bytes]:
    """The response to a DescribeClientQuotas request of a user that `may_ask` it."""
    problem = _problem_of_filter(request.components)
    if problem is not None:
        return describe_refusal(request.head, *problem)
    writer = DescribeWriter(request.head)
    matches, count, pieces = _matcher(request), 0, []
    candidates = iter(_candidates(facts, request))
    while looked_at := list(islice(candidates, ITEMS_PER_STEP)):
        found = [_described(*one) for one in looked_at if matches(one[0]) and not all(key.shadow for key in one[1])]
        count += len(found)
        pieces.append(writer.entities(found))
        if len(looked_at) == ITEMS_PER_STEP:
            yield
    return writer.response(count, pieces)


def may_ask(request: DescribeRequest, facts: ConnectionFacts) -> bool:
    """Whether the user may describe these quotas. Its own it always may, with a filter that names it."""
    return facts.may_describe or any(component == (USER, EXACT, facts.user) for component in request.components)


def describe_refused(request: DescribeRequest) -> bytes:
    """The response to a user that may not describe these quotas."""
    return describe_refusal(request.head, CLUSTER_AUTHORIZATION_FAILED, None)


def _problem_of_filter(components: Sequence[FilterComponent]) -> ApiError | None:
    seen: set[str] = set()
    for component in components:
        problem = _problem_of_component(component, seen)
        if problem is not None:
            return problem
        seen.add(component.entity_type)
    if IP in seen and len(seen) > 1:
        return ApiError(
            INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with "
            "user or clientId filter component.",
        )
    return None


def _problem_of_component(component: FilterComponent, seen: set[str]) -> ApiError | None:
    entity_type, match_type, match = component
    if not entity_type:
        return ApiError(INVALID_REQUEST, "Invalid empty entity type.")
    if entity_type in seen:
        return ApiError(INVALID_REQUEST, f"Entity type {entity_type} cannot appear more than once in the filter.")
    if entity_type not in (USER, CLIENT_ID, IP):
        return ApiError(UNSUPPORTED_VERSION, f"Unsupported entity type {entity_type}")
    if match_type not in (EXACT, DEFAULT, ANY):
        return ApiError(INVALID_REQUEST, f"Unknown match type {match_type}")
    if match_type == EXACT and match is None:
        return ApiError(INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null.")
    if match_type != EXACT and match is not None:
        name = "MATCH_TYPE_DEFAULT" if match_type == DEFAULT else "MATCH_TYPE_SPECIFIED"
        return ApiError(INVALID_REQUEST, f"Request specified {name}, but also specified a match string.")
    return None


def _described(entity: Entity, limits: Mapping[QuotaKey, Limit]) -> DescribedEntity:
    return DescribedEntity(_parts(entity), [(key.text, limit.value) for key, limit in limits.items() if not key.shadow])


def _candidates(facts: ConnectionFacts, request: DescribeRequest) -> Iterable[tuple[Entity, Mapping[QuotaKey, Limit]]]:
    """All entities that a filter can match.

    If it names a user, these are the user's entities. If it is strict and names every part, there is at most one.
    """
    quotas = facts.listener.quotas()
    for component in request.components:
        if component.entity_type == USER and component.match_type == EXACT and facts.listener.entities_of is not None:
            return ((entity, quotas[entity]) for entity in facts.listener.entities_of(component.match or ""))
    names = {component.entity_type: component for component in request.components}
    if not request.strict or not names or any(component.match_type == ANY for component in request.components):
        return quotas.items()
    if any(component.match_type == EXACT and not component.match for component in request.components):
        return ()
    entity = _entity({part: component.match for part, component in names.items()})
    return ((entity, quotas[entity]),) if entity in quotas else ()


def _matcher(request: DescribeRequest) -> Callable[[Entity], bool]:
    """Returns a function that says whether the filter matches an entity.

    An entity matches if it has each part that the filter names and, if the filter is strict, no other part.
    """
    if request.strict and not request.components:
        return lambda entity: False
    named = {component.entity_type: _wanted(component) for component in request.components}
    user, client_id, ip = (
        named.get(part, _not_given if request.strict else _anything) for part in (USER, CLIENT_ID, IP)
    )
    return lambda entity: user(entity.user) and client_id(entity.client_id) and ip(entity.ip)


def _wanted(component: FilterComponent) -> Callable[[entities.Name], bool]:
    if component.match_type == ANY:
        return lambda name: name is not None
    if component.match_type == DEFAULT:
        return lambda name: name is entities.DEFAULT
    wanted = component.match
    if component.entity_type == IP and wanted is not None:
        wanted = plain_ip(wanted)
    return lambda name: name == wanted


def _not_given(name: entities.Name) -> bool:
    return name is None


def _anything(name: entities.Name) -> bool:
    return True


def _parts(entity: Entity) -> list[EntityPart]:
    return [
        EntityPart(part, None if name is entities.DEFAULT else name) for part, name in entity.parts if name is not None
    ]


# ----------------------------------------------------------------------- alter


def alter(request: AlterRequest, facts: ConnectionFacts) -> Steps[Decision | QuotaAlteration]:
    """The response to an AlterClientQuotas request of a user that may alter quotas, or what must be written first.

    Entities are checked one by one, and each is changed whole or not at all.
    """
    judged = yield from _judge(request.entries)
    wanted = [entry for entry in judged if entry.alteration is not None and entry.alteration.limits]
    if request.validate_only or not wanted:
        return (yield from _response(request, (entry.reported() for entry in judged)))

    def reply(results: Sequence[Exception | None]) -> Steps[Decision]:
        for entry, result in zip(wanted, results, strict=True):
            if result is not None and entry.problem is _WELL:
                entry.problem = _problem_of_writing(result)
        return (yield from _response(request, (entry.reported() for entry in judged)))

    alterations = tuple(entry.alteration for entry in wanted if entry.alteration is not None)
    return QuotaAlteration(alterations, request.head.client_id or "", reply)


def refuse(reader: AlterReader) -> Decision:
    """The response to a user that may not alter quotas: each entity of the request is refused.

    Of a long request only the first entities are read and named, so that a refusal takes less than 1 ms. One more
    entity without any part, which no request can contain, is added for all the others: a client does not find its other
    entities in the response, and fails them, too.
    """
    named, all_of_them = reader.named(_NAMED_ELEMENTS)
    refused = [AlteredEntity(*_NOT_AUTHORISED, parts) for parts in named]
    if not all_of_them:
        refused.append(AlteredEntity(*_OTHERS_NOT_AUTHORISED, ()))
    return Decision(response=alter_response(reader.head, refused))


def _response(request: AlterRequest, entities: Iterable[AlteredEntity]) -> Steps[Decision]:
    writer = AlterWriter(request.head)
    found = yield from collected(map(writer.entity, entities))
    return Decision(response=writer.response(found))


@dataclass(slots=True)
class _Judged:
    """An entity of a request, its problem, and its alteration. An entity that is repeated has both."""

    parts: tuple[EntityPart, ...]
    problem: ApiError = _WELL
    alteration: Alteration | None = None

    def reported(self) -> AlteredEntity:
        return AlteredEntity(self.problem.code, self.problem.message, self.parts)


def _judge(entries: Sequence[EntityOperations]) -> Steps[list[_Judged]]:
    """Check each distinct entity. Of a repeated one the first occurrence is done, and yet its result is an error."""
    judged: dict[frozenset[tuple[str, str | None]], _Judged] = {}
    altered: set[Entity] = set()
    for number, entry in enumerate(entries, 1):
        if not number % ITEMS_PER_STEP:
            yield
        names = dict(sorted(dict(entry.parts).items(), key=_in_kafkas_order))
        known = judged.get(frozenset(names.items()))
        if known is not None:
            known.problem = _repeated(names)
            continue
        one = judged[frozenset(names.items())] = _judge_entry(names, entry)
        if one.alteration is not None and one.alteration.entity in altered:
            one.problem, one.alteration = _repeated(names), None
        elif one.alteration is not None:
            altered.add(one.alteration.entity)
    return list(judged.values())


def _in_kafkas_order(part: tuple[str, str | None]) -> int:
    """The place of a part in a broker's messages, and in the order of its checks."""
    return _ORDER.index(part[0]) if part[0] in _ORDER else len(_ORDER)


def _judge_entry(names: dict[str, str | None], entry: EntityOperations) -> _Judged:
    parts = tuple(EntityPart(*part) for part in names.items())
    keys = [operation.key for operation in entry.operations]
    if len(set(keys)) < len(keys):
        return _Judged(parts, _repeated(names))
    message = _problem_of_entity(names)
    if message is not None:
        return _Judged(parts, ApiError(INVALID_REQUEST, message))
    known = _IP_KEYS if IP in names else _CLIENT_KEYS
    for operation in entry.operations:
        message = None if operation.remove else _problem_of_value(known, operation.key, operation.value)
        if message is not None:
            return _Judged(parts, ApiError(INVALID_REQUEST, message))
    limits = {
        QuotaKey(known[operation.key]): None if operation.remove else operation.value
        for operation in entry.operations
        if operation.key in known
    }
    try:
        return _Judged(parts, alteration=Alteration(_entity(names), limits))
    except InvalidQuota as error:
        return _Judged(parts, ApiError(INVALID_REQUEST, str(error)))


def _problem_of_entity(names: dict[str, str | None]) -> str | None:
    if not names:
        return "Invalid empty client quota entity"
    for entity_type, name in names.items():
        if entity_type not in (USER, CLIENT_ID, IP):
            return f"Unhandled client quota entity type: {entity_type}"
        if name == "":
            return f"Empty {entity_type} not supported"
    if IP not in names:
        return None
    if len(names) > 1:
        return "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
    ip = names[IP]
    if ip is None or is_ip(ip):
        return None
    if _HOST_NAME.fullmatch(ip):
        return f"{ip} is not an IP address. Host names are not taken as an ip."
    return f"{ip} is not a valid IP or resolvable host."


def _problem_of_value(known: dict[str, QuotaType], key: str, value: float) -> str | None:
    """The problem that a KRaft controller reports for a value; 0 is no problem where it is a ban."""
    quota_type = known.get(key)
    if quota_type is None:
        return f"Invalid configuration key {key}"
    if value < 0 or (value == 0 and quota_type is not QuotaType.CONNECTION):
        return f"Quota {key} must be greater than 0"
    kind, most = ("LONG", UNLIMITED) if quota_type in BYTE_RATES else ("INT", float(MAX_CONNECTION_RATE))
    if quota_type in BYTE_RATES or quota_type is QuotaType.CONNECTION:
        if value > most:
            return f"Proposed value for {key} is too large for {'a' if kind == 'LONG' else 'an'} {kind}."
        if value % 1 > WHOLE_WITHIN:
            return f"{key} cannot be a fractional value."
    return None


def _entity(names: dict[str, str | None]) -> Entity:
    user, client_id, ip = (
        (names[part] if names[part] is not None else entities.DEFAULT) if part in names else None
        for part in (USER, CLIENT_ID, IP)
    )
    return Entity(user, client_id, ip)


def _repeated(names: dict[str, str | None]) -> ApiError:
    shown = ", ".join(f"{part}={'null' if name is None else name}" for part, name in names.items())
    return ApiError(INVALID_REQUEST, f"Ignoring duplicate entity ClientQuotaEntity(entries={{{shown}}})")


def _problem_of_writing(error: Exception) -> ApiError:
    """The error for what a source could not write: one after which a client may try again, if the source is away."""
    if isinstance(error, AlterationRefused):
        return ApiError(POLICY_VIOLATION, str(error))
    code = REQUEST_TIMED_OUT if isinstance(error, SourceUnavailable) else UNKNOWN_SERVER_ERROR
    return ApiError(code, str(error))
