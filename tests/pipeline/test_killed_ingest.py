"""A real ingest that is killed with its Spark, whatever it is doing, and a table that has each record once in the end.

By hand with as many kills at random moments as one likes:

    KILLS=50 SEED=1 python -m pytest tests/pipeline/test_killed_ingest.py -s
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from kafka_throttle.pipeline.table.intervals import union
from kafka_throttle.quotas.records.usage_record import UsageRecord, columns
from tests.pipeline.killed import kill, wait_for
from tests.pipeline.spark_cluster import SMALL_JAVA
from tests.pipeline.spools import Fleet, event, records, write_file
from tests.pipeline.stopped_ingest import STEPS, TABLES
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S

FLEET = Fleet(entities=50, per_window=20, virtual_clusters=("one", "two"))
WRITING = "writing"
RANDOM = "random"
KILLS = int(os.environ.get("KILLS", "0"))
MOMENTS = (WRITING, *(STEPS if KILLS else ("after-usage", "before-numbers", "after-numbers")), *[RANDOM] * KILLS)
"""Each start of Spark takes some seconds."""
PER_FILE = 500
FILES_A_ROUND = 3


class Spool:
    """Files of one proxy, each with one line that is none; they come a few at a time."""

    def __init__(self, folder, rounds):
        self.folder, self.aside = folder, folder.with_name("aside")
        folder.mkdir()
        self.aside.mkdir()
        self.records = records(FLEET, (rounds + 1) * FILES_A_ROUND * PER_FILE)
        self.files = 0
        self.events = 0

    def grow(self):
        for _ in range(FILES_A_ROUND):
            self._write(self.records[self.files * PER_FILE : (self.files + 1) * PER_FILE])
        self._write_trace()

    def _write_trace(self):
        batch = [event(number, epoch=FLEET.epoch) for number in range(self.events + 1, self.events + 11)]
        write_file(self.folder, batch, self.events)
        self.events += 10

    def repeat(self):
        self._write(self.records[100:700])

    def _write(self, batch):
        self.files += 1
        aside = write_file(self.aside, batch, self.files)
        with aside.open("a") as file:
            file.write("rubbish\n")
        aside.rename(self.folder / aside.name)


def start(spool, table, log, *, step=None):
    module = ["proxy"] if step is None else ["tests.pipeline.stopped_ingest", step, str(spool.folder.parent / step)]
    arguments = ["usage", "ingest", "--from", spool.folder, "--table", table, "--memory", "600m", "--conf"]
    arguments.append(f"spark.driver.extraJavaOptions={SMALL_JAVA}")
    return subprocess.Popen(
        [sys.executable, "-m", *module, *arguments], cwd=ROOT, stdout=log, stderr=log, start_new_session=True
    )


@pytest.mark.spark
@pytest.mark.nightly
def test_an_ingest_that_is_killed_again_and_again_takes_each_record_once(tmp_path):
    chance = random.Random(os.environ.get("SEED", "7"))
    spool, table = Spool(tmp_path / "spool", len(MOMENTS) + 1), tmp_path / "table"
    with (tmp_path / "log").open("w") as log:
        spool.grow()
        writing_s = _run(spool, table, log, chance)
        for moment in MOMENTS:
            spool.grow()
            _run_and_kill(moment, spool, table, log, chance, writing_s)
        spool.grow()
        spool.repeat()
        _run(spool, table, log, chance)
    assert "no record is missing" in (tmp_path / "log").read_text()
    _assert_whole(spool, table)


def _run(spool, table, log, chance):
    """An ingest that nobody kills; how many seconds there were from its first file to its end."""
    files, process = _files(table), start(spool, table, log)
    try:
        _wait_for_file(table, files, process)
        began = time.monotonic()
        assert process.wait(4 * TIMEOUT_S) == 0, Path(log.name).read_text()[-2_000:]
    finally:
        kill(process, chance)
    return time.monotonic() - began


def _files(table):
    return set(table.rglob("*.parquet"))


def _wait_for_file(table, files, process):
    wait_for(lambda: _files(table) - files, process, 0.02)


def _run_and_kill(moment, spool, table, log, chance, writing_s):
    before, files = _versions(table), _files(table)
    began, process = time.monotonic(), start(spool, table, log, step=moment if moment in STEPS else None)
    try:
        if moment in STEPS:
            wait_for((spool.folder.parent / moment).exists, process)
        else:
            _wait_for_file(table, files, process)
            time.sleep(writing_s * chance.random() if moment == RANDOM else 0)
    finally:
        kill(process, chance, "java" if moment == RANDOM and chance.random() < 0.3 else None)
    new = {name: version - before[name] for name, version in _versions(table).items()}
    print(f"{moment}: killed after {time.monotonic() - began:.1f} s, commits: {new}")
    if moment in STEPS:
        when, _, name = moment.partition("-")
        # Making a new table is a commit, too. What a killed run has committed before is not committed again.
        made = {table: new[table] - (before[table] < 0) for table in TABLES}
        reached = TABLES.index(name) + (when == "after")
        assert all(made[table] in (0, 1) for table in TABLES[:reached]), made
        assert not any(made[table] for table in TABLES[reached:]), made


def _versions(table):
    """The last version of each of the Delta tables, -1 if there is none."""
    return {
        name: max((int(path.stem) for path in table.glob(f"{name}/_delta_log/*.json")), default=-1) for name in TABLES
    }


def _assert_whole(spool, table):
    numbers = [row for row in _rows(table, "numbers") if row["what"] == "present"]
    for kind, count in (("usage", len(spool.records)), ("trace", spool.events)):
        assert union((row["first"], row["last"]) for row in numbers if row["stream"] == kind) == ((1, count),)
    rows = sorted(_rows(table, "usage"), key=lambda row: row["sequence"])
    assert [UsageRecord(**{name: row[name] for name in columns(UsageRecord)}) for row in rows] == spool.records
    assert sorted(row["sequence"] for row in _rows(table, "trace")) == list(range(1, spool.events + 1))
    rejects = [(Path(row["file"]).name, row["line"], row["text"]) for row in _rows(table, "quarantine")]
    assert len(rejects) == len(set(rejects)) == spool.files
    assert {text for _, _, text in rejects} == {"rubbish"}


def _rows(table, name):
    return DeltaTable(table / name).to_pyarrow_table().to_pylist()
