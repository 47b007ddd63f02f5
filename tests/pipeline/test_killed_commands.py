"""Commands that are killed while they write or remove files of a table: it is whole, and they can be run again."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from kafka_throttle.pipeline.jobs.ingest import ingest_spool
from kafka_throttle.pipeline.table.maintenance import expired, optimized, vacuum
from tests.pipeline.killed import kill, wait_for
from tests.pipeline.spark_cluster import SMALL_JAVA
from tests.pipeline.spools import Fleet, records, write_file
from tests.support.places import ROOT

MINE = records(Fleet(entities=20, per_window=5), 90)
OF_ONE = MINE[0].user
VACUUM = """
import sys
from kafka_throttle.pipeline.spark.session import spark_session
from kafka_throttle.pipeline.table.maintenance import vacuum
vacuum(spark_session(), sys.argv[1], 0)
"""


@pytest.fixture
def table(spark, tmp_path):
    """A table of three files."""
    table = str(tmp_path / "table")
    (tmp_path / "spool").mkdir()
    for number in range(3):
        write_file(tmp_path / "spool", MINE[30 * number : 30 * number + 30], number)
        ingest_spool(spark, str(tmp_path / "spool"), table, say=str)
    return table


def sequences(table):
    return sorted(DeltaTable(f"{table}/usage").to_pyarrow_table(columns=["sequence"])["sequence"].to_pylist())


def files_of(table):
    return set(Path(table).glob("usage/**/*.parquet"))


def killed(arguments, reached):
    """Start a command, and kill it when `reached`."""
    process = subprocess.Popen([sys.executable, *map(str, arguments)], cwd=ROOT, start_new_session=True)
    try:
        wait_for(reached, process)
    finally:
        kill(process, random.Random(7))


def usage(command, table, *options):
    small = ("--memory", "600m", "--conf", f"spark.driver.extraJavaOptions={SMALL_JAVA}")
    return ["-m", "proxy", "usage", command, "--table", table, *options, *small]


@pytest.mark.nightly
@pytest.mark.spark
def test_a_compact_that_is_killed_while_it_merges_has_changed_nothing(spark, table):
    before = files_of(table)
    killed(usage("compact", table), lambda: files_of(table) - before)
    assert sequences(table) == [row.sequence for row in MINE]
    optimized(spark, table)
    assert len(DeltaTable(f"{table}/usage").file_uris()) == 1
    assert sequences(table) == [row.sequence for row in MINE]


@pytest.mark.nightly
@pytest.mark.spark
def test_a_compact_that_is_killed_while_it_removes_files_has_removed_none_of_the_tables(spark, table):
    optimized(spark, table)
    before = files_of(table)
    killed(["-c", VACUUM, table], lambda: files_of(table) < before)
    assert sequences(table) == [row.sequence for row in MINE]
    vacuum(spark, table, 0)
    assert len(files_of(table)) == 1
    assert sequences(table) == [row.sequence for row in MINE]


@pytest.mark.nightly
@pytest.mark.spark
def test_an_expire_that_is_killed_has_deleted_all_or_nothing(spark, table):
    before = files_of(table)
    killed(usage("expire", table, "--before", "2999-01-01", "--user", OF_ONE), lambda: files_of(table) - before)
    all_of_them, others = [
        [row.sequence for row in rows] for rows in (MINE, [row for row in MINE if row.user != OF_ONE])
    ]
    assert sequences(table) in (all_of_them, others)
    expired(spark, table, "2999-01-01", OF_ONE)
    assert sequences(table) == others
