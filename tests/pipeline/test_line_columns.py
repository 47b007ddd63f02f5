"""What is read of many lines at once, and what `read_line` reads of each: the same."""

import random
import string
from dataclasses import replace
from itertools import count
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.ingest.line_columns import CHECKSUM, OTHER, Reader
from pipeline.ingest.rejects import Line, Sorted, why_not
from pipeline.table.schemas import LONGEST_NAME, MOST, ROWS
from quotas.records.usage_record import (
    VERSION,
    BadLine,
    End,
    Header,
    TraceEvent,
    UsageRecord,
    columns,
    line_of,
    read_line,
)
from tests.pipeline.spools import MONDAY_MS, Fleet, records

LATEST_MS = MONDAY_MS + 3_600_000
NUMBERS = (
    *("", " 5", "5 ", "+5", "1_0", "0x1", "0X1F", " 0x1", "-0x1", "1e3", "1E3", "-1", "-0", "-0.0", "007", "1.", ".5"),
    *(
        "nan",
        "NaN",
        "inf",
        "-Infinity",
        "1e999",
        "1e-999",
        "5e-324",
        "9" * 19,
        "9" * 400,
        "9" * 5_000,
        str(2**63 - 1),
        str(2**63),
    ),
    *("\\N", " \\N", "½", "٣", "--", "\u00a05", "\x005", "1d", "0.1", "1.7976931348623157e308", "true", "\r", '"5"'),
)
TEXTS = (
    *("", "\\", "\\N", "\\t", "\\s", "\\\\", "a\\\\nb", "ä€𐍈", "\x00", "\x01", " ", "%2F", "=", "/", '"', "'", ","),
    *("\u2028", "\ufeff", "0x1", "\r", "\\r", "#", "null", "NULL", "NaN", " a "),
)
VERSIONS = ("1", "2", "3", "01", "0" * 9 + "2", "0", "-1", "+1", "٣", "", "x", str(2**63), "9" * 5_000)


def summed(body):
    data = body if isinstance(body, bytes) else body.encode()
    return data + b"\t%08x" % crc32(data)


