"""Which paths are of this machine, which are at a URI, and which cannot be read. tests/pipeline has a real store."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from common.remote_path import RemotePath, path_of, replace_whole, writable_folder


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
        "import sys; from common.remote_path import *\n"
        f"replace_whole(writable_folder({str(tmp_path / 'a')!r}) / 'b', b'c')\n"
        "sys.exit('pyarrow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
    assert (tmp_path / "a" / "b").read_bytes() == b"c"


@pytest.mark.parametrize(("modes", "expected"), [((), 0o600), ((0o666,), 0o644)])
def test_only_the_owner_reads_a_file_unless_more_is_asked(tmp_path, modes, expected):
    umask = os.umask(0o022)
    try:
        replace_whole(tmp_path / "a", b"", *modes)
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == expected


def test_without_pyarrow_a_uri_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)
    with pytest.raises(OSError, match="needs pyarrow, which the extra `pipeline` brings"):
        replace_whole(path_of("s3a://bucket/a"), b"")


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=f"^{tmp_path}/file/a: expected a directory to write to: Not a directory$"):
        writable_folder(f"{tmp_path}/file/a")
