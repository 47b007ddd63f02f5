"""A process with an idempotent producer and a consumer of aiokafka, on a topic of their own."""

import asyncio
from functools import partial

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tests.conservation.logs import Logs
from tests.conservation.orders import Orders, tell
from tests.conservation.pace import Plan, Sender
from tests.conservation.python_clients import FLUSH_S, consumer_settings, producer_settings


class AioProducer:
    """One producer, and another one when the first has given up."""

    def __init__(self, plan: Plan, bootstrap: str) -> None:
        self.sender = Sender(plan)
        self.made = 0
        self._bootstrap = bootstrap

    async def run(self, orders: Orders) -> None:
        """Send until there is nothing more to send, and wait for all responses."""
        producer = await self._make()
        while not self.sender.finished:
            self.sender.stopped = orders.stop.is_set()
            orders.tell_progress(sent=self.sender.count)
            if not self.sender.due:
                await asyncio.sleep(0.02)
                continue
            if not await self._send(producer):
                await self._drop(producer)
                producer = await self._make()
        await asyncio.wait({asyncio.ensure_future(producer.flush())}, timeout=FLUSH_S)
        await self._drop(producer)
        self.sender.sent.save(orders.folder)

    async def _send(self, producer: AIOKafkaProducer) -> bool:
        partition, sequence, value = self.sender.next()
        try:
            future = await producer.send(self.sender.plan.topic, value, partition=partition)
        except KafkaError as error:
            self.sender.accepted()
            self.sender.sent.settle(partition, sequence, error)
            return False
        self.sender.accepted()
        future.add_done_callback(partial(self._settle, partition, sequence))
        return True

    def _settle(self, partition: int, sequence: int, future: asyncio.Future[object]) -> None:
        if not future.cancelled():
            self.sender.sent.settle(partition, sequence, future.exception())

    async def _make(self) -> AIOKafkaProducer:
        self.made += 1
        settings = producer_settings(self.sender.plan, self._bootstrap)
        while True:
            producer = AIOKafkaProducer(**settings)
            try:
                await producer.start()
            except KafkaError as error:
                tell(trouble=repr(error))
                await producer.stop()
                await asyncio.sleep(0.5)
            else:
                return producer

    async def _drop(self, producer: AIOKafkaProducer) -> None:
        stopping = asyncio.ensure_future(producer.stop())
        await asyncio.wait({stopping}, timeout=FLUSH_S)


async def _read(orders: Orders, logs: Logs) -> None:
    consumer = AIOKafkaConsumer(**consumer_settings(orders))
    await _started(consumer)
    consumer.assign(
        [TopicPartition(topic, log.partition) for topic, of_topic in logs.by_topic.items() for log in of_topic]
    )
    while not logs.have(orders.read_to) and not orders.give_up.is_set():
        orders.tell_progress(read=logs.count)
        try:
            batches = await consumer.getmany(timeout_ms=500, max_records=500)
        except KafkaError as error:
            tell(trouble=repr(error))
            continue
        for batch in batches.values():
            for record in batch:
                logs.take(record.topic, record.partition, record.offset, record.value)
    await consumer.stop()


async def _started(consumer: AIOKafkaConsumer) -> None:
    while True:
        try:
            await consumer.start()
        except KafkaError as error:
            tell(trouble=repr(error))
            await asyncio.sleep(0.5)
        else:
            return


async def _both(orders: Orders) -> None:
    logs = Logs("aiokafka", orders.given["partitions"])
    producer = AioProducer(Plan(**orders.given["plans"][0]), orders.given["bootstrap"])
    reading = asyncio.create_task(_read(orders, logs))
    await producer.run(orders)
    tell(done=[producer.sender.report()], throttles=0, made=producer.made)
    await reading
    logs.save(orders.folder)
    tell(read_again=logs.read_again, faults=logs.faults, complete=logs.have(orders.read_to))


if __name__ == "__main__":
    asyncio.run(_both(Orders()))
