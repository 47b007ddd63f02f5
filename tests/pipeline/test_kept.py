"""What a job reads more than once."""

import shutil

import pytest
from pyspark.sql import DataFrame

from kafka_throttle.pipeline.spark import kept as kept_module
from kafka_throttle.pipeline.spark.kept import Kept

ROWS = 1_000


@pytest.fixture
def folder(spark, tmp_path):
    into = tmp_path / "numbers"
    spark.range(ROWS).write.parquet(str(into))
    return into


def numbers(spark, folder) -> DataFrame:
    return spark.read.parquet(str(folder)).where("id % 2 = 0")


def read_from(frame: DataFrame) -> bool:
    """Whether a plan of it goes back to files."""
    return "FileScan" in frame.select("id")._jdf.queryExecution().toString()


def test_what_is_made_on_one_machine_is_neither_read_nor_planned_again(spark, folder):
    with Kept() as kept:
        made = kept.made(numbers(spark, folder))
        shutil.rmtree(folder)
        assert not read_from(made)
        assert made.count() == made.union(made).distinct().count() == ROWS / 2


def test_what_is_made_on_a_cluster_can_be_made_again(spark, folder, monkeypatch):
    monkeypatch.setattr(kept_module, "on_one_machine", lambda spark: False)
    with Kept() as kept:
        made = kept.made(numbers(spark, folder))
        assert made.count() == ROWS / 2
        assert read_from(made)
        assert made.storageLevel.useMemory
    assert not made.storageLevel.useMemory


def test_what_is_counted_is_sent_to_where_the_rows_are_if_it_is_small(spark, folder, monkeypatch):
    with Kept() as kept:
        assert "broadcast" in kept.counted(numbers(spark, folder))._jdf.queryExecution().logical().toString()
        monkeypatch.setattr(kept_module, "FEW", ROWS / 2 - 1)
        assert "broadcast" not in kept.counted(numbers(spark, folder))._jdf.queryExecution().logical().toString()


def test_a_kept_frame_is_forgotten_behind_the_block(spark, folder):
    with Kept() as kept:
        frame = kept.frame(numbers(spark, folder))
        assert frame.storageLevel.useMemory
        assert frame.storageLevel.useDisk
    assert not frame.storageLevel.useDisk
