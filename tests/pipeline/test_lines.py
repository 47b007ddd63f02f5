"""What Spark reads of a line, and what `read_line` does: the same."""

import random
import string
from zlib import crc32

from pyspark.sql import functions as F

from pipeline.lines import LINES, OTHER, parsed
from pipeline.rejects import why_not
from pipeline.schemas import schema_of
from quotas.usage_record import BadLine, UsageRecord, columns, line_of, read_line
from tests.pipeline.spools import MONDAY_MS, Fleet, records

LATEST_MS = MONDAY_MS + 3_600_000
ODD = (
    "",
    " 5",
    "+5",
    "1_0",
    "0x1",
    "1e3",
    "-1",
    "-0.0",
    "nan",
    "inf",
    "-Infinity",
    "9" * 19,
    "1e999",
    "\\N",
    "½",
    "٣",
    "--",
)
TEXT = (
    "\\",
    "\\N",
    "\\t",
    "\t",
    "\n",
    "\r",
    "a\\\\nb",
    "ä€𐍈",
    "\x00",
    "\x01",
    " ",
    "%2F",
    "=",
    "/",
    "",
    "\\s",
    "\u2028",
)


def lines(chance):
    """Good ones with odd texts, and good ones that were spoilt with the checksum made anew, or not."""
    for record in records(Fleet(entities=9, per_window=9), 150):
        line = line_of(record)
        yield line.rstrip("\n")
        parts = line.rstrip("\n").split("\t")[:-1]
        for _ in range(3):
            spoilt = list(parts)
            where = chance.randrange(len(spoilt) + 1)
            if where == len(spoilt):
                spoilt = spoilt[: chance.randrange(1, len(parts))] if chance.random() < 0.5 else [*spoilt, "1"]
            else:
                spoilt[where] = chance.choice(ODD)
            body = "\t".join(spoilt)
            yield f"{body}\t{crc32(body.encode()):08x}"
        at = chance.randrange(len(line) - 1)
        yield line[:at] + chance.choice(string.ascii_letters) + line[at + 1 : -1]


def texts(chance):
    for record in records(Fleet(entities=9, per_window=9), 150):
        odd = {name: "".join(chance.choices(TEXT, k=3)) for name in ("user", "client_id", "rule", "instance")}
        yield line_of(UsageRecord(**{name: getattr(record, name) for name in columns(UsageRecord)} | odd)).rstrip("\n")


def taken(line):
    """The record, if it is to be taken."""
    try:
        row = read_line(line)
    except BadLine:
        return None
    known = isinstance(row, UsageRecord) and why_not(row, LATEST_MS)
    return row if known == NOTHING_KNOWN else None


NOTHING_KNOWN = "a number is not written as the proxy writes it"


def test_spark_takes_what_the_proxy_wrote_and_nothing_that_cannot_be_read(spark):
    chance = random.Random(11)
    all_lines = [*lines(chance), *texts(chance)]
    numbered = [(line, "file", 0, number) for number, line in enumerate(all_lines)]
    frame = spark.createDataFrame(numbered, LINES)
    names = schema_of(UsageRecord).names
    rows = parsed(frame, UsageRecord, LATEST_MS).select("kind", "text", F.struct(*names).alias("row"), "line_offset")
    found = {}
    for row in rows.collect():
        if row.kind == OTHER:
            found[row.text] = None
        else:
            assert row.text is None
            number = row.row.sequence - row.line_offset
            found[all_lines[number]] = UsageRecord(**row.row.asDict())
    assert len(found) == len(set(all_lines))
    written_otherwise = 0
    for line, record in found.items():
        expected = taken(line)
        if record is None and expected is not None:
            # Python reads more ways to write a number.
            parts = line.split("\t")
            assert any(odd in parts for odd in ("1_0", "٣", " 5", "+5")) or parts[0] == "9" * 19, line
            written_otherwise += 1
        else:
            assert record == expected, line
    assert written_otherwise < 40
    assert sum(record is not None for record in found.values()) > 250
