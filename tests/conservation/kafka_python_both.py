"""A process with an idempotent producer and a consumer of kafka-python, on a topic of their own."""

import threading
import time
from functools import partial

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from tests.conservation.logs import Logs
from tests.conservation.orders import Orders, tell
from tests.conservation.pace import Plan, Sender
from tests.conservation.python_clients import FLUSH_S, consumer_settings, producer_settings


class PythonProducer:
    """One producer, and another one when the first has given up."""

    def __init__(self, plan: Plan, bootstrap: str) -> None:
        self.sender = Sender(plan)
        self.made = 0
        self._bootstrap = bootstrap

    def run(self, orders: Orders) -> None:
        """Send until there is nothing more to send, and wait for all responses."""
        producer = self._make()
        while not self.sender.finished:
            self.sender.stopped = orders.stop.is_set()
            orders.tell_progress(sent=self.sender.count)
            if not self.sender.due:
                time.sleep(0.02)
            elif not self._send(producer):
                self._close(producer)
                producer = self._make()
        self._close(producer)
        self.sender.sent.save(orders.folder)

    def _send(self, producer: KafkaProducer) -> bool:
        partition, sequence, value = self.sender.next()
        try:
            future = producer.send(self.sender.plan.topic, value, partition=partition)
        except KafkaError as error:
            self.sender.accepted()
            self.sender.sent.settle(partition, sequence, error)
            return False
        except (ValueError, KeyError) as error:
            # Between two looks of `send` at what it knows of the topic, its other thread has heard from a node that
            # has just come back, and has yet to hear of the topic. Nothing was taken: the same record comes again.
            tell(trouble=repr(error))
            time.sleep(0.1)
            return True
        self.sender.accepted()
        settle = self.sender.sent.settle
        future.add_callback(lambda metadata: settle(partition, sequence, None))
        future.add_errback(partial(settle, partition, sequence))
        return True

    def _close(self, producer: KafkaProducer) -> None:
        """Wait for what is under way, then end it; what has no response by then has none in the account either."""
        for end in (partial(producer.flush, FLUSH_S), partial(producer.close, timeout=FLUSH_S)):
            try:
                end()
            except KafkaError as error:
                tell(trouble=repr(error))

    def _make(self) -> KafkaProducer:
        self.made += 1
        settings = producer_settings(self.sender.plan, self._bootstrap)
        while True:
            try:
                return KafkaProducer(**settings, delivery_timeout_ms=1_000_000)
            except KafkaError as error:
                tell(trouble=repr(error))
                time.sleep(0.5)


def _make_consumer(orders: Orders) -> KafkaConsumer:
    while True:
        try:
            return KafkaConsumer(**consumer_settings(orders))
        except KafkaError as error:
            tell(trouble=repr(error))
            time.sleep(0.5)


def _read(orders: Orders, logs: Logs) -> None:
    consumer = _make_consumer(orders)
    consumer.assign(
        [TopicPartition(topic, log.partition) for topic, of_topic in logs.by_topic.items() for log in of_topic]
    )
    while not logs.have(orders.read_to) and not orders.give_up.is_set():
        orders.tell_progress(read=logs.count)
        try:
            batches = consumer.poll(timeout_ms=500, max_records=500)
        except KafkaError as error:
            tell(trouble=repr(error))
            continue
        for batch in batches.values():
            for record in batch:
                logs.take(record.topic, record.partition, record.offset, record.value)
    consumer.close()


def main() -> None:
    orders = Orders()
    logs = Logs("kafka-python", orders.given["partitions"])
    reading = threading.Thread(target=_read, args=(orders, logs), daemon=True)
    reading.start()
    producer = PythonProducer(Plan(**orders.given["plans"][0]), orders.given["bootstrap"])
    producer.run(orders)
    tell(done=[producer.sender.report()], throttles=0, made=producer.made)
    reading.join()
    logs.save(orders.folder)
    tell(read_again=logs.read_again, faults=logs.faults, complete=logs.have(orders.read_to))


if __name__ == "__main__":
    main()
