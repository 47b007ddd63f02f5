"""Messages of a topic turned into lines by Spark's expressions: byte by byte what the spool has."""

import itertools
import json

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kafka_throttle.pipeline.ingest.rules import NO_VALUE
from kafka_throttle.pipeline.ingest.topic import lines_of
from kafka_throttle.quotas.records.topic_message import message_of
from kafka_throttle.quotas.records.usage_record import ROWS, Dropped, End, Header, UsageRecord, columns, line_of
from tests.pipeline.spools import Fleet, event, records
from tests.pipeline.test_rules import NUMBERS, TEXTS, VERSIONS, summed
from tests.quotas.test_usage_record import rows

MOST_BYTES = 900_000
FLEET = Fleet(entities=9, per_window=9)
FRAMES = (
    Header(stream="usage", instance="proxy-1", epoch=FLEET.epoch, file=1, first_sequence=1, flush_ms=10_000),
    Dropped(
        instance="proxy-1", epoch=FLEET.epoch, stream="usage", first_sequence=61, last_sequence=70, reason="no_room"
    ),
    End(records=60, next_sequence=71, final=1, stream="usage", instance="proxy-1", epoch=FLEET.epoch, beside=0),
)
ODD_TEXTS = (
    *TEXTS,
    ":5",
    '":5',
    '\\":5,',
    'a":5,"b',
    "a,",
    '{"payload":{}}',
    "\ud83d\ude00",
    "\x7f",
    "\u0085",
    "\\u0041",
)


def bare(row):
    return line_of(row).removesuffix("\n").encode()


def messages_of(lines):
    return [message_of(line, MOST_BYTES).value for line in lines]


def made(spark, messages):
    """What is made of these messages, in their order."""
    numbered = spark.createDataFrame(list(enumerate(messages)), "number long, value binary")
    found = lines_of(numbered.selectExpr("number", "cast(value as string) as message"))
    lines = found.selectExpr("number", "cast(text as binary) as text").collect()
    return [bytes(row["text"]) for row in sorted(lines, key=lambda row: row["number"])]


@settings(max_examples=5, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(*map(rows, ROWS.values())), min_size=20, max_size=100))
def test_every_row_comes_out_as_the_line_that_it_was(spark, generated):
    lines = [bare(row) for row in generated]
    messages = messages_of(lines)
    assert all(message.startswith(b"{") for message in messages)
    assert made(spark, messages) == lines


def spoilt():
    """Lines with right checksums, with odd numbers, texts and versions in all places."""
    use = bare(records(FLEET, 1)[0]).split(b"\t")[:-1]
    for (at, (kind, _)), value in itertools.product(enumerate(columns(UsageRecord).values(), 2), NUMBERS):
        if kind is not str and len(value) < 500:
            yield summed(b"\t".join([*use[:at], value.encode(), *use[at + 1 :]]))
    for version in VERSIONS:
        yield summed(b"\t".join([version.encode(), *use[1:]]))
    for at, text in itertools.product((2, 9, len(use) - 3), ODD_TEXTS):
        yield summed(b"\t".join([*use[:at], text.encode("utf-8", "surrogatepass"), *use[at + 1 :]]))


def test_odd_lines_come_out_as_they_were(spark):
    lines = list(spoilt())
    messages = messages_of(lines)
    assert 100 < sum(message.startswith(b"{") for message in messages) < len(messages) - 100
    assert made(spark, messages) == lines


def test_odd_texts_come_out_as_they_were(spark):
    lines = [bare(event(number, user=text, client_id=text)) for number, text in enumerate(ODD_TEXTS)]
    messages = messages_of(lines)
    assert all(message.startswith(b"{") for message in messages)
    assert made(spark, messages) == lines


def spaced(message):
    """The same JSON in another way of writing."""
    payload = json.loads(message, parse_int=Written, parse_float=Written)["payload"]
    members = (
        f"{json.dumps(name)} :\n {value if isinstance(value, Written) else json.dumps(value)}"
        for name, value in payload.items()
    )
    return ('{ "payload" : {' + " , ".join(members) + '}, "schema": null }').encode()


class Written(str):
    """A number as it is written."""


def test_other_ways_to_write_json_are_the_same(spark):
    lines = [bare(row) for row in (*FRAMES, *records(FLEET, 20))] + [bare(event(1, user='"ä\\\t𐍈', value=1e-7))]
    assert made(spark, [spaced(message) for message in messages_of(lines)]) == lines


def test_what_is_no_message_of_a_line_stays_what_it_is(spark):
    whole = messages_of([bare(records(FLEET, 1)[0])])[0]
    broken = [
        *(whole[:cut] for cut in range(1, len(whole), 97)),
        *(whole.replace(b'"sequence":1,', b'"sequence":2,'), whole.replace(b'"crc":', b'"sum":"","crc":')),
        *(b"{", b"{}", b"[]", b'{"payload":{}}', b'{"payload":3}', b'{"payload":null}', b'{"payload":{"a":{"b":[1]}}}'),
        *(b'{"payload":{"crc":null}}', b'{"payload":' * 5_000, b'{"a":1}{"b":2}', b"{\xff}", b'{"payload":{"\xff":1}}'),
        *(b"hello", b"", NO_VALUE.encode(), b"\xff\xfe\x00", b'"', b"null", b"x" * 300_000, b'{"a":"' + b"x" * 300_000),
    ]
    assert made(spark, broken) == broken


def test_a_column_of_a_later_version_is_left_to_the_rules(spark):
    use = records(FLEET, 1)[0]
    line = summed(bare(use).rpartition(b"\t")[0].replace(b"3\t", b"4\t", 1) + b"\tnew")
    message = messages_of([bare(use)])[0].replace(b'"version":3,"kind"', b'"version":4,"kind"')
    later = message.rpartition(b',"crc":')[0] + b',"later":"new","crc":"%b"}}' % line[-8:]
    assert made(spark, [later]) == [line]
