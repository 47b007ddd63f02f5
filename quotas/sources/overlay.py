"""Changes of quotas that stand over the entries of the operator's file, key by key, and the file they are kept in.

That file is JSON, so that it can be read and repaired by hand. An entity is written as Kafka's protocol writes it: null
for the default. `limit` is what was set, null where the key was removed; `over` is what the operator's file said then::

    {"version": 1, "overlay": [
     {"entity": {"user": "alice"}, "limits": {"producer_byte_rate": {"limit": 1048576.0, "over": 5000000.0}}},
     {"entity": {"user": null}, "limits": {"consumer_byte_rate": {"limit": null, "over": 1000000.0}}}
    ]}
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from quotas.changes import Alteration, Limit, Quotas
from quotas.entities import DEFAULT, Entity, InvalidQuota, Name, QuotaKey
from quotas.limits import limit_text, valid_limit

Entries = Mapping[Entity, Mapping[QuotaKey, float]]
"""What the operator's file says."""

_VERSION = 1
_FIELDS = {"user": "user", "client-id": "client_id", "ip": "ip"}


class Change(NamedTuple):
    """A key that no longer follows the operator's file: its limit, None where it was removed; what the file said."""

    limit: float | None
    over: float | None


Overlay = Mapping[Entity, Mapping[QuotaKey, Change]]
"""All changes; an entity without any is not in it."""


class DamagedOverlay(ValueError):
    """A state file that is not as it was written. The text says where and what."""


# ------------------------------------------------------------------- changing


def altered(overlay: Overlay, entries: Entries, alterations: Iterable[Alteration]) -> Overlay:
    """The overlay after `alterations`.

    A limit that is set stands over the file even where it is the same. A removal is remembered where the file has
    something to hide, and else leaves no trace.
    """
    changed = dict(overlay)
    for alteration in alterations:
        said = entries.get(alteration.entity, {})
        changes = dict(changed.get(alteration.entity, {}))
        for key, limit in alteration.limits.items():
            if limit is None and key not in said:
                changes.pop(key, None)
            else:
                changes[key] = Change(None if limit is None else float(limit), said.get(key))
        _put(changed, alteration.entity, changes)
    return changed


def reverted(overlay: Overlay, entity: Entity, keys: Iterable[QuotaKey]) -> Overlay:
    """The overlay without these keys of an entity: they follow the operator's file again."""
    gone = frozenset(keys)
    changed = dict(overlay)
    _put(changed, entity, {key: change for key, change in changed.get(entity, {}).items() if key not in gone})
    return changed


def _put(overlay: dict[Entity, Mapping[QuotaKey, Change]], entity: Entity, changes: Mapping[QuotaKey, Change]) -> None:
    if changes:
        overlay[entity] = changes
    else:
        overlay.pop(entity, None)


# -------------------------------------------------------------------- merging


class Overridden(NamedTuple):
    """A limit of the operator's file that is not in force: `by` another one, or by its removal (None)."""

    entity: Entity
    key: QuotaKey
    limit: float
    by: float | None


class Layers(NamedTuple):
    """The operator's file and, over it, the overlay; each with the name of its layer."""

    entries: Entries
    entries_layer: str
    overlay: Overlay
    overlay_layer: str

    def limits_of(self, entity: Entity) -> Mapping[QuotaKey, Limit]:
        """What is in force for an entity."""
        said, changes = self.entries.get(entity, {}), self.overlay.get(entity, {})
        limits = {key: Limit(limit, self.entries_layer) for key, limit in said.items() if key not in changes}
        for key, change in changes.items():
            if change.limit is not None:
                limits[key] = Limit(change.limit, self.overlay_layer)
        return limits

    def changes_since(self, before: Quotas) -> dict[Entity, Mapping[QuotaKey, Limit] | None]:
        """What makes `before` what is in force now."""
        changes: dict[Entity, Mapping[QuotaKey, Limit] | None] = dict.fromkeys(
            entity for entity in before if entity not in self.entries and entity not in self.overlay
        )
        for source in (self.entries, self.overlay):
            for entity in source:
                limits = self.limits_of(entity) or None
                if limits != before.get(entity):
                    changes[entity] = limits
        return changes

    def overridden(self) -> Iterator[Overridden]:
        """What the operator's file says and a change overrides."""
        for entity, changes in self.overlay.items():
            for key, said in self.entries.get(entity, {}).items():
                if key in changes and changes[key].limit != said:
                    yield Overridden(entity, key, said, changes[key].limit)

    def edits_of(self, entity: Entity) -> Mapping[str, str]:
        """Each key that the operator has edited in vain since it was changed: its place, and what to do."""
        entries = self.entries.get(entity, {})
        return {
            f"{entity}: {key.text}": f"{_said(said)} in {self.entries_layer} now, and {_said(change.limit)} in "
            f"{self.overlay_layer}, which stands over it until `kafka-throttle quotas unset`"
            for key, change in self.overlay.get(entity, {}).items()
            if (said := entries.get(key)) not in (change.over, change.limit)
        }


