"""The records of the history and how they are written: a line each, with a checksum.

    <crc32, 8 hex digits> <kind> <from> <to> <content>

The content is JSON, or `z` and compressed JSON in base64. Each line stands for itself: a damaged one is skipped.

====  =======================================================================================================
kind  content
====  =======================================================================================================
s     who was throttled from one second to another (both in s since 1970, both included); nearly always one second
q     quotas that are in force from a time on (in ms since 1970, twice): all of a virtual cluster, or those that changed
====  =======================================================================================================
"""

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, starmap
from typing import Any, NamedTuple

from kafka_throttle.proxy.observe.last_throttles import PastThrottle
from kafka_throttle.proxy.observe.throttled_line import Bucket, ThrottledLine
from kafka_throttle.quotas.changes import Limit
from kafka_throttle.quotas.entities import SCOPE, Entity, QuotaKey, QuotaType, SensorTags
from kafka_throttle.quotas.sources.entry_forms import entity_form, entity_of, entry_form, entry_of

_COMPRESSED_FROM = 512
_LONGEST_CONTENT_BYTES = 64 << 20
_ENTITIES_PER_RECORD = 500
_BEFORE_SCOPE = "before_scope"
"""Beside `before`, as the scope beside the quotas of now."""

_BY_NAME = {quota_type.name.lower(): quota_type for quota_type in QuotaType}


class Damaged(Exception):
    """A line is not what was written."""


@dataclass(frozen=True, slots=True)
class PastLine:
    """One line of a second: a throttled client, and what came in this second.

    Of `line`, `throttles` and `throttled_ms` are those of this second. `given_ms` is the throttle time that they gave.
    `charged` is what its sensor was charged in this second for all its clients, in the unit of the quota; None if that
    is not known, as in the first second.
    """

    line: ThrottledLine
    given_ms: int
    charged: float | None


@dataclass(slots=True)
class Others:
    """The sums of the lines of a second for which there was no room."""

    lines: int = 0
    throttles: int = 0
    given_ms: int = 0
    throttled_ms: int = 0


@dataclass(slots=True)
class ThrottledIn:
    """Who was throttled in a second, in one virtual cluster: those that were muted for longest, first."""

    lines: list[PastLine] = field(default_factory=list)
    others: Others = field(default_factory=Others)


@dataclass(frozen=True, slots=True)
class Seconds:
    """The seconds `first_s` to `last_s`, and who was throttled in them, by virtual cluster."""

    first_s: int
    last_s: int
    clusters: Mapping[str, ThrottledIn] = field(default_factory=dict)


class Version(NamedTuple):
    """The quotas of an entity since a time, and those before; None for no quotas.

    `since_ms` is None for quotas that were in force when the process began.
    """

    limits: Mapping[QuotaKey, Limit] | None
    since_ms: int | None = None
    before: Mapping[QuotaKey, Limit] | None = None


class Kinds(NamedTuple):
    """Which kinds of entity ever had a quota, as `QuotaTable.kinds` says it: enforced, and shadow."""

    enforced: Mapping[str, int]
    shadow: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class QuotasOf:
    """Quotas of a virtual cluster that came into force at a time.

    A record that `begins` is the first of all quotas; others follow it, each with some entities. `kept` is False if
    there are too many of them to be written.
    """

    at_ms: int
    virtual_cluster: str
    source: str
    known: bool
    kinds: Kinds
    versions: Mapping[Entity, Version]
    begins: bool = False
    kept: bool = True

    def parts(self) -> "Iterator[QuotasOf]":
        """The same in records of some hundred entities each."""
        items = iter(self.versions.items())
        begins = self.begins
        while (some := dict(islice(items, _ENTITIES_PER_RECORD))) or begins:
            head = (self.at_ms, self.virtual_cluster, self.source, self.known, self.kinds)
            yield QuotasOf(*head, some, begins, self.kept)
            begins = False


Record = Seconds | QuotasOf


# --------------------------------------------------------------------- lines


def line_of(record: Record) -> bytes:
    """The line of a record."""
    if isinstance(record, Seconds):
        kind, first, last, content = "s", record.first_s, record.last_s, _seconds_form(record)
    else:
        kind, first, last, content = "q", record.at_ms, record.at_ms, _quotas_form(record)
    data = json.dumps(content, separators=(",", ":")).encode()
    if len(data) >= _COMPRESSED_FROM:
        data = b"z" + b64encode(zlib.compress(data))
    body = b"%s %d %d %s" % (kind.encode(), first, last, data)
    return b"%08x %s\n" % (zlib.crc32(body), body)


class Head(NamedTuple):
    """The kind and the times of a line, and its content, which is not read yet."""

    kind: str
    first: int
    last: int
    content: bytes

    def record(self, wanted: Callable[[Any], bool] = lambda form: True) -> Record:
        """The record; of quotas, only those of the entities that are `wanted` by their JSON. Raises Damaged."""
        try:
            form = json.loads(_plain(self.content))
            if self.kind == "s":
                return Seconds(self.first, self.last, {name: _throttled_in(form[name]) for name in form})
            return _quotas_of(self.first, form, wanted)
        except (
            LookupError,
            TypeError,
            AttributeError,
            ValueError,
            ArithmeticError,
            RecursionError,
            zlib.error,
        ) as error:
            raise Damaged(repr(error)) from error


