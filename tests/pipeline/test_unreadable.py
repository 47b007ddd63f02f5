"""A damaged file of a table is named, with what to do."""

import pytest

from kafka_throttle.pipeline.spark.unreadable import problem_of, problem_of_file
from kafka_throttle.pipeline.table.table import make_tables, read_usage


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_file_that_spark_cannot_read_is_named(spark, tmp_path, is_cut):
    folder = tmp_path / "usage/day=2026-10-26"
    spark.range(5_000).coalesce(1).write.parquet(str(folder))
    [file] = folder.glob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:-30] if is_cut else whole[:40] + bytes([whole[40] ^ 255]) + whole[41:])
    with pytest.raises(Exception) as caught:
        spark.read.schema("id bigint").parquet(str(folder)).collect()
    problem = problem_of_file(caught.value)
    assert problem.startswith(f"file://{file} cannot be read: ")
    assert problem.endswith("; it is damaged, or gone")
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("s3a://bucket/table", "Spark lacks the jars of this file system (org.apache.hadoop.fs.s3a.S3AFileSystem): "),
        ("s3a:/bucket/table", "Spark lacks the jars of this file system (org.apache.hadoop.fs.s3a.S3AFileSystem): "),
        ("nothing-like-it:/table", "Spark knows no file system for nothing-like-it:"),
    ],
)
def test_a_file_system_that_spark_does_not_have_is_named(spark, table, problem):
    for use in (read_usage, make_tables):
        with pytest.raises(Exception) as caught:
            use(spark, table)
        assert problem_of(caught.value).startswith(problem)
        assert "\n" not in problem_of(caught.value)


def test_another_error_is_none_of_a_file():
    assert not problem_of(ValueError("expected a number"))
