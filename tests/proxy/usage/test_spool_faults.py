"""A disk fails or a directory is removed: each record is in one complete file, or counted as lost, and never both."""

import errno
import os
import shutil
import time
from collections import Counter
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from kafka_throttle.pipeline.ingest.frames import Frames
from kafka_throttle.pipeline.table.accounts import Account, Writer
from kafka_throttle.proxy.usage import spool as spool_module
from kafka_throttle.proxy.usage.spool import BUG
from kafka_throttle.proxy.usage.spool_file import FILE_LOST, SpoolFile, salvage
from kafka_throttle.quotas.records.usage_record import USAGE, Header, UsageRecord, file_name
from tests.proxy.usage.failing_disk import STEPS, FailingDisk
from tests.proxy.usage.test_spool import EPOCH, complete, end_of, records, rows_of, spool_in
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import wait_until

RECORDS = 150
A_BATCH = 10


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "spool"


@pytest.fixture
def disk(monkeypatch):
    return FailingDisk(monkeypatch, "usage spool")


@pytest.fixture(autouse=True)
def _again_soon(monkeypatch):
    monkeypatch.setattr(spool_module, "_RETRY_S", 0.01)


def started(directory, **rules):
    spool = spool_in(directory, file_bytes=2_500, **rules)
    spool.start()
    return spool


def put(spool, first, last):
    for number in range(first, last, A_BATCH):
        spool.put(USAGE, records(number, number + A_BATCH - 1), number, number + A_BATCH - 1)


def written(spool, count):
    wait_until(lambda: spool.totals()[0].written >= count)


def numbers(directory):
    """How often each record is in complete files."""
    return Counter(
        row.sequence for rows in complete(directory).values() for row in rows if isinstance(row, UsageRecord)
    )


def account(directory):
    """What an ingest knows of the usage records of a directory."""
    frames = Frames()
    for path in sorted(directory.glob("usage-*.tsv")):
        for line in path.read_text().splitlines():
            if line.split("\t")[1] != USAGE:
                assert frames.take(line, str(path)) == ""
    assert frames.incomplete([str(path) for path in directory.glob("usage-*.tsv")]) == []
    present = tuple((number, number) for number in numbers(directory))
    return frames.accounts[Writer(USAGE, "here", EPOCH)] + Account(present)


def follow(directory):
    """The heads and the ends of complete files, which follow each other."""
    files = [rows for name, rows in complete(directory).items() if name.startswith(USAGE)]
    assert [rows[0].file for rows in files] == list(range(1, len(files) + 1))
    assert [rows[0].first_sequence for rows in files[1:]] == [rows[-1].next_sequence for rows in files[:-1]]
    assert [rows[-1].final for rows in files] == [0] * (len(files) - 1) + [1]
    for rows in files:
        assert rows[-1].records == sum(isinstance(row, UsageRecord) for row in rows)


def is_whole(directory, disk):
    """Each record is there once, and no complete file was touched again."""
    assert numbers(directory) == Counter(range(1, RECORDS + 1))
    assert account(directory).gaps == ()
    assert {name: (directory / name).read_bytes() for name in disk.published} == disk.published
    assert [path for path in directory.iterdir() if path.name.startswith(".")] == []
    follow(directory)


@pytest.mark.rule("usage")
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_once_costs_nothing(directory, disk, step, number):
    disk.fails = lambda now, before: (now, before) == (step, number)
    spool = started(directory)
    put(spool, 1, RECORDS)
    assert spool.close(TIMEOUT_S)
    assert disk.failures == 1
    is_whole(directory, disk)
    assert spool.problem is None


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_for_a_while_costs_nothing(directory, disk, step, number):
    disk.fails = lambda now, before: now == step and before >= number
    spool = started(directory)
    put(spool, 1, RECORDS)
    wait_until(lambda: disk.failures >= 2)
    disk.fails = lambda now, before: False
    assert spool.close(TIMEOUT_S)
    is_whole(directory, disk)


@pytest.mark.rule("usage")
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_of_a_step_that_fails_for_ever_what_is_lost_is_told(directory, disk, step, number):
    disk.fails = lambda now, before: now == step and before >= number
    spool = started(directory)
    with capture_logs() as logs:
        put(spool, 1, RECORDS)
        assert spool.close(TIMEOUT_S)
    disk.fails = lambda now, before: False
    lost = sum(line["records"] for line in logs if line["event"] == "usage_records_lost")
    list(_salvaged_after(spool))
    found = numbers(directory)
    assert set(found.values()) <= {1}
    assert found.total() + lost == RECORDS
    assert found.total() == spool.totals()[0].written


def _salvaged_after(spool):
    """What the next process finds when this one has ended, and with it its locks."""
    for of in spool._streams.values():
        if of.file is not None:
            of.file.close()
    yield from salvage(spool.directory)


UNSUPPORTED = {
    "no sync of directories": {"sync directory": errno.EINVAL},
    "no sync": {"sync directory": errno.ENOTSUP, "sync file": errno.EINVAL},
    "no locks": {"lock": errno.ENOLCK},
    "no locks at all": {"lock": errno.EINVAL},
    "neither": {"lock": errno.ENOTSUP, "sync directory": errno.EINVAL},
}


