"""Whatever step of the disk fails, a file is the old one or the new one, and its writer knows which."""

import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_throttle.common import atomic_file
from kafka_throttle.common.atomic_file import is_at, obstacle, publish, sync, sync_directory, write_whole
from tests.support.places import ROOT

OLD, NEW = b"what was there", b"what is to be there"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    path.write_bytes(OLD)
    return path


class Failing:
    """One function of `os` fails, of files or of directories; afterwards what it does is done or not."""

    def __init__(self, monkeypatch, name, error, *, of_directories=False, is_done=False):
        self.calls = 0
        self._real = getattr(os, name)
        self._error = error
        self._of_directories = of_directories
        self._is_done = is_done
        monkeypatch.setattr(os, name, self)

    def __call__(self, what, *args, **options):
        is_directory = isinstance(what, int) and stat.S_ISDIR(os.fstat(what).st_mode)
        is_directory |= bool(args) and isinstance(args[0], int) and bool(args[0] & os.O_DIRECTORY)
        if is_directory != self._of_directories:
            return self._real(what, *args, **options)
        self.calls += 1
        if self._is_done:
            self._real(what, *args, **options)
        raise OSError(self._error, os.strerror(self._error))


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("open", errno.EROFS),
        ("fdopen", errno.ENOMEM),
        ("fsync", errno.EIO),
        ("fstat", errno.EIO),
        ("replace", errno.EACCES),
    ],
)
def test_before_the_renaming_every_failure_leaves_the_old_file_and_nothing_beside(path, monkeypatch, name, error):
    with monkeypatch.context() as patch:
        failing = Failing(patch, name, error) if name != "fstat" else None
        if failing is None:
            patch.setattr(os, "fstat", lambda _: (_ for _ in ()).throw(OSError(error, os.strerror(error))))
        with pytest.raises(OSError, match=os.strerror(error)):
            write_whole(path, [NEW])
    assert path.read_bytes() == OLD
    assert list(path.parent.iterdir()) == [path]
    write_whole(path, [NEW])
    assert path.read_bytes() == NEW


@pytest.mark.parametrize(
    ("name", "error", "of_directories"),
    [
        ("open", errno.EMFILE, True),
        ("fsync", errno.EIO, True),
        ("fsync", errno.EINVAL, True),
        ("close", errno.EIO, False),
    ],
)
def test_behind_the_renaming_nothing_fails(path, monkeypatch, name, error, of_directories):
    with monkeypatch.context() as patch:
        failing = Failing(patch, name, error, of_directories=of_directories, is_done=name == "close")
        found = write_whole(path, [NEW])
    assert failing.calls
    assert path.read_bytes() == NEW
    assert found.st_ino == path.stat().st_ino


def test_a_renaming_that_is_done_has_not_failed(path, monkeypatch):
    """Over a network the response may be lost; then the second attempt finds nothing to rename."""
    with monkeypatch.context() as patch:
        Failing(patch, "replace", errno.ENOENT, is_done=True)
        write_whole(path, [NEW])
    assert path.read_bytes() == NEW


def test_what_somebody_has_put_in_the_place_of_an_unfinished_file_does_not_get_its_name(path):
    aside = path.with_name("aside")
    with aside.open("wb") as file:
        assert is_at(aside, file.fileno())
        aside.unlink()
        assert not is_at(aside, file.fileno())
        aside.write_bytes(b"of somebody else")
        with pytest.raises(OSError, match="removed or replaced while it was written"):
            publish(file.fileno(), aside, path)
    assert path.read_bytes() == OLD


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_what_a_file_system_cannot_do_is_no_failure(path, monkeypatch, error):
    with monkeypatch.context() as patch:
        Failing(patch, "fsync", error)
        write_whole(path, [NEW])
        with path.open("rb") as file:
            sync(file.fileno())
    with monkeypatch.context() as patch:
        Failing(patch, "fsync", error, of_directories=True)
        sync_directory(path.parent)
    assert path.read_bytes() == NEW


def test_a_directory_whose_sync_fails_says_so(path, monkeypatch):
    Failing(monkeypatch, "fsync", errno.EIO, of_directories=True)
    with pytest.raises(OSError, match="Input/output error"):
        sync_directory(path.parent)


