"""The quotas of one entity as JSON, in the files that the proxy writes for itself."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kafka_throttle.quotas.changes import Limit, limit_of, scope_of
from kafka_throttle.quotas.entities import DEFAULT, SCOPE, Entity, InvalidQuota, QuotaKey, Scope
from kafka_throttle.quotas.limits import valid_limit

_NOT_WRITTEN = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What is raised for JSON that `entry_form` does not write."""


class InvalidEntry(ValueError):
    """The JSON is not what `entry_form` writes. The text says why."""


def entity_form(entity: Entity) -> dict[str, str | None]:
    """An entity by Kafka's entity types, with null as the name of the default."""
    return {part: None if name is DEFAULT else name for part, name in entity.parts if name is not None}


def entry_form(entity: Entity, limits: Mapping[QuotaKey, Limit]) -> dict[str, Any]:
    """An entity with its quotas."""
    of_keys = {key.text: {"value": limit.value, "layer": limit.layer} for key, limit in limits.items()}
    entry: dict[str, Any] = {"entity": entity_form(entity), "limits": of_keys}
    return entry if (scope := scope_of(limits)) is Scope.NODE else {**entry, SCOPE: scope.value}


def entity_of(names: Any) -> Entity:
    """The entity that was written as `entity_form`. Raises InvalidEntry."""
    try:
        parts = {part.replace("-", "_"): DEFAULT if name is None else _string(name) for part, name in names.items()}
        return Entity(**parts)
    except InvalidQuota as error:
        raise InvalidEntry(str(error)) from error
    except (TypeError, AttributeError) as error:
        raise InvalidEntry(f"not what was written: {error!r}") from error


def entry_of(entry: Any) -> tuple[Entity, Mapping[QuotaKey, Limit]]:
    """The entity and the quotas that were written as `entry_form`. Raises InvalidEntry."""
    entity, limits, wrong = readable_part_of(entry)
    if wrong:
        raise InvalidEntry(wrong[0])
    return entity, limits


def readable_part_of(entry: Any) -> tuple[Entity, Mapping[QuotaKey, Limit], list[str]]:
    """The entity, those of its quotas that are as `entry_form` writes them, and what is wrong with the others.

    Raises InvalidEntry where the entity or its scope cannot be read.
    """
    try:
        entity, limits, wrong = entity_of(entry["entity"]), {}, []
        scope = Scope(entry.get(SCOPE, Scope.NODE.value))
        items = entry["limits"].items()
    except InvalidEntry:
        raise
    except _NOT_WRITTEN as error:
        raise InvalidEntry(f"not what was written: {error!r}") from error
    for text, limit in items:
        try:
            key = QuotaKey.parse(text)
            value = valid_limit(entity, key.quota_type, limit["value"])
            limits[key] = limit_of(key, value, _string(limit["layer"]), scope)
        except InvalidQuota as error:
            wrong.append(str(error))
        except _NOT_WRITTEN as error:
            wrong.append(f"{text} of {entity}: not what was written: {error!r}")
    return entity, MappingProxyType(limits), wrong


def _string(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError(f"expected a string, got {found!r}")
    return found
