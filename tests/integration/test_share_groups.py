"""A share group of a real client is held to the quota of consumers, and gets every record."""

import time

import pytest
from confluent_kafka import Producer

from tests.integration.topics import make_topic

RATE = 50_000
RECORDS, RECORD_BYTES = 1000, 1000


@pytest.mark.nightly
def test_a_share_consumer_reads_at_the_rate_of_its_quota(newest_kafka, start_proxy):
    proxy = start_proxy([{"client_id": "sharer", "consumer_byte_rate": RATE}])
    topic = "share-quota"
    make_topic(newest_kafka.bootstrap_servers, topic)
    producer = Producer({"bootstrap.servers": newest_kafka.bootstrap_servers, "batch.size": 20_000})
    for i in range(RECORDS):
        producer.produce(topic, b"%04d" % i + b"x" * (RECORD_BYTES - 4))
    assert producer.flush(30) == 0
    servers = ("--bootstrap-server", newest_kafka.bootstrap_servers)
    of_group = ("--entity-type", "groups", "--entity-name", "sharers")
    newest_kafka.tool(
        "kafka-configs", *servers, "--alter", *of_group, "--add-config", "share.auto.offset.reset=earliest"
    )
    began = time.monotonic()
    consumer = ("--bootstrap-server", proxy.bootstrap, "--topic", topic, "--group", "sharers")
    options = ("--max-messages", str(RECORDS), "--timeout-ms", "40000", "--command-property", "client.id=sharer")
    class_name = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
    done = newest_kafka.run(newest_kafka.java_command(class_name, *consumer, *options), timeout_s=100)
    took_s = time.monotonic() - began
    numbers = sorted(line[:4] for line in done.stdout.splitlines() if line.endswith("xxx"))
    print(f"{len(numbers)} records in {took_s:.1f} s; {done.stderr[-500:]}")
    assert set(numbers) == {f"{i:04d}" for i in range(RECORDS)}
    assert took_s > (RECORDS * RECORD_BYTES - 11 * RATE) / RATE
    assert proxy.metric("throttles_total", quota_type="fetch") > 0
