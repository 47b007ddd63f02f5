"""Kafka's znodes and our quotas: where an entity has its node, what stands in it, how a change of it is told.

All of it as Kafka 3.9 in ZooKeeper mode does it. A *path* here begins below `/config`: `users/alice/clients/app`.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from kafka_throttle.quotas.changes import NO_QUOTAS, Limit, Quotas, check_scope, has_scope, limit_of, scope_of
from kafka_throttle.quotas.entities import DEFAULT, SCOPE, Entity, InvalidQuota, Name, QuotaKey, QuotaType, Scope
from kafka_throttle.quotas.limits import MAX_BYTE_RATE, MAX_CONNECTION_RATE, valid_limit
from kafka_throttle.quotas.shared_map import SharedMap

ROOTS: Final = ("users", "clients", "ips")
"""Below which the nodes of entities are."""

CHANGES: Final = "changes"
"""Below which notifications are."""

CHANGE_PREFIX: Final = "config_change_"
"""Notifications are called this, and a number of ten digits that ZooKeeper appends."""

MAX_NODE_BYTES: Final = 65_536
"""A node with more than that is nonsense: five quotas, as many shadows and two secrets take less than one thousand."""

_PAIRS = "clients"
"""The node between a user and the client-ids that make pairs with it."""

NOTHING_WRONG: Final[Mapping[QuotaKey | str, str]] = MappingProxyType({})

_KAFKAS_OWN = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"})
_LARGEST = {QuotaType.PRODUCE: MAX_BYTE_RATE, QuotaType.FETCH: MAX_BYTE_RATE, QuotaType.CONNECTION: MAX_CONNECTION_RATE}
"""The quotas that are whole numbers, and what a broker can hold of each."""
_MOST_SHOWN = 4
"""How many problems of a node, and how many of its unknown keys, are in a message."""

_JSON_TYPES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
}

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
_JAVA_DOUBLE = re.compile(
    r"[\0- ]*(?:(?P<decimal>[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))"
    r"|(?P<hexadecimal>[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+))[fFdD]?[\0- ]*"
)
_CHANGE = re.compile(re.escape(CHANGE_PREFIX) + "([0-9]+)")


# -------------------------------------------------------------------- names


def encoded(name: str) -> str:
    """A user or client-id as a node is called for it, as Kafka's Sanitizer writes it.

    UTF-8, and every byte but letters, digits and `.-_` as %XX; half a surrogate pair becomes a question mark.
    """
    return quote(name, safe="", errors="replace").replace("~", "%7E")


def decoded(text: str) -> str:
    """The user or client-id that a node is called for. Raises InvalidQuota for a bad escape.

    As a broker reads it: `+` is a space, and what is no UTF-8 becomes U+FFFD.
    """
    if _BAD_ESCAPE.search(text):
        raise InvalidQuota(f"expected a name with %XX for special characters, got {text!r}")
    return unquote_to_bytes(text.replace("+", " ")).decode(errors="replace")


def path_of(entity: Entity) -> str:
    """Where Kafka has the node of an entity. Raises InvalidQuota if ZooKeeper can have no node of that name."""
    if entity.ip is not None:
        return f"ips/{entity.ip.value if entity.ip is DEFAULT else _checked_address(entity.ip)}"
    if entity.user is None:
        return f"clients/{_node_name(entity.client_id)}"
    if entity.client_id is None:
        return f"users/{_node_name(entity.user)}"
    return f"users/{_node_name(entity.user)}/{_PAIRS}/{_node_name(entity.client_id)}"


def entity_at(path: str) -> Entity:
    """The entity that has its node there. Raises InvalidQuota if none can.

    Several paths may stand for one entity (`a+b` and `a%20b`, two spellings of an IPv6 address).
    """
    match path.split("/"):
        case ["users", user]:
            return Entity(user=_name_in(user))
        case ["users", user, "clients", client_id]:
            return Entity(_name_in(user), _name_in(client_id))
        case ["clients", client_id]:
            return Entity(client_id=_name_in(client_id))
        case ["ips", address]:
            return Entity(ip=DEFAULT if address == DEFAULT.value else _checked_address(address))
    raise InvalidQuota(f"expected users/U, users/U/clients/C, clients/C or ips/A, got {path!r}")


def pairs_of(path: str) -> str:
    """Below which the pairs of a user's node are."""
    return f"{path}/{_PAIRS}"


