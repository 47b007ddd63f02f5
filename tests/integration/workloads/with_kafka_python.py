"""kafka-python."""

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
from kafka.errors import UnknownTopicOrPartitionError

from tests.integration.workloads import scenarios
from tests.integration.workloads.scenarios import COPIES, Library, Record


class Producer(scenarios.Producer):
    def __init__(self, **settings):
        self._producer = KafkaProducer(linger_ms=5, **settings)
        self._sent = []
        if settings["transactional_id"]:
            self._producer.init_transactions()

    def send(self, topic, partition, value):
        self._sent.append(self._producer.send(topic, value.encode(), partition=partition))

    def flush(self):
        self._producer.flush(120)
        for future in self._sent:
            future.get(120)
        self._sent.clear()

    def begin(self):
        self._producer.begin_transaction()

    def commit(self):
        self._producer.commit_transaction()

    def abort(self):
        self._producer.abort_transaction()

    def close(self):
        self._producer.close(120)


class Consumer(scenarios.Consumer):
    def __init__(self, topic, group, partitions, **settings):
        self._consumer = KafkaConsumer(
            group_id=group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
            session_timeout_ms=10_000,
            **settings,
        )
        if group:
            self._consumer.subscribe([topic])
        else:
            self._consumer.assign([TopicPartition(topic, partition) for partition in partitions])

    def poll(self, timeout_s):
        batches = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        return [Record(found.partition, found.value.decode()) for batch in batches.values() for found in batch]

    def partitions(self):
        return {assigned.partition for assigned in self._consumer.assignment()}

    def close(self):
        self._consumer.close()


class KafkaPython(Library):
    def __init__(self, bootstrap):
        self._bootstrap = bootstrap
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def producer(self, *, codec="none", acks=-1, idempotent=False, transactional_id=None):
        return Producer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=acks,
            enable_idempotence=idempotent or transactional_id is not None,
            transactional_id=transactional_id,
        )

    def consumer(self, topic, *, group=None, committed_only=False):
        isolation = "read_committed" if committed_only else "read_uncommitted"
        partitions = () if group else self.partitions(topic)
        return Consumer(topic, group, partitions, bootstrap_servers=self._bootstrap, isolation_level=isolation)

    def create_topic(self, topic, partitions):
        self._admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=COPIES)])

    def delete_topic(self, topic):
        self._admin.delete_topics([topic])

    def topics(self):
        return set(self._admin.list_topics())

    def leaders(self, topic):
        [described] = self._admin.describe_topics([topic])
        return {found["partition_index"]: found["leader_id"] for found in described["partitions"]}

    def groups(self):
        return {group["group_id"] for group in self._admin.list_groups()}

    def topic_config(self, topic):
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        try:
            described = self._admin.describe_configs([resource], config_filter="all")
        except UnknownTopicOrPartitionError:
            return {}
        return {key: entry["value"] for key, entry in described["topic"][topic].items()}

    def close(self):
        self._admin.close()
