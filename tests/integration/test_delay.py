"""Real clients of a proxy that delays responses: they are slowed down, get no throttle time, and lose nothing."""

import threading
import time

from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.integration.topics import make_topic

RATE = 40_000
RECORDS, RECORD_BYTES = 100, 5_000
LEAST_S = (RECORDS * RECORD_BYTES - 11 * RATE) / RATE
"""What is beyond the burst that Kafka's window allows takes so long at least."""

TIMEOUT_S = 120.0


def record(number):
    return b"%06d" % number + bytes(RECORD_BYTES - 6)


def produce_with_librdkafka(bootstrap, topic, reported):
    def note(event):
        reported.append(event.throttle_time)

    settings = {"bootstrap.servers": bootstrap, "client.id": "slow", "linger.ms": 0, "batch.size": 20_000}
    producer = Producer({**settings, "throttle_cb": note})
    for number in range(RECORDS):
        producer.produce(topic, record(number), partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def produce_with_kafka_python(bootstrap, topic, reported):
    producer = KafkaProducer(bootstrap_servers=bootstrap, client_id="slow-python", batch_size=20_000, retries=0)
    sent = [producer.send(topic, record(number), partition=0) for number in range(RECORDS)]
    assert [future.get(TIMEOUT_S).offset for future in sent] == list(range(RECORDS))
    producer.close()


def consume_with_librdkafka(bootstrap, topic, reported):
    def note(event):
        reported.append(event.throttle_time)

    settings = {"bootstrap.servers": bootstrap, "client.id": "slow", "group.id": "g", "fetch.max.bytes": 50_000}
    limits = {"message.max.bytes": 50_000, "max.partition.fetch.bytes": 50_000, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, **limits, "throttle_cb": note})
    consumer.subscribe([topic])
    numbers, deadline = [], time.monotonic() + TIMEOUT_S
    while len(numbers) < RECORDS and time.monotonic() < deadline:
        for message in consumer.consume(50, timeout=0.2):
            assert message.error() is None, message.error()
            numbers.append(int(message.value()[:6]))
    consumer.close()
    assert numbers == list(range(RECORDS))


def consume_with_kafka_python(bootstrap, topic, reported):
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        client_id="slow-python",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=50_000,
        consumer_timeout_ms=1000 * TIMEOUT_S,
    )
    consumer.assign([TopicPartition(topic, 0)])
    numbers = []
    while len(numbers) < RECORDS:
        numbers.append(int(next(consumer).value[:6]))
    consumer.close()
    assert numbers == list(range(RECORDS))


def take_s(*works):
    """How long each takes, all begun at once."""
    took, failures = [], []

    def run(work, *arguments):
        began_s = time.monotonic()
        try:
            work(*arguments)
        except BaseException as error:
            failures.append(error)
        took.append(time.monotonic() - began_s)

    threads = [threading.Thread(target=run, args=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT_S)
    assert not failures, failures
    assert len(took) == len(works)
    return took


def test_clients_whose_responses_are_held_lose_nothing(newest_kafka, start_proxy):
    quota = {"producer_byte_rate": RATE, "consumer_byte_rate": RATE}
    quotas = [{"client_id": client_id, **quota} for client_id in ("slow", "slow-python")]
    proxy = start_proxy(quotas, throttle={"mode": "delay", "max_throttle_ms": 3000})
    make_topic(newest_kafka.bootstrap_servers, "delayed-1")
    make_topic(newest_kafka.bootstrap_servers, "delayed-2")
    reported = []
    first, second = (proxy.bootstrap, "delayed-1", reported), (proxy.bootstrap, "delayed-2", reported)
    took = take_s((produce_with_librdkafka, *first), (produce_with_kafka_python, *second))
    took += take_s((consume_with_librdkafka, *first), (consume_with_kafka_python, *second))
    print(f"took {', '.join(f'{s:.1f}' for s in took)} s, at least {LEAST_S} s is right; reported {reported}")
    assert min(took) > LEAST_S
    assert not any(reported)
    for quota_type in ("produce", "fetch"):
        assert proxy.metric("throttles_total", quota_type=quota_type) > 0
