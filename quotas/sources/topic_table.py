"""Quotas as records of a compacted topic: one record for each quota of each entity.

Its key is `{"format":1,"entity":{"user":"alice"},"quota":"producer_byte_rate"}`, with null in place of a name for
Kafka's default entity, and its value `{"format":1,"value":1048576}`. A record without a value removes the quota. The
scope of an entity's quotas is a record, too, with `"quota":"scope"` and `"value":"cluster"`; without it, it is `node`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from kafka_throttle.quotas.changes import Alteration, Limit, Quotas, check_scope, has_scope, limit_of, scope_of
from kafka_throttle.quotas.entities import SCOPE, Entity, InvalidQuota, QuotaKey, Scope, check_names
from kafka_throttle.quotas.limits import valid_limit
from kafka_throttle.quotas.shared_map import SharedMap
from kafka_throttle.quotas.sources.entry_forms import InvalidEntry, entity_form, entity_of
from kafka_throttle.quotas.sources.topic_records import Record

FORMAT: Final = 1
MAX_RECORD_BYTES: Final = 256 << 10
"""A key or a value with more is nonsense: the longest names make keys of half of that."""

NOTHING: Final[Mapping[QuotaKey, Limit]] = MappingProxyType({})
_Key = QuotaKey | str
"""A quota, or SCOPE."""

MOST_LISTED: Final = 100
"""So many records that are nonsense are listed, the others are counted."""


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field twice")
    return fields


def _no_number(text: str) -> Callable[..., Any]:
    raise ValueError(f"{text} is no number")


_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_without_twins, parse_constant=_no_number)


class _Nonsense(ValueError):
    """A key or a value that no proxy writes. The text says why."""


def records_of(
    alteration: Alteration, in_force: Mapping[QuotaKey, Limit] = NOTHING
) -> Sequence[tuple[bytes, bytes | None]]:
    """The records that write an alteration of an entity that has these quotas.

    Raises InvalidQuota if none of its quotas would have the scope, or for a name that no record may have.
    """
    entity, limits = alteration.entity, alteration.limits
    check_names(entity)
    records = [
        (key_of(entity, key), None if limit is None else _written({"format": FORMAT, "value": float(limit)}))
        for key, limit in limits.items()
    ]
    left = {*limits, *in_force} - {key for key, limit in limits.items() if limit is None}
    if alteration.scope is Scope.CLUSTER:
        check_scope(entity, left)
        records.append((key_of(entity, SCOPE), _written({"format": FORMAT, "value": Scope.CLUSTER.value})))
    elif alteration.scope is Scope.NODE or (scope_of(in_force) is Scope.CLUSTER and not has_scope(left)):
        records.append((key_of(entity, SCOPE), None))
    return records


def key_of(entity: Entity, key: _Key) -> bytes:
    """The key of the record of a quota, or of the scope. Compaction compares bytes: each has one spelling."""
    text = key if isinstance(key, str) else key.text
    return _written({"format": FORMAT, "entity": entity_form(entity), "quota": text})


def _written(fields: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(fields).encode()


class TopicTable:
    """The quotas in a topic, record by record from its beginning.

    `last_good` are the quotas in force until it is read. A record that is nonsense leaves the quota as it was, there or
    in the records before; without one it says nothing.
    """

    def __init__(self, topic: str, last_good: Quotas) -> None:
        self._topic = topic
        self._last_good = last_good
        self._values: dict[Entity, dict[_Key, float | Scope]] = {}
        self._changed: set[Entity] = set(last_good)
        self._bad: dict[bytes | int | None, tuple[int, str]] = {}
        """By the key of a record, or the offset of a batch."""
        self._unlisted = 0

    def take(self, record: Record) -> None:
        """Take up the next record."""
        self._bad.pop(record.key, None)
        try:
            self._take(record)
        except _Nonsense as nonsense:
            self._note(record.key, record.offset, str(nonsense))

    def note_skipped(self, offset: int, why: str) -> None:
        """A batch whose records are not known is left out. It is a problem until the topic is read anew."""
        self._note(offset, offset, why)

    def _note(self, place: bytes | int | None, offset: int, why: str) -> None:
        if len(self._bad) < MOST_LISTED:
            self._bad[place] = offset, why
        else:
            self._unlisted += 1

    def _take(self, record: Record) -> None:
        try:
            entity, key = _read_key(record.key)
        except _Nonsense:
            if record.value is None:  # whatever it was: it is removed
                return
            raise
        self._changed.add(entity)
        if record.value is None:
            self._set(entity, key, None)
            return
        try:
            self._set(entity, key, _read_value(entity, key, record.value))
        except _Nonsense:
            if key not in self._values.get(entity, {}):
                self._set(entity, key, _value_in(self._last_good.get(entity, NOTHING), key))
            raise

    def _set(self, entity: Entity, key: _Key, value: float | Scope | None) -> None:
        if value is not None:
            self._values.setdefault(entity, {})[key] = value
        elif values := self._values.get(entity):
            values.pop(key, None)
            if not values:
                del self._values[entity]

    def _limits_of(self, entity: Entity) -> Mapping[QuotaKey, Limit]:
        values = self._values.get(entity, {})
        scope = Scope.CLUSTER if values.get(SCOPE) is Scope.CLUSTER else Scope.NODE
        return MappingProxyType(
            {
                key: limit_of(key, value, self._topic, scope)
                for key, value in values.items()
                if not isinstance(key, str) and not isinstance(value, Scope)
            }
        )

    def quotas_after(self, before: Quotas) -> Quotas:
        """All quotas, which share with `before`, those of the last call, what has not changed since."""
        now = {entity: self._limits_of(entity) for entity in self._changed}
        changes = {entity: limits or None for entity, limits in now.items() if before.get(entity, {}) != limits}
        self._changed = set()
        if not changes:
            return before
        return (before if isinstance(before, SharedMap) else SharedMap(before)).changed(changes)

    @property
    def problems(self) -> Mapping[str, str]:
        """What is nonsense, by its offset."""
        found = {f"offset {offset} of {self._topic}": why for offset, why in self._bad.values()}
        if self._unlisted:
            found[f"other records of {self._topic}"] = f"{self._unlisted} more that are no quotas"
        return MappingProxyType(found)


def _value_in(limits: Mapping[QuotaKey, Limit], key: _Key) -> float | Scope | None:
    if isinstance(key, str):
        return scope_of(limits)
    return None if (limit := limits.get(key)) is None else limit.value


def _read_key(raw: bytes | None) -> tuple[Entity, _Key]:
    fields = _fields(raw, "key", {"format", "entity", "quota"})
    try:
        entity, text = entity_of(fields["entity"]), _text(fields["quota"])
        check_names(entity)
        key: _Key = text if text == SCOPE else QuotaKey.parse(text)
    except (InvalidEntry, InvalidQuota) as error:
        raise _Nonsense(f"key: {error}") from None
    if (expected := key_of(entity, key)) != raw:
        raise _Nonsense(f"key: expected it as {expected.decode()}, byte for byte, got {_shown(raw)}")
    return entity, key


def _read_value(entity: Entity, key: _Key, raw: bytes) -> float | Scope:
    value = _fields(raw, "value", {"format", "value"})["value"]
    if isinstance(key, str):
        if value not in (Scope.NODE.value, Scope.CLUSTER.value):
            raise _Nonsense(f"scope of {entity}: expected node or cluster, got {_shown(value)}")
        return Scope(value)
    if type(value) not in (int, float):
        raise _Nonsense(f"value of {key.text} of {entity}: expected a number, got {_shown(value)}")
    try:
        return valid_limit(entity, key.quota_type, float(value))
    except (InvalidQuota, OverflowError) as error:
        raise _Nonsense(f"value of {key.text} of {entity}: {error}") from None


def _fields(raw: bytes | None, what: str, names: set[str]) -> dict[str, Any]:
    """The fields of a key or value."""
    if raw is None or len(raw) > MAX_RECORD_BYTES:
        got = "none" if raw is None else f"{len(raw)} bytes"
        raise _Nonsense(f"{what}: expected JSON of at most {MAX_RECORD_BYTES} bytes, got {got}")
    try:
        found = _DECODER.decode(raw.decode())
    except (ValueError, RecursionError):
        raise _Nonsense(f"{what}: expected JSON, got {_shown(raw)}") from None
    if not isinstance(found, dict):
        raise _Nonsense(f"{what}: expected a JSON object, got {_shown(raw)}")
    if found.get("format") != FORMAT or isinstance(found["format"], bool):
        raise _Nonsense(f"{what}: expected format {FORMAT}, got {_shown(found.get('format'))}")
    if found.keys() != names:
        raise _Nonsense(f"{what}: expected the fields {', '.join(sorted(names))}, got {_shown(raw)}")
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Nonsense(f"key: expected quota to be a string, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"
