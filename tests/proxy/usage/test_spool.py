"""Files appear when they are complete, and tell what is missing; whatever kills a process or fills a disk."""

import errno
import os
import subprocess
import sys
import threading
import time

import pytest

from kafka_throttle.proxy.usage import spool as spool_module
from kafka_throttle.proxy.usage.spool import NO_ROOM, Spool, SpoolRules, tidy
from kafka_throttle.proxy.usage.spool_file import SpoolFile, salvage
from kafka_throttle.quotas.records.usage_record import (
    TRACE,
    USAGE,
    Dropped,
    End,
    Header,
    TraceEvent,
    UsageRecord,
    columns,
    file_name,
    read_line,
)
from tests.support.waiting import wait_until

EPOCH = 1_700_000_000_000


def record(sequence, row=UsageRecord):
    values = {name: kind() for name, (kind, _) in columns(row).items()}
    return row(**{**values, "instance": "here", "epoch": EPOCH, "sequence": sequence})


def records(first, last, row=UsageRecord):
    return [record(number, row) for number in range(first, last + 1)]


def rows_of(path):
    return [read_line(line) for line in path.read_text().splitlines(keepends=True)]


def end_of(stream=USAGE, final=0, beside=0, **values):
    return End(stream=stream, instance="here", epoch=EPOCH, final=final, beside=beside, **values)


def complete(directory):
    return {path.name: rows_of(path) for path in sorted(directory.glob("*.tsv"))}


def spool_in(directory, **rules):
    return Spool(directory, "here", EPOCH, SpoolRules(**rules))


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "spool"


def test_what_is_put_is_in_complete_files_and_the_last_one_says_so(directory):
    spool = spool_in(directory)
    spool.start()
    spool.put(USAGE, records(1, 3), 1, 3)
    spool.put(TRACE, records(1, 2, TraceEvent), 1, 2)
    spool.put(USAGE, records(4, 4), 4, 4)
    assert spool.close(60)
    files = complete(directory)
    assert list(files) == [f"trace-here-{EPOCH}-000001.tsv", f"usage-here-{EPOCH}-000001.tsv"]
    header, *found, end = files[f"usage-here-{EPOCH}-000001.tsv"]
    assert header == Header(stream=USAGE, instance="here", epoch=EPOCH, file=1, first_sequence=1, flush_ms=0)
    assert [row.sequence for row in found] == [1, 2, 3, 4]
    assert end == end_of(records=4, next_sequence=5, final=1)
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    assert directory.stat().st_mode & 0o777 == 0o700
    assert [path for path in directory.iterdir() if path.name.startswith(".")] == []


def test_a_spool_that_nothing_was_put_into_says_that_nothing_is_missing(directory):
    spool = spool_in(directory)
    spool.start()
    assert spool.close(60)
    [(_, [_, end])] = complete(directory).items()
    assert end == end_of(records=0, next_sequence=1, final=1)


def test_files_are_turned_by_size_and_follow_each_other(directory):
    spool = spool_in(directory, file_bytes=1)
    spool.start()
    for number in range(1, 4):
        spool.put(USAGE, [record(number)], number, number)
    assert spool.close(60)
    *files, last = complete(directory).values()
    assert [(rows[0].file, rows[0].first_sequence, rows[-1].next_sequence) for rows in files] == [
        (1, 1, 2),
        (2, 2, 3),
        (3, 3, 4),
    ]
    assert (last[0].first_sequence, last[-1]) == (4, end_of(records=0, next_sequence=4, final=1))


def test_what_finds_no_room_is_told_when_there_is_room_again(directory):
    spool = spool_in(directory, queue_records=5)
    spool.put(USAGE, records(1, 4), 1, 4)  # nobody writes yet
    spool.put(USAGE, records(5, 6), 5, 6)
    spool.put(USAGE, records(7, 8), 7, 8)
    spool.put(USAGE, records(9, 9), 9, 9)
    assert spool.totals()[0].dropped == {NO_ROOM: 4}
    spool.start()
    assert spool.close(60)
    [(_, rows)] = complete(directory).items()
    assert [row.sequence for row in rows if isinstance(row, UsageRecord)] == [1, 2, 3, 4, 9]
    [dropped] = [row for row in rows if isinstance(row, Dropped)]
    assert (dropped.first_sequence, dropped.last_sequence, dropped.reason) == (5, 8, NO_ROOM)
    assert rows.index(dropped) == 5
    assert rows[-1] == end_of(records=5, next_sequence=10, final=1)


def test_what_was_dropped_last_is_told_at_the_end(directory):
    spool = spool_in(directory)
    spool.start()
    spool.drop(TRACE, 1, 7, "too_fast")
    assert spool.close(60)
    rows = complete(directory)[f"trace-here-{EPOCH}-000001.tsv"]
    assert (rows[1].last_sequence, rows[-1]) == (7, end_of(TRACE, records=0, next_sequence=8, final=1))


