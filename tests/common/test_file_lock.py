"""One process at a time has a lock; on a file system without locks no process is stopped."""

import errno
import fcntl
import os

import pytest

from kafka_throttle.common.file_lock import Lock, lock, locked


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lock"


def refusing(error):
    def flock(*_):
        raise OSError(error, os.strerror(error))

    return flock


def test_a_lock_is_held_until_its_file_is_closed(path):
    with locked(path):
        assert locked(path) is None
        with path.open("r+b") as other:
            assert lock(other.fileno()) is Lock.HELD
    with locked(path) as file:
        assert lock(file.fileno()) is Lock.TAKEN


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS])
def test_without_locks_everybody_goes_on_but_who_must_be_alone(path, monkeypatch, error):
    monkeypatch.setattr(fcntl, "flock", refusing(error))
    with locked(path) as one, locked(path) as other:
        assert lock(one.fileno()) is lock(other.fileno()) is Lock.NONE
    with pytest.raises(OSError, match="has no locks"):
        locked(path, certainly=True)


def test_a_lock_that_fails_is_an_error(path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", refusing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        locked(path)
