"""Days are those of UTC, whatever time zone a session of Spark has: a caller's, that of spark-defaults, of --conf."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F

from kafka_throttle.pipeline.jobs.ingest import ingest_spool
from kafka_throttle.pipeline.recommend import demand
from kafka_throttle.pipeline.report.figures import daily
from kafka_throttle.pipeline.spark.day import DAY_MS, day_of, utc_day
from kafka_throttle.pipeline.table.table import read_usage
from tests.pipeline.spools import MONDAY_MS, Fleet, records, write_spool

ZONES = ("UTC", "America/Los_Angeles", "Europe/Berlin", "Asia/Kathmandu", "Pacific/Kiritimati")
SUNDAY_OF_DST_MS = int(datetime(2026, 10, 25, tzinfo=UTC).timestamp() * 1000)
"""Clocks are set back in Europe on this day, a week later in America."""


@pytest.fixture(params=ZONES)
def zone(spark, request):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", before)


def test_a_day_is_that_of_utc(spark, zone):
    hours = [SUNDAY_OF_DST_MS + hour * 3_600_000 + odd for hour in range(0, 9 * 24) for odd in (-1, 0)]
    rows = spark.createDataFrame([(ms,) for ms in [0, *hours]], "ms long").select(
        "ms", utc_day(F.col("ms")).alias("day")
    )
    assert [row for row in rows.collect() if row.day.isoformat() != day_of(row.ms)] == []


def test_table_report_and_recommendation_have_the_same_days(spark, zone, tmp_path):
    """Three windows each around midnight UTC of four days: in every other zone they are of another day."""
    mine = []
    for day in range(4):
        fleet = Fleet(entities=3, per_window=2, begin_ms=MONDAY_MS + day * DAY_MS - 20_000, first_sequence=1 + 12 * day)
        mine += records(fleet, 12)
    (tmp_path / "spool").mkdir()
    write_spool(tmp_path / "spool", mine)
    table = str(tmp_path / "table")
    assert ingest_spool(spark, str(tmp_path / "spool"), table, say=lambda _: None).counts == {
        "usage records": len(mine)
    }
    usage = read_usage(spark, table)
    expected = {day_of(one.begin_ms) for one in mine}
    assert len(expected) == 5
    assert {path.name for path in (tmp_path / "table" / "usage").glob("day=*")} == {f"day={day}" for day in expected}
    for day in expected:
        begin_ms = int(datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() * 1000)
        of_day = [one for one in mine if day_of(one.begin_ms) == day]
        assert read_usage(spark, table, begin_ms, begin_ms + DAY_MS).count() == len(of_day)
    by_day = daily(usage).groupBy("day").agg(F.sum("records").alias("records")).collect()
    assert {str(row.day): row.records for row in by_day} == {
        day: sum(day_of(one.begin_ms) == day for one in mine) for day in expected
    }
    [extent] = demand.extent(usage).collect()
    assert set(extent.weekdays) == {datetime.fromisoformat(day).weekday() for day in expected}
