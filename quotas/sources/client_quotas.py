"""Quotas as Describe- and AlterClientQuotas carry them (KIP-546), in kafka-python's message classes."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kafka.errors import for_code
from kafka.protocol.admin import AlterClientQuotasRequest, DescribeClientQuotasRequest, DescribeClientQuotasResponse

from quotas.changes import NO_QUOTAS, Alteration, AlterationRefused, Limit, Quotas, SourceUnavailable, following
from quotas.entities import DEFAULT, Entity, InvalidQuota, QuotaKey
from quotas.limits import WHOLE_WITHIN, valid_limit

LAYER: Final = "cluster"
"""Where all quotas of this source stand."""

_PARTS: Final = {"user": "user", "client-id": "client_id", "ip": "ip"}
_UNAUTHORISED: Final = frozenset({29, 31})
"""TOPIC_ and CLUSTER_AUTHORIZATION_FAILED."""

EntityName = Mapping[str, str | None]
"""An entity as messages have it: its types, each with a name, or None for the default."""


class Reported(NamedTuple):
    """What a cluster has told: its quotas, what is wrong with them by entity, and how it spells addresses.

    An address may have many spellings, of which the cluster knows it only by its own.
    """

    quotas: Quotas
    problems: Mapping[str, str]
    ip_spellings: Mapping[Entity, str]


NOTHING_REPORTED: Final = Reported(NO_QUOTAS, {}, {})


class Verbatim(NamedTuple):
    """A response to DescribeClientQuotas as it came: to see that nothing has changed takes no decoding."""

    version: int
    body: bytes


class _Describe(DescribeClientQuotasRequest, init=False):  # type: ignore[misc,call-arg]
    """The request of this name, but that its response comes as Verbatim."""

    @property
    def header(self) -> Any:
        """What kafka-python asks for the class of the response."""
        return _VerbatimHeader(self._header)


class _VerbatimHeader:
    """A request's header, and in the place of a class for its response."""

    def __init__(self, header: Any) -> None:
        self.correlation_id = header.correlation_id
        self._version = header.request_api_version

    def get_response_class(self) -> "_VerbatimHeader":
        return self

    def parse_header(self, buffer: Any) -> Any:
        return DescribeClientQuotasResponse[self._version].parse_header(buffer)

    def decode(self, buffer: Any) -> Verbatim:
        return Verbatim(self._version, buffer.read())


def describe_request() -> Any:
    """Asks for all quotas there are; the response is Verbatim."""
    return _Describe(components=[], strict=False)


def reported(verbatim: Verbatim, last_good: Quotas) -> Reported:
    """What a DescribeClientQuotas response says; an entity that it tells nonsense about keeps its last good quotas.

    Raises SourceUnavailable when it says nothing but an error, or nothing at all.
    """
    try:
        response = DescribeClientQuotasResponse.decode(verbatim.body, version=verbatim.version)
    except (ValueError, LookupError, struct.error) as error:
        raise SourceUnavailable(f"its answer is no list of quotas: {error}") from error
    if response.error_code:
        raise SourceUnavailable(_error(response, "DescribeConfigs"))
    quotas: dict[Entity, Mapping[QuotaKey, Limit]] = {}
    bad: dict[Entity, str] = {}
    problems: dict[str, str] = {}
    spellings: dict[Entity, str] = {}
    for entry in response.entries or ():
        try:
            entity = _entity(entry.entity)
        except InvalidQuota as error:
            problems[_shown(entry.entity)] = str(error)
            continue
        if isinstance(entity.ip, str) and entity.ip != (spelling := entry.entity[0].entity_name):
            spellings[entity] = spelling
        try:
            limits = _limits(entity, entry.values)
            if quotas.setdefault(entity, limits) != limits:
                raise InvalidQuota(f"{entity} has two quotas that differ, under two spellings of its address")
        except InvalidQuota as error:
            bad[entity] = str(error)
    kept = {entity: last_good.get(entity, {}) for entity in bad}
    problems |= {str(entity): problem for entity, problem in bad.items()}
    in_force = {entity: limits for entity, limits in (quotas | kept).items() if limits}
    return Reported(following(last_good, in_force), MappingProxyType(problems), MappingProxyType(spellings))


def _entity(parts: Sequence[Any]) -> Entity:
    names: dict[str, Any] = {}
    for part in parts:
        field = _PARTS.get(part.entity_type)
        if field is None:
            raise InvalidQuota(f"unknown entity type {part.entity_type!r}")
        if field in names:
            raise InvalidQuota(f"two of the entity type {part.entity_type!r}")
        names[field] = DEFAULT if part.entity_name is None else part.entity_name
    return Entity(**names)


def _limits(entity: Entity, values: Iterable[Any]) -> Mapping[QuotaKey, Limit]:
    limits: dict[QuotaKey, Limit] = {}
    for reported_value in values:
        key = QuotaKey.parse(reported_value.key)
        if key.shadow:
            raise InvalidQuota(f"unknown quota {reported_value.key!r}")
        limits[key] = Limit(valid_limit(entity, key.quota_type, reported_value.value), LAYER)
    return MappingProxyType(limits)


def _shown(parts: Sequence[Any]) -> str:
    """What is no entity, in words."""
    return ", ".join(f"{part.entity_type}={part.entity_name!r}" for part in parts) or "an entity without parts"


def alter_request(
    alterations: Iterable[Alteration], spellings: Mapping[Entity, str], *, validate_only: bool = False
) -> Any:
    """Writes the alterations, each whole or not at all; leaves out shadow quotas, which no cluster has.

    With `validate_only` they are judged and not written.
    """
    of_entry = AlterClientQuotasRequest.EntryData
    entries = [
        of_entry(
            entity=[
                of_entry.EntityData(entity_type=entity_type, entity_name=name)
                for entity_type, name in _name(alteration.entity, spellings).items()
            ],
            ops=[
                of_entry.OpData(key=key.text, value=limit or 0.0, remove=limit is None)
                for key, limit in alteration.limits.items()
                if not key.shadow
            ],
        )
        for alteration in alterations
    ]
    return AlterClientQuotasRequest(entries=entries, validate_only=validate_only)


def altered(
    response: Any, alterations: Sequence[Alteration], spellings: Mapping[Entity, str]
) -> list[Exception | None]:
    """What an AlterClientQuotas response says about each alteration: None, AlterationRefused or SourceUnavailable."""
    results = {
        frozenset((part.entity_type, part.entity_name) for part in entry.entity): _result(entry)
        for entry in response.entries
    }
    silent = SourceUnavailable("the cluster has not said what came of it")
    return [results.get(frozenset(_name(one.entity, spellings).items()), silent) for one in alterations]


def _name(entity: Entity, spellings: Mapping[Entity, str]) -> EntityName:
    given = [(entity_type, name) for entity_type, name in entity.parts if name is not None]
    return {entity_type: None if name is DEFAULT else spellings.get(entity, name) for entity_type, name in given}


def _result(entry: Any) -> Exception | None:
    if not entry.error_code:
        return None
    text = _error(entry, "AlterConfigs")
    return SourceUnavailable(text) if for_code(entry.error_code).retriable else AlterationRefused(text)


def _error(response: Any, permission: str) -> str:
    if response.error_code in _UNAUTHORISED:
        return f"the proxy's own credentials need {permission} on the Cluster resource (error {response.error_code})"
    return response.error_message or f"the cluster answers with error {response.error_code}"


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
