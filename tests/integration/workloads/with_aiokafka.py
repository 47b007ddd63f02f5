"""aiokafka: its event loop has a separate thread, and every call waits for its result."""

import asyncio
import threading

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.integration.workloads import scenarios
from tests.integration.workloads.scenarios import COPIES, Library, Record


class Loop:
    def __init__(self):
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(120)

    def make(self, kind, *args, **settings):
        """An object that has to be made while its loop runs, started."""

        async def start():
            made = kind(*args, **settings)
            await made.start()
            return made

        return self.wait(start())


class Producer(scenarios.Producer):
    def __init__(self, loop, **settings):
        self._loop = loop
        self._producer = loop.make(AIOKafkaProducer, linger_ms=5, **settings)
        self._sent = []

    def send(self, topic, partition, value):
        self._sent.append(self._loop.wait(self._producer.send(topic, value.encode(), partition=partition)))

    def flush(self):
        async def gather():
            await self._producer.flush()
            await asyncio.gather(*self._sent)

        self._loop.wait(gather())
        self._sent.clear()

    def begin(self):
        self._loop.wait(self._producer.begin_transaction())

    def commit(self):
        self._loop.wait(self._producer.commit_transaction())

    def abort(self):
        self._loop.wait(self._producer.abort_transaction())

    def close(self):
        self._loop.wait(self._producer.stop())


class Consumer(scenarios.Consumer):
    def __init__(self, loop, topic, group, partitions, **settings):
        self._loop = loop
        self._consumer = loop.make(
            AIOKafkaConsumer,
            group_id=group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
            session_timeout_ms=10_000,
            **settings,
        )
        if group:
            loop.wait(self._call(self._consumer.subscribe, [topic]))
        else:
            assigned = [TopicPartition(topic, partition) for partition in partitions]
            loop.wait(self._call(self._consumer.assign, assigned))

    @staticmethod
    async def _call(method, *args):
        method(*args)

    def poll(self, timeout_s):
        batches = self._loop.wait(self._consumer.getmany(timeout_ms=int(timeout_s * 1000)))
        return [Record(found.partition, found.value.decode()) for batch in batches.values() for found in batch]

    def partitions(self):
        return {assigned.partition for assigned in self._consumer.assignment()}

    def close(self):
        self._loop.wait(self._consumer.stop())


class AioKafka(Library):
    def __init__(self, bootstrap):
        self._loop = Loop()
        self._bootstrap = bootstrap
        self._admin = self._loop.make(AIOKafkaAdminClient, bootstrap_servers=bootstrap)

    def producer(self, *, codec="none", acks=-1, idempotent=False, transactional_id=None):
        return Producer(
            self._loop,
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == -1 else acks,
            enable_idempotence=idempotent or transactional_id is not None,
            transactional_id=transactional_id,
        )

    def consumer(self, topic, *, group=None, committed_only=False):
        isolation = "read_committed" if committed_only else "read_uncommitted"
        partitions = () if group else self.partitions(topic)
        return Consumer(
            self._loop, topic, group, partitions, bootstrap_servers=self._bootstrap, isolation_level=isolation
        )

    def create_topic(self, topic, partitions):
        created = self._loop.wait(
            self._admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=COPIES)])
        )
        assert all(error[1] == 0 for error in created.topic_errors), created

    def delete_topic(self, topic):
        deleted = self._loop.wait(self._admin.delete_topics([topic]))
        assert all(error[1] == 0 for error in deleted.topic_error_codes), deleted

    def topics(self):
        return set(self._loop.wait(self._admin.list_topics()))

    def leaders(self, topic):
        [described] = self._loop.wait(self._admin.describe_topics([topic]))
        return {found["partition"]: found["leader"] for found in described["partitions"]}

    def groups(self):
        return {group[0] for group in self._loop.wait(self._admin.list_consumer_groups())}

    def topic_config(self, topic):
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        [response] = self._loop.wait(self._admin.describe_configs([resource]))
        [described] = response.to_object()["resources"]
        return {entry["config_names"]: entry["config_value"] for entry in described["config_entries"]}

    def close(self):
        self._loop.wait(self._admin.close())
