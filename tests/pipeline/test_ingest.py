"""Files of a spool into a table: each record once, whatever the files are like."""

import gzip
import json
import os
import random
import re
import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from zlib import crc32

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from kafka_throttle.pipeline.ingest.checkpoint import Planned, planned
from kafka_throttle.pipeline.ingest.ingest import Batch, Ingest, _Batch
from kafka_throttle.pipeline.jobs import gaps
from kafka_throttle.pipeline.jobs.ingest import _alone_at, ingest_spool
from kafka_throttle.pipeline.spark.day import now_ms
from kafka_throttle.pipeline.spark.unreadable import problem_of
from kafka_throttle.pipeline.table.accounts import Account, Writer, read_accounts
from kafka_throttle.pipeline.table.maintenance import expired, optimized, vacuum
from kafka_throttle.pipeline.table.table import (
    TABLES,
    BadTable,
    make_tables,
    read_quarantine,
    read_trace,
    read_usage,
    version_at,
    version_of,
)
from kafka_throttle.quotas.records.usage_record import (
    VERSION,
    Dropped,
    TraceEvent,
    UsageRecord,
    columns,
    line_of,
)
from tests.pipeline.spools import (
    DAY_MS,
    MONDAY_MS,
    Fleet,
    event,
    file_name,
    framed,
    records,
    write_file,
    write_many,
    write_spool,
)

FLEET = Fleet(entities=20, per_window=5)
WRITER = Writer("usage", FLEET.instance, FLEET.epoch)


class Place:
    """A spool and a table."""

    def __init__(self, spark, folder):
        self.spark, self.spool, self.table = spark, folder / "spool", str(folder / "table")
        self.spool.mkdir()
        self.said = []

    def ingest(self):
        self.said = []
        return ingest_spool(self.spark, str(self.spool), self.table, say=self.said.append).counts

    def usage(self, **times):
        rows = read_usage(self.spark, self.table, **times).drop("day").collect()
        return sorted((UsageRecord(**row.asDict()) for row in rows), key=lambda row: (row.epoch, row.sequence))

    def account(self, writer=WRITER):
        return read_accounts(self.spark, self.table)[writer]

    def quarantine(self):
        rows = read_quarantine(self.spark, self.table).collect()
        return sorted((row.file.rpartition("/")[2], row.line or 0, row.reason) for row in rows)


@pytest.fixture
def place(spark, tmp_path):
    return Place(spark, tmp_path)


def written(body):
    return f"{body}\t{crc32(body.encode()):08x}\n"


def test_what_was_written_is_read_and_nothing_comes_twice(place):
    mine = records(FLEET, 120)
    odd = [
        replace(
            mine[5], user="tab\tback\\slash\\t\nline\r", client_id="\\N", rule="\\\\n\\", virtual_cluster="ä b/c=%"
        ),
        replace(mine[6], limit=None, shadow_limit=1e300, used=0.1 + 0.2, peak=1.5e-7, user="", ip="::1"),
        replace(mine[7], begin_ms=MONDAY_MS + DAY_MS, end_ms=MONDAY_MS + DAY_MS + 1),
    ]
    mine[5:8] = odd
    write_spool(place.spool, mine[:100], per_file=40)
    counts = place.ingest()
    assert counts == {"usage records": 100}
    assert place.usage() == mine[:100]
    assert place.ingest() == {}, "files are taken once"

    # A file once more under another name, one that repeats half of what is known, and lines twice within a file.
    shutil.copy(sorted(place.spool.iterdir())[0], place.spool / "copy.tsv")
    write_file(place.spool, [*mine[90:110], *mine[105:110], mine[95]], 4)
    write_file(place.spool, mine[100:120][::-1], 5)
    counts = place.ingest()
    assert counts == {"usage records": 20, "usage duplicates": 40 + 10 + 6 + 10}
    assert place.usage() == mine
    assert place.account() == Account(((1, 120),), (), 101, alone=True)
    assert "no record is missing" in place.said

    tuesday = place.usage(since_ms=MONDAY_MS + DAY_MS)
    assert tuesday == [mine[7]]
    assert place.usage(until_ms=mine[60].begin_ms) == [row for row in mine if row.begin_ms < mine[60].begin_ms]

    # The checkpoint is lost: all is read again, and known again.
    shutil.rmtree(f"{place.table}/_checkpoint")
    assert place.ingest() == {"usage duplicates": 100 + 40 + 26 + 20}
    assert place.usage() == mine


