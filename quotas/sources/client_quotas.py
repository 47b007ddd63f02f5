"""Quotas as Describe- and AlterClientQuotas carry them (KIP-546), and as the proxy has them."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.protocol.messages.client_quotas import (
    AlteredEntity,
    EntityOperations,
    EntityPart,
    Operation,
    Verbatim,
    alteration_request,
    read_described,
)
from kafka_throttle.protocol.own_requests import OwnRequest
from kafka_throttle.quotas.changes import (
    NO_QUOTAS,
    Alteration,
    AlterationRefused,
    Limit,
    Quotas,
    SourceUnavailable,
    following,
)
from kafka_throttle.quotas.entities import DEFAULT, Entity, InvalidQuota, QuotaKey
from kafka_throttle.quotas.limits import WHOLE_WITHIN, valid_limit

LAYER: Final = "cluster"
"""Where all quotas of this source stand."""

_PARTS: Final = {"user": "user", "client-id": "client_id", "ip": "ip"}
_UNAUTHORISED: Final = frozenset({29, 31})
"""TOPIC_ and CLUSTER_AUTHORIZATION_FAILED."""

_RETRIABLE: Final = frozenset(
    (3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89)
    + (100, 103, 106, 122, 123)
)
"""The error codes that Kafka's clients try again after."""


class Reported(NamedTuple):
    """What a cluster has told: its quotas, what is wrong with them by entity, and how it spells addresses.

    An address may have many spellings, of which the cluster knows it only by its own.
    """

    quotas: Quotas
    problems: Mapping[str, str]
    ip_spellings: Mapping[Entity, str]


NOTHING_REPORTED: Final = Reported(NO_QUOTAS, {}, {})


def reported(verbatim: Verbatim, last_good: Quotas) -> Reported:
    """What a DescribeClientQuotas response says. A quota with an invalid value keeps its last good one.

    Whatever is invalid or unknown is reported and takes no other quota away. Raises SourceUnavailable when the response
    says nothing but an error, or nothing at all.
    """
    try:
        response = read_described(verbatim)
    except ProtocolError as error:
        raise SourceUnavailable(f"its answer is no list of quotas: {error}") from error
    if response.error_code:
        raise SourceUnavailable(_error(response.error_code, response.error_message, "DescribeConfigs"))
    quotas: dict[Entity, Mapping[QuotaKey, Limit]] = {}
    problems: dict[str, str] = {}
    spellings: dict[Entity, str] = {}
    for entry in response.entities:
        try:
            entity = _entity(entry.parts)
        except InvalidQuota as error:
            problems[_shown(entry.parts)] = str(error)
            continue
        if isinstance(entity.ip, str) and (spelling := entry.parts[0].name) not in (None, entity.ip):
            spellings[entity] = spelling
        good = last_good.get(entity, {})
        limits, wrong = _limits(entity, entry.values, good)
        if quotas.setdefault(entity, limits) != limits:
            quotas[entity] = good
            wrong = [f"{entity} has two quotas that differ, under two spellings of its address"]
        if wrong:
            problems[str(entity)] = "; ".join(wrong)
    in_force = {entity: limits for entity, limits in quotas.items() if limits}
    return Reported(following(last_good, in_force), MappingProxyType(problems), MappingProxyType(spellings))


def _entity(parts: Sequence[EntityPart]) -> Entity:
    names: dict[str, Any] = {}
    for part in parts:
        field = _PARTS.get(part.entity_type)
        if field is None:
            raise InvalidQuota(f"unknown entity type {part.entity_type!r}")
        if field in names:
            raise InvalidQuota(f"two of the entity type {part.entity_type!r}")
        names[field] = DEFAULT if part.name is None else part.name
    return Entity(**names)


def _limits(
    entity: Entity, values: Iterable[tuple[str, float]], last_good: Mapping[QuotaKey, Limit]
) -> tuple[Mapping[QuotaKey, Limit], list[str]]:
    """The limits of an entity, and what is wrong with others that it is said to have."""
    limits: dict[QuotaKey, Limit] = {}
    wrong: list[str] = []
    for name, value in values:
        try:
            key = _key(name)
        except InvalidQuota as error:
            wrong.append(str(error))
            continue
        try:
            limits[key] = Limit(valid_limit(entity, key.quota_type, value), LAYER)
        except InvalidQuota as error:
            wrong.append(str(error))
            if key in last_good:
                limits[key] = last_good[key]
    return MappingProxyType(limits), wrong


def _key(name: str) -> QuotaKey:
    """The quota of this name in a cluster. Raises InvalidQuota."""
    key = QuotaKey.parse(name)
    if key.shadow:
        raise InvalidQuota(f"unknown quota {name!r}")
    return key


def _shown(parts: Sequence[EntityPart]) -> str:
    """What is no entity, in words."""
    return ", ".join(f"{part.entity_type}={part.name!r}" for part in parts) or "an entity without parts"


def alter_request(
    alterations: Iterable[Alteration], spellings: Mapping[Entity, str], *, validate_only: bool = False
) -> OwnRequest[Sequence[AlteredEntity]]:
    """Writes the alterations, each whole or not at all; leaves out shadow quotas, which no cluster has.

    With `validate_only` they are judged and not written.
    """
    entries = [
        EntityOperations(
            _parts(alteration.entity, spellings),
            tuple(
                Operation(key.text, limit or 0.0, limit is None)
                for key, limit in alteration.limits.items()
                if not key.shadow
            ),
        )
        for alteration in alterations
    ]
    return alteration_request(entries, validate_only=validate_only)


def altered(
    response: Iterable[AlteredEntity], alterations: Sequence[Alteration], spellings: Mapping[Entity, str]
) -> list[Exception | None]:
    """What an AlterClientQuotas response says about each alteration: None, AlterationRefused or SourceUnavailable."""
    results = {frozenset(entity.parts): _result(entity) for entity in response}
    silent = SourceUnavailable("the cluster has not said what came of it")
    return [results.get(frozenset(_parts(one.entity, spellings)), silent) for one in alterations]


def _parts(entity: Entity, spellings: Mapping[Entity, str]) -> tuple[EntityPart, ...]:
    given = [(entity_type, name) for entity_type, name in entity.parts if name is not None]
    return tuple(EntityPart(kind, None if name is DEFAULT else spellings.get(entity, name)) for kind, name in given)


def _result(entity: AlteredEntity) -> Exception | None:
    if not entity.error_code:
        return None
    text = _error(entity.error_code, entity.error_message, "AlterConfigs")
    return SourceUnavailable(text) if entity.error_code in _RETRIABLE else AlterationRefused(text)


def _error(code: int, message: str | None, permission: str) -> str:
    if code in _UNAUTHORISED:
        return f"the proxy's own credentials need {permission} on the Cluster resource (error {code})"
    return message or f"the cluster answers with error {code}"


def shows(quotas: Quotas, alteration: Alteration) -> bool:
    """True when the quotas hold what the alteration sets. Brokers may round to the next whole number."""
    limits = quotas.get(alteration.entity, {})
    for key, wanted in alteration.limits.items():
        found = limits.get(key)
        if (found is None) != (wanted is None):
            return False
        if found is not None and wanted is not None and abs(found.value - wanted) > WHOLE_WITHIN:
            return False
    return True
