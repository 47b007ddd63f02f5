"""Lines as messages of JSON: every line that a proxy writes, with its values; any other line as it is."""

import json
import struct
import subprocess
from zlib import crc32

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from kafka_throttle.quotas.records.topic_message import message_of, schema_of
from kafka_throttle.quotas.records.usage_record import (
    ROWS,
    VERSION,
    Dropped,
    End,
    UsageRecord,
    columns,
    line_of,
    read_line,
)
from tests.quotas.test_usage_record import rows
from tests.support.java_program import java_program
from tests.support.topic_messages import line_in, row_in

MOST_BYTES = 900_000
JSON_TYPES = {"int32": int, "int64": int, "double": (int, float), "string": str}
END = End(records=3, next_sequence=9, stream="usage", instance='quoted "\\t"\t\x00\x1fä𐍈', epoch=5, final=0, beside=0)
HALF = Dropped(instance="\udc80", epoch=1, stream="usage", first_sequence=1, last_sequence=2, reason="full")


def bare(row):
    return line_of(row).removesuffix("\n").encode()


def summed(body):
    return body + b"\t%08x" % crc32(body)


@given(st.one_of(*map(rows, ROWS.values())))
@example(END)
@example(HALF)
def test_every_row_is_a_message_that_gives_its_line_again(row):
    line = bare(row)
    message = message_of(line, MOST_BYTES)
    assert message.kind == row.KIND
    assert line_in(message.value) == line
    assert row_in(message.value) == read_line(line.decode())


@given(st.one_of(*map(rows, ROWS.values())))
def test_a_payload_is_what_its_schema_says(row):
    form = json.loads(message_of(bare(row), MOST_BYTES).value)
    assert form["schema"] == schema_of(type(row))
    assert list(form["payload"]) == [field["field"] for field in form["schema"]["fields"]]
    for field, value in zip(form["schema"]["fields"], form["payload"].values(), strict=True):
        assert isinstance(value, JSON_TYPES[field["type"]]) or (value is None and field["optional"])


@given(st.one_of(*map(rows, ROWS.values())), st.data())
def test_a_damaged_line_is_sent_as_it_is(row, data):
    line = bytearray(bare(row))
    at = data.draw(st.integers(0, len(line) - 1))
    line[at] ^= data.draw(st.integers(1, 255))
    assert message_of(bytes(line), MOST_BYTES) == (bytes(line), "")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "+5", "007", "1_0", "", "\\N", "1,2", "5\n"])
def test_a_number_that_is_none_stays_in_its_line(number):
    body = [b"3", b"usage", *(b"5" for _ in columns(UsageRecord))]
    body[2 + list(columns(UsageRecord)).index("used")] = number.encode()
    line = summed(b"\t".join(body))
    assert message_of(line, MOST_BYTES) == (line, "")


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"\t", b"\t\t", b"Dear diary", b"{}", b"\xff\xfe", b'{"payload":{}}'),
        *map(summed, (b"3", b"3\tend", b"3\tend\t3", b"3\tpoem\t1", b"4\tend\t3\t9\t0\t\t\t0\t0\tnew")),
        *map(
            summed, (b"3\tend\t3\t9\t0\t\t\\x\t0\t0", b"3\tend\t3\t9\t0\t\t\\\t0\t0", b"3\tend\t3\t9\t0\t\t\xff\t0\t0")
        ),
        *map(summed, (b"03\tend\t3\t9\t0\t\t\t0\t0", b"3\tend\t3\t9\t0\t\\N\t\t0\t0", b"3\tend\t3\t9\t0\t\r\t\t0\t0")),
    ],
)
def test_a_line_of_somebody_elses_is_sent_as_it_is(line):
    assert message_of(line, MOST_BYTES) == (line, "")


def test_a_message_that_would_be_too_long_is_the_line():
    line = bare(Dropped(instance="\x01" * 1000, epoch=1, stream="usage", first_sequence=1, last_sequence=2, reason=""))
    length = len(message_of(line, MOST_BYTES).value)
    assert length > 6_000
    assert message_of(line, length).kind == "dropped"
    assert message_of(line, length - 1) == (line, "")


# -------------------------------------------------------- Kafka Connect's own classes

CONNECT_TYPES = {str: "STRING", int: "INT64", float: "FLOAT64"}


def written(kind, value):
    if value is None:
        return "null"
    if kind is str:
        return value.encode().hex()
    # JsonConverter reads numbers as decimals, which have no -0.0.
    return str(value) if kind is int else f"{int.from_bytes(struct.pack('>d', value + 0.0)):x}"


def in_connect(line):
    """What tests/java/ConnectMessages writes of the message of a line, by plain Python."""
    row = read_line(line.decode())
    kinds = columns(type(row))
    fields = [
        *("version:INT32:" + line.decode().partition("\t")[0], "kind:STRING:" + row.KIND.encode().hex()),
        *(f"{name}:{CONNECT_TYPES[kind]}:{written(kind, getattr(row, name))}" for name, (kind, _) in kinds.items()),
    ]
    return [f"kafka_throttle.{row.KIND}", str(VERSION), *fields, f"crc:STRING:{line[-8:].hex()}"]


def connect_reads(folder, messages):
    lines = [f"{message.kind or 'none'} {message.value.hex()}\n" for message in messages]
    (folder / "messages").write_text("".join(lines))
    command = java_program("ConnectMessages", "4.3.1")
    subprocess.run([*command, folder / "messages", folder / "found"], check=True, timeout=600)
    return [line.split(" ") for line in (folder / "found").read_text().splitlines()]


@settings(max_examples=3, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(*map(rows, ROWS.values())), min_size=30, max_size=80))
def test_a_sink_of_kafka_connect_gets_each_row_with_its_values(tmp_path, some):
    lines = [bare(row) for row in (END, HALF, *some)]
    found = connect_reads(tmp_path, [message_of(line, MOST_BYTES) for line in lines])
    assert [fields for _, *fields in found] == [in_connect(line) for line in lines]
    is_usage = [read_line(line.decode()).KIND == "usage" for line in lines]
    assert [told for told, *_ in found] == ["usage" if usage else "other" for usage in is_usage]


def test_kafka_connect_refuses_what_is_no_message(tmp_path):
    damaged = bare(END).replace(b"9", b"8")
    assert connect_reads(tmp_path, [message_of(damaged, MOST_BYTES)]) == [["-"]]
