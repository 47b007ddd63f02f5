"""A table as the versions before Delta Lake wrote it, into a new one."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_throttle.pipeline.jobs.ingest import ingest_spool
from kafka_throttle.pipeline.table.accounts import Account, Writer, read_accounts
from kafka_throttle.pipeline.table.migration import migrated
from kafka_throttle.pipeline.table.table import BadTable, read_quarantine, read_trace, read_usage
from kafka_throttle.quotas.records.usage_record import TraceEvent, UsageRecord
from tests.pipeline.spools import Fleet, event, records, write_spool

FLEET = Fleet(entities=20, per_window=5)
WRITER = Writer("usage", FLEET.instance, FLEET.epoch)


class OldTable:
    """Writes directories and commits as they were written then."""

    def __init__(self, root):
        self.root, self.version = root, 0
        (root / "_log").mkdir(parents=True)

    def part(self, stream, name, rows, cluster="main"):
        path = f"{stream}/commit={name}/day=2026-10-26/virtual_cluster={cluster}"
        values = [{**asdict(row), "line_offset": 0} for row in rows]
        for value in values:
            for column in ("virtual_cluster", "share", "scope"):
                value.pop(column, None)
        self._write(path, values)
        return {"stream": stream, "path": path, "day": "2026-10-26", "virtual_cluster": cluster, "bytes": 1}

    def quarantine(self, name, rows):
        path = f"quarantine/commit={name}"
        self._write(path, rows)
        return {"stream": "quarantine", "path": path, "day": "", "virtual_cluster": "", "bytes": 1}

    def _write(self, path, values):
        (self.root / path).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(values), self.root / path / "part.parquet")

    def commit(self, added, removed=(), present=(), reported=0, **later):
        self.version += 1
        account = {**WRITER._asdict(), "present": present, "dropped": [], "told": reported, **later}
        form = {"format": 1, "at_ms": 1, "query": "q", "batch": self.version, "added": added, "removed": removed}
        form |= {"accounts": [account], "counts": {}}
        (self.root / "_log" / f"{self.version:012d}.json").write_text(json.dumps(form))

    def snapshot(self, parts, present):
        account = {**WRITER._asdict(), "present": present, "dropped": [], "told": 20, "final": False}
        form = {"format": 1, "parts": parts, "removed_ms": {}, "accounts": [account], "batches": {}, "counts": {}}
        (self.root / "_log" / f"{self.version:012d}.snapshot").write_text(json.dumps(form))


def rows_of(spark, table):
    rows = read_usage(spark, table).drop("day").collect()
    return sorted((UsageRecord(**row.asDict()) for row in rows), key=lambda row: row.sequence)


def old_table(folder):
    mine, old = records(FLEET, 40), OldTable(folder / "old")
    mine[30:] = [replace(row, virtual_cluster="") for row in mine[30:]]
    first = old.part("usage", "a", mine[:20])
    old.commit([first], present=[[1, 20]], reported=20)
    old.snapshot([first], [[1, 20]])
    second, third = old.part("usage", "b", mine[:30]), old.part("usage", "c", mine[30:], "__HIVE_DEFAULT_PARTITION__")
    bad = old.quarantine("d", [{"file": "x", "line": 1, "reason": "why", "text": "hello", "at_ms": 5}])
    trace = old.part("trace", "e", [event(number) for number in range(1, 6)], "x")
    old.commit([second, third, bad, trace], [first["path"]], present=[[21, 40]], reported=45, final=True, alone=True)
    old.part("usage", "of-somebody-killed", mine[:10])
    return mine


def test_an_old_table_becomes_a_new_one(spark, tmp_path):
    mine, table = old_table(tmp_path), str(tmp_path / "new")
    counts = migrated(spark, str(tmp_path / "old"), table)
    assert {name: counts[name] for name in ("usage", "trace", "quarantine")} == {
        "usage": 40,
        "trace": 5,
        "quarantine": 1,
    }
    assert rows_of(spark, table) == mine
    events = read_trace(spark, table).drop("day").orderBy("sequence").collect()
    assert [TraceEvent(**row.asDict()) for row in events] == [event(number) for number in range(1, 6)]
    assert [tuple(row) for row in read_quarantine(spark, table).collect()] == [("x", 1, "why", "hello", 5)]
    assert read_accounts(spark, table)[WRITER] == Account(((1, 40),), (), 45, final=True, alone=True)
    with pytest.raises(BadTable, match="expected a new table, found one with records"):
        migrated(spark, str(tmp_path / "old"), table)
    # The spool is read again, as the new table has no checkpoint, and known.
    write_spool(tmp_path / "spool", mine)
    assert ingest_spool(spark, str(tmp_path / "spool"), table, say=lambda line: None).counts == {"usage duplicates": 40}
    assert rows_of(spark, table) == mine


def test_a_migration_that_was_stopped_is_run_again(spark, tmp_path, monkeypatch):
    mine, table = old_table(tmp_path), str(tmp_path / "new")
    with monkeypatch.context() as patched:
        patched.setattr("kafka_throttle.pipeline.table.migration.rows_of", None)
        with pytest.raises(TypeError):
            migrated(spark, str(tmp_path / "old"), table)
    migrated(spark, str(tmp_path / "old"), table)
    assert rows_of(spark, table) == mine


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("000000000003.json", "{", "000000000003.json is not readable"),
        ("000000000003.json", '{"format": 99}', "expected format 1, got 99"),
        ("000000000004.json", '{"format": 1}', "version 3 is missing"),
    ],
)
def test_an_old_table_that_cannot_be_read_is_refused(spark, tmp_path, name, text, problem):
    old_table(tmp_path)
    (tmp_path / "old" / "_log" / name).write_text(text)
    with pytest.raises(BadTable, match=problem):
        migrated(spark, str(tmp_path / "old"), str(tmp_path / "new"))


def test_a_directory_without_an_old_table_is_refused(spark, tmp_path):
    with pytest.raises(BadTable, match="expected a table of an earlier version, found none"):
        migrated(spark, str(tmp_path / "nothing"), str(tmp_path / "new"))
    assert not Path(tmp_path / "new").exists()
