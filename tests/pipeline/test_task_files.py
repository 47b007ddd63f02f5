"""What a task writes, and what it says of it."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.ingest.task_files import escaped, written
from quotas.records.usage_record import UsageRecord, line_of
from tests.pipeline.spools import DAY_MS, MONDAY_MS, Fleet, records
from tests.pipeline.test_line_columns import LATEST_MS, arriving

FLEET = Fleet(entities=9, per_window=9)


def responses(folder, *batches):
    lines = [arriving([line_of(row).rstrip("\n").encode() for row in batch]) for batch in batches]
    [response] = written(lines, folder, UsageRecord, LATEST_MS)
    rows = response.to_pylist()
    files = {row["folder"]: pq.read_table(folder / row["file"]).to_pylist() for row in rows if row["file"]}
    assert len(files) == len(list(folder.iterdir()))
    return files, [tuple(row.values())[2:] for row in rows if not row["file"]]


def test_rows_are_parted_by_day_and_virtual_cluster_and_keep_their_order(tmp_path):
    mine = [
        replace(row, virtual_cluster=("", "one", "a/b=c")[number % 3], begin_ms=MONDAY_MS - DAY_MS * (number % 2))
        for number, row in enumerate(records(FLEET, 120))
    ]
    files, _ = responses(tmp_path, mine[:70], mine[70:])
    wanted = defaultdict(list)
    for row in mine:
        day = "2026-10-26" if row.begin_ms == MONDAY_MS else "2026-10-25"
        wanted[f"kind=usage/day={day}/virtual_cluster={escaped(row.virtual_cluster)}"].append(row.sequence)
    assert {folder: [row["sequence"] for row in rows] for folder, rows in files.items()} == wanted
    assert len(files) == 6
    found = {row["sequence"]: row for rows in files.values() for row in rows}
    names = [name for name in UsageRecord.__slots__ if name != "virtual_cluster"]
    assert [{name: found[row.sequence][name] for name in names} for row in mine] == [
        {name: getattr(row, name) for name in names} for row in mine
    ]


def test_few_rows_are_kept_in_memory_and_none_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.ingest.task_files._ROWS_AT_ONCE", 16)
    mine = [replace(row, virtual_cluster=f"cluster {row.sequence % 7}") for row in records(FLEET, 200)]
    files, _ = responses(tmp_path, *(mine[at : at + 11] for at in range(0, 200, 11)))
    assert sorted(row["sequence"] for rows in files.values() for row in rows) == list(range(1, 201))
    assert all([row["sequence"] for row in rows] == sorted(row["sequence"] for row in rows) for rows in files.values())
    groups = [pq.ParquetFile(path).num_row_groups for path in Path(tmp_path).iterdir()]
    assert min(groups) > 1


def test_runs_are_told_with_their_holes(tmp_path):
    mine = records(FLEET, 60)
    other = [replace(row, epoch=5) for row in mine[:4]]
    _, runs = responses(tmp_path, [*mine[:20], *mine[30:40]], [*mine[10:12], *other])
    # Lines are numbered from 100 in each of these batches.
    assert sorted(runs) == [
        ("proxy-1", 5, -101, 1, 4, 4),
        ("proxy-1", FLEET.epoch, -99, 1, 20, 20),
        ("proxy-1", FLEET.epoch, -89, 11, 40, 12),
    ]


def test_runs_that_are_too_many_are_not_told(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.ingest.task_files._MOST_RUNS", 5)
    files, runs = responses(tmp_path, records(FLEET, 12)[::-1])
    assert runs == [(None,) * 6]
    assert sum(map(len, files.values())) == 12


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("main", "main"),
        ("", "__HIVE_DEFAULT_PARTITION__"),
        ("ä b/c=%", "ä b%2Fc%3D%25"),
        ("a:b\x7f{}~^", "a%3Ab%7F%7B}~%5E"),
    ],
)
def test_directories_have_the_names_that_spark_gives_them(name, directory):
    assert escaped(name) == directory


def test_a_task_has_not_more_files_open_than_it_may(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.ingest.task_files._ROWS_AT_ONCE", 4)
    monkeypatch.setattr("pipeline.ingest.task_files._MOST_OPEN", 3)
    mine = [replace(row, virtual_cluster=f"cluster-{row.sequence % 11}") for row in records(FLEET, 220)]
    lines = [arriving([line_of(row).rstrip("\n").encode() for row in mine[at : at + 20]]) for at in range(0, 220, 20)]
    opened, parquet_writer = [], pq.ParquetWriter

    def noted(*arguments, **settings):
        opened.append(parquet_writer(*arguments, **settings))
        assert sum(writer.is_open for writer in opened) <= 3
        return opened[-1]

    monkeypatch.setattr(pq, "ParquetWriter", noted)
    [response] = written(lines, tmp_path, UsageRecord, LATEST_MS)
    reported = [(row["folder"], row["file"]) for row in response.to_pylist() if row["file"]]
    assert len(reported) == len(opened) == len(list(tmp_path.iterdir())) > 11
    found = [row["sequence"] for _, file in reported for row in pq.read_table(tmp_path / file).to_pylist()]
    assert sorted(found) == list(range(1, 221))