def _said(limit: float | None) -> str:
    return "not set" if limit is None else limit_text(limit)


# ----------------------------------------------------------- the file's content


def format_overlay(overlay: Overlay) -> bytes:
    """The content of a state file, with one line for each entity."""
    return OverlayText().of(overlay)


class OverlayText:
    """The content of a state file, with one line for each entity. Lines are remembered: most are as they were."""

    def __init__(self) -> None:
        self._lines: dict[Entity, tuple[Mapping[QuotaKey, Change], str]] = {}

    def of(self, overlay: Overlay) -> bytes:
        """The file for this overlay."""
        lines: dict[Entity, tuple[Mapping[QuotaKey, Change], str]] = {}
        for entity, changes in overlay.items():
            known = self._lines.get(entity)
            if known is None or known[0] is not changes:
                known = changes, json.dumps(_entry(entity, changes), ensure_ascii=False)
            lines[entity] = known
        self._lines = lines
        text = ",\n ".join([line for _, line in lines.values()])
        return f'{{"version": {_VERSION}, "overlay": [\n {text}\n]}}\n'.encode()


def _entry(entity: Entity, changes: Mapping[QuotaKey, Change]) -> dict[str, Any]:
    parts = {part: None if name is DEFAULT else name for part, name in entity.parts if name is not None}
    return {"entity": parts, "limits": {key.text: change._asdict() for key, change in changes.items()}}


def parse_overlay(content: bytes) -> Overlay:
    """The overlay that a state file holds. DamagedOverlay if anything in it is not as it should be."""
    try:
        document = json.loads(content.decode(), object_pairs_hook=_without_twins, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise DamagedOverlay(f"expected JSON in UTF-8: {error}") from error
    fields = _fields(document, "the file", {"version", "overlay"})
    if fields["version"] != _VERSION:
        raise DamagedOverlay(f"version: expected {_VERSION}, got {fields['version']!r}")
    if not isinstance(fields["overlay"], list):
        raise DamagedOverlay("overlay: expected a list")
    overlay: dict[Entity, Mapping[QuotaKey, Change]] = {}
    for i, entry in enumerate(fields["overlay"]):
        try:
            entity, changes = _parse_entry(entry)
            if entity in overlay:
                raise DamagedOverlay(f"{entity}: a second time")
        except ValueError as error:
            raise DamagedOverlay(f"overlay[{i}]: {error}") from error
        _put(overlay, entity, changes)
    return overlay


def _parse_entry(entry: Any) -> tuple[Entity, Mapping[QuotaKey, Change]]:
    fields = _fields(entry, "an entry", {"entity", "limits"})
    if not isinstance(fields["entity"], dict) or not isinstance(fields["limits"], dict):
        raise DamagedOverlay("entity, limits: expected an object for each")
    entity = Entity(**{_known_part(part): _name(name) for part, name in fields["entity"].items()})
    changes = {}
    for text, change in fields["limits"].items():
        key = QuotaKey.parse(text)
        limit, over = (_limit(entity, key, value) for value in _change(text, change))
        changes[key] = Change(limit, over)
    return entity, changes


def _known_part(part: str) -> str:
    if part not in _FIELDS:
        raise DamagedOverlay(f"entity: expected {', '.join(_FIELDS)}, got {part!r}")
    return _FIELDS[part]


def _name(value: Any) -> Name:
    if value is None:
        return DEFAULT
    if not isinstance(value, str):
        raise DamagedOverlay(f"entity: expected text or null for each part, got {_short(value)}")
    value.encode()  # half a surrogate pair is no text
    return value


def _change(text: str, change: Any) -> tuple[Any, Any]:
    fields = _fields(change, text, {"limit", "over"})
    return fields["limit"], fields["over"]


def _limit(entity: Entity, key: QuotaKey, value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float):
        raise InvalidQuota(f"{key.text}: expected a number or null, got {_short(value)}")
    try:
        return valid_limit(entity, key.quota_type, float(value))
    except OverflowError:
        raise InvalidQuota(f"{key.text}: a number beyond a double") from None


def _fields(value: Any, what: str, names: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != names:
        raise DamagedOverlay(f"{what}: expected an object with {' and '.join(sorted(names))}, got {_short(value)}")
    return value


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise DamagedOverlay(f"a field twice in {_short(pairs)}")
    return fields


def _no_number(text: str) -> Callable[..., Any]:
    raise DamagedOverlay(f"expected a number, got {text}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
