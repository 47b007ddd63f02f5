"""Summaries of days are kept, and tell what the records themselves tell."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from kafka_throttle.pipeline.jobs import compact
from kafka_throttle.pipeline.jobs.ingest import ingest_spool
from kafka_throttle.pipeline.simulate.simulation import BUCKET_MS, summarised
from kafka_throttle.pipeline.table import summaries
from kafka_throttle.pipeline.table.maintenance import expired, optimized, vacuum
from kafka_throttle.pipeline.table.summaries import keep_summaries, summary_of
from kafka_throttle.pipeline.table.table import read_usage, stored, version_of
from tests.pipeline.spools import DAY_MS, MONDAY_MS, Fleet, records, write_file

STEP_MS = 1_200_000
RECORDS = records(Fleet(entities=3, per_window=1), 400)
MONDAY, TUESDAY, WEDNESDAY = "2026-10-26", "2026-10-27", "2026-10-28"


class Days:
    """A table with a record each 20 minutes of some days."""

    def __init__(self, spark, folder):
        self.spark, self.spool, self.table = spark, folder / "spool", str(folder / "table")
        self.folder = Path(self.table) / "usage_2h"
        self.spool.mkdir(exist_ok=True)
        self.sent = 0

    def ingest(self, *numbers):
        """So many records more of each day, from its beginning on."""
        for day, number in enumerate(numbers):
            if number:
                begins_ms = [MONDAY_MS + day * DAY_MS + i * STEP_MS for i in range(number)]
                mine = [
                    replace(row, begin_ms=begin_ms, end_ms=begin_ms + 10_000)
                    for begin_ms, row in zip(begins_ms, RECORDS[self.sent : self.sent + number], strict=True)
                ]
                self.sent += number
                write_file(self.spool, mine, self.sent)
        ingest_spool(self.spark, str(self.spool), self.table, say=lambda line: None)

    def kept(self, spark=None, **times):
        return rows_of(summary_of(spark or self.spark, self.table, self.version, **times))

    def read(self, **times):
        return rows_of(summarised(read_usage(self.spark, self.table, **times)))

    @property
    def version(self):
        return version_of(self.spark, self.table)

    @property
    def stored_days(self):
        """By day, of what its summary is made; each day has one summary."""
        if not (self.folder / "_delta_log").exists():
            return {}
        rows = stored(self.spark, self.table, "usage_2h").select("day", "made_of").distinct().collect()
        days = {str(row["day"]): row["made_of"] for row in rows}
        assert len(days) == len(rows)
        return days

    @property
    def commits(self):
        return version_of(self.spark, self.table, "usage_2h")


def rows_of(summary):
    return sorted((tuple(row.asDict().items()) for row in summary.collect()), key=repr)


@pytest.fixture(scope="module")
def three_days(spark, tmp_path_factory):
    days = Days(spark, tmp_path_factory.mktemp("days"))
    days.ingest(72, 72, 72)
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
    for file in Path(days.table).glob("usage/day=*/*.parquet"):
        file.unlink()
    assert days.kept() == reported
    assert len(reported) > 36, "three days of twelve buckets, and several clients"
    assert days.commits == 1, "made, and filled once"


def test_days_that_are_over_are_summarised_before_anybody_asks(days):
    def keep(before_ms):
        return keep_summaries(days.spark, days.table, days.version, before_ms)

    assert keep(MONDAY_MS + 2 * DAY_MS - 1) == 1
    assert days.stored_days.keys() == {MONDAY}
    assert keep(MONDAY_MS + 2 * DAY_MS) == 1, "of two that are over, one was there"
    commits = days.commits
    assert keep(MONDAY_MS + 2 * DAY_MS) == 0
    assert days.commits == commits
    assert days.kept() == days.read()


def test_compact_summarises_what_it_has_merged(days, capsys):
    days.ingest(5)
    assert compact.main(days.table) == 0
    removed = "files removed that have not been part of the table for 168 h\n"
    assert re.fullmatch(rf"\d+ small files merged\n{removed}3 days summarised\n", capsys.readouterr().out)
    commits = days.commits
    assert days.kept() == days.read()
    assert days.commits == commits
    assert compact.main(days.table) == 0
    assert capsys.readouterr().out == f"0 small files merged\n{removed}0 days summarised\n"


def test_of_a_day_of_which_little_is_asked_nothing_is_kept(days):
    days.kept(until_ms=MONDAY_MS + DAY_MS // 2 - 1)
    assert days.stored_days == {}
    days.kept(until_ms=MONDAY_MS + DAY_MS // 2)
    assert days.stored_days.keys() == {MONDAY}


def test_only_a_day_that_has_changed_is_summarised_anew(days):
    days.kept()
    before, version = days.stored_days, days.version
    reported = days.read()
    days.ingest(0, 10)
    assert days.kept() == days.read() != reported
    after = days.stored_days
    assert {day for day in after if after[day] != before[day]} == {TUESDAY}
    # As it was before.
    assert rows_of(summary_of(days.spark, days.table, version)) == reported


def test_days_that_were_merged_are_summarised_anew(days):
    days.ingest(5)
    days.kept()
    before = days.stored_days
    assert optimized(days.spark, days.table) > 1
    assert days.kept() == days.read()
    assert days.stored_days[MONDAY] != before[MONDAY]


def test_of_records_that_are_deleted_no_summary_is_left(days):
    days.kept()
    before = days.stored_days
    user = RECORDS[0].user
    assert expired(days.spark, days.table, TUESDAY, user)["usage"] > 0
    left = days.read()
    assert user not in {dict(row)["user"] for row in left if dict(row)["bucket"] < (MONDAY_MS + DAY_MS) // BUCKET_MS}
    assert days.kept() == left
    after = days.stored_days
    assert {day for day in after if after[day] != before[day]} == {MONDAY}
    expired(days.spark, days.table, WEDNESDAY)
    assert days.kept() == days.read()
    keep_summaries(days.spark, days.table, days.version, MONDAY_MS)
    assert days.stored_days.keys() == {WEDNESDAY}
    assert days.kept() == days.read()


def test_what_somebody_left_who_was_killed_counts_for_nothing(days, monkeypatch):
    (days.folder / "_delta_log").mkdir(parents=True)
    assert days.kept() == days.read(), "before the first commit"
    [monday] = (days.folder / f"day={MONDAY}").glob("*.parquet")
    shutil.copy(monday, monday.with_name("part-00007-of-who-was-killed.snappy.parquet"))
    assert days.kept() == days.read(), "before it was committed"
    shutil.rmtree(days.folder)
    with monkeypatch.context() as patched:
        patched.setattr("pyspark.sql.classic.dataframe.DataFrame.repartition", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            days.kept()
    assert days.stored_days == {}
    assert days.kept() == days.read(), "when it had made the table only"
    assert len(days.stored_days) == 3


@pytest.mark.parametrize("name", ["VERSION", "LATE_MS"])
def test_a_summary_of_another_version_counts_for_nothing(days, monkeypatch, name):
    with monkeypatch.context() as patched:
        patched.setattr(summaries, name, 2 * getattr(summaries, name))
        days.kept()
    before = days.stored_days
    assert days.kept() == days.read()
    after = days.stored_days
    assert len(after) == 3
    assert [day for day in after if after[day] == before[day]] == []


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_days_are_those_of_utc_whatever_the_sessions_time_zone(days, session_setting, zone):
    reported = days.read()
    session_setting("spark.sql.session.timeZone", zone)
    assert days.kept() == reported, "made"
    assert days.kept() == reported, "kept"
    assert days.stored_days.keys() == {MONDAY, TUESDAY, WEDNESDAY}


@pytest.mark.parametrize("spoil", [lambda path: path.symlink_to("/proc/nothing"), lambda path: path.touch()])
def test_a_table_where_nothing_can_be_written_is_read_each_time(days, capsys, spoil):
    spoil(days.folder)
    for _ in range(2):
        assert days.kept() == days.read()
        said = capsys.readouterr().err
        assert "/usage_2h: summaries cannot be kept, so all is read again next time: " in said
    assert keep_summaries(days.spark, days.table, days.version, MONDAY_MS + DAY_MS) == 0


def test_a_summary_that_spark_fails_to_write_is_told_with_its_cause(days, session_setting, capsys):
    session_setting("spark.sql.parquet.compression.codec", "brotli")
    assert days.kept() == days.read()
    said = capsys.readouterr().err
    assert "summaries cannot be kept" in said
    assert "BrotliCodec" in said, "the cause of it, and not that a job failed"
    assert days.stored_days == {}


def test_two_that_summarise_at_one_moment_both_tell_what_the_records_tell(days):
    reported = days.read()
    with ThreadPoolExecutor(2) as both:
        found = list(both.map(lambda _: days.kept(days.spark.newSession()), range(2)))
    assert found == [reported, reported]
    assert days.kept() == reported
    assert len(days.stored_days) == 3


def test_who_reads_a_summary_reads_the_same_while_others_put_a_new_one_in_its_place(days, monkeypatch):
    version, reported = days.version, days.kept()
    find = summaries._kept

    def slowly(*arguments):
        found = find(*arguments)
        monkeypatch.setattr(summaries, "_kept", find)
        days.ingest(3, 3, 3)
        assert days.kept() == days.read() != reported
        return found

    monkeypatch.setattr(summaries, "_kept", slowly)
    summary = summary_of(days.spark, days.table, version)
    assert rows_of(summary) == reported
    optimized(days.spark, days.table)
    assert days.kept() == days.read()
    assert rows_of(summary) == reported


def test_old_summaries_are_removed_with_other_old_files(days):
    days.kept()
    days.ingest(3)
    days.kept()
    assert len(list(days.folder.glob(f"day={MONDAY}/*.parquet"))) == 2
    vacuum(days.spark, days.table, 0)
    assert len(list(days.folder.glob(f"day={MONDAY}/*.parquet"))) == 1
    assert days.kept() == days.read()