def parents_of(path: str) -> tuple[str, ...]:
    """The nodes above a path, the root first."""
    parts = path.split("/")
    return tuple("/".join(parts[:count]) for count in range(1, len(parts)))


def _node_name(name: Name) -> str:
    if name is DEFAULT:
        return DEFAULT.value
    text = encoded(name or "")
    if text in (".", ".."):
        raise InvalidQuota(f"expected a name that a node can have, got {name!r}")
    return text


def _name_in(text: str) -> Name:
    return DEFAULT if text == DEFAULT.value else decoded(text)


def _checked_address(text: str) -> str:
    """An address or a host name, which brokers neither encode nor decode."""
    try:
        if ip_address(text) and "%" not in text:
            return text
    except ValueError:
        if _HOST_NAME.fullmatch(text) and text not in (".", ".."):
            return text
    raise InvalidQuota(f"expected an address or a host name, got {text!r}")


# ------------------------------------------------------------------ content


class Content(NamedTuple):
    """What a node says: the limits in the unit of their type, and the keys that are no quota of its entity.

    `wrong` says what is wrong with the values of other keys: a quota, SCOPE, or a key that is not known. A scope is an
    unknown key if no quota in the node has one.
    """

    limits: Mapping[QuotaKey, float]
    unknown: tuple[str, ...] = ()
    scope: Scope = Scope.NODE
    wrong: Mapping[QuotaKey | str, str] = NOTHING_WRONG


def content_of(entity: Entity, data: bytes) -> Content:
    """What the node of an entity says. A wrong value of one key takes no other key away.

    Raises InvalidQuota for what is no configuration at all. No data says nothing, as in the nodes between. A broker
    takes a bad number for the end of the node: what it has read before is in force then, in the order produce, fetch,
    request, mutations.
    """
    limits: dict[QuotaKey, float] = {}
    unknown: list[str] = []
    wrong: dict[QuotaKey | str, str] = {}
    scope = Scope.NODE
    for text, value in (config := _config_in(data)).items():
        key = _quota_key(entity, text)
        try:
            if not isinstance(value, str):
                raise InvalidQuota(f"expected {_shown(text)} to be a string, got {_kind(value)}")
            if key is not None:
                limits[key] = limit_in(entity, key, value)
            elif text == SCOPE:
                scope = _scope_in(value)
            elif text not in _KAFKAS_OWN:
                unknown.append(text)
        except InvalidQuota as error:
            wrong[text if key is None else key] = str(error)
    has_one_with_scope = has_scope((*limits, *(key for key in wrong if isinstance(key, QuotaKey))))
    if SCOPE in config and SCOPE not in wrong and not has_one_with_scope:
        unknown.append(SCOPE)
    return Content(limits, tuple(unknown), scope, wrong)


def _scope_in(text: str) -> Scope:
    try:
        return Scope(text)
    except ValueError:
        raise InvalidQuota(f"expected {SCOPE} to be node or cluster, got {_shown(text)}") from None


def rewritten(data: bytes, limits: Mapping[QuotaKey, float | None], scope: Scope | None = None) -> bytes:
    """The content of a node with these limits changed, None removed, and all else as it was; b"" if nothing is left.

    `scope` is the new scope; None leaves it as it is. It goes with the last quota that has one. Of a node that is no
    JSON nothing can be kept; other values than strings become strings, for brokers trip on them.
    """
    try:
        config = _config_in(data)
    except InvalidQuota:
        config = {}
    kept = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
    for key, limit in limits.items():
        if limit is None:
            kept.pop(key.text, None)
        else:
            kept[key.text] = text_of(key.quota_type, limit)
    if scope is not None:
        kept[SCOPE] = scope.value
    if scope is Scope.NODE or not has_scope(_quota_keys(kept)):
        kept.pop(SCOPE, None)
    return written(kept) if kept else b""


def written(config: Mapping[str, str]) -> bytes:
    """A node's content as Kafka writes it."""
    return json.dumps({"version": 1, "config": config}, separators=(",", ":")).encode()