def test_nothing_is_in_the_way_of_a_file_that_can_be_written_or_made(path):
    missing = path.parent / "no" / "such" / "folder"
    assert obstacle(path) is None
    assert obstacle(missing / "file", makes_folders=True) is None
    assert obstacle(missing / "file") == f"cannot be written, because there is no directory {missing}"
    assert list(path.parent.iterdir()) == [path]


def test_a_directory_in_the_place_of_a_file_is_in_the_way(path):
    assert obstacle(path.parent) == "is a directory, expected a file"


def test_a_directory_that_may_not_be_written_to_is_in_the_way(path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda where, mode: where != path.parent)
    expected = f"cannot be written, because this process may not write to {path.parent}"
    assert obstacle(path) == obstacle(path.parent / "new" / "file", makes_folders=True) == expected


def test_a_file_that_is_a_mount_is_in_the_way_and_is_named_when_it_is_written(path, tmp_path, monkeypatch):
    folder = tmp_path / "with space"
    folder.mkdir()
    mounted, mounts = folder / "file", tmp_path / "mountinfo"
    mounts.write_text(f"31 22 8:1 /x {str(mounted).replace(' ', chr(92) + '040')} rw - ext4 /dev/sda1 rw\n")
    monkeypatch.setattr(atomic_file, "_MOUNTS", mounts)
    assert obstacle(mounted).startswith("is a mount of its own")
    assert obstacle(path) is None
    with monkeypatch.context() as patch:
        Failing(patch, "replace", errno.EBUSY)
        with pytest.raises(
            OSError, match="is a mount of its own, which no other file can replace: mount its directory"
        ):
            write_whole(path, [NEW])
    assert path.read_bytes() == OLD


MOUNTED = """
import subprocess, sys
from pathlib import Path
from kafka_throttle.common.atomic_file import obstacle, write_whole
folder = Path(sys.argv[1])
subprocess.run(["mount", "--bind", folder / "alone", folder / "alone"], check=True)
subprocess.run(["mount", "--bind", folder / "fixed", folder / "fixed"], check=True)
subprocess.run(["mount", "-o", "remount,ro,bind", folder / "fixed"], check=True)
for path in (folder / "alone", folder / "fixed" / "file", folder / "free"):
    said = obstacle(path)
    try:
        write_whole(path, [b"new"])
    except OSError as error:
        print(f"{path.name}: {said} | {error.strerror}")
    else:
        print(f"{path.name}: {said} | written")
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_what_is_in_the_way_is_known_before_the_system_says_it(tmp_path):
    (tmp_path / "fixed").mkdir()
    for name in ("alone", "free", "fixed/file"):
        (tmp_path / name).write_bytes(OLD)
    command = ["unshare", "-m", "--propagation", "private", sys.executable, "-c", MOUNTED, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode and "Operation not permitted" in done.stderr:
        pytest.skip("may not mount")
    mount = "a mount of its own, which no other file can replace: mount its directory instead"
    assert done.stdout.splitlines() == [
        f"alone: is {mount} | it is {mount}",
        f"file: cannot be written, because {tmp_path}/fixed is on a file system that is mounted read-only"
        " | Read-only file system",
        "free: None | written",
    ], done.stderr


def test_a_link_to_a_mount_or_to_a_directory_is_not_in_the_way_since_it_is_replaced_itself(tmp_path, monkeypatch):
    mounts, link, to_folder = tmp_path / "mountinfo", tmp_path / "link", tmp_path / "to folder"
    mounts.write_text(f"31 22 8:1 /x {tmp_path / 'mounted'} rw - ext4 /dev/sda1 rw\n")
    monkeypatch.setattr(atomic_file, "_MOUNTS", mounts)
    link.symlink_to(tmp_path / "mounted")
    to_folder.symlink_to(tmp_path)
    for path in (link, to_folder):
        assert obstacle(path) is None
        write_whole(path, [NEW])
        assert path.read_bytes() == NEW


def test_where_this_process_may_not_look_that_is_in_the_way(path, monkeypatch):
    monkeypatch.setattr(Path, "is_dir", lambda self: self.stat())
    path.unlink()
    path.parent.joinpath("loop").symlink_to("loop")
    assert obstacle(path.parent / "loop" / "file") == "cannot be written: Too many levels of symbolic links"
