"""Files of a spool into a table: each record once, whatever the files are like."""

import gzip
import json
import random
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from zlib import crc32

import pytest

from pipeline.jobs import gaps
from pipeline.jobs.ingest import ingest_spool
from pipeline.table.accounts import Account, Writer
from pipeline.table.compaction import compacted
from pipeline.table.files import LocalFiles, files_at
from pipeline.table.table import read_quarantine, read_trace, read_usage, state_of
from quotas.records.usage_record import VERSION, Dropped, End, Header, TraceEvent, UsageRecord, columns, line_of
from tests.pipeline.spools import DAY_MS, MONDAY_MS, Fleet, file_name, records, write_file, write_many, write_spool

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
        return state_of(None, self.table).accounts[writer]

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


def framed(batch, number):
    first, last = batch[0], batch[-1]
    header = Header(
        stream=first.KIND, instance=first.instance, epoch=first.epoch, file=number, first_sequence=first.sequence
    )
    return [header, *batch, End(records=len(batch), next_sequence=last.sequence + 1)]


def test_what_the_proxy_dropped_is_no_gap_and_what_an_end_tells_of_is(place):
    mine = records(FLEET, 40)
    rows = framed(mine[:10] + mine[15:20], 1)
    reported = Dropped(
        instance=WRITER.instance, epoch=WRITER.epoch, stream="usage", first_sequence=11, last_sequence=15, reason="full"
    )
    rows.insert(11, reported)
    rows[-1] = End(records=15, next_sequence=26)
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


def event(sequence, **changes):
    values = dict.fromkeys(TraceEvent.__slots__, 0)
    texts = dict.fromkeys(("virtual_cluster", "user", "client_id", "ip", "rule"), "x")
    values |= texts | {"instance": "proxy-1", "epoch": 3, "sequence": sequence, "operation": "charge"}
    values |= {"quota_type": "produce", "value": -1.5, "limit": None, "wall_ms": MONDAY_MS + sequence}
    return TraceEvent(**(values | changes))


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


def test_rows_in_no_order_at_all_are_taken_once(place, monkeypatch):
    monkeypatch.setattr("pipeline.ingest.ingest._MOST_RUNS", 10)
    mine = records(FLEET, 80)
    mixed = [*mine, *mine[20:40]]
    random.Random(5).shuffle(mixed)
    path = write_file(place.spool, mixed, 1)
    path.write_text("".join(map(line_of, [*framed(mixed, 1)[:-1], End(records=100, next_sequence=81)])))
    assert place.ingest() == {"usage records": 80, "usage duplicates": 20}
    assert place.usage() == mine


def test_parts_are_merged_and_who_reads_the_old_ones_goes_on(place):
    mine = records(FLEET, 30)
    for number in range(1, 4):
        write_file(place.spool, mine[10 * number - 10 : 10 * number], number)
        place.ingest()
    before = read_usage(place.spark, place.table)
    files = files_at(None, place.table)
    assert compacted(place.spark, files, at_least=4) == 0
    assert compacted(place.spark, files, at_least=3) == 3
    assert len(state_of(None, place.table).parts) == 1
    assert before.count() == 30
    assert compacted(place.spark, files, at_least=3, kept_ms=-1) == 0
    assert len(list(Path(place.table).glob("usage/*/*/*/*.parquet"))) == 1
    assert place.usage() == mine


@pytest.mark.parametrize("step", ["make_durable", "put_new", "after", "move"])
def test_who_is_stopped_at_any_step_leaves_a_table_that_the_next_start_makes_whole(place, monkeypatch, step):
    mine = records(FLEET, 30)
    write_spool(place.spool, mine, per_file=10)
    do = LocalFiles.put_new if step == "after" else getattr(LocalFiles, step)

    def stop(self, *arguments):
        if step == "after":
            do(self, *arguments)
        raise RuntimeError("stopped")

    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "put_new" if step == "after" else step, stop)
        patched.setattr(LocalFiles, "remove", lambda self, path: None)
        with pytest.raises(Exception, match="stopped"):
            place.ingest()
    place.ingest()
    assert place.usage() == mine
    table = Path(place.table)
    assert [len(list(table.glob(kind))) for kind in ("_staging/*", "usage/*", "_log/*.json")] == [0, 1, 1]


def test_a_table_written_by_an_older_version_is_read_with_defaults(place):
    mine = records(FLEET, 10)
    write_spool(place.spool, mine)
    place.ingest()
    [part] = state_of(None, place.table).parts
    path, old = f"{place.table}/{part}", f"{place.table}/old"
    place.spark.read.parquet(path).drop("shadow_limit", "unsent_bytes", "scope", "share").write.parquet(old)
    shutil.rmtree(path)
    shutil.move(old, path)
    assert place.usage() == mine


def test_a_directory_that_is_no_table_is_said_to_be_none(place):
    with pytest.raises(ValueError, match="expected a table"):
        read_usage(place.spark, place.table)
    (place.spool.parent / "table" / "_log").mkdir(parents=True)
    (place.spool.parent / "table" / "_log" / "000000000001.json").write_text("{")
    with pytest.raises(ValueError, match="is not readable"):
        place.ingest()
    (place.spool.parent / "table" / "_log" / "000000000001.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ValueError, match="expected format 1, got 99"):
        place.ingest()


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
