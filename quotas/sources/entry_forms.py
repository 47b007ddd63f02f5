"""The quotas of one entity as JSON, in the files that the proxy writes for itself."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from quotas.changes import Limit, limit_of, scope_of
from quotas.entities import DEFAULT, SCOPE, Entity, InvalidQuota, QuotaKey, Scope
from quotas.limits import valid_limit


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
    try:
        entity, limits = entity_of(entry["entity"]), {}
        scope = Scope(entry.get(SCOPE, Scope.NODE.value))
        for text, limit in entry["limits"].items():
            key = QuotaKey.parse(text)
            value = valid_limit(entity, key.quota_type, limit["value"])
            limits[key] = limit_of(key, value, _string(limit["layer"]), scope)
    except InvalidQuota as error:
        raise InvalidEntry(str(error)) from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InvalidEntry(f"not what was written: {error!r}") from error
    return entity, MappingProxyType(limits)


def _string(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError(f"expected a string, got {found!r}")
    return found
