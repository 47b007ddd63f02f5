"""Changes of quotas that stand over the entries of the operator's file, key by key, and the file they are kept in.

That file is JSON, so that it can be read and repaired by hand. An entity is written as Kafka's protocol writes it: null
for the default. `limit` is what was set, null where the key was removed; `over` is what the operator's file said then.
`scope` is there if it was set; it is that of all quotas of the entity::

    {"version": 1, "overlay": [
     {"entity": {"user": "alice"}, "limits": {"producer_byte_rate": {"limit": 1048576.0, "over": 5000000.0}}},
     {"entity": {"user": null}, "limits": {"consumer_byte_rate": {"limit": null, "over": 1000000.0}}},
     {"entity": {"user": "bob"}, "limits": {}, "scope": {"scope": "cluster", "over": "node"}}
    ]}
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kafka_throttle.quotas.changes import Alteration, AlterationRefused, Limit, Quotas, check_scope, has_scope, limit_of
from kafka_throttle.quotas.entities import DEFAULT, SCOPE, Entity, InvalidQuota, Name, QuotaKey, Scope
from kafka_throttle.quotas.limits import limit_text, valid_limit


class Entry(NamedTuple):
    """What the operator's file says of one entity."""

    limits: Mapping[QuotaKey, float]
    scope: Scope = Scope.NODE


Entries = Mapping[Entity, Entry]
"""What the operator's file says."""

_VERSION = 1
_FIELDS = {"user": "user", "client-id": "client_id", "ip": "ip"}


class Change(NamedTuple):
    """A key that no longer follows the operator's file: its limit, None where it was removed; what the file said."""

    limit: float | None
    over: float | None


class ScopeChange(NamedTuple):
    """A scope that no longer follows the operator's file, and what the file said."""

    scope: Scope
    over: Scope


class Changed(NamedTuple):
    """The changes of one entity; `scope` is None if it follows the operator's file."""

    limits: Mapping[QuotaKey, Change]
    scope: ScopeChange | None = None


Overlay = Mapping[Entity, Changed]
"""All changes; an entity without any is not in it."""

_UNSAID: Final = Entry({})
_UNCHANGED: Final = Changed({})


class DamagedOverlay(ValueError):
    """A state file, or a part of it, that is not as it was written. The text says where and what."""


# ------------------------------------------------------------------- changing


def altered(overlay: Overlay, entries: Entries, alterations: Iterable[Alteration]) -> Overlay:
    """The overlay after `alterations`.

    A limit that is set stands over the file even where it is the same. A removal is remembered where the file has
    something to hide, and else leaves no trace. Raises AlterationRefused for a scope of an entity without a quota that
    has one.
    """
    changed = dict(overlay)
    for alteration in alterations:
        said = entries.get(alteration.entity, _UNSAID)
        before = changed.get(alteration.entity, _UNCHANGED)
        changes = dict(before.limits)
        for key, limit in alteration.limits.items():
            if limit is None and key not in said.limits:
                changes.pop(key, None)
            else:
                changes[key] = Change(None if limit is None else float(limit), said.limits.get(key))
        scope = before.scope if alteration.scope is None else ScopeChange(alteration.scope, said.scope)
        if scope is not None and not has_scope(_in_force(said.limits, changes)):
            if alteration.scope is not None:
                _refuse_scope(alteration.entity, _in_force(said.limits, changes))
            scope = None
        _put(changed, alteration.entity, Changed(changes, scope))
    return changed


def _refuse_scope(entity: Entity, keys: Iterable[QuotaKey]) -> None:
    try:
        check_scope(entity, keys)
    except InvalidQuota as error:
        raise AlterationRefused(str(error)) from error


def _in_force(said: Mapping[QuotaKey, float], changes: Mapping[QuotaKey, Change]) -> Mapping[QuotaKey, float]:
    """The limits that are in force."""
    limits = {key: limit for key, limit in said.items() if key not in changes}
    return limits | {key: change.limit for key, change in changes.items() if change.limit is not None}


def reverted(
    overlay: Overlay, entries: Entries, entity: Entity, keys: Iterable[QuotaKey], *, scope: bool = False
) -> Overlay:
    """The overlay without these keys, and with `scope` without the scope, of an entity.

    They follow the operator's file again.
    """
    gone = frozenset(keys)
    changed = dict(overlay)
    before = changed.get(entity, _UNCHANGED)
    kept = {key: change for key, change in before.limits.items() if key not in gone}
    has_none = not has_scope(_in_force(entries.get(entity, _UNSAID).limits, kept))
    _put(changed, entity, Changed(kept, None if scope or has_none else before.scope))
    return changed


