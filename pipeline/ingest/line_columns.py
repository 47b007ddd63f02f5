"""Lines as columns: most are read in large numbers by Arrow, and one by one where Arrow might read them differently.

`quotas.records.usage_record.read_line` defines what a line means. For lines that a proxy writes Arrow gives the same
result, and is twenty times as fast. So Arrow reads the lines of a batch. If the batch has something that the two might
read differently, or a record that must be refused, it is read in halves, and at the end the few lines around the odd
one are read by `read_line`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from pipeline.ingest.rejects import why_not
from pipeline.spark.day import DAY_MS
from pipeline.table.schemas import (
    HAS_IP,
    HAS_NO_MOST,
    LONGEST_NAME,
    MAY_BE_NEGATIVE,
    MOST,
    NO_NAME_HAS,
    OFFSET,
    PARTITION,
    QUOTA_TYPES,
    ROWS,
    defaults,
    time_column,
)
from quotas.records.usage_record import VERSION, Row, TraceEvent, UsageRecord, columns, read_line, unescaped

OTHER = "other"
"""The kind of all lines without a record, or without one that is accepted."""

CHECKSUM = "checksum"
"""The CRC-32 of a line without its last nine bytes, computed, not the one that the line has."""

_ARROW: Mapping[type, Any] = {str: pa.string(), int: pa.int64(), float: pa.float64()}
PLACE = {"text": pa.string(), "file": pa.string(), "block": pa.int64(), "number": pa.int64()}
_QUOTA_TYPES = pa.array(QUOTA_TYPES)
_MOST_SHAPES = 4
"""The number of versions in one batch that Arrow reads; the rest is read line by line."""
_FEW = 32
"""So few lines are not halved any more."""
_AROUND = 3
"""A line has three parts besides the columns: version and kind before them, the checksum after them."""
_TAIL = 9
"""The length in bytes of a tab and a checksum."""
_TAB = 9
_NULL = "\\N"
_HEXADECIMAL = re.compile(rb"\t *0[xX]")
_DIGITS = np.full(256, 255, np.uint8)
_DIGITS[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16, dtype=np.uint8)


class _NotPlain(ValueError):
    """These lines have one that Arrow might read differently, or that must be refused."""


class Reader:
    """Reads lines of one stream. All other lines are passed on unchanged, with the kind that they have."""

    def __init__(self, row: type[Row], latest_ms: int) -> None:
        """Records later than `latest_ms` (since 1970) are refused."""
        self._row = row
        self._latest_ms = latest_ms
        self._kinds = columns(row)
        of_row = {name: _ARROW[kind] for name, (kind, _) in self._kinds.items()}
        self._schema = pa.schema(
            {"kind": pa.string(), "day": pa.date32(), **of_row, OFFSET: pa.int64(), **PLACE},
        )

    def read(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Batches of `text` (bytes), `file`, `block`, `number`, CHECKSUM -> those of `pipeline.ingest.lines.parsed`."""
        for batch in batches:
            sound = pa.array(_is_sound(batch["text"], batch[CHECKSUM].to_numpy()))
            good, damaged = _parted(batch, sound)
            yield from self._sound(good)
            yield from self._others(damaged, None)

    def _sound(self, lines: Any) -> Iterator[Any]:
        for _ in range(_MOST_SHAPES):
            prefix = self._prefix(lines["text"])
            if prefix is None:
                break
            alike, lines = _parted(lines, pc.starts_with(lines["text"], pattern=prefix))
            yield from self._alike(alike)
        yield from self._one_by_one(lines)

    def _prefix(self, text: Any) -> bytes | None:
        """The version and the kind of some line of our kind, with their tabs; those of the current version if there is
        such a line.
        """
        usual = f"{VERSION}\t{self._row.KIND}\t".encode()
        if pc.any(pc.starts_with(text, pattern=usual)).as_py():
            return usual
        at = pc.index(pc.match_substring_regex(text, pattern=f"^[0-9]{{1,9}}\t{self._row.KIND}\t"), True).as_py()
        return None if at < 0 else b"\t".join(text[at].as_py().split(b"\t", 2)[:2]) + b"\t"

    # --------------------------------------------------------- many at once

    def _alike(self, lines: Any) -> Iterator[Any]:
        """Lines of one version and of our kind."""
        try:
            yield self._taken(self._columns(lines["text"]), lines["number"])
        except ValueError:
            half = len(lines) // 2
            if half < _FEW:
                yield from self._one_by_one(lines)
            else:
                yield from self._alike(lines.slice(0, half))
                yield from self._alike(lines.slice(half))

    def _columns(self, text: Any) -> dict[str, Any]:
        """The columns of the records. Raises ValueError if `read_line` must read the lines; Arrow raises it, too."""
        every_line = pa.ListArray.from_arrays(pa.array([0, len(text)], pa.int32()), text)
        data = pc.binary_join(every_line, b"\n")[0].as_py()
        _hold(b"\r" not in data and not _is_hexadecimal(data))
        known, names = self._names(text[0].as_py())
        if len(names) > len(known) + _AROUND:
            data.decode()  # Arrow does not check columns that it does not read
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
            csv.ParseOptions(delimiter="\t", quote_char=False, double_quote=False, ignore_empty_lines=False),
            csv.ConvertOptions(
                include_columns=known,
                column_types={name: _ARROW[self._kinds[name][0]] for name in known},
                null_values=[_NULL],
                strings_can_be_null=False,
            ),
        )
        if len(table) != len(text):
            raise _NotPlain
        later = {
            name: pa.repeat(pa.scalar(value, _ARROW[self._kinds[name][0]]), len(text))
            for name, value in defaults(self._row).items()
            if name not in known
        }
        return self._checked({name: table[name].combine_chunks() for name in known}) | later

    def _names(self, line: bytes) -> tuple[list[str], list[str]]:
        """The known columns of a line of this shape, and names for all its parts."""
        version, parts = int(line.partition(b"\t")[0]), line.count(b"\t") + 1 - _AROUND
        known = list(self._kinds)[: max(0, parts)]
        needed = len(self._kinds) - len(defaults(self._row))
        if version < 1 or len(known) < needed or (parts > len(known) and version <= VERSION):
            raise _NotPlain
        unknown = [f"unknown {number}" for number in range(parts - len(known))]
        return known, ["version", "kind", *known, *unknown, CHECKSUM]

    def _checked(self, found: dict[str, Any]) -> dict[str, Any]:
        """The columns with escapes in texts resolved. Raises _NotPlain if a record must be refused."""
        for name, column in found.items():
            kind, optional = self._kinds[name]
            if kind is str:
                found[name] = _unescaped(column)
                if name == PARTITION:
                    _hold(pc.max(pc.binary_length(found[name])).as_py() <= LONGEST_NAME)
                    _hold(not pc.any(pc.match_substring(found[name], NO_NAME_HAS)).as_py())
                continue
            _hold(optional or not column.null_count)
            if kind is float:
                _hold(pc.all(pc.is_finite(column), min_count=0).as_py())
            if column.null_count < len(column):
                least, most = pc.min_max(column).as_py().values()
                _hold(least >= 0 or name in MAY_BE_NEGATIVE[self._row.KIND])
                _hold(max(-least, most) <= MOST or name in HAS_NO_MOST)
        _hold(pc.all(pc.is_in(found["quota_type"], _QUOTA_TYPES)).as_py())
        of_addresses, value = HAS_IP[self._row.KIND]
        lacks_ip = pc.and_(pc.equal(found[of_addresses], value), pc.equal(found["ip"], ""))
        _hold(not pc.any(lacks_ip).as_py())
        _hold(pc.max(found[time_column(self._row)]).as_py() <= self._latest_ms)
        if issubclass(self._row, UsageRecord):
            _hold(pc.max(found["end_ms"]).as_py() <= self._latest_ms)
            _hold(pc.all(pc.greater_equal(found["end_ms"], found["begin_ms"])).as_py())
        return found

    def _taken(self, found: Mapping[str, Any], numbers: Any) -> Any:
        """A record batch of records."""
        days = pc.divide(found[time_column(self._row)], DAY_MS).cast(pa.int32()).cast(pa.date32())
        known = {
            **found,
            "kind": pa.repeat(pa.scalar(self._row.KIND), len(numbers)),
            "day": days,
            OFFSET: pc.subtract(found["sequence"], numbers),
        }
        return self._batch(known, len(numbers))

    def _batch(self, known: Mapping[str, Any], length: int) -> Any:
        arrays = [known[of.name] if of.name in known else pa.nulls(length, of.type) for of in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    # ----------------------------------------------------------- one by one

    def _one_by_one(self, lines: Any) -> Iterator[Any]:
        """Lines with the right checksum, of any kind."""
        read = [self._one(line) for line in lines["text"].to_pylist()]
        good = pa.array([isinstance(one, Row) for one in read], pa.bool_())
        if records := [one for one in read if isinstance(one, Row)]:
            found = {
                name: pa.array([getattr(record, name) for record in records], _ARROW[kind])
                for name, (kind, _) in self._kinds.items()
            }
            yield self._taken(found, lines["number"].filter(good))
        kinds = [one for one in read if not isinstance(one, Row)]
        yield from self._others(lines.filter(pc.invert(good)), kinds)

    def _one(self, line: bytes) -> Row | str:
        """The record, if it is accepted, otherwise the line's kind."""
        kind = (line.split(b"\t", 2) + [b""])[1].decode(errors="replace")
        if kind != self._row.KIND:
            return kind if kind in ROWS else OTHER
        try:
            row = read_line(line.decode())
        except ValueError:
            return OTHER
        return row if isinstance(row, UsageRecord | TraceEvent) and not why_not(row, self._latest_ms) else OTHER

    def _others(self, lines: Any, kinds: list[str] | None) -> Iterator[Any]:
        """The lines unchanged."""
        if len(lines):
            texts = [line.decode(errors="replace") for line in lines["text"].to_pylist()]
            place = {name: lines[name] for name in ("file", "block", "number")}
            kind = pa.array(kinds or [OTHER] * len(lines))
            yield self._batch({"kind": kind, "text": pa.array(texts), **place}, len(lines))


def _parted(lines: Any, chosen: Any) -> tuple[Any, Any]:
    """The chosen lines, and the others."""
    if pc.all(chosen, min_count=0).as_py():
        return lines, lines.slice(0, 0)
    return lines.filter(chosen), lines.filter(pc.invert(chosen))


def _hold(condition: bool) -> None:
    if not condition:
        raise _NotPlain


def _is_sound(text: Any, checksums: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """For each line, whether it ends in a tab and its right checksum."""
    _, offsets, data = text.buffers()
    ends = np.frombuffer(offsets, np.int32)[text.offset : text.offset + len(text) + 1]
    sound = np.diff(ends) >= _TAIL
    if data is not None and sound.any():
        tails = np.frombuffer(data, np.uint8)[ends[1:][sound, None] + np.arange(-_TAIL, 0)]
        digits = _DIGITS[tails[:, 1:]]
        reported = (digits[:, 0::2] << 4 | digits[:, 1::2]).view(">u4")[:, 0]
        sound[sound] = (tails[:, 0] == _TAB) & (digits.max(axis=1) < 16) & (reported == checksums[sound])
    return sound


def _is_hexadecimal(data: bytes) -> bool:
    """Whether any part might be a number that Arrow reads and Python does not. Most data has no 0x at all."""
    letters = np.frombuffer(data, np.uint8)
    found = np.flatnonzero(letters == ord("x"))
    possible = b"X" in data or bool((letters[found - 1] == ord("0")).any())
    return possible and _HEXADECIMAL.search(data) is not None


def _unescaped(column: Any) -> Any:
    data = column.buffers()[2]
    if data is None or b"\\" not in data.to_pybytes():
        return column
    different = column.dictionary_encode()
    meant = [unescaped(text) for text in different.dictionary.to_pylist()]
    return pa.array(meant, pa.string()).take(different.indices)