def keys_of(entity: Entity) -> frozenset[QuotaKey]:
    """The quotas that this kind of entity may have."""
    of_addresses = {QuotaType.CONNECTION}
    types = of_addresses if entity.ip is not None else set(QuotaType) - of_addresses
    return frozenset(QuotaKey(quota_type, shadow) for quota_type in types for shadow in (False, True))


def limit_in(entity: Entity, key: QuotaKey, text: str) -> float:
    """The limit that a node's value gives, read as a broker reads it. Raises InvalidQuota if it is nonsense.

    Byte and connection rates are whole numbers without blanks around them, the others are doubles as Java has them.
    """
    if (largest := _LARGEST.get(key.quota_type)) is None:
        return valid_limit(entity, key.quota_type, _java_double(key, text))
    try:
        number = int(text) if _WHOLE_NUMBER.fullmatch(text) else None
    except ValueError:  # thousands of digits
        number = None
    if number is None or number > largest:
        raise InvalidQuota(f"expected {key.text} to be a whole number of at most {largest}, got {_shown(text)}")
    return valid_limit(entity, key.quota_type, number)


def text_of(quota_type: QuotaType, limit: float) -> str:
    """A limit as Kafka writes it: `1024` where whole numbers are meant, else as Java's Double.toString."""
    if (largest := _LARGEST.get(quota_type)) is not None:
        return str(min(int(limit), largest))
    if 1e-3 <= limit < 1e7:
        return repr(limit)
    mantissa, exponent = f"{Decimal(repr(limit)).normalize():E}".split("E")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"