@pytest.mark.parametrize("errors", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_what_a_file_system_cannot_do_is_no_failure(directory, disk, errors):
    disk.errors |= errors
    disk.fails = lambda now, before: now in errors
    spool = started(directory)
    with capture_logs() as logs:
        put(spool, 1, RECORDS)
        assert spool.close(TIMEOUT_S)
    assert disk.failures
    assert (spool.failures, logs) == (0, [])
    is_whole(directory, disk)


def test_a_directory_that_cannot_be_synced_is_told_once_and_made_up_for(directory, disk):
    disk.fails = lambda now, before: now == "sync directory"
    spool = started(directory)
    with capture_logs() as logs:
        put(spool, 1, RECORDS)
        written(spool, RECORDS)
        disk.fails = lambda now, before: False
        assert spool.close(TIMEOUT_S)
    assert [line["event"] for line in logs] == ["usage_directory_not_synced"]
    assert spool.failures > 1
    is_whole(directory, disk)


def test_after_a_failed_sync_everything_is_written_once_more(directory, monkeypatch):
    """The system takes pages for written after it has said that they could not be."""
    on_disk, real_write, real_sync, failed = {}, os.pwrite, os.fsync, []

    def pwrite(file, data, at):
        on_disk.setdefault(file, []).append((at, len(data)))
        return real_write(file, data, at)

    def fsync(file):
        if file in on_disk and not failed:
            failed.append(file)
            on_disk.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real_sync(file)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "fsync", fsync)
    spool = spool_in(directory)
    spool.start()
    spool.put(USAGE, records(1, 3), 1, 3)
    assert spool.close(TIMEOUT_S)
    [path] = directory.glob("*.tsv")
    [pieces] = on_disk.values()
    assert sum(length for _, length in set(pieces)) >= path.stat().st_size
    assert numbers(directory) == Counter([1, 2, 3])


# ------------------------------------------------------------ removed, made anew


def _removed(directory):
    shutil.rmtree(directory)


def _made_anew(directory):
    shutil.rmtree(directory)
    directory.mkdir(mode=0o755)


def _moved_away(directory):
    directory.rename(directory.with_name("away"))


def _copied(directory):
    shutil.copytree(directory, directory.with_name("copy"))
    shutil.rmtree(directory)
    directory.with_name("copy").rename(directory)


def _a_link(directory):
    directory.rename(directory.with_name("away"))
    directory.with_name("other").mkdir(mode=0o700)
    directory.symlink_to(directory.with_name("other"))


def _the_unfinished_file(directory):
    for part in directory.glob(".*.part"):
        part.unlink()


def _another_in_its_place(directory):
    for part in directory.glob(".*.part"):
        content = part.read_bytes()
        part.unlink()
        part.write_bytes(content)


def _salvaged(directory):
    """As by a process that takes this one for killed where there are no locks."""
    for part in directory.glob(".*.part"):
        copy = part.read_bytes()
        part.unlink()
        part.write_bytes(copy)
    assert [found.problem for found in salvage(directory)] == [""]


GONE = [
    _removed,
    _made_anew,
    _moved_away,
    _copied,
    _a_link,
    _the_unfinished_file,
    _another_in_its_place,
    _salvaged,
]


@pytest.mark.parametrize("unfinished", [True, False])
@pytest.mark.parametrize("how", GONE)
def test_what_is_removed_or_moved_is_made_again_and_only_complete_files_are_missing(directory, how, unfinished):
    spool = started(directory)
    put(spool, 1, 50)
    written(spool, 50)
    if unfinished:
        assert list(directory.glob(".*.part")), "records are in a file that is not complete"
    how(directory)
    there = numbers(directory) if directory.exists() else Counter()
    with capture_logs() as logs:
        put(spool, 51, RECORDS)
        assert spool.close(TIMEOUT_S)
    [told] = [line for line in logs if line["event"] == "usage_file_written_again"]
    assert told["lost"] == 0
    assert directory.stat().st_mode & 0o777 == 0o700
    found, known = numbers(directory), account(directory)
    assert set(found) >= set(range(51, RECORDS + 1)) | set(there)
    assert known.final
    missing = {number for first, last in known.gaps for number in range(first, last + 1)}
    assert missing == set(range(1, RECORDS + 1)) - set(found)
    assert known.dropped == ()
    assert spool.totals()[0].dropped[spool_module.NO_ROOM] == 0
    if how in (_copied, _the_unfinished_file, _another_in_its_place, _salvaged):
        assert missing == set()


def test_what_was_in_a_removed_file_and_cannot_be_read_any_more_is_told_as_lost(directory, monkeypatch):
    spool = started(directory)
    put(spool, 1, 50)
    written(spool, 50)
    _removed(directory)

    def pread(*_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "pread", pread)
    with capture_logs() as logs:
        put(spool, 51, RECORDS)
        assert spool.close(TIMEOUT_S)
    [told] = [line for line in logs if line["event"] == "usage_file_written_again"]
    known = account(directory)
    [(first, last)] = known.dropped
    assert (last, last - first + 1) == (50, told["lost"])
    assert spool.totals()[0].dropped[FILE_LOST] == told["lost"]
    assert set(numbers(directory)) == set(range(51, RECORDS + 1))
    assert known.gaps == ((1, first - 1),)