def _put(overlay: dict[Entity, Changed], entity: Entity, changes: Changed) -> None:
    if changes != _UNCHANGED:
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
        said, changed = self.entries.get(entity, _UNSAID), self.overlay.get(entity, _UNCHANGED)
        changes, scope = changed.limits, said.scope if changed.scope is None else changed.scope.scope
        limits = {
            key: limit_of(key, limit, self.entries_layer, scope)
            for key, limit in said.limits.items()
            if key not in changes
        }
        for key, change in changes.items():
            if change.limit is not None:
                limits[key] = limit_of(key, change.limit, self.overlay_layer, scope)
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
        for entity, (changes, _) in self.overlay.items():
            for key, said in self.entries.get(entity, _UNSAID).limits.items():
                if key in changes and changes[key].limit != said:
                    yield Overridden(entity, key, said, changes[key].limit)

    def edits_of(self, entity: Entity) -> Mapping[str, str]:
        """Keys whose edits have no effect because the overlay wins: the place of each, and what to do."""
        entry, changed = self.entries.get(entity, _UNSAID), self.overlay.get(entity, _UNCHANGED)
        edits = {
            key.text: (_said(said), _said(change.limit))
            for key, change in changed.limits.items()
            if (said := entry.limits.get(key)) not in (change.over, change.limit)
        }
        if changed.scope is not None and entry.scope not in changed.scope:
            edits[SCOPE] = entry.scope.value, changed.scope.scope.value
        return {
            f"{entity}: {text}": f"{said} in {self.entries_layer} now, and {change} in "
            f"{self.overlay_layer}, which stands over it until `kafka-throttle quotas unset`"
            for text, (said, change) in edits.items()
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
        self._lines: dict[Entity, tuple[Changed, str]] = {}

    def of(self, overlay: Overlay) -> bytes:
        """The file for this overlay."""
        lines: dict[Entity, tuple[Changed, str]] = {}
        for entity, changes in overlay.items():
            known = self._lines.get(entity)
            if known is None or known[0] is not changes:
                known = changes, json.dumps(_entry(entity, changes), ensure_ascii=False)
            lines[entity] = known
        self._lines = lines
        text = ",\n ".join([line for _, line in lines.values()])
        return f'{{"version": {_VERSION}, "overlay": [\n {text}\n]}}\n'.encode()


def _entry(entity: Entity, changes: Changed) -> dict[str, Any]:
    parts = {part: None if name is DEFAULT else name for part, name in entity.parts if name is not None}
    limits = {key.text: change._asdict() for key, change in changes.limits.items()}
    entry = {"entity": parts, "limits": limits}
    if changes.scope is None:
        return entry
    return {**entry, SCOPE: {"scope": changes.scope.scope.value, "over": changes.scope.over.value}}


def parse_overlay(content: bytes, last_good: Overlay = MappingProxyType({})) -> tuple[Overlay, Mapping[str, str]]:
    """The overlay that a state file holds, and what is wrong in it, by its place.

    A change that is wrong takes no other away: the `last_good` change of the same key stays. Raises DamagedOverlay for
    a file that holds no list of changes.
    """
    try:
        document = json.loads(content.decode(), object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        raise DamagedOverlay(f"expected JSON in UTF-8: {error}") from error
    if isinstance(document, dict) and "quotas" in document and "overlay" not in document:
        source = document.get("source")
        raise DamagedOverlay(f"this file belongs to the source {source!r}: choose another state_file")
    fields = _fields(document, "the file", {"version", "overlay"})
    if fields["version"] != _VERSION:
        raise DamagedOverlay(f"version: expected {_VERSION}, got {fields['version']!r}")
    if not isinstance(fields["overlay"], list):
        raise DamagedOverlay("overlay: expected a list")
    overlay: dict[Entity, Changed] = {}
    problems: dict[str, str] = {}
    for i, entry in enumerate(fields["overlay"]):
        try:
            entity, fields_of_entry = _parse_entity(entry)
            if entity in overlay:
                raise DamagedOverlay(f"{entity}: a second time")
        except ValueError as error:
            problems[f"overlay[{i}]"] = str(error)
            continue
        changes, wrong = _parse_changes(entity, fields_of_entry, last_good.get(entity, _UNCHANGED))
        if wrong:
            problems[f"overlay[{i}]"] = "; ".join(wrong)
        _put(overlay, entity, changes)
    return overlay, problems


def _parse_entity(entry: Any) -> tuple[Entity, dict[str, Any]]:
    """The entity of an entry, and the fields of the entry."""
    optional = {SCOPE} if isinstance(entry, dict) and SCOPE in entry else set()
    fields = _fields(entry, "an entry", {"entity", "limits", *optional})
    if not isinstance(fields["entity"], dict) or not isinstance(fields["limits"], dict):
        raise DamagedOverlay("entity, limits: expected an object for each")
    return Entity(**{_known_part(part): _name(name) for part, name in fields["entity"].items()}), fields


def _parse_changes(entity: Entity, fields: dict[str, Any], last_good: Changed) -> tuple[Changed, list[str]]:
    """The changes of an entity, and what is wrong with others: in their place are the last good ones."""
    changes: dict[QuotaKey, Change] = {}
    wrong: list[str] = []
    for text, change in fields["limits"].items():
        try:
            key = QuotaKey.parse(text)
        except InvalidQuota as error:
            wrong.append(str(error))
            continue
        try:
            changes[key] = Change(*(_limit(entity, key, value) for value in _change(text, change)))
        except ValueError as error:
            wrong.append(str(error))
            if key in last_good.limits:
                changes[key] = last_good.limits[key]
    try:
        scope = _scope_change(fields[SCOPE]) if SCOPE in fields else None
    except ValueError as error:
        wrong.append(str(error))
        scope = last_good.scope
    return Changed(changes, scope), wrong


def _scope_change(value: Any) -> ScopeChange:
    fields = _fields(value, SCOPE, {"scope", "over"})
    return ScopeChange(_scope(fields["scope"]), _scope(fields["over"]))


def _scope(value: Any) -> Scope:
    try:
        return Scope(value)
    except ValueError:
        raise DamagedOverlay(f"scope: expected node or cluster, got {_short(value)}") from None


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


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
