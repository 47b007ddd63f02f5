"""Both kinds of file systems do what a table's log stands on."""

import pytest

from pipeline.table.files import HadoopFiles, LocalFiles, Taken, files_at, folders


@pytest.fixture(params=["local", "hadoop"])
def files(request, spark, tmp_path):
    root = tmp_path / "a table"
    return LocalFiles(root) if request.param == "local" else HadoopFiles(spark, root.as_uri())


def test_a_file_is_put_once_and_whole(files):
    assert files.read("_log/1.json") is None
    assert files.listed("_log") == []
    files.put_new("_log/1.json", b"one\x00\xff")
    with pytest.raises(Taken):
        files.put_new("_log/1.json", b"other")
    assert files.read("_log/1.json") == b"one\x00\xff"
    assert [found.name for found in files.listed("_log") if not found.name.endswith(".crc")] == ["1.json"]


def test_directories_are_moved_measured_and_removed(files):
    files.put_new("work/day=1/virtual_cluster=a b/x.parquet", b"12345")
    files.move("work", "usage/commit=1")
    files.make_durable("usage/commit=1")
    assert list(folders(files, "usage/commit=1", 2)) == [("usage/commit=1/day=1/virtual_cluster=a b", 5)]
    assert [(found.name, found.is_directory) for found in files.listed("usage")] == [("commit=1", True)]
    files.remove("usage")
    files.remove("usage")
    assert files.listed("usage") == []


def test_what_is_not_on_this_machine_takes_spark(tmp_path):
    assert files_at(None, f"file://{tmp_path}").root == f"file://{tmp_path}"
    with pytest.raises(ValueError, match="takes Spark"):
        files_at(None, "hdfs://somewhere/table")
