"""What is read of the wire, the arithmetic of one producer's throttles, and one short run beside a cluster."""

from struct import pack

import pytest

from kafka_throttle.protocol.api_key import END_TXN, PRODUCE
from kafka_throttle.protocol.primitives import compact_string, int16, int32, int64, string, uvarint
from tests.parity import transactional
from tests.parity.transactional import CONCURRENT_TRANSACTIONS, OUT_OF_ORDER_SEQUENCE_NUMBER, Case, Compared, Seen
from tests.parity.wire import Batch, Exchange, RecordedConnection

_NO_TAGS = b"\0"
_CASE = Case("short", 3, 100, 5)
_SHORT_S = 25


def produce_request(version, correlation_id, batches):
    header = int16(PRODUCE) + int16(version) + int32(correlation_id) + string(b"client") + _NO_TAGS
    topic = bytes(16) if version >= 13 else compact_string(b"topic")
    partitions = b"".join(int32(batch.partition) + of_batch(batch) + _NO_TAGS for batch in batches)
    body = compact_string(b"id") + int16(-1) + int32(30_000)
    return header + body + uvarint(2) + topic + uvarint(len(batches) + 1) + partitions + _NO_TAGS + _NO_TAGS


def of_batch(batch):
    told = int64(batch.producer_id) + int16(batch.epoch) + int32(batch.sequence) + int32(batch.records)
    records = bytes(43) + told + b"records"
    return uvarint(len(records) + 1) + records


def produce_response(version, correlation_id, errors, throttle_time_ms):
    topic = bytes(16) if version >= 13 else compact_string(b"topic")
    wrong_record = uvarint(2) + int32(3) + compact_string(b"too old") + _NO_TAGS
    partitions = b"".join(
        int32(partition) + int16(error) + bytes(24) + (wrong_record if error else uvarint(1)) + b"\0" + _NO_TAGS
        for partition, error in enumerate(errors)
    )
    topics = uvarint(2) + topic + uvarint(len(errors) + 1) + partitions + _NO_TAGS
    return int32(correlation_id) + _NO_TAGS + topics + int32(throttle_time_ms) + _NO_TAGS


@pytest.mark.parametrize("version", [9, 12, 13])
def test_batches_errors_and_throttle_times_of_a_produce_are_read(version):
    topic = bytes(16) if version >= 13 else b"topic"
    batches = [Batch(topic, 0, 7, 2, 5, 10), Batch(topic, 1, 7, 2, 0, 3)]
    exchanges = []
    connection = RecordedConnection(4, exchanges)
    connection.request(produce_request(version, 1, batches), 10.0)
    connection.request(produce_request(version, 2, batches[:1]), 10.5)
    connection.response(produce_response(version, 1, [0, CONCURRENT_TRANSACTIONS], 250), 11.0)
    first, second = exchanges
    assert (first.api, first.connection, first.client_id, first.correlation_id) == ("Produce", 4, "client", 1)
    assert first.batches == batches
    assert (first.errors, first.throttle_time_ms) == ([0, CONCURRENT_TRANSACTIONS], 250)
    assert (first.sent_s, first.answered_s, second.answered_s) == (10.0, 11.0, None)


def test_the_error_and_the_throttle_time_of_an_end_of_a_transaction_are_read():
    exchanges = []
    connection = RecordedConnection(1, exchanges)
    connection.request(pack(">hhih", END_TXN, 5, 3, -1) + _NO_TAGS, 1.0)
    connection.response(int32(3) + _NO_TAGS + int32(40) + int16(CONCURRENT_TRANSACTIONS) + bytes(10), 1.5)
    assert [(one.errors, one.throttle_time_ms) for one in exchanges] == [([CONCURRENT_TRANSACTIONS], 40)]


def exchange(sent_s, answered_s, throttle_time_ms=0, sequence=0, errors=(), api_key=PRODUCE, connection=1):
    batches = [Batch(b"t", 0, 1, 0, sequence, 10)] if api_key == PRODUCE else []
    return Exchange(connection, api_key, 13, 0, "c", 1_000, sent_s, batches, answered_s, throttle_time_ms, list(errors))


def test_records_that_are_sent_again_and_errors_are_counted():
    seen = Seen.of(
        [
            exchange(1.0, 1.1, errors=[CONCURRENT_TRANSACTIONS]),
            exchange(1.0, 1.2, sequence=10, errors=[OUT_OF_ORDER_SEQUENCE_NUMBER], throttle_time_ms=100),
            exchange(1.4, 1.5, errors=[0]),
            exchange(1.4, 1.6, sequence=10, errors=[0]),
            exchange(1.7, 1.8, api_key=END_TXN),
        ],
        20,
    )
    assert (seen.requests, seen.request_bytes, seen.records, seen.distinct, seen.sent_again) == (4, 4_000, 40, 20, 20)
    assert seen.errors == {CONCURRENT_TRANSACTIONS: 1, OUT_OF_ORDER_SEQUENCE_NUMBER: 1}
    assert (seen.throttles_ms, seen.failed_and_throttled) == ([100], 1)


def test_a_request_behind_a_throttled_one_counts_from_the_end_of_the_throttle():
    throttled = exchange(1.0, 1.010, throttle_time_ms=500)
    behind = exchange(1.0, 1.515, throttle_time_ms=300)
    elsewhere = exchange(1.2, 1.25, connection=2)
    seen = Seen.of([throttled, behind, elsewhere], 0)
    assert seen.left_ms == [pytest.approx(10)]
    assert seen.read_again_ms == [pytest.approx(5)]
    assert seen.too_soon == 0
    assert transactional.throttled_alone([throttled, behind, elsewhere]) == [throttled]


def test_a_request_that_is_read_within_a_throttle_is_told():
    seen = Seen.of([exchange(1.0, 1.0, throttle_time_ms=500), exchange(1.1, 1.2)], 90)
    compared = Compared(_CASE, Seen(100), seen, [])
    assert transactional.problems([compared]) == ["short: 1 requests were read within a throttle"]


def test_a_producer_that_commits_much_more_than_at_the_nodes_is_told():
    assert transactional.problems([Compared(_CASE, Seen(100), Seen(120), [])]) == []
    assert transactional.problems([Compared(_CASE, Seen(100), Seen(150), [])]) == [
        "short: 150 records, 100 at the nodes"
    ]


def test_the_tables_have_the_figures_at_the_nodes_first():
    nodes, proxy = Seen(1000), Seen(900)
    nodes.left_ms, proxy.read_again_ms = [3.0, 5.0, 4.0], [2.0]
    done, throttled = transactional.table([Compared(_CASE, nodes, proxy, [0.5])]).split("\n\n")
    assert done.splitlines()[2] == "| short | 1,000 / 900 | 0.90 | 0 / 0 | 0 / 0 | 0 / 0 | 0 / 0 |"
    assert throttled.splitlines()[2] == "| short | 0 / 0 | 0 / 0 | 0 / 0 | 4.0 / - | 0 / 1 | - / 2.0 | 0 / 0 | 0.5 |"


@pytest.mark.exclusive
@pytest.mark.kafka
@pytest.mark.nightly
def test_a_producer_that_commits_each_100_ms_is_throttled_as_at_the_nodes():
    [one] = transactional.measure([Case("records sent again", 3, 400, 5, patience_ms=0)], _SHORT_S)
    assert one.problems() == []
    assert min(len(one.nodes.throttles_ms), len(one.proxy.throttles_ms)) > 0
    assert min(one.nodes.sent_again, one.proxy.sent_again) > 0