def arriving(lines):
    """As Spark brings lines."""
    checksums = [crc32(line[:-9]) for line in lines]
    length = len(lines)
    names = ("text", "file", "block", "number", CHECKSUM)
    values = (lines, ["file"] * length, [7] * length, range(100, 100 + length), checksums)
    types = (pa.binary(), pa.string(), pa.int64(), pa.int64(), pa.int64())
    arrays = [pa.array(value, of) for value, of in zip(values, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def read(batch, row=UsageRecord):
    """By line number: the record, or the line's kind, text, file and block."""
    found = {}
    for one in Reader(row, LATEST_MS).read([batch]):
        for values in one.to_pylist():
            assert (values["kind"] == row.KIND) is (values["text"] is None)
            if values["kind"] == row.KIND:
                record = row(**{name: values[name] for name in columns(row)})
                number = values["sequence"] - values["line_offset"]
                assert values["day"].toordinal() == 719_163 + getattr(record, time_of(row)) // 86_400_000
                result = record
            else:
                number = values["number"]
                result = tuple(values[name] for name in ("kind", "text", "file", "block"))
            assert number not in found
            found[number] = result
    assert sorted(found) == batch["number"].to_pylist()
    return list(dict(sorted(found.items())).values())


def time_of(row):
    return "begin_ms" if row is UsageRecord else "wall_ms"


def expected(line, row=UsageRecord):
    """The same of one line, by those who know."""
    other = OTHER, line.decode(errors="replace"), "file", 7
    if line[-9:] != summed(line[:-9])[-9:]:
        return other
    kind = line.split(b"\t")[1].decode(errors="replace")
    if kind in ROWS and kind != row.KIND:
        return kind, *other[1:]
    try:
        found = read_line(line.decode())
    except (BadLine, UnicodeDecodeError):
        return other
    return found if isinstance(found, row) and not why_not(found, LATEST_MS) else other


def assert_same(lines, row=UsageRecord):
    assert [repr(one) for one in read(arriving(lines), row)] == [repr(expected(line, row)) for line in lines]


MINE = records(Fleet(entities=9, per_window=9), 400)
GOOD = [line_of(record).rstrip("\n").encode() for record in MINE]


def spoilt(chance, line):
    """One of the many ways in which a line may be odd, with the checksum made anew, or not."""
    parts = line.decode().split("\t")[:-1]
    where = chance.randrange(-4, len(parts))
    if where == -4:
        return summed("\t".join(parts[: chance.randrange(1, len(parts))]))
    if where == -3:
        return summed("\t".join([*parts, *chance.choices(NUMBERS, k=chance.randrange(1, 3))]))
    if where == -2:
        at = chance.randrange(len(line))
        return line[:at] + chance.choice(string.printable.replace("\n", "")).encode() + line[at + 1 :]
    if where == -1:
        at = chance.randrange(len(line) - 9)
        return summed(line[:at] + bytes([chance.choice([0, 9, 13, 128, 255])]) + line[at + 1 : -9])
    if where == 0:
        parts[0] = chance.choice(VERSIONS)
    else:
        parts[where] = chance.choice(NUMBERS) if chance.random() < 0.5 else "".join(chance.choices(TEXTS, k=2))
    return summed("\t".join(parts))


def test_good_lines_are_read_at_once(monkeypatch):
    frame = [line_of(Header(stream="usage", instance="usage", epoch=1, file=1, first_sequence=1)).strip().encode()]
    end = line_of(End(records=1, next_sequence=2)).rstrip("\n").encode()
    lines = [*frame, *GOOD, end]
    wanted = [expected(line) for line in lines]
    monkeypatch.setattr("pipeline.ingest.line_columns.read_line", None)
    assert read(arriving(lines)) == wanted
    assert wanted[1:-1] == MINE
    assert [one[0] for one in (wanted[0], wanted[-1])] == [OTHER, OTHER]


@pytest.mark.parametrize("seed", range(4))
def test_odd_lines_among_others_are_read_as_read_line_reads_them(seed):
    chance = random.Random(seed)
    assert_same([spoilt(chance, line) if chance.random() < 0.5 else line for line in GOOD])
    assert_same([spoilt(chance, line) if chance.random() < 0.01 else line for line in GOOD])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(TEXTS), max_size=6),
    st.sampled_from(["user", "client_id", "rule", "instance", "virtual_cluster"]),
)
def test_texts_come_back_as_they_were(pieces, name):
    odd = [replace(record, **{name: "".join(pieces) + record.user}) for record in MINE[:50]]
    lines = [line_of(record).rstrip("\n").encode() for record in odd]
    assert read(arriving(lines)) == [read_line(line.decode()) for line in lines] == odd


def test_numbers_are_what_read_line_makes_of_them():
    for place, (name, (kind, _)) in enumerate(columns(UsageRecord).items(), 2):
        if kind is not str:
            lines = []
            for line, number in zip(GOOD, NUMBERS, strict=False):
                parts = line.decode().split("\t")[:-1]
                lines.append(summed("\t".join([*parts[:place], number, *parts[place + 1 :]])))
            assert_same(lines), name
            for line in lines:
                assert_same([line])


def test_older_and_later_versions_have_fewer_and_more_columns():
    def lines(version, change):
        for line in GOOD[:100]:
            yield summed("\t".join([str(version), *change(line.decode().split("\t")[1:-1])]))

    older = list(lines(1, lambda parts: parts[:-1]))
    later = list(lines(VERSION + 1, lambda parts: [*parts, "new", "", "7"]))
    latest = list(lines(VERSION + 30, lambda parts: [*parts, "newer"]))
    assert_same(older)
    assert_same(later)
    mixed = [*older, *later, *GOOD[:100], *latest, *lines(1, lambda parts: [*parts, "too many"])]
    random.Random(1).shuffle(mixed)
    assert_same(mixed)
    assert sum(isinstance(one, UsageRecord) for one in read(arriving(mixed))) == 400


def event(sequence, **changes):
    values = dict.fromkeys(TraceEvent.__slots__, 0)
    texts = dict.fromkeys(("virtual_cluster", "user", "client_id", "ip", "rule"), "x")
    values |= texts | {"instance": "proxy-1", "epoch": 3, "sequence": sequence, "operation": "charge"}
    values |= {"quota_type": "produce", "value": -1.5, "limit": None, "wall_ms": MONDAY_MS + sequence}
    return TraceEvent(**(values | changes))


