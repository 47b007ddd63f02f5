"""The audit on disk: on a file system that cannot sync, changes are still applied."""

import errno
import json
import os
import stat

import pytest

from kafka_throttle.pipeline.rollout.audit import AuditLog

LINE = {"at": "2026-11-25T12:00:00Z", "event": "intended", "entity": {"user": "alice"}}


def refuse(monkeypatch, error, of_what):
    real = os.fsync

    def fsync(file):
        if of_what(os.fstat(file).st_mode):
            raise OSError(error, os.strerror(error))
        return real(file)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("of_what", [stat.S_ISDIR, stat.S_ISREG])
def test_lines_are_written_where_the_file_system_cannot_sync(tmp_path, monkeypatch, of_what):
    refuse(monkeypatch, errno.EINVAL, of_what)
    with AuditLog(tmp_path / "audit.jsonl") as log:
        log.write([LINE])
    assert [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()] == [LINE]


@pytest.mark.parametrize("of_what", [stat.S_ISDIR, stat.S_ISREG])
def test_a_sync_that_fails_is_an_error(tmp_path, monkeypatch, of_what):
    refuse(monkeypatch, errno.EIO, of_what)
    with pytest.raises(OSError, match="Input/output error"), AuditLog(tmp_path / "audit.jsonl") as log:
        log.write([LINE])
