"""Lines judged by Spark's expressions, and each of them by `read_line` and a few rules in plain Python: the same."""

import ast
import random
import re
import string
from collections import Counter
from dataclasses import replace
from zlib import crc32

import pytest
from pyspark.sql import functions as F

from kafka_throttle.pipeline.ingest.frames import KINDS
from kafka_throttle.pipeline.ingest.ingest import Batch, Ingest
from kafka_throttle.pipeline.ingest.rules import (
    NO_VALUE,
    is_broken,
    kind_of,
    reason_of,
    rule_of_kinds,
    rules_of_all,
    rules_of_messages,
    rules_of_record,
    split_lines,
    with_columns,
)
from kafka_throttle.pipeline.table.accounts import read_accounts
from kafka_throttle.pipeline.table.schemas import (
    HAS_IP,
    HAS_NO_MOST,
    MAY_BE_NEGATIVE,
    MOST,
    QUOTA_TYPES,
    ROWS,
    time_column,
)
from kafka_throttle.pipeline.table.table import DAY, read_quarantine, read_trace, read_usage
from kafka_throttle.quotas.records.usage_record import (
    VERSION,
    BadLine,
    TraceEvent,
    UsageRecord,
    columns,
    line_of,
    read_line,
)
from tests.pipeline.spools import DAY_MS, MONDAY_MS, Fleet, header_of, records

