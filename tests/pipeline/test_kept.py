"""What a job reads more than once."""

import shutil

import pytest
from pyspark.sql import DataFrame

from kafka_throttle.pipeline.spark.kept import Kept

ROWS = 1_000


@pytest.fixture
def folder(spark, tmp_path):
    into = tmp_path / "numbers"
    spark.range(ROWS).write.parquet(str(into))
    return into


def numbers(spark, folder) -> DataFrame:
    return spark.read.parquet(str(folder)).where("id % 2 = 0")


def test_what_is_kept_is_read_once(spark, folder):
    with Kept() as kept:
        frame = kept.frame(numbers(spark, folder))
        assert frame.count() == ROWS / 2
        shutil.rmtree(folder)
        assert frame.union(frame).distinct().count() == ROWS / 2


def test_a_small_frame_that_is_counted_is_sent_to_where_the_rows_are(spark):
    many = spark.range(10**7)
    with Kept() as kept:
        frame = many.where("id % 1000000 = 0")
        assert "BroadcastHashJoin" not in plan_of(many.join(frame, "id"))
        assert "BroadcastHashJoin" in plan_of(many.join(kept.counted(frame), "id"))


def plan_of(frame: DataFrame) -> str:
    return frame._jdf.queryExecution().sparkPlan().toString()


def test_a_kept_frame_is_forgotten_behind_the_block(spark, folder):
    with Kept() as kept:
        frame = kept.frame(numbers(spark, folder))
        assert frame.storageLevel.useMemory
        assert frame.storageLevel.useDisk
    assert not frame.storageLevel.useDisk
