"""A damaged file of a table is named, with what to do."""

import pytest

from pipeline.spark.unreadable import problem_of_file


@pytest.mark.parametrize(
    ("folder", "what"),
    [("usage/commit=1", "it is damaged, or gone"), ("_summaries/1", "remove {}/_summaries, which is made again")],
)
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_file_that_spark_cannot_read_is_named(spark, tmp_path, folder, what, is_cut):
    spark.range(5_000).coalesce(1).write.parquet(str(tmp_path / folder))
    [file] = (tmp_path / folder).glob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:-30] if is_cut else whole[:40] + bytes([whole[40] ^ 255]) + whole[41:])
    with pytest.raises(Exception) as caught:
        spark.read.schema("id bigint").parquet(str(tmp_path / folder)).collect()
    problem = problem_of_file(caught.value)
    assert problem.startswith(f"file://{file} cannot be read: ")
    assert problem.endswith(what.format(f"file://{tmp_path}"))
    assert "\n" not in problem


def test_another_error_is_none_of_a_file():
    assert not problem_of_file(ValueError("expected a number"))