def test_a_disk_that_is_full_for_a_while_costs_nothing(directory, monkeypatch):
    full, tried, real = threading.Event(), threading.Event(), os.pwrite
    full.set()

    def pwrite(fd, data, at):
        if full.is_set() and at > 0:
            real(fd, data[:20], at)  # part of it goes out
            tried.set()
            raise OSError(errno.ENOSPC, "no space left on device")
        return real(fd, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(spool_module, "_RETRY_S", 0.01)
    spool = spool_in(directory)
    spool.start()
    spool.put(USAGE, records(1, 3), 1, 3)
    assert tried.wait(60)
    full.clear()
    wait_until(lambda: spool.totals()[0].written >= 3)
    assert spool.close(60)
    [(_, rows)] = complete(directory).items()
    assert [row.sequence for row in rows[1:-1]] == [1, 2, 3]
    assert spool.failures >= 1


def test_a_disk_that_stays_full_does_not_keep_the_process(directory, monkeypatch):
    def pwrite(fd, data, at):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(spool_module, "_RETRY_S", 0.01)
    spool = spool_in(directory)
    spool.start()
    spool.put(USAGE, records(1, 3), 1, 3)
    assert spool.close(60)
    assert complete(directory) == {}


KILLED = """
import os, sys
from pathlib import Path
from kafka_throttle.proxy.usage.spool_file import SpoolFile
from kafka_throttle.quotas.records.usage_record import Header
from tests.proxy.usage.test_spool import EPOCH, records
header = Header(stream="usage", instance="here", epoch=EPOCH, file=3, first_sequence=11, flush_ms=0)
file = SpoolFile(Path(sys.argv[1]), header)
if sys.argv[2] != "empty":
    file.add(records(11, 13))
if sys.argv[2] == "cut":
    file._put(b"1\\tusage\\there\\t17000")
os.kill(os.getpid(), 9)
"""


def kill_a_writer(directory, how):
    directory.mkdir(mode=0o700)
    subprocess.run([sys.executable, "-c", KILLED, str(directory), how], check=False, timeout=120)
    assert len(list(directory.glob(".*.part"))) == 1


@pytest.mark.rule("usage")
@pytest.mark.parametrize("how", ["whole", "cut"])
def test_what_a_killed_process_had_on_disk_is_completed_by_the_next_one(directory, how):
    kill_a_writer(directory, how)
    spool = spool_in(directory)
    spool.start()
    assert spool.epoch == EPOCH + 1
    assert spool.close(60)
    rows = complete(directory)[f"usage-here-{EPOCH}-000003.tsv"]
    assert [row.sequence for row in rows[1:-1]] == [11, 12, 13]
    assert rows[-1] == end_of(records=3, next_sequence=14, final=0)
    assert list(directory.glob(".*")) == []


def test_a_file_says_how_long_records_are_in_memory(directory):
    spool = spool_in(directory, flush_ms={USAGE: 10_000, TRACE: 500})
    spool.start()
    spool.put(USAGE, records(1, 1), 1, 1)
    spool.put(TRACE, records(1, 1, TraceEvent), 1, 1)
    assert spool.close(60)
    assert [rows[0].flush_ms for rows in complete(directory).values()] == [500, 10_000]


def test_a_file_says_whether_the_process_before_still_ran_when_it_was_completed(directory):
    running = [True]
    spool = spool_in(directory, file_bytes=1)
    spool.start(lambda: running[0])
    spool.put(USAGE, records(1, 1), 1, 1)
    wait_until(lambda: complete(directory))
    running.clear()
    running.append(False)
    assert spool.close(60)
    assert [rows[-1].beside for rows in complete(directory).values()] == [1, 0]


def test_a_file_in_which_nothing_was_written_is_deleted(directory):
    kill_a_writer(directory, "empty")
    assert [found.path for found in salvage(directory)] == [None]
    assert list(directory.iterdir()) == []


def test_a_file_that_is_being_written_is_nobody_elses(directory):
    directory.mkdir(mode=0o700)
    header = Header(stream=USAGE, instance="other", epoch=1, file=1, first_sequence=1, flush_ms=0)
    file = SpoolFile(directory, header)
    file.add(records(1, 1))
    assert list(salvage(directory)) == []
    assert file.finish().name == file_name(header)


def test_a_foreign_file_is_left_alone_and_told(directory):
    directory.mkdir(mode=0o700)
    foreign = directory / ".usage-x-1-000001.tsv.part"
    foreign.write_bytes(b"\xff\xfe something\n")
    [found] = salvage(directory)
    assert found.problem == "it does not begin with a header"
    assert foreign.exists()


def test_the_oldest_files_go_but_no_young_one(directory):
    directory.mkdir()
    now_s = time.time()
    for number in range(1, 6):
        path = directory / f"usage-here-{EPOCH}-{number:06}.tsv"
        path.write_bytes(bytes(100))
        os.utime(path, (now_s, now_s - 1000 + 100 * number))
    (directory / f"usage-other-{EPOCH}-000001.tsv").write_bytes(bytes(1000))
    (directory / f"trace-here-{EPOCH}-000001.tsv").write_bytes(bytes(1000))

    def deleted(most_bytes, **rules):
        names = tidy(directory, USAGE, "here", most_bytes, SpoolRules(**rules), now_s)
        return [int(name[-10:-4]) for name in names]

    assert deleted(10_000, keep_s=850, keep_at_least_s=0) == [1]
    assert deleted(300, keep_at_least_s=0) == [2]
    assert deleted(0, keep_at_least_s=650) == [3]
    assert deleted(0, keep_at_least_s=0) == [4, 5]
    assert len(list(directory.iterdir())) == 2
