"""Quotas as records of a topic: what is written, what is read, and what is nonsense."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from kafka_throttle.quotas.changes import NO_QUOTAS, Alteration, Limit, following
from kafka_throttle.quotas.entities import DEFAULT, Entity, InvalidQuota, QuotaKey, QuotaType, Scope
from kafka_throttle.quotas.sources.topic_records import Record, UnreadableBatch, batch_of, records_in
from kafka_throttle.quotas.sources.topic_table import MAX_RECORD_BYTES, MOST_LISTED, TopicTable, key_of, records_of
from tests.support.unreadable_batches import compressed_batch, gzip_batch, nonsense_batch

PRODUCE, FETCH = QuotaKey(QuotaType.PRODUCE), QuotaKey(QuotaType.FETCH)
SHADOW = QuotaKey(QuotaType.PRODUCE, shadow=True)
CONNECTIONS, MUTATIONS = QuotaKey(QuotaType.CONNECTION), QuotaKey(QuotaType.CONTROLLER_MUTATION)
ALICE = Entity("alice")
KEY = b'{"format":1,"entity":{"user":"alice"},"quota":"producer_byte_rate"}'
SCOPE_KEY = b'{"format":1,"entity":{"user":"alice"},"quota":"scope"}'
TOPIC = "quotas"


def table_of(*records, last_good=NO_QUOTAS):
    table = TopicTable(TOPIC, last_good)
    for offset, (key, value) in enumerate(records):
        table.take(Record(offset, key, value))
    return table


def quotas_of(*records, last_good=NO_QUOTAS):
    return table_of(*records, last_good=last_good).quotas_after(last_good)


def value(number):
    return b'{"format":1,"value":%s}' % str(number).encode()


def test_a_record_is_one_quota_of_one_entity():
    alteration = Alteration(ALICE, {PRODUCE: 1000.0, FETCH: None, SHADOW: 0.5e6})
    assert records_of(alteration) == [
        (KEY, b'{"format":1,"value":1000.0}'),
        (b'{"format":1,"entity":{"user":"alice"},"quota":"consumer_byte_rate"}', None),
        (
            b'{"format":1,"entity":{"user":"alice"},"quota":"shadow_producer_byte_rate"}',
            b'{"format":1,"value":500000.0}',
        ),
    ]


@pytest.mark.parametrize(
    "entity",
    [
        Entity("ユーザー +/%~*\"'"),
        Entity("<default>"),
        Entity(DEFAULT),
        Entity(DEFAULT, DEFAULT),
        Entity("u", DEFAULT),
        Entity("u", "c\n"),
        Entity(client_id="a" * 32_767),
        Entity(client_id="ü" * 16_000),
        Entity("ü" * 16_383 + "u", "\U0001f600"),
    ],
    ids=range(9),
)
def test_every_entity_is_read_as_it_was_written(entity):
    quotas = quotas_of(*records_of(Alteration(entity, {PRODUCE: 5.0, SHADOW: 2.0**63 - 1})))
    assert quotas == {entity: {PRODUCE: Limit(5.0, TOPIC), SHADOW: Limit(2.0**63 - 1, TOPIC)}}


def test_a_scope_is_a_record_of_the_entity_that_goes_with_its_last_quota_that_has_one():
    cluster = Alteration(ALICE, {PRODUCE: 5.0, MUTATIONS: 7.0}, Scope.CLUSTER)
    records = records_of(cluster)
    assert records[2] == (SCOPE_KEY, b'{"format":1,"value":"cluster"}')
    quotas = quotas_of(*records)
    limits = {PRODUCE: Limit(5.0, TOPIC, Scope.CLUSTER), MUTATIONS: Limit(7.0, TOPIC)}
    assert quotas == {ALICE: limits}
    assert quotas_of(*records, (SCOPE_KEY, b"bad")) == quotas
    assert quotas_of((KEY, value(5)), (SCOPE_KEY, b"bad"), last_good=quotas)[ALICE][PRODUCE].scope is Scope.CLUSTER
    assert quotas_of(*records, (SCOPE_KEY, b'{"format":1,"value":"node"}'))[ALICE][PRODUCE].scope is Scope.NODE
    assert records_of(Alteration(ALICE, {PRODUCE: 6.0}), limits) == [(KEY, value(6.0))]
    assert records_of(Alteration(ALICE, {PRODUCE: None}), limits) == [(KEY, None), (SCOPE_KEY, None)]
    assert records_of(Alteration(ALICE, {PRODUCE: None, FETCH: 1.0}), limits)[2:] == []
    assert records_of(Alteration(ALICE, {}, Scope.NODE), limits) == [(SCOPE_KEY, None)]
    assert records_of(Alteration(ALICE, {}, Scope.CLUSTER), limits) == [records[2]]
    for nothing_scoped in ({MUTATIONS: 7.0}, {MUTATIONS: 7.0, PRODUCE: None}):
        with pytest.raises(InvalidQuota, match="scope of user=alice"):
            records_of(Alteration(ALICE, nothing_scoped, Scope.CLUSTER))


def test_a_scope_that_is_none_is_nonsense():
    for bad in (b'{"format":1,"value":"all"}', b'{"format":1,"value":5}', b'{"format":1,"value":["node"]}'):
        table = table_of((KEY, value(5)), (SCOPE_KEY, bad))
        assert table.quotas_after(NO_QUOTAS) == {ALICE: {PRODUCE: Limit(5.0, TOPIC)}}
        assert "expected node or cluster" in table.problems["offset 1 of quotas"]


@pytest.mark.parametrize(
    "entity", [Entity("half \udc80"), Entity(client_id="a" * 32_768), Entity("u", "ü" * 16_384)], ids=range(3)
)
def test_a_name_that_is_no_text_or_too_long_is_nonsense(entity):
    table = table_of((key_of(entity, PRODUCE), value(5)), (KEY, value(6)))
    assert table.quotas_after(NO_QUOTAS) == {ALICE: {PRODUCE: Limit(6.0, TOPIC)}}
    [(place, problem)] = table.problems.items()
    assert place == "offset 0 of quotas"
    assert "of 1 to 32767 bytes in UTF-8" in problem
    assert len(problem.encode()) < 300
    table.take(Record(2, key_of(entity, PRODUCE), None))
    assert table.problems == {}


def test_addresses_have_their_quota():
    for entity in (Entity(ip="10.0.0.1"), Entity(ip="::1"), Entity(ip=DEFAULT), Entity(ip="host.name")):
        assert quotas_of(*records_of(Alteration(entity, {CONNECTIONS: 0.0}))) == {
            entity: {CONNECTIONS: Limit(0.0, TOPIC)}
        }


def test_the_last_record_of_a_quota_holds_and_one_without_a_value_removes_it():
    assert quotas_of((KEY, value(5)), (KEY, value(6)))[ALICE] == {PRODUCE: Limit(6.0, TOPIC)}
    assert quotas_of((KEY, value(5)), (KEY, None)) == {}
    other = key_of(ALICE, FETCH)
    assert quotas_of((KEY, value(5)), (other, value(7)), (KEY, None)) == {ALICE: {FETCH: Limit(7.0, TOPIC)}}


def test_reading_goes_on_from_the_quotas_before_and_shares_with_them_what_is_the_same():
    table = table_of((KEY, value(5)), (key_of(Entity("bob"), FETCH), value(7)))
    before = table.quotas_after(NO_QUOTAS)
    assert table.quotas_after(before) is before
    table.take(Record(2, KEY, value(6)))
    now = table.quotas_after(before)
    assert now.changes_since(before) == {ALICE: {PRODUCE: Limit(6.0, TOPIC)}}
    assert before[ALICE] == {PRODUCE: Limit(5.0, TOPIC)}
    assert now[Entity("bob")] is before[Entity("bob")]


def test_what_the_topic_does_not_have_is_gone_when_it_is_read():
    last_good = following(NO_QUOTAS, {ALICE: {PRODUCE: Limit(5.0, TOPIC)}, Entity("bob"): {FETCH: Limit(7.0, TOPIC)}})
    now = quotas_of((KEY, value(5)), last_good=last_good)
    assert now.changes_since(last_good) == {Entity("bob"): None}


BAD_KEYS = [
    None,
    b"",
    b"\xff",
    b"null",
    b"[" * 10_000,
    b"{}",
    KEY.replace(b"1", b"2"),
    KEY.replace(b"1", b"true"),
    KEY.replace(b"1", b"1.0"),
    KEY.replace(b"user", b"host"),
    KEY.replace(b'"alice"', b"5"),
    KEY.replace(b'"alice"', b'""'),
    KEY.replace(b'{"user":"alice"}', b"{}"),
    KEY.replace(b'{"user":"alice"}', b'["user"]'),
    KEY.replace(b"producer_byte_rate", b"rate"),
    KEY.replace(b'"producer_byte_rate"', b"7"),
    KEY.replace(b"}", b',"more":1}'),
    KEY.replace(b":", b": "),
    KEY.replace(b"alice", b"\\u0061lice"),
    KEY.replace(b'"quota"', b'"format":1,"quota"'),
    b'{"format":1,"entity":{"ip":"0:0:0:0:0:0:0:1"},"quota":"connection_creation_rate"}',
    b"x" * (MAX_RECORD_BYTES + 1),
]


@pytest.mark.parametrize("key", BAD_KEYS, ids=range(len(BAD_KEYS)))
def test_a_key_that_no_proxy_writes_is_left_out_and_is_a_problem_until_it_is_removed(key):
    table = table_of((KEY, value(5)), (key, value(6)))
    before = table.quotas_after(NO_QUOTAS)
    assert before == {ALICE: {PRODUCE: Limit(5.0, TOPIC)}}
    [(place, problem)] = table.problems.items()
    assert place == "offset 1 of quotas"
    assert problem.startswith("key: ")
    assert len(problem) < 400
    table.take(Record(2, key, None))
    assert table.problems == {}
    assert table.quotas_after(before) is before


BAD_VALUES = [
    b"",
    b"7",
    b"\xff",
    b'{"format":1}',
    b'{"format":2,"value":7}',
    b'{"format":1,"value":"7"}',
    b'{"format":1,"value":true}',
    b'{"format":1,"value":null}',
    b'{"format":1,"value":NaN}',
    b'{"format":1,"value":-Infinity}',
    b'{"format":1,"value":0}',
    b'{"format":1,"value":-5}',
    b'{"format":1,"value":1.5}',
    b'{"format":1,"value":1e400}',
    b'{"format":1,"value":1' + b"0" * 400 + b"}",
    b'{"format":1,"value":7,"more":1}',
    b'{"format":1,"value":7,"value":8}',
    b"x" * (MAX_RECORD_BYTES + 1),
]


@pytest.mark.parametrize("bad", BAD_VALUES, ids=range(len(BAD_VALUES)))
def test_a_value_that_is_nonsense_leaves_the_last_good_one_and_is_a_problem_until_there_is_a_good_one(bad):
    table = table_of((KEY, value(5)), (KEY, bad))
    before = table.quotas_after(NO_QUOTAS)
    assert before == {ALICE: {PRODUCE: Limit(5.0, TOPIC)}}
    assert list(table.problems) == ["offset 1 of quotas"]
    table.take(Record(2, KEY, value(8)))
    assert table.problems == {}
    assert table.quotas_after(before) == {ALICE: {PRODUCE: Limit(8.0, TOPIC)}}


def test_a_good_value_that_was_compacted_away_is_that_of_the_quotas_in_force():
    last_good = following(NO_QUOTAS, {ALICE: {PRODUCE: Limit(5.0, TOPIC), FETCH: Limit(1.0, TOPIC)}})
    assert quotas_of((KEY, b"nonsense"), last_good=last_good) == {ALICE: {PRODUCE: Limit(5.0, TOPIC)}}
    assert quotas_of((KEY, b"nonsense")) == {}


def test_a_quota_of_the_wrong_kind_of_entity_is_nonsense():
    table = table_of((key_of(ALICE, CONNECTIONS), value(5)), (key_of(Entity(ip="10.0.0.1"), PRODUCE), value(5)))
    assert table.quotas_after(NO_QUOTAS) == {}
    assert len(table.problems) == 2


def test_very_much_nonsense_is_counted():
    table = table_of(*((b"%d" % i, b"") for i in range(MOST_LISTED + 7)))
    assert len(table.problems) == MOST_LISTED + 1
    assert table.problems["other records of quotas"].startswith("7 more")


@given(st.lists(st.tuples(st.one_of(st.none(), st.binary(max_size=40)), st.one_of(st.none(), st.binary(max_size=40)))))
def test_no_record_breaks_reading(records):
    assert quotas_of(*records) == {}


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([1, 2, 3, None, b"bad"])), max_size=30))
def test_the_table_is_that_of_the_last_good_records_however_often_it_is_looked_at(records):
    table, quotas, expected = TopicTable(TOPIC, NO_QUOTAS), NO_QUOTAS, {}
    for offset, (name, new) in enumerate(records):
        raw = None if new is None else new if new == b"bad" else value(new)
        table.take(Record(offset, key_of(Entity(name.decode()), PRODUCE), raw))
        if new is None:
            expected.pop(name, None)
        elif new != b"bad":
            expected[name] = new
        if offset % 3 == 0:
            quotas = table.quotas_after(quotas)
    quotas = table.quotas_after(quotas)
    assert {entity.user: limits[PRODUCE].value for entity, limits in quotas.items()} == {
        name.decode(): rate for name, rate in expected.items()
    }


# ------------------------------------------------------------------- batches


def at(offset, batch):
    return offset.to_bytes(8, "big") + batch[8:]


def test_batches_are_read_from_an_offset_on_and_one_that_is_cut_off_is_left():
    three = at(7, batch_of([(b"a", b"1"), (b"b", None), (b"c", b"3")], 5))
    found = records_in(three + at(10, batch_of([(b"d", b"4")], 5)) + three[:40], 8)
    assert found.records == [Record(8, b"b", None), Record(9, b"c", b"3"), Record(10, b"d", b"4")]
    assert found.next_offset == 11
    assert records_in(three[:-1], 7) == ([], 7, {})
    assert records_in(b"", 7) == ([], 7, {})


RECORDS = [(b"a", b"1" * 1000), (b"b", None)]


@pytest.mark.parametrize("verifies", [True, False])
@pytest.mark.parametrize("make", [gzip_batch, compressed_batch, nonsense_batch])
def test_a_batch_that_was_written_so_that_it_cannot_be_read_is_skipped(make, verifies):
    found = records_in(at(7, make(RECORDS)) + at(9, batch_of([(b"c", b"3")], 5)), 7, verifies=verifies)
    assert found[:2] == ([Record(9, b"c", b"3")], 10)
    assert list(found.skipped) == [7]
    assert len(found.skipped[7]) <= 100
    assert records_in(at(7, make(RECORDS)), 7).next_offset == 9


def test_a_compressed_batch_is_never_unpacked():
    batch = gzip_batch([(b"a", bytes(64 << 20))])
    assert len(batch) < 100_000
    tracemalloc.start()
    try:
        [why] = records_in(batch, 0).skipped.values()
        assert tracemalloc.get_traced_memory()[1] < 10 * len(batch)
    finally:
        tracemalloc.stop()
    assert "expected no compression, got type 1" in why


@pytest.mark.parametrize("make", [gzip_batch, nonsense_batch])
def test_a_batch_that_cannot_be_read_and_is_not_as_it_was_written_is_refused(make):
    batch = bytearray(make(RECORDS))
    batch[30] ^= 1
    for verifies in (True, False):
        with pytest.raises(UnreadableBatch, match="CRC"):
            records_in(bytes(batch), 0, verifies=verifies)


def test_a_batch_of_an_older_format_is_skipped():
    for magic in (0, 1):
        builder = LegacyRecordBatchBuilder(magic, 0, 1000)
        builder.append(0, 5, b"a", b"1")
        found = records_in(at(7, bytes(builder.build())) + at(8, batch_of([(b"c", b"3")], 5)), 7)
        assert found[:2] == ([Record(8, b"c", b"3")], 9)
        assert found.skipped == {7: f"a batch that is not read: expected format 2, got {magic}"}


def test_a_batch_that_is_damaged_or_of_an_unknown_format_is_refused():
    batch = bytearray(batch_of([(b"a", b"1")], 5))
    batch[-1] ^= 1
    with pytest.raises(UnreadableBatch, match="CRC"):
        records_in(bytes(batch), 0)
    batch[16] = 3
    with pytest.raises(UnreadableBatch, match="format 3"):
        records_in(bytes(batch), 0)


@given(st.binary(max_size=120), st.integers(0, 70))
def test_any_bytes_are_read_or_refused(data, start):
    batch = batch_of([(b"a", b"1"), (b"b", None)], 5)
    for frame in (data, batch[:start] + data, batch + data):
        try:
            records_in(frame, 0)
        except UnreadableBatch:
            pass