def _config_in(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_NODE_BYTES:
        raise InvalidQuota(f"expected at most {MAX_NODE_BYTES} bytes, got {len(data)}")
    if not data:
        return {}
    fields = _json_object(data)
    if not isinstance(config := fields.get("config"), dict):
        raise InvalidQuota('expected {"version":1,"config":{...}}, got none such')
    return config


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidQuota("expected JSON, got something else") from None
    if not isinstance(fields, dict):
        raise InvalidQuota(f"expected a JSON object, got {_kind(fields)}")
    return fields


def _quota_key(entity: Entity, text: str) -> QuotaKey | None:
    try:
        key = QuotaKey.parse(text)
    except InvalidQuota:
        return None
    return key if key in keys_of(entity) else None


def _quota_keys(texts: Iterable[str]) -> Iterator[QuotaKey]:
    for text in texts:
        with suppress(InvalidQuota):
            yield QuotaKey.parse(text)


def _java_double(key: QuotaKey, text: str) -> float:
    if not (match := _JAVA_DOUBLE.fullmatch(text)):
        raise InvalidQuota(f"expected {key.text} to be a number, got {_shown(text)}")
    if decimal := match["decimal"]:
        return float(decimal)
    try:
        return float.fromhex(match["hexadecimal"])
    except OverflowError:
        return float("inf")


def _kind(value: Any) -> str:
    """What JSON calls the type of a value. The value itself is not shown: it may be a secret (SCRAM)."""
    return _JSON_TYPES.get(type(value), "a number")


def _shown(value: Any) -> str:
    """A value in a message, cut to what one reads."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# ------------------------------------------------------------ notifications


def notification(path: str) -> bytes:
    """What tells brokers and proxies that the node at a path has changed (version 2)."""
    return json.dumps({"version": 2, "entity_path": path}, separators=(",", ":")).encode()


def change_number(name: str) -> int | None:
    """The number of a notification, by its name; None for any other node."""
    match = _CHANGE.fullmatch(name)
    return int(match[1]) if match else None


def notified_path(data: bytes) -> str | None:
    """The path of the entity that a notification is about; None if it is about topics or brokers.

    Version 1 tells type and name, of topics and client-ids only. Raises InvalidQuota for what is no notification.
    """
    fields = _json_object(data[: MAX_NODE_BYTES + 1])
    match fields.get("version"), fields:
        case 1, {"entity_type": str(kind), "entity_name": str(name)} if kind in ("topics", "clients"):
            path = f"{kind}/{name}"
        case 2, {"entity_path": str(path)}:
            pass
        case _:
            raise InvalidQuota(f'expected {{"version":2,"entity_path":...}}, got {_shown(fields)}')
    if path.split("/")[0] not in ROOTS:
        return None
    entity_at(path)
    return path


# ------------------------------------------------------------------ writing


class Seen(NamedTuple):
    """A node as it was read: its content, the version of that, and how many children it has."""

    data: bytes
    version: int
    children: int


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace a node's content if it still has this version."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node if it still has this version, and no children."""

    path: str
    version: int


Step = Create | Replace | Delete


def steps_to(path: str, data: bytes, seen: Mapping[str, Seen | None]) -> Sequence[Step]:
    """What makes the node at a path hold `data` (b"": nothing), all at once or not at all; nothing if it does already.

    `seen` has this node and its parents, None for what is not there. Nodes without content and children are deleted,
    as brokers do since 3.5, and with the last pair of a user what was there for its sake.
    """
    node, parents = seen[path], parents_of(path)
    if data:
        if node is None:
            return [Create(parent, b"") for parent in parents if seen[parent] is None] + [Create(path, data)]
        return [Replace(path, data, node.version)] if data != node.data else []
    if node is None:
        return []
    if node.children:
        return [] if _is_empty(node.data) else [Replace(path, written({}), node.version)]
    steps: list[Step] = [Delete(path, node.version)]
    for parent in reversed(parents[1:]):
        above = seen[parent]
        if above is None or above.children != 1 or not _is_empty(above.data):
            break
        steps.append(Delete(parent, above.version))
    return steps


def _is_empty(data: bytes) -> bool:
    try:
        return not _config_in(data)
    except InvalidQuota:
        return False


# -------------------------------------------------------------------- nodes


@dataclass(frozen=True, slots=True)
class _Node:
    limits: Mapping[QuotaKey, Limit] = field(default_factory=dict)
    problem: str = ""


_NOTHING = _Node()


class EntityNodes:
    """What the nodes of all entities say, as far as they have been read; of what is wrong there, what they said last.

    `place` is the path of `/config`, with which layers and problems begin; `last_good` are what holds before anything
    is read. `quotas` and `problems` are snapshots, and `version` goes up with every change of them.
    """

    def __init__(self, place: str, last_good: Quotas = NO_QUOTAS) -> None:
        self.version = 0
        self._place = place
        self._nodes: dict[str, _Node] = {}
        self._paths: dict[Entity, list[str]] = {}
        self._quotas: SharedMap[Entity, Mapping[QuotaKey, Limit]] = SharedMap()
        self._settled: dict[Entity, Mapping[QuotaKey, Limit] | None] = {}
        """What has changed since `_quotas` was brought up to date."""
        self._problems: dict[str, str] = {}
        for entity, limits in last_good.items():
            with suppress(InvalidQuota):  # what no node can stand for came from elsewhere
                self._put(path_of(entity), entity, _Node(limits))

    @property
    def quotas(self) -> Quotas:
        """The quotas of all entities that have any."""
        if self._settled:
            self._quotas, self._settled = self._quotas.changed(self._settled), {}
        return self._quotas

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong, by the full path of the node."""
        return {self.full(path): problem for path, problem in self._problems.items()}

    @property
    def paths(self) -> set[str]:
        """Of all nodes that say something, or are not understood."""
        return self._nodes.keys() | self._problems.keys()

    def holds_below(self, root: str) -> bool:
        """Whether any quota that came from below a root is in force."""
        layers = (limit.layer for node in self._nodes.values() for limit in node.limits.values())
        return any(layer.startswith(f"{self.full(root)}/") for layer in layers)

    def full(self, path: str) -> str:
        """The path as ZooKeeper has it."""
        return f"{self._place}/{path}"

    def path_of(self, entity: Entity) -> str:
        """The node that counts for an entity; if it has none, where Kafka would have it. InvalidQuota if nowhere."""
        return self._counting(entity) or path_of(entity)

    def take(self, path: str, data: bytes | None) -> None:
        """Take what has been read, None if there is no such node."""
        try:
            entity = entity_at(path)
        except InvalidQuota as error:
            return self._complain(path, "" if data is None else f"{error}; nothing is in force for it")
        old = self._nodes.get(path, _NOTHING)
        return self._put(path, entity, _NOTHING if data is None else self._read(path, entity, data, old))

    def cannot_read(self, path: str, why: str) -> None:
        """Note why a node could not be read."""
        try:
            entity = entity_at(path)
        except InvalidQuota as error:
            return self._complain(path, f"{error}; nothing is in force for it")
        return self._put(path, entity, _still(self._nodes.get(path, _NOTHING), why))

    def changes_to(
        self, path: str, data: bytes, limits: Mapping[QuotaKey, float | None], scope: Scope | None = None
    ) -> bytes:
        """What to write for these limits, and the scope if given, to change and all else to stay.

        Of wrong values, what is in force stays. Raises InvalidQuota if no quota of the entity would have the scope.
        """
        entity = entity_at(path)
        in_force = self._nodes.get(path, _NOTHING).limits
        try:
            wrong: Collection[QuotaKey | str] = content_of(entity, data).wrong
        except InvalidQuota:
            wrong = {*keys_of(entity), SCOPE}
        of_quotas = [key for key in wrong if isinstance(key, QuotaKey)]
        as_it_is = {key: in_force[key].value if key in in_force else None for key in of_quotas}
        if scope is None and SCOPE in wrong:
            scope = scope_of(in_force)
        changed = rewritten(data, {**as_it_is, **limits}, scope)
        if scope is Scope.CLUSTER:
            check_scope(entity, content_of(entity, changed).limits)
        return changed

    def _read(self, path: str, entity: Entity, data: bytes, old: _Node) -> _Node:
        """What a node says. Of a key with a wrong value, what it said last."""
        try:
            content = content_of(entity, data)
        except InvalidQuota as error:
            return _still(old, str(error))
        layer, scope = self.full(path), scope_of(old.limits) if SCOPE in content.wrong else content.scope
        limits = {key: limit_of(key, value, layer, scope) for key, value in content.limits.items()}
        problems = []
        for key, why in content.wrong.items():
            if isinstance(key, QuotaKey) and key in old.limits:
                limits[key] = limit_of(key, old.limits[key].value, old.limits[key].layer, scope)
            problems.append(f"{why}; {_left_of(key, old)}")
        if content.unknown:
            unknown = ", ".join(map(_shown, content.unknown[:_MOST_SHOWN]))
            problems.append(f"ignored, as this version knows no such quota of {entity}: {unknown}")
        if (more := len(problems) - _MOST_SHOWN) > 0:
            problems[_MOST_SHOWN:] = [f"and {more} more"]
        return _Node(limits, ". ".join(problems))

    def _put(self, path: str, entity: Entity, new: _Node) -> None:
        """Replace what a node says, and choose anew which node counts for its entity."""
        if new == self._nodes.get(path, _NOTHING):
            return
        self.version += 1
        others = [other for other in self._paths.pop(entity, ()) if other != path]
        if new == _NOTHING:
            del self._nodes[path]
        else:
            self._nodes[path] = new
            others.append(path)
        if others:
            self._paths[entity] = others
        self._complain(path, "")
        self._settle(entity)

    def _settle(self, entity: Entity) -> None:
        counting = self._counting(entity)
        self._settled[entity] = None
        for path in self._paths.get(entity, ()):
            node = self._nodes[path]
            if path == counting and node.limits:
                self._settled[entity] = node.limits
            doubled = "" if path == counting else f"ignored, for {self.full(counting or '')} stands for {entity} too"
            self._complain(path, node.problem or doubled)

    def _counting(self, entity: Entity) -> str | None:
        """Of all nodes for an entity the one that counts: one with quotas, if possible named as Kafka names it."""
        paths = self._paths.get(entity)
        if not paths or len(paths) == 1:
            return paths[0] if paths else None
        return min(paths, key=lambda path: (not self._nodes[path].limits, path != path_of(entity), path))

    def _complain(self, path: str, problem: str) -> None:
        """Note, or forget, what is wrong with a node."""
        if problem == self._problems.get(path, ""):
            return
        self.version += 1
        if problem:
            self._problems[path] = problem
        else:
            del self._problems[path]


def _left_of(key: QuotaKey | str, old: _Node) -> str:
    """In words: what is in force in place of a key with a wrong value."""
    if key == SCOPE:
        return f"the scope {scope_of(old.limits).value} is in force"
    stays = isinstance(key, QuotaKey) and key in old.limits
    return "the last good quota stays in force" if stays else "nothing is in force for it"


def _still(node: _Node, problem: str) -> _Node:
    """The node with what it said last, and why."""
    return _Node(node.limits, f"{problem}; {'the last good quota stays' if node.limits else 'nothing is'} in force")
