"""Parquet files that a task of Spark writes itself, by kind, day and virtual cluster, and its response about them.

Spark's own writer takes rows, and needs several times as long as Arrow does for columns. A task does not know whether
its result is used: Spark may have started another task in its place. So its files have unique names, in a directory
that is no part of a table, and the code that gets the task's response moves those files to their final place.
"""

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types as T  # noqa: N812, as everybody calls it

from pipeline.ingest.line_columns import PLACE, Reader
from pipeline.table.schemas import OFFSET, PARTITION, schema_of
from quotas.records.usage_record import Row

RESPONSE = T.StructType(
    [
        T.StructField("file", T.StringType()),
        T.StructField("folder", T.StringType()),
        *(
            T.StructField(name, T.StringType() if name == "instance" else T.LongType())
            for name in ("instance", "epoch")
        ),
        *(T.StructField(name, T.LongType()) for name in (OFFSET, "first", "last", "rows")),
    ]
)
"""A row is either a file and the folder to which it belongs, as kind=usage/day=.../virtual_cluster=..., or a run of
rows with the same difference between sequence number and line number. A row that is neither means that there were too
many runs.
"""

_ROWS_AT_ONCE = 1 << 17
"""Rows that are written together, a row group of Parquet; a task holds at most twice as many in memory for all its
files.
"""
_MOST_OPEN = 200
"""Files that a task has open at a time: a spool may hold years of records."""
_MOST_RUNS = 10_000
_DIFFERENT = frozenset({"sequence", "used", "peak", "in_bytes", "out_bytes", "at_ms", "wall_ms", "value", "profile"})
"""Columns whose values are all or nearly all different: a dictionary of them costs more than it saves."""
_NO_NAME = "__HIVE_DEFAULT_PARTITION__"
_AS_THEY_ARE = " !$&()+,;<>@`|}~"
"""Characters that Spark does not escape in the name of a partition, besides letters, digits and all that is not ASCII.
"""


class _Where(NamedTuple):
    kind: str
    day: Any
    virtual_cluster: str | None

    @property
    def folder(self) -> str:
        if self.day is None:
            return f"kind={self.kind}"
        return f"kind={self.kind}/day={self.day}/{PARTITION}={escaped(self.virtual_cluster or '')}"


class TaskFiles:
    """Files in `folder`, a directory that all tasks share."""

    def __init__(self, folder: Path, row: type[Row]) -> None:
        self._folder = folder
        self._kind = row.KIND
        self._columns = [name for name in (*schema_of(row).names, OFFSET) if name != PARTITION]
        self._waiting: dict[_Where, list[Any]] = defaultdict(list)
        self._rows: Counter[_Where] = Counter()
        self._writers: dict[_Where, tuple[str, Any]] = {}
        self._response: list[tuple[Any, ...]] = []
        self._runs: dict[tuple[str, int, int], tuple[int, int, int]] | None = {}
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, batch: Any) -> None:
        """Take a batch of `pipeline.ingest.line_columns`."""
        if batch["text"].null_count:
            self._count(batch)
            for (day, cluster), part in _parts(batch, ["day", PARTITION]):
                self._wait(_Where(self._kind, day, cluster), part.select(self._columns))
        else:
            for (kind,), part in _parts(batch, ["kind"]):
                self._wait(_Where(kind, None, None), part.select(list(PLACE)))

    def _wait(self, where: _Where, part: Any) -> None:
        self._waiting[where].append(part)
        self._rows[where] += len(part)
        if self._rows[where] >= _ROWS_AT_ONCE:
            self._write(where)
        elif self._rows.total() >= 2 * _ROWS_AT_ONCE:
            self._write(self._rows.most_common(1)[0][0])

    def _write(self, where: _Where) -> None:
        parts = pa.Table.from_batches(self._waiting.pop(where))
        del self._rows[where]
        if where not in self._writers:
            if len(self._writers) >= _MOST_OPEN:
                self._end(next(iter(self._writers)))
            name = f"{uuid.uuid4().hex}.parquet"
            alike = [column for column in parts.column_names if column not in _DIFFERENT]
            writer = pq.ParquetWriter(
                self._folder / name, parts.schema, compression="zstd", use_dictionary=alike, store_schema=False
            )
            self._writers[where] = name, writer
        self._writers[where][1].write_table(parts)

    def _end(self, where: _Where) -> None:
        name, writer = self._writers.pop(where)
        writer.close()
        self._response.append((name, where.folder, *[None] * 6))

    def _count(self, batch: Any) -> None:
        if self._runs is None:
            return
        grouped = pa.Table.from_batches([batch.select(["instance", "epoch", OFFSET, "sequence"])]).group_by(
            ["instance", "epoch", OFFSET], use_threads=False
        )
        found = grouped.aggregate([("sequence", "min"), ("sequence", "max"), ("sequence", "count")])
        for instance, epoch, offset, first, last, rows in zip(*(c.to_pylist() for c in found.columns), strict=True):
            key = instance, epoch, offset
            known = self._runs.get(key, (first, last, 0))
            self._runs[key] = min(first, known[0]), max(last, known[1]), rows + known[2]
        if len(self._runs) > _MOST_RUNS:
            self._runs = None

    def close(self) -> Any:
        """Write the rest; returns the RESPONSE."""
        for where in list(self._waiting):
            self._write(where)
        for where in list(self._writers):
            self._end(where)
        response = self._response
        if self._runs is None:
            response.append((None,) * 8)
        else:
            response += [(None, None, *key, *run) for key, run in self._runs.items()]
        arrow = {T.StringType(): pa.string(), T.LongType(): pa.int64()}
        schema = pa.schema({of.name: arrow[of.dataType] for of in RESPONSE})
        return pa.RecordBatch.from_pylist(
            [dict(zip(RESPONSE.names, row, strict=True)) for row in response], schema=schema
        )


def written(batches: Iterable[Any], folder: Path, row: type[Row], latest_ms: int) -> Iterator[Any]:
    """Lines as `Reader.read` takes them -> files in `folder`, and the RESPONSE."""
    files = TaskFiles(folder, row)
    for batch in Reader(row, latest_ms).read(batches):
        files.take(batch)
    yield files.close()


def _parts(batch: Any, by: list[str]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The rows with the same values in these columns, in their order."""
    codes = [batch[name].dictionary_encode() for name in by]
    if all(len(code.dictionary) == 1 for code in codes):
        yield tuple(code.dictionary[0].as_py() for code in codes), batch
        return
    keys = np.stack([code.indices.to_numpy() for code in codes])
    order = np.lexsort(keys[::-1])
    ends = [*(np.flatnonzero((np.diff(keys[:, order]) != 0).any(axis=0)) + 1), len(order)]
    ordered, begin = batch.take(pa.array(order)), 0
    for end in ends:
        yield tuple(ordered[name][begin].as_py() for name in by), ordered.slice(begin, end - begin)
        begin = end


def escaped(name: str) -> str:
    """The name of a partition's directory, escaped as Spark writes it."""
    return "".join(quote(c, safe=_AS_THEY_ARE) if c.isascii() else c for c in name) or _NO_NAME
