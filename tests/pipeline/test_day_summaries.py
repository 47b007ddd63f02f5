"""Summaries of days are kept, and tell what the records themselves tell."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.jobs import compact
from pipeline.jobs.ingest import ingest_spool
from pipeline.simulate.simulation import BUCKET_MS, summarised
from pipeline.table.compaction import compacted
from pipeline.table.day_summaries import forget_stale, keep_summaries, summary_of
from pipeline.table.files import LocalFiles, files_at
from pipeline.table.table import read_usage, state_of
from pipeline.table.table_log import read_state
from tests.pipeline.spools import DAY_MS, MONDAY_MS, Fleet, records, write_file

STEP_MS = 1_200_000
RECORDS = records(Fleet(entities=3, per_window=1), 400)
NEVER, EVER = 0, 2**60


class Days:
    """A table with a record each 20 minutes of some days."""

    def __init__(self, spark, folder):
        self.spark, self.spool, self.table = spark, folder / "spool", str(folder / "table")
        self.files = files_at(None, self.table)
        self.spool.mkdir(exist_ok=True)
        self.sent = 0

    def ingest(self, day, number):
        """So many records of a day more, from its beginning on."""
        mine = [
            replace(row, begin_ms=(begin_ms := MONDAY_MS + day * DAY_MS + i * STEP_MS), end_ms=begin_ms + 10_000)
            for i, row in enumerate(RECORDS[self.sent : self.sent + number])
        ]
        self.sent += number
        write_file(self.spool, mine, self.sent)
        ingest_spool(self.spark, str(self.spool), self.table, say=lambda line: None)

    def kept(self, **times):
        return rows_of(summary_of(self.spark, self.table, self.state, **times))

    def read(self, **times):
        return rows_of(summarised(read_usage(self.spark, self.table, **times)))

    @property
    def state(self):
        return state_of(None, self.table)

    @property
    def stored_days(self):
        return sorted(path.name for path in Path(self.table).glob("_summaries/*/day=*"))

    @property
    def names(self):
        return sorted(found.name for found in self.files.listed("_summaries"))


def rows_of(summary):
    return sorted((tuple(row.asDict().items()) for row in summary.collect()), key=repr)


@pytest.fixture(scope="module")
def three_days(spark, tmp_path_factory):
    days = Days(spark, tmp_path_factory.mktemp("days"))
    for day in range(3):
        days.ingest(day, 72)
    return days


@pytest.fixture
def days(three_days, tmp_path):
    """A copy."""
    shutil.copytree(three_days.spool.parent, tmp_path / "copy")
    days = Days(three_days.spark, tmp_path / "copy")
    days.sent = three_days.sent
    return days


@pytest.fixture
def session_setting(spark):
    """Sets one of Spark's settings, for this test."""
    before = {}

    def change(name, value):
        before[name] = spark.conf.get(name)
        spark.conf.set(name, value)

    yield change
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.parametrize(
    "times",
    [
        {},
        {"since_ms": MONDAY_MS + DAY_MS, "until_ms": MONDAY_MS + 2 * DAY_MS},
        {"since_ms": MONDAY_MS + BUCKET_MS + 1, "until_ms": MONDAY_MS + 2 * DAY_MS + 3 * BUCKET_MS - 1},
        {"since_ms": MONDAY_MS + 2 * BUCKET_MS, "until_ms": MONDAY_MS + 5 * BUCKET_MS},
        {"since_ms": MONDAY_MS + STEP_MS, "until_ms": MONDAY_MS + 2 * STEP_MS},
        {"until_ms": MONDAY_MS + DAY_MS + DAY_MS // 2 + 1},
        {"since_ms": MONDAY_MS + 7 * DAY_MS},
        {"until_ms": MONDAY_MS - DAY_MS},
    ],
)
def test_a_summary_that_was_kept_is_the_one_of_the_records(days, times):
    reported = days.read(**times)
    assert days.kept(**times) == reported, "made"
    assert days.kept(**times) == reported, "kept"
    days.kept()
    assert days.kept(**times) == reported, "cut from what was kept of whole days"


def test_what_was_summarised_is_not_read_again(days):
    reported = days.kept()
    state = days.state
    for file in Path(days.table).glob("usage/*/*/*/*.parquet"):
        file.unlink()
    assert rows_of(summary_of(days.spark, days.table, state)) == reported
    assert len(reported) > 36, "three days of twelve buckets, and several clients"


def test_days_that_are_over_are_summarised_before_anybody_asks(days):
    def keep(before_ms):
        return keep_summaries(days.spark, days.files, days.state, before_ms)

    assert keep(MONDAY_MS + 2 * DAY_MS - 1) == 1
    assert days.stored_days == ["day=2026-10-26"]
    assert keep(MONDAY_MS + 2 * DAY_MS) == 1, "of two that are over, one was there"
    names = days.names
    assert keep(MONDAY_MS + 2 * DAY_MS) == 0
    assert days.names == names
    assert days.kept() == days.read()


def test_compact_summarises_what_it_has_merged(days, capsys):
    days.ingest(0, 5)
    assert compact.main(days.table, at_least=2) == 0
    assert capsys.readouterr().out == "2 small parts merged\n3 days summarised\n"
    names = days.names
    assert days.kept() == days.read()
    assert days.names == names
    assert compact.main(days.table, at_least=2) == 0
    assert capsys.readouterr().out == "0 small parts merged\n0 days summarised\n"


def test_of_a_day_of_which_little_is_asked_nothing_is_kept(days):
    days.kept(until_ms=MONDAY_MS + DAY_MS // 2 - 1)
    assert days.stored_days == []
    days.kept(until_ms=MONDAY_MS + DAY_MS // 2)
    assert days.stored_days == ["day=2026-10-26"]


def test_only_a_day_that_has_changed_is_summarised_anew(days):
    days.kept()
    assert len(days.stored_days) == 3
    days.ingest(1, 10)
    assert days.kept() == days.read()
    assert days.stored_days == ["day=2026-10-26", "day=2026-10-27", "day=2026-10-27", "day=2026-10-28"]


def test_what_has_no_use_any_more_is_removed_when_nobody_reads_it(days):
    reported = days.kept()
    reader = summary_of(days.spark, days.table, days.state)
    for day in range(3):
        days.ingest(day, 5)
    assert len(days.names) == 3, "marked by the ingest itself"
    forget_stale(days.files, days.state, NEVER, NEVER)
    assert rows_of(reader) == reported
    forget_stale(days.files, days.state, EVER, EVER)
    assert days.names == []
    assert days.kept() == days.read()
    [manifest] = [name for name in days.names if name.endswith(".json")]
    days.files.put_new("_summaries/notes.txt", b"somebody else's")
    days.files.put_new(f"_summaries/{manifest[:-5]}.stale", b"marked by who knew an older state")
    forget_stale(days.files, days.state, EVER, EVER)
    assert days.names == [manifest[:-5], manifest, "notes.txt"], "in use, and not marked any more"


def test_merged_parts_are_summarised_anew(days):
    days.ingest(0, 5)
    days.kept()
    assert compacted(days.spark, days.files, at_least=2) == 2
    assert days.kept() == days.read()


def test_what_somebody_left_who_was_killed_counts_for_nothing(days):
    days.kept()
    [manifest] = Path(days.table).glob("_summaries/*.json")
    manifest.unlink()
    reported = days.kept()
    assert reported == days.read()
    assert len(days.stored_days) == 6
    forget_stale(days.files, days.state, EVER, NEVER)
    assert len(days.stored_days) == 6, "it may be under way"
    forget_stale(days.files, days.state, EVER, EVER)
    assert len(days.stored_days) == 3
    assert days.kept() == reported


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: json.dumps(json.loads(text) | {"of": [0, 7_200_000, 600_000]}),
        lambda text: text[:-9],
        lambda text: "",
        lambda text: "[]",
        lambda text: json.dumps(json.loads(text) | {"days": 7}),
        lambda text: json.dumps(json.loads(text) | {"days": {"2026-10-26": None}}),
    ],
)
def test_a_manifest_of_another_version_or_that_is_none_counts_for_nothing(days, spoil):
    days.kept()
    [manifest] = Path(days.table).glob("_summaries/*.json")
    manifest.write_text(spoil(manifest.read_text()))
    assert days.kept() == days.read()
    assert len(days.stored_days) == 6


@pytest.mark.parametrize("remove", [shutil.rmtree, lambda folder: next(folder.glob("*.parquet")).unlink()])
def test_a_summary_of_which_somebody_has_removed_something_is_made_anew(days, remove):
    reported = days.kept()
    [monday] = Path(days.table).glob("_summaries/*/day=2026-10-26")
    remove(monday)
    assert days.kept() == reported
    assert days.stored_days.count("day=2026-10-26") == 2 - (remove is shutil.rmtree)


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_days_are_those_of_utc_whatever_the_sessions_time_zone(days, session_setting, zone):
    reported = days.read()
    session_setting("spark.sql.session.timeZone", zone)
    assert days.kept() == reported, "made"
    assert days.kept() == reported, "kept"
    assert days.stored_days == ["day=2026-10-26", "day=2026-10-27", "day=2026-10-28"]


def test_a_table_where_nothing_can_be_written_is_read_each_time(days, capsys):
    (Path(days.table) / "_summaries").symlink_to("/proc/nothing")
    assert days.kept() == days.read()
    assert "/_summaries: summaries cannot be kept, so all is read again next time: [Errno " in capsys.readouterr().err


@pytest.mark.parametrize("fails", ["listed", "read", "put_new"])
def test_summaries_that_belong_to_somebody_else_harm_neither_simulations_nor_ingests(days, monkeypatch, capsys, fails):
    reported = days.kept()
    do = getattr(LocalFiles, fails)

    def refuse(self, path, *arguments):
        if path.startswith("_summaries"):
            raise PermissionError(13, "Permission denied", path)
        return do(self, path, *arguments)

    monkeypatch.setattr(LocalFiles, fails, refuse)
    assert days.kept() == reported
    for day in range(3):
        days.ingest(day, 5)
    said = capsys.readouterr().err
    assert "/_summaries: summaries that count no more cannot be removed: [Errno 13] Permission denied" in said
    assert read_state(days.files).version == 6


def test_a_summary_that_spark_fails_to_write_is_told_with_its_cause(days, session_setting, capsys):
    session_setting("spark.sql.parquet.compression.codec", "brotli")
    assert days.kept() == days.read()
    said = capsys.readouterr().err
    assert "summaries cannot be kept" in said
    assert "BrotliCodec" in said, "the cause of it, and not that a job failed"
    assert days.names == []