def test_what_is_wrong_is_put_aside_with_its_place_and_the_rest_is_taken(place):
    mine = records(FLEET, 60)
    future = 4_000_000_000_000
    bad = {
        2: replace(mine[1], in_bytes=-5),
        5: replace(mine[4], begin_ms=future, end_ms=future),
        6: replace(mine[5], end_ms=0),
    }
    path = write_file(place.spool, [bad.get(number, row) for number, row in enumerate(mine[:20], 1)], 1)
    lines = path.read_text().splitlines(keepends=True)
    lines[3] = lines[3].replace("request", "Request").replace("produce", "Produce").replace("fetch", "Fetch")
    body = lines[8].rpartition("\t")[0].split("\t")
    lines[8] = written("\t".join([*body[:13], "nan", *body[14:]]))
    lines[9] = written("\t".join([*body[:13], "ten", *body[14:]]))
    lines[10] = written("\t".join(body[: 2 + 23]))
    lines[11] = written("1\tbanana\t3")
    path.write_text("".join(lines))
    cut = write_file(place.spool, mine[20:30], 2)
    cut.write_text("".join(cut.read_text().splitlines(keepends=True)[:6])[:-20])
    (place.spool / "my notes %20.txt").write_text("Dear diary\n\n")
    (place.spool / "empty.tsv").write_text("")
    (place.spool / "picture.tsv").write_bytes(b"\xff\xfe\x00\x01\n\x00\x80")
    (place.spool / "broken.tsv.gz").write_bytes(b"this is no gzip\n" * 100)
    (place.spool / "whole.tsv.gz").write_bytes(gzip.compress("".join(map(line_of, framed(mine[30:40], 4))).encode()))
    (place.spool / "usage-folder.tsv").mkdir()
    (place.spool / ".being-written.tsv").write_text("no")
    counts = place.ingest()
    assert place.quarantine() == [
        ("broken.tsv.gz", 0, "the file has neither header nor end: it is empty, foreign or cannot be read"),
        ("empty.tsv", 0, "the file has neither header nor end: it is empty, foreign or cannot be read"),
        ("my notes %20.txt", 0, "the file has neither header nor end: it is empty, foreign or cannot be read"),
        ("my notes %20.txt", 1, "the checksum is wrong"),
        ("my notes %20.txt", 2, "the checksum is wrong"),
        ("picture.tsv", 0, "the file has neither header nor end: it is empty, foreign or cannot be read"),
        ("picture.tsv", 1, "the checksum is wrong"),
        ("picture.tsv", 2, "the checksum is wrong"),
        (path.name, 3, "in_bytes: expected 0 or more, got -5"),
        (path.name, 4, "the checksum is wrong"),
        (path.name, 6, f"begin_ms: in the future, got {future}"),
        (path.name, 7, "end_ms: expected begin_ms or later, got 0"),
        (path.name, 9, "used: expected a finite number, got 'nan'"),
        (path.name, 10, "used: expected float, got 'ten'"),
        (path.name, 11, f"expected {len(columns(UsageRecord))} columns, got 23: shadow_throttles is missing"),
        (path.name, 12, "unknown kind 'banana'"),
        (cut.name, 0, "the file has no end: it is cut short, or damaged from somewhere on"),
        (cut.name, 6, "the checksum is wrong"),
    ]
    lost = {2, 3, 5, 6, 8, 9, 10, 11}
    taken = [row for row in mine[:20] if row.sequence not in lost] + mine[20:24] + mine[30:40]
    assert place.usage() == taken
    assert counts["usage records"] == len(taken) == 26
    assert place.account().gaps == ((2, 3), (5, 6), (8, 11), (25, 30))
    assert any("usage-folder.tsv: it is a directory" in line for line in place.said)
    assert any("6 records, numbers 25 to 30" in line for line in place.said)

    # What was lost comes after all, in a copy that is whole: the gaps close, the copies of the rest are known.
    place.ingest()
    write_file(place.spool, mine[:30], 7)
    assert place.ingest() == {"usage records": 14, "usage duplicates": 16}
    assert place.account().gaps == ()
    assert place.usage() == mine[:40]