LATEST_MS = MONDAY_MS + 3_600_000
NUMBERS = (
    *("", " 5", "5 ", "\t5", "+5", "1_0", "0x1", "0X1F", " 0x1", "-0x1", "0x1p3", "1e3", "1E3", "1e+3", "1e", "5L"),
    *(
        "-1",
        "-0",
        "-0.0",
        "0",
        "007",
        "-007",
        "1.",
        ".5",
        "5.0",
        "--5",
        "1d",
        "1D",
        "1f",
        "1.5.5",
        "1,5",
        "\\N",
        " \\N",
    ),
    *("nan", "NaN", "-nan", "inf", "-inf", "+inf", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999", "5e-324"),
    *("9" * 19, "9" * 400, "9" * 5_000, str(2**63 - 1), str(2**63), str(-(2**63)), str(-(2**63) - 1), "0" * 30 + "7"),
    *(str(MOST), str(MOST + 1), str(-MOST - 1), str(2**53 + 1), "½", "٣", "\uff15", "--", "\u00a05", "\x005", "5\x00"),
    *("0.1", "1.7976931348623157e308", "2.4703282292062327e-324", "0.30000000000000004", "true", "\r", "5\r", '"5"'),
    *("5\x1f", "\x0b5", "5\u2028", "5\x85", "null", "1e16", "123456789012345680.0", str(LATEST_MS), str(LATEST_MS + 1)),
)
TEXTS = (
    *("", "\\", "\\N", "\\t", "\\n", "\\r", "\\s", "\\\\", "\\\\t", "\\\\\\t", "a\\\\nb", "ä€𐍈", "\x00", "\x01", " "),
    *("\u2028", "\ufeff", "0x1", "\r", "#", "null", "NULL", "NaN", " a ", "%2F", "=", "/", '"', "'", ",", "x" * 50),
    *(*QUOTA_TYPES, "connect", "é" * 41),
)
VERSIONS = (
    *("1", "2", "3", "4", "33", "01", "0" * 8 + "2", "0" * 9 + "2", "0", "-1", "+1", "٣", "", "x", " 3", "3 ", "3\r"),
    *("3\x00", "3\u2028", "3.0", str(2**31), "999999999", str(2**63), "9" * 5_000),
)


def summed(body):
    data = body if isinstance(body, bytes) else body.encode()
    return data + b"\t%08x" % crc32(data)


def event(sequence, **changes):
    values = dict.fromkeys(TraceEvent.__slots__, 0)
    texts = dict.fromkeys(("virtual_cluster", "user", "client_id", "ip", "rule"), "x")
    values |= texts | {"instance": "proxy-1", "epoch": 3, "sequence": sequence, "operation": "charge", "count": 1}
    values |= {"quota_type": "produce", "value": -1.5, "limit": None, "wall_ms": MONDAY_MS + sequence}
    return TraceEvent(**(values | changes))


USE = records(Fleet(entities=9, per_window=9), 300)
EVENTS = [event(number) for number in range(1, 101)]


def written(rows):
    return [line_of(row).rstrip("\n").encode() for row in rows]


# ------------------------------------------------------- by those who know


def expected(line, row):
    """The record of a line, or the reason why it is refused; None if it is for others to judge."""
    kind = (line.split(b"\t", 2) + [b""])[1].decode(errors="replace")
    if kind != row.KIND and kind in (*ROWS, *KINDS):
        return None
    if line == NO_VALUE.encode():
        return "the message has no value"
    try:
        found = read_line(line.decode())
    except UnicodeDecodeError:
        return "the checksum is wrong"
    except BadLine as error:
        return in_common(str(error))
    return in_common(why_not(found, LATEST_MS)) or found


def why_not(row, latest_ms):
    """The reason why a record that can be read is refused; empty if it is accepted."""
    for name, (kind, _) in columns(type(row)).items():
        value = getattr(row, name)
        if value is None or kind is str:
            continue
        if value < 0 and name not in MAY_BE_NEGATIVE[row.KIND]:
            return f"{name}: expected 0 or more, got {value}"
        if abs(value) > MOST and name not in HAS_NO_MOST:
            return f"{name}: expected {MOST} at most, got {value}"
    if (quota_type := row.quota_type) not in QUOTA_TYPES:
        return f"quota_type: expected one of {', '.join(QUOTA_TYPES)}, got {quota_type[:40]!r}"
    of_addresses, value = HAS_IP[row.KIND]
    if getattr(row, of_addresses) == value and not row.ip:
        return f"ip: expected an address, as {of_addresses} is {value}"
    at = getattr(row, time_column(type(row)))
    if at > latest_ms:
        return f"{time_column(type(row))}: in the future, got {at}"
    if isinstance(row, UsageRecord) and row.end_ms < row.begin_ms:
        return f"end_ms: expected begin_ms or later, got {row.end_ms}"
    if isinstance(row, UsageRecord) and row.end_ms > latest_ms:
        return f"end_ms: in the future, got {row.end_ms}"
    return ""


def in_common(reason):
    """Python and Java write texts with odd characters, and very large doubles, in different ways."""
    if quoted := re.fullmatch(r"""(.*?)(['"].*['"])""", reason, re.DOTALL):
        return f"{quoted[1]}'{ast.literal_eval(quoted[2])}'"
    expectation, got, value = reason.rpartition(", got ")
    try:
        return f"{expectation}{got}{float(value)!r}" if got and not expectation.endswith("columns") else reason
    except ValueError:
        return reason


# --------------------------------------------------------------- by Spark


def judged(spark, folder, lines, row):
    """The same of all lines, by Spark, in one job; `lines` are in a file, as no text of Python's can be any bytes."""
    path = folder / "lines"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    text = spark.read.option("lineSep", "\n").text(str(path)).select(
        F.col("value").alias("text"),
        F.col("_metadata.file_block_start").alias("block"),
        F.monotonically_increasing_id().alias("number"),
    )  # fmt: skip
    is_mine, is_known = kind_of(F.col("text")) == row.KIND, kind_of(F.col("text")).isin(*ROWS, *KINDS)
    rules = [*rules_of_all(), *rules_of_record(row, LATEST_MS)]
    rest = [*rules_of_messages(), *rules_of_all(), rule_of_kinds()]
    rows = with_columns(split_lines(text), row).select(
        "block",
        "number",
        F.unix_date(DAY).alias(DAY),
        *columns(row),
        F.coalesce(is_mine, F.lit(False)).alias("is_mine"),
        F.when(~is_mine & is_known, True).otherwise(False).alias("is_of_others"),
        is_broken(rules).alias("is_broken"),
        reason_of(rules).alias("reason"),
        reason_of(rest).alias("other_reason"),
    )
    return [result_of(found, row) for found in sorted(rows.collect(), key=lambda one: (one["block"], one["number"]))]


def result_of(found, row):
    if found["is_of_others"]:
        return None
    if not found["is_mine"]:
        return spark_in_common(found["other_reason"])
    assert found["is_broken"] is (found["reason"] is not None)
    if found["is_broken"]:
        return spark_in_common(found["reason"])
    record = row(**{name: found[name] for name in columns(row)})
    assert found[DAY] == getattr(record, time_column(row)) // DAY_MS
    return record


def spark_in_common(reason):
    return reason if reason.endswith("'") else in_common(reason)


def assert_same(spark, folder, lines, row):
    """Returns what was found, and how often each reason was given."""
    found = judged(spark, folder, lines, row)
    assert len(found) == len(lines)
    wanted = [expected(line, row) for line in lines]
    wrong = [
        (line, spark_says, python_says)
        for line, spark_says, python_says in zip(lines, found, wanted, strict=True)
        if repr(spark_says) != repr(python_says)
    ]
    assert not wrong, (len(wrong), wrong[:3])
    return found, Counter(one.partition(", got")[0] for one in found if isinstance(one, str))


# --------------------------------------------------------------- odd lines


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


def with_each_number(line, row):
    """A line for each number that may stand in each column with a number, and each text in the others."""
    parts = line.decode().split("\t")[:-1]
    for place, (kind, _) in enumerate(columns(row).values(), 2):
        for value in TEXTS if kind is str else NUMBERS:
            yield summed("\t".join([*parts[:place], value, *parts[place + 1 :]]))


def with_each_version(line):
    """Each version with each number of columns."""
    parts = line.decode().split("\t")[1:-1]
    longer = [*parts, "new", "", "7", "\\N"]
    for version in VERSIONS:
        for count in (*range(4), *range(len(parts) - 8, len(longer) + 1)):
            yield summed("\t".join([version, *longer[:count]]))
    for count in range(len(longer)):
        yield summed("\t".join([str(VERSION), *longer[:count]]))


def no_lines():
    """Lines that are not of a spool at all."""
    yield from (b"", b"\t", b"\t\t\t", b"1\tusage\t", b"00000000", b"\t00000000", b"\xff" * 20, b"1\tusage\t\t\t\t")
    bodies = (b"", b"1", b"1\tusage", b"1\ttrace", b"1\tusage\t", b"1\tusage\t\xff", b"usage", b"\t\r", b"3\tbanana\t1")
    yield from map(summed, bodies)
    yield from (b"3\tusage\xc3\xa9", summed("3\t" + "é" * 50), summed("3\tit's\t1"), NO_VALUE.encode(), b"Dear diary\r")
    yield from (
        summed("3\tusage\tx")[:-1] + b"\r",
        summed("3\tusage\tx").upper(),
        "ä".encode() * 7,
        b"3\tusage\t\xed\xa0\x80",
    )
    line = written(USE[:1])[0]
    yield from (line[:at] for at in range(len(line)))


def lines_of(row, good, chance):
    unknown = [b"%d" % (VERSION + 1), *good[0].split(b"\t")[1:-1]]
    return [
        *good,
        *(summed(b"\t".join([*unknown, more])) for more in (b"new", b"\xff", b"n\xc3\xa9")),
        *with_each_number(good[0], row),
        *with_each_version(good[0]),
        *no_lines(),
        *(spoilt(chance, chance.choice(good)) for _ in range(5_000)),
    ]


def test_usage_records_are_what_read_line_makes_of_them(spark, tmp_path):
    chance = random.Random(11)
    odd = [
        replace(
            chance.choice(USE), **{name: "".join(chance.choices(TEXTS, k=chance.randrange(6)))}
        )
        for name in ("user", "client_id", "rule", "instance", "virtual_cluster", "profile")
        for _ in range(100)
    ]  # fmt: skip
    at_most = [
        replace(USE[0], **{column: value})
        for column in ("used", "peak", "in_bytes", "throttled_ms", "sequence", "epoch", "node_id")
        for value in (MOST, MOST + 2, -MOST, -MOST - 2)
    ]
    refused = [
        replace(USE[0], quota_type="PRODUCE"),
        replace(USE[0], quota_type="connection", ip=""),
        replace(USE[0], end_ms=LATEST_MS + 1),
        replace(USE[0], begin_ms=LATEST_MS + 1, end_ms=LATEST_MS + 2),
        replace(USE[0], begin_ms=LATEST_MS, end_ms=LATEST_MS - 1),
        replace(USE[0], begin_ms=-1, end_ms=-1),
    ]
    others = [*written(EVENTS[:3]), *written([header_of("usage", "x", 1, 1, 1)])]
    good = written(USE)
    lines = [*good, *written([*odd, *at_most, *refused]), *others, *lines_of(UsageRecord, good, chance)]
    found, reasons = assert_same(spark, tmp_path, lines, UsageRecord)
    assert found[: len(USE) + len(odd)] == [*USE, *odd]
    assert sum(isinstance(one, UsageRecord) for one in found) > 2_000
    assert len(reasons) > 80
    assert reasons["used: expected float"] > 20
    assert reasons["used: expected a finite number"] > 4
    assert reasons["begin_ms: expected 0 or more"] > 1
    assert reasons["end_ms: in the future"] > 1


def test_trace_events_are_what_read_line_makes_of_them(spark, tmp_path):
    chance = random.Random(3)
    refused = [
        event(1, operation="connect", ip=""),
        event(1, wall_ms=LATEST_MS + 1),
        event(1, wall_ms=-1),
        event(1, at_ms=-5, value=-1e300),
    ]
    good = written(EVENTS)
    lines = [*good, *written(refused), *written(USE[:3]), *lines_of(TraceEvent, good, chance)]
    found, reasons = assert_same(spark, tmp_path, lines, TraceEvent)
    assert found[: len(EVENTS)] == EVENTS
    assert found[len(EVENTS) + 3] == event(1, at_ms=-5, value=-1e300)
    assert sum(isinstance(one, TraceEvent) for one in found) > 1_000
    assert len(reasons) > 50


@pytest.mark.parametrize("number", ["+5", " 5", "1_0", "٣", "\uff15", "007", "-0", "5.0"])
def test_a_whole_number_is_written_as_the_proxy_writes_it(number):
    parts = written(USE[:1])[0].decode().split("\t")[:-1]
    with pytest.raises(BadLine, match="requests: expected int, got"):
        read_line(summed("\t".join([*parts[:15], number, *parts[16:]])).decode())


@pytest.mark.parametrize("number", ["+5", " 5", "1_0", "٣", "1d", "0x1p3", ".5", "1.", "1E3", "NaN", "Infinity"])
def test_a_float_is_written_as_the_proxy_writes_it(number):
    parts = written(USE[:1])[0].decode().split("\t")[:-1]
    with pytest.raises(BadLine, match="used: expected float, got"):
        read_line(summed("\t".join([*parts[:13], number, *parts[14:]])).decode())


def test_no_line_with_a_right_checksum_ends_an_ingest(spark, tmp_path):
    """Anybody who may write to a topic can send one."""
    bodies = [
        ["2", kind, *[number] * count]
        for kind in ("usage", "trace", "header", "end", "dropped", "other")
        for number in NUMBERS
        for count in (0, 1, 4, 5, 6, 7, 19, 30, 39)
    ]
    ends = [
        ["3", "dropped", "x", "1", "usage", str(first), str(last), "no_room"]
        for first, last in ((1, 2**63 - 1), (2**63 - 1, 2**63 - 1), (-(2**63), 5), (-(2**63), -(2**63)), (3, 2**62))
    ]
    bodies += [*ends, ["3", "end", "1", str(-(2**63)), "1", "usage", "x", "1", "0"]]
    bodies += [["3", "end", "1", str(2**63 - 1), "1", "usage", "x", str(-(2**63)), "0"]]
    path = tmp_path / "lines"
    path.write_bytes(b"".join([summed("\t".join(parts)) + b"\n" for parts in bodies]))
    good = written(USE[:50])
    with path.open("ab") as file:
        file.write(b"\n".join([*good, *written(EVENTS), *no_lines()]) + b"\n")
    table = str(tmp_path / "table")
    lines = spark.read.option("lineSep", "\n").text(str(path)).select(
        F.col("value").alias("text"), F.lit("records-0@1").alias("file"), F.lit(0).cast("long").alias("block")
    )  # fmt: skip
    outcome = Ingest(spark, table).take(Batch("query", 0, lines, (), LATEST_MS))
    assert outcome.counts["usage records"] == 50
    assert outcome.counts["trace records"] == 100
    assert read_usage(spark, table).count() == 50
    assert read_trace(spark, table).count() == 100
    assert read_quarantine(spark, table).count() > 2_000
    # And none of those after it.
    assert read_accounts(spark, table)
    Ingest(spark, table).take(Batch("query", 1, lines, (), LATEST_MS))
    assert read_usage(spark, table).count() == 50
    assert read_accounts(spark, table)
