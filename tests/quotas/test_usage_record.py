"""Lines of usage: records that are written are read again, and damaged lines are reported."""

from dataclasses import fields
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.quotas.records.usage_record import (
    ROWS,
    BadLine,
    Dropped,
    End,
    Header,
    SecondOfUse,
    ThrottledUse,
    UsageRecord,
    columns,
    line_of,
    profile_text,
    read_line,
    read_profile,
)

VALUES = {
    str: st.text(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
}
END = End(records=3, next_sequence=9, final=0, stream="", instance="", epoch=0, beside=0)
USAGE_COLUMNS = (
    "instance epoch sequence begin_ms end_ms virtual_cluster node_id user client_id ip quota_type used peak requests "
    "in_bytes out_bytes throttles throttled_ms backlogged_ms limit rule shadow_limit shadow_rule shadow_throttles "
    "shadow_throttled_ms unsent_bytes muted_ms profile scope share"
)


def rows(row):
    optional = {True: lambda values: st.none() | values, False: lambda values: values}
    return st.builds(
        row, **{name: optional[can_be_missing](VALUES[kind]) for name, (kind, can_be_missing) in columns(row).items()}
    )


def line(body):
    return f"{body}\t{crc32(body.encode()):08x}\n"


@given(st.one_of(*map(rows, ROWS.values())))
def test_what_is_written_is_read(row):
    text = line_of(row)
    assert text.count("\n") == 1
    assert read_line(text) == row


def test_the_order_of_columns_stands():
    """A column that is added comes last, and the version goes up."""
    assert list(columns(UsageRecord)) == USAGE_COLUMNS.split()


def test_every_column_is_documented():
    for row in ROWS.values():
        assert all(column.metadata["about"] for column in fields(row))


@given(rows(UsageRecord), st.data())
def test_what_was_changed_or_cut_is_refused(row, data):
    text = line_of(row)
    at = data.draw(st.integers(0, len(text) - 2))
    with pytest.raises(BadLine):
        read_line(text[:at])
    with pytest.raises(BadLine):
        read_line(text[:at] + ("x" if text[at] != "x" else "y") + text[at + 1 :])


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("", "expected a version, got ''"),
        ("-1\tend\t1\t2", "expected a version, got '-1'"),
        ("1", "unknown kind ''"),
        ("1\tbanana\t1", "unknown kind 'banana'"),
        ("1\tend\t3", "expected 7 columns, got 1: next_sequence is missing"),
        ("1\tend\t3\t4\t0\tusage\there\t5\t0\t6", "expected 7 columns, got 8"),
        ("1\tend\tmany\t4\t0\tusage\there\t5\t0", "records: expected int, got 'many'"),
        ("1\tend\t\\N\t4\t0\tusage\there\t5\t0", "records: expected int, got"),
    ],
)
def test_bad_lines_are_reported(body, problem):
    with pytest.raises(BadLine, match=problem.replace("\\", "\\\\")):
        read_line(line(body))


def test_a_checksum_of_nothing_is_no_line():
    with pytest.raises(BadLine, match="the checksum is wrong"):
        read_line("00000000\n")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
def test_numbers_are_finite(number):
    record = UsageRecord(**{name: kind() for name, (kind, _) in columns(UsageRecord).items()})
    body = line_of(record).rpartition("\t")[0].split("\t")
    at = 2 + USAGE_COLUMNS.split().index("used")
    with pytest.raises(BadLine, match="used: expected a finite number"):
        read_line(line("\t".join([*body[:at], number, *body[at + 1 :]])))


def test_columns_of_a_later_version_are_left_out():
    assert read_line(line("4\tend\t3\t9\t0\t\t\t0\t0\tnew")) == END


def test_a_name_that_is_no_text_stays_readable():
    row = Dropped(instance="\udc80", epoch=1, stream="usage", first_sequence=1, last_sequence=2, reason="full")
    assert read_line(line_of(row)).instance == "\\udc80"


def test_a_header_says_what_follows():
    header = Header(stream="usage", instance="here", epoch=5, file=1, first_sequence=1, flush_ms=5)
    assert line_of(header).startswith("3\theader\tusage\there\t5\t1\t1\t")


_COUNTS = st.integers(0, 10**6)
_USED = st.integers(1, 10**11)
_AT = st.integers(0, 59_999)
_SECONDS = st.one_of(
    st.tuples(_AT, _USED),
    st.tuples(_AT, _USED, st.integers(1, 10**6), _COUNTS, _COUNTS),
    st.tuples(_AT, _USED, st.integers(1, 10**6), _COUNTS, _COUNTS, st.lists(st.tuples(_AT, _USED)).map(tuple)),
).map(lambda numbers: SecondOfUse(*numbers))


@given(st.lists(_SECONDS, min_size=1, max_size=60))
def test_a_profile_is_read_as_it_was_written(seconds):
    assert read_profile(profile_text(seconds)) == seconds


_REPORTED = (ThrottledUse(2_500, 8.5), ThrottledUse(2_502, 0.5))


def test_seconds_without_throttles_are_short():
    reported = [SecondOfUse(5, 7, 0, 3), SecondOfUse(1_000, 1.5, 20, 2, 1), SecondOfUse(2_000, 9, 20, 4, 2, _REPORTED)]
    assert profile_text(reported) == "5:7 1000:1.5:20:2:1 2000:9:20:4:2:2500=8.5,2502=0.5"


def test_fields_that_later_profiles_add_to_a_second_are_left_out():
    reported = [SecondOfUse(5, 7), SecondOfUse(1_000, 1.5, 20, 2, 1, ((1_077, 1),))]
    assert read_profile("5:7 1000:1.5:20:2:1:1077=1:x:9") == reported
    assert read_profile("5:7 1000:1.5:20:2:1::x") == [reported[0], reported[1]._replace(reported=())]


def test_a_profile_that_cannot_be_read_is_empty():
    for text in (
        "x",
        "1",
        "1:2:3:4:x:6=1",
        "1:2:3:4:1:6",
        "1:2:3:4:1:6=1,",
        "1:2:3:4:1:6=1=1",
        "1:2:3:4:1:x=6",
        "1:2:3:4:1:-6=6",
        "1:2:3:4:1:6=-6",
        "1:2:3:4:1:6=nan",
        "1:2:3:4:1:6=inf",
        "1:nan",
        "1:2 3:inf",
        "1.5:2",
        ":",
        "1:2:-3",
        "1:2:3:-4:5",
        "1:2:3:4:-5",
        "-1:2",
        "9007199254740993:2",
    ):
        assert read_profile(text) == []


def test_a_line_that_lacks_columns_is_no_record():
    record = UsageRecord(**{name: kind() for name, (kind, _) in columns(UsageRecord).items()})
    shorter = line_of(record).rpartition("\t")[0].split("\t")[:-2]
    with pytest.raises(BadLine, match="expected 30 columns, got 28: scope is missing"):
        read_line(line("\t".join(["2", *shorter[1:]])))