def unreadable(file):
    """Hadoop cannot read the file as long as there are these checksums of it, which are wrong."""
    sums = file.with_name(f".{file.name}.crc")
    sums.write_bytes(b"crc\0" + (512).to_bytes(4, "big") + bytes(4 * 100))
    return sums


def test_a_file_that_cannot_be_opened_is_not_taken_for_one_that_is_gone(place):
    """Hadoop says that there is no such file, whatever the reason is."""
    mine = records(FLEET, 20)
    file = write_file(place.spool, mine[:10], 1)
    sums = unreadable(file)
    with pytest.raises(ValueError, match="cannot be read"):
        place.ingest()
    sums.unlink()
    content = file.read_bytes()
    if os.geteuid():
        file.chmod(0)
    else:  # root may open any file, but not these for reading
        file.unlink()
        file.symlink_to(
            next(path for path in Path("/sys").glob("*/*/*") if path.stat().st_mode == stat.S_IFREG | 0o200)
        )
    with pytest.raises(ValueError, match=f"{file.name} cannot be read"):
        place.ingest()
    assert place.usage() == []
    file.unlink()
    file.write_bytes(content)
    assert place.ingest() == {"usage records": 10}


def test_a_damaged_file_of_the_table_is_not_one_of_the_spool(place):
    write_file(place.spool, records(FLEET, 20)[:10], 1)
    place.ingest()
    [file] = Path(place.table).glob("usage/*/*.parquet")
    file.write_bytes(bytes(file.stat().st_size))
    write_file(place.spool, records(FLEET, 20)[5:], 2)
    with pytest.raises(Exception) as caught:
        place.ingest()
    assert "--from" not in str(caught.value)
    assert problem_of(caught.value).startswith(f"file:{file} cannot be read: ")


def test_a_topic_may_have_any_name(spark, tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"mine"}')
    offsets = ["v1", '{"batchWatermarkMs":0,"batchTimestampMs":5}', '{"id":{"0":3},"batchTimestampMs":{"0":1}}']
    (tmp_path / "offsets" / "0").write_text("\n".join(offsets))
    assert planned(spark, str(tmp_path), 0, False) == Planned("mine", 5, [])


def test_a_file_that_cannot_be_read_ends_the_ingest_and_nothing_of_it_is_lost(place):
    mine = records(FLEET, 30)
    write_file(place.spool, mine[:10], 1)
    file = write_file(place.spool, mine[10:], 2)
    sums = unreadable(file)
    with pytest.raises(
        ValueError, match=rf"^--from: file://{file} cannot be read: Checksum error: .* run again"
    ) as caught:
        place.ingest()
    assert "\n" not in str(caught.value)
    assert place.usage() == []
    assert place.quarantine() == []
    sums.unlink()
    assert place.ingest() == {"usage records": 30}
    assert place.quarantine() == []


def test_a_file_that_cannot_be_read_and_is_moved_away_is_reported_and_the_rest_is_taken(place):
    mine = records(FLEET, 30)
    write_file(place.spool, mine[:10], 1)
    file = write_file(place.spool, mine[10:20], 2)
    unreadable(file)
    with pytest.raises(ValueError, match="cannot be read"):
        place.ingest()
    file.rename(place.spool.parent / "aside.tsv")
    write_file(place.spool, mine[20:], 3)
    place.ingest()
    assert place.usage() == mine[:10] + mine[20:]
    assert [(name, line) for name, line, _ in place.quarantine()] == [(file.name, 0)]
    assert place.account().gaps == ((11, 20),)


