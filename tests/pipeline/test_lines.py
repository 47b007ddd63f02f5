"""What Spark brings to those who read lines, and what it takes from them."""

import random

from pipeline.ingest.line_columns import OTHER
from pipeline.ingest.lines import LINES, parsed
from quotas.records.usage_record import UsageRecord, columns
from tests.pipeline.test_line_columns import GOOD, LATEST_MS, expected, spoilt


def test_spark_takes_what_the_proxy_wrote_and_nothing_that_cannot_be_read(spark):
    chance = random.Random(11)
    lines = [spoilt(chance, line) if chance.random() < 0.3 else line for line in GOOD]
    # What is not UTF-8 is not made in Python, but a file of Spark's may have it: see test_ingest.
    texts = [line.decode(errors="replace") for line in lines]
    frame = spark.createDataFrame([(text, "file", 7, number) for number, text in enumerate(texts)], LINES)
    found = {}
    for row in parsed(frame, UsageRecord, LATEST_MS).collect():
        if row.text is None:
            record = UsageRecord(**{name: row[name] for name in columns(UsageRecord)})
            found[row.sequence - row.line_offset] = record
        else:
            found[row.number] = (row.kind, row.text, row.file, row.block)
    assert [found[number] for number in range(len(texts))] == [expected(text.encode()) for text in texts]
    assert sum(isinstance(one, UsageRecord) for one in found.values()) > 250
    assert any(one[0] == OTHER for one in found.values() if isinstance(one, tuple))
