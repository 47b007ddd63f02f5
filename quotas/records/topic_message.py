"""Lines of a spool as messages of a topic: JSON with its schema, as Kafka Connect's JsonConverter has it.

A message is `{"schema": ..., "payload": {...}}`. The payload has the parts of the line in their order: `version`,
`kind`, the columns of that kind, and `crc`, the checksum of the line. So the line can be made again from the values
alone, and the checksum says whether it is the same. Numbers are written as in the line. `\\N` is null.

A line that is damaged, or has columns that this version does not know, is sent as it is: its readers find what is wrong
with it, or know the columns.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

from kafka_throttle.quotas.records.usage_record import ROWS, VERSION, Row, columns

_NULL = rb"\N"
_PATTERNS = {
    str: rb"([^\t\n\r\\]*(?:\\[\\tnr][^\t\n\r\\]*)*)",
    int: rb"(0|-?[1-9][0-9]{0,18})",
    float: rb"(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,3})?)",
}
"""What `line_of` writes, as far as it is the same in JSON. The escapes of texts are."""
_FLOAT_OR_NULL = rb"(\\N|" + _PATTERNS[float][1:]
_TYPES = {str: "string", int: "int64", float: "double"}
_NOT_IN_JSON = re.compile(rb'["\x00-\x08\x0b\x0c\x0e-\x1f]')
_KINDS = {kind.encode(): row for kind, row in ROWS.items()}
_CRC_DIGITS = 8
_AROUND = 3
"""Version, kind and checksum around the columns."""


class Message(NamedTuple):
    """The value of a message, and the kind of its line: empty if the value is the line itself."""

    value: bytes
    kind: str


@dataclass(frozen=True, slots=True)
class _Form:
    """What lines of a kind have in common."""

    kind: str
    line: re.Pattern[bytes]
    """With a group for each part that varies."""
    value: bytes
    """With `%b` for each of these parts."""


def message_of(line: bytes, most_bytes: int) -> Message:
    """The message of a line without its line feed. It is the line if it would be longer than `most_bytes` otherwise."""
    as_it_is = Message(line, "")
    parts = line.split(b"\t")
    form = _form(parts[1]) if len(parts) > 1 and parts[1] in _KINDS else None
    found = form.line.fullmatch(line) if form else None
    if form is None or found is None or not _is_sound(line, parts[-1]):
        return as_it_is
    values: Sequence[bytes] = [b"null" if part == _NULL else part for part in found.groups()]
    if _NOT_IN_JSON.search(line):
        values = [_NOT_IN_JSON.sub(_escaped, value) for value in values]
    value = form.value % tuple(values)
    return Message(value, form.kind) if len(value) <= most_bytes else as_it_is


def schema_of(row: type[Row]) -> dict[str, Any]:
    """The schema of the messages of a kind, as Kafka Connect writes schemas. A field is required by default."""
    around = {"version": {"type": "int32"}, "kind": {"type": "string"}}
    every = {**around, **{name: _type_of(*kind) for name, kind in columns(row).items()}, "crc": {"type": "string"}}
    named = [{**of_field, "field": name} for name, of_field in every.items()]
    return {"type": "struct", "name": f"kafka_throttle.{row.KIND}", "version": VERSION, "fields": named}


def _type_of(kind: type, optional: bool) -> dict[str, Any]:
    return {"type": _TYPES[kind], **({"optional": True} if optional else {})}


@cache
def _form(kind: bytes) -> _Form:
    """The form of lines of a kind."""
    row = _KINDS[kind]
    patterns, members = [rb"([1-9][0-9]{0,8})", kind], ['"version":%b', f'"kind":"{row.KIND}"']
    for name, (of_values, optional) in columns(row).items():
        patterns.append(_FLOAT_OR_NULL if optional else _PATTERNS[of_values])
        members.append(f'"{name}":"%b"' if of_values is str else f'"{name}":%b')
    line = rb"\t".join([*patterns, rb"([0-9a-f]{%d})" % _CRC_DIGITS])
    schema = json.dumps(schema_of(row), separators=(",", ":"))
    payload = ",".join([*members, '"crc":"%b"'])
    return _Form(row.KIND, re.compile(line), f'{{"schema":{schema},"payload":{{{payload}}}}}'.encode())


def _is_sound(line: bytes, crc: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return b"%08x" % crc32(line[: -_CRC_DIGITS - 1]) == crc


def _escaped(found: re.Match[bytes]) -> bytes:
    return rb"\"" if found[0] == b'"' else rb"\u%04x" % found[0][0]
