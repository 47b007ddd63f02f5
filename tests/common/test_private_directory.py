"""Directories that only the user of this process may read."""

import os

import pytest

from kafka_throttle.common.private_directory import (
    DirectoryUnusable,
    check_directory,
    keep_directory,
    look_at_directory,
)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "private"


def test_a_directory_that_others_may_read_is_refused(directory):
    directory.mkdir(mode=0o700)
    check_directory(directory)
    directory.chmod(0o750)
    with pytest.raises(DirectoryUnusable, match="expected mode 0700, as names of users are in it, got 0750"):
        check_directory(directory)
    with pytest.raises(DirectoryUnusable, match="No such file or directory"):
        check_directory(directory / "x" / "y")
    (directory / "file").touch()
    directory.chmod(0o700)
    with pytest.raises(DirectoryUnusable, match="expected a directory, got something else"):
        check_directory(directory / "file")


def test_a_look_at_a_directory_makes_nothing(directory):
    look_at_directory(directory, os.geteuid())
    assert not directory.exists()
    for missing in (directory / "x", directory / "x" / "y"):
        with pytest.raises(DirectoryUnusable, match=f"{missing} cannot be made: expected a directory {missing.parent}"):
            look_at_directory(missing, os.geteuid())
    directory.symlink_to(directory.with_name("nowhere"))
    with pytest.raises(DirectoryUnusable, match="expected a directory, got a link to nothing"):
        look_at_directory(directory, os.geteuid())
    directory.unlink()
    check_directory(directory)
    look_at_directory(directory, None)
    with pytest.raises(DirectoryUnusable, match="expected a directory of user 4321, it belongs to"):
        look_at_directory(directory, 4321)


def test_a_directory_that_this_process_may_not_write_to_is_refused(directory, monkeypatch):
    """Root may always, so the system is not asked."""
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(DirectoryUnusable, match=f"cannot be made: this process may not write to {directory.parent}"):
        look_at_directory(directory, None)
    directory.mkdir(mode=0o700)
    with pytest.raises(DirectoryUnusable, match="this process may not read and write there"):
        look_at_directory(directory, None)


def test_a_directory_that_is_missing_is_made_again_and_an_empty_one_gets_its_mode(directory):
    def mode_after(begin):
        begin()
        keep_directory(directory)
        return directory.stat().st_mode & 0o777

    assert mode_after(lambda: None) == 0o700
    assert mode_after(lambda: directory.chmod(0o755)) == 0o700
    (directory / "file").touch()
    assert mode_after(lambda: directory.chmod(0o755)) == 0o755, "somebody else may use it"
    with pytest.raises(DirectoryUnusable, match="cannot be made: Not a directory"):
        keep_directory(directory / "file" / "x")


def test_a_link_in_the_place_of_a_directory_is_followed_and_what_it_leads_to_stays_as_it_is(directory, tmp_path):
    (tmp_path / "of_others").mkdir(mode=0o755)
    directory.symlink_to(tmp_path / "of_others")
    keep_directory(directory)
    assert directory.stat().st_mode & 0o777 == 0o755