def test_lines_of_the_other_stream_are_left_to_it():
    events = [line_of(event(number)).rstrip("\n").encode() for number in range(1, 101)]
    chance = random.Random(3)
    lines = [*events, *(spoilt(chance, line) for line in events), *GOOD[:100]]
    chance.shuffle(lines)
    assert_same(lines)
    assert_same(lines, TraceEvent)
    assert sum(isinstance(one, TraceEvent) for one in read(arriving(lines), TraceEvent)) >= 100


def test_lines_that_are_not_of_a_spool_at_all():
    assert_same([])
    assert_same([b""])
    assert_same([b"", b"\t", b"\t\t\t", b"1\tusage\t", b"00000000", b"\t00000000", b"\xff" * 20, b"1\tusage\t\t\t\t"])
    assert_same(
        [summed(body) for body in (b"", b"1", b"1\tusage", b"1\tusage\t", b"1\tusage\t\xff", b"usage", b"\t\r")]
    )
    assert_same([line[:at] for line, at in zip(GOOD, count(), strict=False)])


def test_a_batch_that_is_a_part_of_another_is_read_as_it_is():
    batch = arriving(GOOD).slice(100, 50)
    assert read(batch) == MINE[100:150]


def test_a_virtual_cluster_has_a_name_that_a_directory_may_have():
    longest = replace(MINE[0], virtual_cluster="ä" * (LONGEST_NAME // 2))
    too_long = replace(MINE[1], virtual_cluster="c" * (LONGEST_NAME + 1))
    assert why_not(too_long, LATEST_MS).startswith("virtual_cluster: expected 64 bytes at most, got ccc")
    has_nul = replace(MINE[2], virtual_cluster="main\0")
    assert why_not(has_nul, LATEST_MS) == "virtual_cluster: expected a name without NUL, got 'main\\x00'"
    lines = [line_of(record).rstrip("\n").encode() for record in (longest, too_long, has_nul)]
    assert_same([*lines, *GOOD])
    assert read(arriving(lines))[0] == longest


@pytest.mark.parametrize("column", ["used", "peak", "in_bytes", "throttled_ms", "sequence", "epoch", "node_id"])
def test_numbers_of_which_a_sum_would_not_fit_64_bits_are_not_taken(column):
    most, more = (replace(MINE[0], **{column: value}) for value in (MOST, 2 * MOST))
    assert why_not(most, LATEST_MS) == ""
    assert why_not(more, LATEST_MS) == f"{column}: expected {MOST} at most, got {2 * MOST}"
    lines = [line_of(record).rstrip("\n").encode() for record in (most, more)]
    assert_same([*lines, *GOOD])
    assert read(arriving(lines))[0] == most


def test_a_quota_type_that_nobody_knows_is_not_taken():
    odd = replace(MINE[0], quota_type="PRODUCE")
    assert why_not(odd, LATEST_MS).endswith("controller_mutation, connection, got 'PRODUCE'")
    assert_same([line_of(odd).rstrip("\n").encode(), *GOOD])


def test_a_connection_without_an_address_is_not_taken():
    odd = replace(MINE[0], quota_type="connection", ip="")
    assert why_not(odd, LATEST_MS) == "ip: expected an address, as quota_type is connection"
    assert_same([line_of(odd).rstrip("\n").encode(), *GOOD])


def test_a_window_that_ends_in_the_future_is_not_taken():
    future = replace(MINE[0], end_ms=LATEST_MS + 1)
    assert why_not(future, LATEST_MS) == f"end_ms: in the future, got {LATEST_MS + 1}"
    assert_same([line_of(future).rstrip("\n").encode(), *GOOD])


def test_a_column_that_nobody_knows_must_be_text_all_the_same():
    parts = [b"%d" % (VERSION + 1), *GOOD[0].split(b"\t")[1:-1]]
    later = [summed(b"\t".join([*parts, more])) for more in (b"new", b"\xff", b"new")]
    assert_same(later * 50)


@pytest.mark.parametrize("kind", ["usage", "trace", "header", "end", "dropped"])
def test_no_line_with_a_right_checksum_ends_an_ingest(kind):
    """Anybody who may write to a topic can send one."""
    lines = [summed("\t".join(["2", kind, *[number] * columns])) for number in NUMBERS for columns in range(2, 40)]
    found = read(arriving(lines))
    assert len(found) == len(lines)
    for line in lines:
        Sorted().take(Line(line.decode(), "file", 0, 0), LATEST_MS)