def test_what_can_be_unpacked_of_a_damaged_file_is_taken(place):
    mine = records(FLEET, 4_000)
    file = write_file(place.spool, mine[100:], 1)
    packed = gzip.compress(file.read_bytes())
    file.unlink()
    name = "a [b]{c}, %20+ä.tsv.gz"
    (place.spool / name).write_bytes(packed[: len(packed) // 2])
    gone = write_file(place.spool, mine[:100], 2)
    sums = unreadable(gone)
    with pytest.raises(ValueError, match=f"{gone.name} cannot be read"):
        place.ingest()
    sums.unlink()
    gone.unlink()
    place.ingest()
    taken = [row.sequence for row in place.usage()]
    assert 0 < len(taken) < 3_900
    assert taken == list(range(101, 101 + len(taken)))
    assert [(file, reason) for file, line, reason in place.quarantine() if not line] == [
        (name, "the file has no end: it is cut short, or damaged from somewhere on"),
        (gone.name, "the file has neither header nor end: it is empty, foreign or cannot be read"),
    ]


def test_what_the_proxy_dropped_is_no_gap_and_what_an_end_tells_of_is(place):
    mine = records(FLEET, 40)
    rows = framed(mine[:10] + mine[15:20], 1)
    reported = Dropped(
        instance=WRITER.instance, epoch=WRITER.epoch, stream="usage", first_sequence=11, last_sequence=15, reason="full"
    )
    rows.insert(11, reported)
    rows[-1] = replace(rows[-1], next_sequence=26)
    other = [replace(row, epoch=row.epoch + 1) for row in mine[2:4]]
    for name, content in (("a", rows), ("b", framed(other, 1))):
        (place.spool / f"{name}.tsv").write_text("".join(map(line_of, content)))
    place.ingest()
    assert place.account() == Account(((1, 10), (16, 20)), ((11, 15),), 25, alone=True)
    assert place.account().gaps == ((21, 25),)
    assert place.account(WRITER._replace(epoch=WRITER.epoch + 1)).gaps == ((1, 2),)


def test_the_end_of_a_killed_process_is_missing_once_a_later_one_is_there(place, capsys):
    mine = records(FLEET, 20)
    killed = framed(mine[:10], 1)
    killed[0] = replace(killed[0], flush_ms=10_000)
    (place.spool / "killed.tsv").write_text("".join(map(line_of, killed)))
    place.ingest()
    assert place.said[-1] == "no record is missing", "it may be running"
    later = [replace(row, epoch=WRITER.epoch + 1) for row in mine[:5]]
    beside = framed(later, 1)
    beside[-1] = replace(beside[-1], beside=1)
    (place.spool / "beside.tsv").write_text("".join(map(line_of, beside)))
    place.ingest()
    assert place.said[-1] == "no record is missing", "it may still serve its connections"
    latest = [replace(row, epoch=WRITER.epoch + 61_000) for row in mine[:5]]
    (place.spool / "latest.tsv").write_text("".join(map(line_of, framed(latest, 1))))
    place.ingest()
    when = f"{datetime.fromtimestamp((WRITER.epoch + 61_000) // 1000, UTC):%Y-%m-%d %H:%M:%S} (UTC)"
    crash = "at most (if the machine crashed, also what was in its last file)"
    lines = [
        f"missing: usage of {WRITER.instance}, epoch {WRITER.epoch}: its end, as it was killed before {when}: "
        f"the use of its last 10 s {crash}",
        f"missing: usage of {WRITER.instance}, epoch {WRITER.epoch + 1}: its end, as it was killed before {when}: "
        f"the use of its last usage.window_s {crash}",
    ]
    assert place.said[-2:] == lines
    assert gaps.main(place.table) == 1
    assert capsys.readouterr().out.splitlines() == lines

    # Their last files come after all.
    for name, last in (("a", mine[10:12]), ("b", [replace(row, epoch=WRITER.epoch + 1) for row in mine[5:7]])):
        rows = framed(last, 2)
        rows[-1] = replace(rows[-1], final=1)
        (place.spool / f"{name}.tsv").write_text("".join(map(line_of, rows)))
    place.ingest()
    assert gaps.main(place.table) == 0
    assert capsys.readouterr().out == "no record is missing\n"


def test_trace_events_have_a_table_of_their_own(place):
    events = [event(number) for number in range(1, 31)]
    write_file(place.spool, [*events[:20], events[3]], 1)
    write_file(place.spool, records(FLEET, 10), 1)
    write_file(place.spool, [*events[18:29], replace(events[29], throttle_ms=-1)], 2)
    assert place.ingest() == {
        "usage records": 10,
        "trace records": 29,
        "trace duplicates": 3,
        "rejected: throttle_ms: expected 0 or more": 1,
    }
    rows = read_trace(place.spark, place.table).drop("day").collect()
    assert sorted((TraceEvent(**row.asDict()) for row in rows), key=lambda row: row.sequence) == events[:29]
    assert len(place.usage()) == 10
    assert place.account(Writer("trace", "proxy-1", 3)).gaps == ((30, 30),)
    assert place.quarantine() == [
        (file_name(TraceEvent, "proxy-1", 3, 2), 13, "throttle_ms: expected 0 or more, got -1")
    ]


def test_a_line_of_a_later_version_is_read_as_far_as_it_is_known(place):
    [row] = records(FLEET, 1)
    body = line_of(row).rpartition("\t")[0]
    later = written(f"{VERSION + 1}{body[1:]}\tnew\t7")
    rows = [line_of(part) for part in framed([row], 1)]
    (place.spool / "later.tsv").write_text(rows[0] + later + rows[2])
    assert place.ingest() == {"usage records": 1}
    assert place.usage() == [row]


def test_rows_in_no_order_at_all_are_taken_once(place):
    mine = records(FLEET, 80)
    mixed = [*mine[:30], *mine[50:], *mine[20:30]]
    random.Random(5).shuffle(mixed)
    path = write_file(place.spool, mixed, 1)
    header, *_, end = framed(mixed, 1)
    path.write_text("".join(map(line_of, [header, *mixed, replace(end, next_sequence=81)])))
    assert place.ingest() == {"usage records": 60, "usage duplicates": 10}
    assert place.usage() == mine[:30] + mine[50:]
    assert place.account().present == ((1, 30), (51, 80))
    write_file(place.spool, [mine[40], mine[10], mine[42]], 2)
    assert place.ingest() == {"usage records": 2, "usage duplicates": 1}
    assert place.account().gaps == ((31, 40), (42, 42), (44, 50))


def test_files_are_merged_and_who_reads_the_old_ones_goes_on(place):
    mine = records(FLEET, 30)
    for number in range(1, 4):
        write_file(place.spool, mine[10 * number - 10 : 10 * number], number)
        place.ingest()
    before = read_usage(place.spark, place.table)
    assert optimized(place.spark, place.table) >= 3
    assert optimized(place.spark, place.table) == 0
    assert before.count() == 30
    assert len(list(Path(place.table).glob("usage/day=*/*.parquet"))) > 1
    vacuum(place.spark, place.table, 0)
    assert len(list(Path(place.table).glob("usage/day=*/*.parquet"))) == 1
    assert place.usage() == mine


STEPS = [(when, name) for name in ("usage", "quarantine", "numbers") for when in ("before", "after")]


@pytest.mark.parametrize(("when", "step"), STEPS)
def test_who_is_stopped_at_any_step_leaves_a_table_that_the_next_start_makes_whole(place, monkeypatch, when, step):
    mine = records(FLEET, 30)
    write_spool(place.spool, mine, per_file=10)
    (place.spool / "odd.tsv").write_text("odd\n")
    commit = _Batch.commit

    def stop(self, name, do):
        if name != step or when == "after":
            result = commit(self, name, do)
        if name == step:
            raise RuntimeError("stopped")
        return result

    with monkeypatch.context() as patched:
        patched.setattr(_Batch, "commit", stop)
        with pytest.raises(Exception, match="stopped"):
            place.ingest()
    place.ingest()
    assert place.usage() == mine
    assert place.account() == Account(((1, 30),), (), 30, alone=True)
    assert [row[2] for row in place.quarantine()] == [
        "the file has neither header nor end: it is empty, foreign or cannot be read",
        "the checksum is wrong",
    ]


def test_a_batch_that_is_run_again_is_judged_by_the_time_at_which_it_was_begun(place, monkeypatch):
    """A record that was in the future then would otherwise be neither in the table nor in the quarantine."""
    write_spool(place.spool, records(FLEET, 10))
    with monkeypatch.context() as patched:
        patched.setattr(_Batch, "run", None)
        with pytest.raises(Exception, match="TypeError"):
            place.ingest()
    [offsets] = Path(place.table).glob("_checkpoint/*/offsets/0")
    (offsets.parent / ".0.crc").unlink()
    offsets.write_text(
        re.sub(r'"batchTimestampMs":\d+', f'"batchTimestampMs":{MONDAY_MS - DAY_MS}', offsets.read_text())
    )
    assert place.ingest() == {"rejected: begin_ms: in the future": 10}


@pytest.mark.parametrize("sequence", [-(2**63), 2**63 - 1, 0, -1])
def test_a_line_with_an_odd_number_stops_nobody(place, sequence):
    mine = records(FLEET, 10)
    write_spool(place.spool, mine)
    (place.spool / "odd.tsv").write_text(written(line_of(replace(mine[3], sequence=sequence)).rpartition("\t")[0]))
    counts = place.ingest()
    assert counts["usage records"] == 10 + (sequence == 0)
    assert len(place.quarantine()) == 1 + (sequence != 0)
    shutil.rmtree(f"{place.table}/_checkpoint")
    assert place.ingest()["usage duplicates"] == 10 + (sequence == 0)
    assert len(place.usage()) == 10 + (sequence == 0)


def test_two_that_take_the_same_records_at_one_moment_take_them_once(place):
    mine = records(FLEET, 60)
    texts = [(line_of(row).rstrip("\n"), "file", 0) for row in mine]
    ingests = [Ingest(place.spark, place.table) for _ in range(2)]

    def take(number):
        # Each has a session of its own, as a command has, for the settings of its transaction.
        lines = place.spark.newSession().createDataFrame(texts, "text string, file string, block long")
        return ingests[number].take(Batch(f"query-{number}", 0, lines, (), 2**62)).counts

    with ThreadPoolExecutor(2) as both:
        counts = list(both.map(take, range(2)))
    assert sorted(count.get("usage records", 0) for count in counts) == [0, 60]
    assert place.usage() == mine
    assert place.account().present == ((1, 60),)


def test_a_second_ingest_at_a_table_of_this_machine_is_refused(place):
    write_spool(place.spool, records(FLEET, 10))
    with (
        _alone_at(place.table),
        pytest.raises(ValueError, match=r"--table: another ingest writes to .*: repeat --from"),
    ):
        place.ingest()
    assert place.ingest() == {"usage records": 10}


def test_several_spools_are_taken_by_one_ingest(place):
    mine, theirs = records(FLEET, 60), records(replace(FLEET, instance="proxy-2"), 20)
    folders = [place.spool / name for name in ("one", "two", "three [x]")]
    write_spool(folders[0], mine[:30])
    write_spool(folders[1], theirs)
    write_spool(folders[2], mine[20:])
    said = []
    spools = [str(place.spool / "[ot][nw][eo]"), str(folders[1]), str(place.spool / "three *")]
    counts = ingest_spool(place.spark, spools, place.table, say=said.append).counts
    assert counts == {"usage records": 80, "usage duplicates": 10 + 20}
    assert sorted(place.usage(), key=lambda row: row.instance) == mine + theirs
    assert said[-1] == "no record is missing"
    with pytest.raises(ValueError, match="--from: expected a directory"):
        ingest_spool(place.spark, [str(folders[0]), str(place.spool / "nothing*")], place.table)


def test_records_that_are_deleted_are_neither_missing_nor_taken_again(place):
    mine = records(FLEET, 40)
    mine[3] = replace(mine[3], user="o'neill\\")
    mine[20:] = [replace(row, begin_ms=row.begin_ms + DAY_MS, end_ms=row.end_ms + DAY_MS) for row in mine[20:]]
    write_spool(place.spool, mine)
    place.ingest()
    version, at_ms = version_of(place.spark, place.table), now_ms()
    assert expired(place.spark, place.table, "2026-10-27", mine[3].user) == {
        "usage": sum(row.user == mine[3].user for row in mine[:20]),
        "trace": 0,
    }
    left = [row for row in mine if row.begin_ms >= MONDAY_MS + DAY_MS or row.user != mine[3].user]
    assert place.usage() == left
    assert expired(place.spark, place.table, "2026-10-27") == {"usage": len(left) - 20, "trace": 0}
    assert place.usage() == mine[20:]
    assert place.account().gaps == ()
    shutil.rmtree(f"{place.table}/_checkpoint")
    assert place.ingest() == {"usage duplicates": 40}
    assert place.usage() == mine[20:]
    # As it was before.
    assert version_at(place.spark, place.table, at_ms) == version
    assert read_usage(place.spark, place.table, version=version).count() == 40
    with pytest.raises(BadTable, match="nothing is known of it at that time"):
        version_at(place.spark, place.table, MONDAY_MS)


def test_a_table_that_lacks_columns_is_refused(place):
    write_spool(place.spool, records(FLEET, 10))
    fields = [field for field in TABLES["usage"].fields if field.name not in ("scope", "share")]
    make_tables(place.spark, place.table, {"usage": StructType(fields)})
    with pytest.raises(BadTable, match="it lacks scope, share; ingest the records again, into a new table"):
        read_usage(place.spark, place.table)
    with pytest.raises(BadTable, match="it lacks scope, share"):
        place.ingest()


def test_a_table_with_columns_of_a_later_version_is_read(place):
    mine = records(FLEET, 20)
    write_spool(place.spool, mine)
    place.ingest()
    place.spark.sql(f"ALTER TABLE delta.`{place.table}/usage` ADD COLUMNS (later string)")
    assert place.usage() == mine


def test_a_directory_that_is_no_table_is_said_to_be_none(place):
    with pytest.raises(BadTable, match="expected a table"):
        read_usage(place.spark, place.table)
    (place.spool.parent / "table" / "usage").mkdir(parents=True)
    with pytest.raises(BadTable, match="expected a table"):
        read_usage(place.spark, place.table)


def test_a_table_of_a_later_version_of_delta_lake_is_refused(place):
    write_spool(place.spool, records(FLEET, 10))
    place.ingest()
    log = Path(place.table) / "usage" / "_delta_log"
    number = len(list(log.glob("*.json")))
    features = {name: ["of-the-future"] for name in ("readerFeatures", "writerFeatures")}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    (log / f"{number:020d}.json").write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(BadTable, match="it needs a later version of Delta Lake"):
        read_usage(place.spark, place.table)
    with pytest.raises(BadTable, match="it needs a later version of Delta Lake"):
        place.ingest()


def test_others_read_the_table_while_it_is_written_and_merged(place):
    """With `deltalake`, which has no Java, and with DuckDB on top of it: sums of a version are always whole."""
    mine = records(FLEET, 60)
    write_spool(place.spool, mine[:30], per_file=10)
    place.ingest()
    stop, seen, wrong = threading.Event(), set(), []

    def read():
        while not stop.is_set():
            usage = DeltaTable(f"{place.table}/usage").to_pyarrow_dataset()
            by_arrow = usage.to_table(columns=["sequence", "in_bytes"])
            [by_duckdb] = duckdb.connect().execute("select count(*), sum(in_bytes) from usage").fetchall()
            count = len(by_arrow)
            total = sum(row.in_bytes for row in mine[:count])
            seen.add(count)
            if by_duckdb != (count, total) or sum(by_arrow["in_bytes"].to_pylist()) != total:
                wrong.append((count, total, by_duckdb))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(4, 7):
            write_file(place.spool, mine[10 * number - 10 : 10 * number], number)
            place.ingest()
            optimized(place.spark, place.table)
    finally:
        stop.set()
        reader.join()
    assert not wrong
    assert {30, 60} <= seen <= {30, 40, 50, 60}
    assert place.usage() == mine


def test_many_are_written_as_each_would_be(tmp_path):
    write_many(tmp_path, 250, per_file=100, processes=1, fleet=FLEET)
    for number, path in enumerate(sorted(tmp_path.iterdir())):
        lines = path.read_text().splitlines()
        assert len(lines) == (102, 102, 52)[number]
        fleet = replace(
            FLEET,
            seed=FLEET.seed + number + 1,
            first_sequence=number * 100 + 1,
            begin_ms=FLEET.begin_ms + number * 200_000,
        )
        assert lines[1:-1] == [line_of(row).rstrip("\n") for row in records(fleet, len(lines) - 2)]
