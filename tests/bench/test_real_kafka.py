"""What is read from Kafka's tools, and the table of it."""

import pytest

from tests.bench.candidates import OURS
from tests.bench.real_kafka import read_consumer, read_producer, table

PRODUCED = """\
Warmup first 50 records. Steady state results will print after the complete test summary.
200 records sent, 12371.1 records/sec (12.08 MB/sec), 19.3 ms avg latency, 31.00 ms max latency, \
18 ms 50th, 29 ms 95th, 31 ms 99th, 31 ms 99.9th.
150 steady state records sent, 12405.4 records/sec (12.11 MB/sec), 17.6 ms avg latency, \
23.00 ms max latency, 17 ms 50th, 21 ms 95th, 22 ms 99th, 23 ms 99.9th.
"""


def test_the_steady_state_of_the_producer_counts():
    expected = {"records_per_second": 12405.4, "mib_per_second": 12.11, "ack_p50_ms": 17, "ack_p99_ms": 22}
    assert read_producer(PRODUCED, 150) == expected
    with pytest.raises(RuntimeError, match="160 steady state records were to be sent"):
        read_producer(PRODUCED, 160)


CONSUMED = """\
start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, \
fetch.MB.sec, fetch.nMsg.sec
2026-01-01 10:00:00:071, 2026-01-01 10:00:03:069, 146.4844, 48.8607, 150000, 50033.3556, 789, 2209, 66.3125, 67904.0290
"""


def test_the_consumer_counts_without_the_time_that_its_group_takes():
    expected = {"records_per_second": 67904.029, "mib_per_second": 66.3125}
    assert read_consumer(CONSUMED, 150_000) == expected
    with pytest.raises(RuntimeError, match="150001 records were to be consumed"):
        read_consumer(CONSUMED, 150_001)


def test_the_ways_to_a_real_node_are_compared_within_a_round():
    def produced(*per_second):
        return [{"records_per_second": figure, "cpu_us_per_record": 2.0} for figure in per_second]

    runs = {"produce-1k": {"direct": produced(100, 200), "HAProxy": produced(90, 190), OURS.name: produced(50, 150)}}
    line = table(runs).splitlines()[-1]
    assert line == (
        "| 1 KiB produce, records/s | 150 (100 - 200) | 140 (90 - 190) | 100 (50 - 150) "
        "| 0.93 (0.90 - 0.95) | 0.62 (0.50 - 0.75) | 2.00 | 2.00 |"
    )
