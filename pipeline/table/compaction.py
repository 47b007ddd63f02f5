"""Small parts of a table are merged, while others read it and write to it."""

import time
import uuid
from collections import defaultdict
from collections.abc import Mapping

from pyspark.sql import SparkSession

from pipeline.spark.day import DAY_MS
from pipeline.table.day_summaries import forget_stale
from pipeline.table.files import Files, Taken, folders
from pipeline.table.schemas import ROWS
from pipeline.table.table import read_parts
from pipeline.table.table_log import Commit, Part, State, forget_removed, now_ms, part_at, read_state, write_commit

SMALL_BYTES = 64 << 20
"""What is smaller is worth merging."""
LARGE_BYTES = 256 << 20
"""About as large as a file becomes."""
AT_LEAST = 8
"""Small parts of one day and virtual cluster, until they are merged."""
KEPT_MS = 3_600_000
"""How long what was merged stays for those who began to read before."""


def compacted(spark: SparkSession, files: Files, at_least: int = AT_LEAST, kept_ms: int = KEPT_MS) -> int:
    """Merge where there are so many small parts, forget what was merged `kept_ms` ago; how many parts were merged.

    A commit takes out the old parts and brings in the new ones at one moment. Who is killed before leaves the table as
    it was; who reads goes on with the parts that he began with. Of two who merge the same, the second finds it gone
    and leaves it.
    """
    state = read_state(files)
    merged = sum(_merged(spark, files, parts) for parts in _crowded(state, at_least).values())
    forget_removed(files, state, now_ms() - kept_ms)
    state = read_state(files)
    forget_stale(files, state, now_ms() - kept_ms, now_ms() - _ORPHAN_MS)
    _remove_orphans(files, state)
    return merged


def _crowded(state: State, at_least: int) -> Mapping[tuple[str, str, str], list[Part]]:
    """The small parts by stream, day and virtual cluster, where they are many."""
    small = defaultdict(list)
    for part in state.parts.values():
        if part.stream in ROWS and part.bytes < SMALL_BYTES:
            small[part.stream, part.day, part.virtual_cluster].append(part)
    return {where: parts for where, parts in small.items() if len(parts) >= at_least}


def _merged(spark: SparkSession, files: Files, parts: list[Part]) -> int:
    stream = parts[0].stream
    into = f"{stream}/commit=merged-{uuid.uuid4().hex[:12]}"
    total = sum(part.bytes for part in parts)
    rows = read_parts(spark, files.root, ROWS[stream], parts).coalesce(max(1, total // LARGE_BYTES))
    rows.write.partitionBy("day", "virtual_cluster").parquet(f"{files.root}/{into}")
    files.make_durable(into)
    new = tuple(part_at(stream, path, size) for path, size in folders(files, into, 2))
    gone = tuple(part.path for part in parts)
    while True:
        state = read_state(files)
        if not all(path in state.parts for path in gone):
            files.remove(into)
            return 0
        try:
            write_commit(files, state, Commit(now_ms(), "", 0, new, gone))
            return len(parts)
        except Taken:
            continue


_ORPHAN_MS = DAY_MS


def _remove_orphans(files: Files, state: State) -> None:
    """What lies there for a day and is not in the log is of somebody who was killed."""
    known = {path.split("/")[1] for path in (*state.parts, *state.removed_ms)}
    for stream in (*ROWS, "quarantine"):
        for found in files.listed(stream):
            if found.name not in known and found.modified_ms < time.time() * 1000 - _ORPHAN_MS:
                files.remove(f"{stream}/{found.name}")
