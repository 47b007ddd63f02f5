"""Which paths are of this machine, which are at a URI, and which cannot be read. tests/pipeline has a real store."""

import subprocess
import sys
from pathlib import Path

import pytest

from kafka_throttle.common.remote_path import RemotePath, path_of, replace_whole, writable_folder
from tests.support.places import ROOT


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a/b.yaml", "a/b.yaml"),
        ("/a/b.yaml", "/a/b.yaml"),
        ("file:/a/b.yaml", "/a/b.yaml"),
        ("file:///a/b.yaml", "/a/b.yaml"),
        ("a:b/c", "a:b/c"),
    ],
)
def test_a_path_of_this_machine(text, path):
    assert path_of(text) == Path(path)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3a://bucket/a/b.yaml", "s3a://bucket/a/b.yaml"),
        ("s3://bucket/a/", "s3://bucket/a"),
        ("s3://bucket//a//b/", "s3://bucket/a/b"),
        ("gs://bucket", "gs://bucket/"),
        ("abfss://container@account.dfs.core.windows.net/a", "abfss://container@account.dfs.core.windows.net/a"),
        ("hdfs:/a/b", "hdfs:///a/b"),
        ("hdfs:///a/b", "hdfs:///a/b"),
        ("hdfs://node:8020/a/b", "hdfs://node:8020/a/b"),
    ],
)
def test_a_path_at_a_uri(text, shown):
    path = path_of(text)
    assert isinstance(path, RemotePath)
    assert str(path) == shown
    assert path_of(shown) == path


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("s3a:/bucket/a", "expected s3a://BUCKET/PATH, got 's3a:/bucket/a'"),
        ("s3:///a", "expected s3://BUCKET/PATH, got 's3:///a'"),
        ("s3://key:secret@bucket/a", "expected a URI without a password: it is taken from the environment"),
        ("file://host/a", "expected file:///PATH, got 'file://host/a'"),
        ("dbfs:/a", "expected a path of this machine, or one with s3a:, s3:, gs:, abfs:, hdfs:, got 'dbfs:/a'"),
    ],
)
def test_what_cannot_be_reached_is_refused(text, problem):
    with pytest.raises(ValueError) as refused:
        path_of(text)
    assert str(refused.value) == problem


def test_the_parts_of_a_path():
    path = path_of("s3a://bucket/a/plan.json")
    assert (path.name, path.stem, path.suffix) == ("plan.json", "plan", ".json")
    assert str(path.with_name("other")) == "s3a://bucket/a/other"
    assert str(path / "b") == "s3a://bucket/a/plan.json/b"
    assert str(path_of("s3a://bucket") / "b") == "s3a://bucket/b"


def test_a_file_of_this_machine_needs_no_pyarrow(tmp_path):
    code = (
        "import sys; from kafka_throttle.common.remote_path import *\n"
        f"replace_whole(writable_folder({str(tmp_path / 'a')!r}) / 'b', b'c')\n"
        "sys.exit('pyarrow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    assert (tmp_path / "a" / "b").read_bytes() == b"c"


def test_several_processes_put_a_file_at_once(tmp_path):
    code = (
        "import sys; from kafka_throttle.common.remote_path import *\n"
        f"for _ in range(300): put(writable_folder({str(tmp_path)!r}) / 'a', sys.argv[1].encode() * 99999)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, text], cwd=ROOT) for text in "ab"]
    while any(writer.poll() is None for writer in writers):
        if (tmp_path / "a").exists():
            assert (tmp_path / "a").read_text() in ("a" * 99999, "b" * 99999)
    assert [writer.returncode for writer in writers] == [0, 0]
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_a_file_that_cannot_be_put_is_named_and_the_old_one_stays(tmp_path):
    (tmp_path / "a").write_text("old")
    code = (
        "import resource; from kafka_throttle.common.remote_path import *\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))\n"
        f"try: put(path_of({str(tmp_path / 'a')!r}), b'longer')\n"
        "except ValueError as error: print(error, end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == f"{tmp_path}/a: cannot be written: File too large"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_without_pyarrow_a_uri_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)
    with pytest.raises(OSError, match="needs pyarrow, which the extra `pipeline` brings"):
        replace_whole(path_of("s3a://bucket/a"), b"")


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=f"^{tmp_path}/file/a: expected a directory to write to: Not a directory$"):
        writable_folder(f"{tmp_path}/file/a")