def read_head(line: bytes) -> Head:
    """The head of a line. Raises Damaged if its checksum is wrong, or it ends too soon."""
    body = line[9:-1]
    if line[-1:] != b"\n" or line[:9] != b"%08x " % zlib.crc32(body):
        raise Damaged("the checksum is wrong")
    try:
        kind, first, last, content = body.split(b" ", 3)
        head = Head(kind.decode(), int(first), int(last), content)
    except ValueError as error:
        raise Damaged(repr(error)) from error
    if head.kind not in ("s", "q"):
        raise Damaged(f"unknown kind {head.kind!r}")
    return head


def _plain(content: bytes) -> bytes:
    if not content.startswith(b"z"):
        return content
    unpacker = zlib.decompressobj()
    plain = unpacker.decompress(b64decode(content[1:], validate=True), _LONGEST_CONTENT_BYTES)
    if not unpacker.eof:
        raise ValueError("the compressed content is incomplete, or too long")
    return plain


# ------------------------------------------------------------------- contents


def _seconds_form(seconds: Seconds) -> dict[str, Any]:
    return {
        name: {
            "lines": [_line_form(line) for line in throttled.lines],
            "others": [
                throttled.others.lines,
                throttled.others.throttles,
                throttled.others.given_ms,
                throttled.others.throttled_ms,
            ],
        }
        for name, throttled in seconds.clusters.items()
    }


def _throttled_in(form: Any) -> ThrottledIn:
    return ThrottledIn([_line(each) for each in form["lines"]], Others(*map(int, form["others"])))


def _line_form(past: PastLine) -> dict[str, Any]:
    line, first = past.line, past.line.first
    return {
        "user": first.user,
        "client_id": first.client_id,
        "ip": first.ip,
        "node": first.node_id,
        "quota": first.quota_name,
        "tags": None if first.tags is None else [first.tags.user, first.tags.client_id],
        "entity": None if first.entity is None else entity_form(first.entity),
        "limit": first.limit,
        "since": first.at_epoch_ms,
        "first_ms": first.throttle_time_ms,
        "rate": line.rate,
        "bucket": line.bucket,
        "left": line.left_ms,
        "throttles": line.throttles,
        "muted": line.throttled_ms,
        "given": past.given_ms,
        "connections": line.connections,
        "charged": past.charged,
    }


def _line(form: Any) -> PastLine:
    first = PastThrottle(
        at_epoch_ms=int(form["since"]),
        throttle_time_ms=int(form["first_ms"]),
        user=str(form["user"]),
        client_id=str(form["client_id"]),
        ip=str(form["ip"]),
        node_id=int(form["node"]),
        quota_type=None if form["quota"] == "node" else _BY_NAME[form["quota"]],
        tags=None if form["tags"] is None else SensorTags(*map(str, form["tags"])),
        sensor=None,
        entity=None if form["entity"] is None else entity_of(form["entity"]),
        rate=None,
        limit=_number(form["limit"]),
        tokens=None,
        throttles=int(form["throttles"]),
    )
    line = ThrottledLine(
        first,
        _number(form["rate"]),
        None if form["bucket"] is None else Bucket(*map(float, form["bucket"])),
        int(form["left"]),
        int(form["throttles"]),
        int(form["muted"]),
        int(form["connections"]),
    )
    return PastLine(line, int(form["given"]), _number(form["charged"]))


def _number(found: Any) -> float | None:
    return None if found is None else float(found)


def _quotas_form(record: QuotasOf) -> dict[str, Any]:
    return {
        "virtual_cluster": record.virtual_cluster,
        "source": record.source,
        "known": record.known,
        "kinds": [record.kinds.enforced, record.kinds.shadow],
        "begins": record.begins,
        "kept": record.kept,
        "quotas": list(starmap(_version_form, record.versions.items())),
    }


def _version_form(entity: Entity, version: Version) -> dict[str, Any]:
    before = entry_form(entity, version.before or {})
    return {
        **entry_form(entity, version.limits or {}),
        "since": version.since_ms,
        "before": before["limits"],
        **({_BEFORE_SCOPE: before[SCOPE]} if SCOPE in before else {}),
    }


def _quotas_of(at_ms: int, form: Any, wanted: Callable[[Any], bool]) -> QuotasOf:
    return QuotasOf(
        at_ms,
        str(form["virtual_cluster"]),
        str(form["source"]),
        bool(form["known"]),
        Kinds(*(dict(kinds) for kinds in form["kinds"])),
        dict(map(_version, filter(wanted, form["quotas"]))),
        bool(form["begins"]),
        bool(form["kept"]),
    )


def _version(form: Any) -> tuple[Entity, Version]:
    entity, limits = entry_of(form)
    scope = {SCOPE: form[_BEFORE_SCOPE]} if _BEFORE_SCOPE in form else {}
    _, before = entry_of({"entity": form["entity"], "limits": form["before"], **scope})
    since_ms = form["since"]
    return entity, Version(limits or None, None if since_ms is None else int(since_ms), before or None)