def test_a_bug_at_the_end_of_a_file_does_not_end_the_writing(directory):
    bugs = [ValueError("a bug")]

    def is_beside():
        if bugs:
            raise bugs.pop()
        return False

    spool = spool_in(directory, file_s=0)
    spool.start(is_beside)
    put(spool, 1, RECORDS)
    assert spool.close(TIMEOUT_S)
    assert numbers(directory) == Counter(range(1, RECORDS + 1))


def test_records_that_a_bug_keeps_from_being_written_are_told_and_others_are_written(directory, monkeypatch):
    spool = spool_in(directory)
    add, bugs = SpoolFile.add, [ValueError("a bug")]

    def add_or_fail(file, rows):
        if bugs and isinstance(rows[0], UsageRecord) and rows[0].sequence > A_BATCH:
            raise bugs.pop()
        return add(file, rows)

    monkeypatch.setattr(SpoolFile, "add", add_or_fail)
    spool.start()
    put(spool, 1, 2 * A_BATCH)
    wait_until(lambda: spool.totals()[0].dropped.get(BUG))
    put(spool, 2 * A_BATCH + 1, 3 * A_BATCH)
    assert spool.close(TIMEOUT_S)
    assert spool.totals()[0].dropped[BUG] == A_BATCH
    assert sorted(numbers(directory)) == [*range(1, A_BATCH + 1), *range(2 * A_BATCH + 1, 3 * A_BATCH + 1)]


def test_a_directory_that_cannot_be_used_is_told_until_it_can(directory):
    spool = started(directory)
    put(spool, 1, 50)
    written(spool, 50)
    _removed(directory)
    directory.write_text("a file in its place")
    put(spool, 51, 100)
    wait_until(lambda: spool.problem is not None, every_s=0.005)
    assert spool.problem == "Not a directory"
    link = directory.with_name("link")
    link.symlink_to(directory.with_name("nowhere"))
    link.replace(directory)  # at once: where nothing is, the spool makes a directory
    wait_until(lambda: spool.problem == "No such file or directory", every_s=0.005)
    directory.unlink()
    directory.mkdir(exist_ok=True)
    directory.chmod(0o755)
    (directory / "something of others").touch()
    put(spool, 101, RECORDS)
    assert spool.close(TIMEOUT_S)
    assert spool.problem is None
    assert set(numbers(directory)) >= set(range(51, RECORDS + 1))


# ------------------------------------------------------------------ without locks


@pytest.fixture
def no_locks(monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_what_is_still_written_is_left_alone_and_what_is_not_is_salvaged(directory, monkeypatch):
    killed, next_one = started(directory), spool_in(directory)
    killed.put(USAGE, records(1, 3), 1, 3)
    written(killed, 3)
    next_one.start()
    assert next_one.epoch == EPOCH + 1, "it knows of the file that is not complete"
    assert complete(directory) == {}
    long_ago = time.time() - 1_000
    [part] = directory.glob(".*.part")
    os.utime(part, (long_ago, long_ago))
    next_one._salvaged_s = next_one._tidied_s = -1_000
    next_one.put(USAGE, [], 1, 0)
    wait_until(lambda: complete(directory))
    [rows] = complete(directory).values()
    assert rows[-1] == end_of(records=3, next_sequence=4)
    killed.put(USAGE, records(4, 5), 4, 5)  # it was not killed after all
    assert killed.close(TIMEOUT_S)
    assert next_one.close(TIMEOUT_S)
    first = file_name(Header(stream=USAGE, instance="here", epoch=EPOCH, file=1, first_sequence=1, flush_ms=0))
    assert rows_of(directory / first) == rows, "a complete file is not touched again"
    assert set(numbers(directory)) == {1, 2, 3, 4, 5}
    known = account(directory)
    assert (known.gaps, known.final) == ((), True)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_two_processes_of_one_name_leave_each_other_alone(directory):
    one = started(directory)
    put(one, 1, 20)
    written(one, 20)
    other = spool_in(directory, file_bytes=2_500)
    other.start()
    assert other.epoch > one.epoch
    put(one, 21, 100)
    for number in range(1, 100, A_BATCH):
        rows = [replace(row, epoch=other.epoch) for row in records(number, number + A_BATCH - 1)]
        other.put(USAGE, rows, number, number + A_BATCH - 1)
    assert one.close(TIMEOUT_S)
    assert other.close(TIMEOUT_S)
    for spool in (one, other):
        rows = [row for name, rows in complete(directory).items() if str(spool.epoch) in name for row in rows]
        assert [row.sequence for row in rows if isinstance(row, UsageRecord)] == list(range(1, 101))
        assert [spool.failures, rows[-1].final] == [0, 1]
