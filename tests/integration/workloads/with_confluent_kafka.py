"""confluent-kafka, which is librdkafka."""

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.integration.workloads import scenarios
from tests.integration.workloads.scenarios import COPIES, Library, Record


class Producer(scenarios.Producer):
    def __init__(self, settings):
        self._producer = ConfluentProducer(settings)
        self._errors = []
        if "transactional.id" in settings:
            self._producer.init_transactions(60)

    def send(self, topic, partition, value):
        self._producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error, message):
        if error is not None:
            self._errors.append(error)

    def flush(self):
        assert self._producer.flush(60) == 0, "records are left unsent"
        if self._errors:
            raise KafkaException(self._errors[0])

    def begin(self):
        self._producer.begin_transaction()

    def commit(self):
        self._producer.commit_transaction(60)

    def abort(self):
        self._producer.abort_transaction(60)

    def close(self):
        assert self._producer.flush(60) == 0, "records are left unsent"
        self._producer.close()


class Consumer(scenarios.Consumer):
    def __init__(self, topic, group, partitions, settings):
        self._consumer = ConfluentConsumer(
            {
                "group.id": group or "none",
                "enable.auto.commit": group is not None,
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 300,
                "session.timeout.ms": 10_000,
                **settings,
            }
        )
        if group:
            self._consumer.subscribe([topic])
        else:
            self._consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])

    def poll(self, timeout_s):
        found = []
        for message in self._consumer.consume(500, timeout_s):
            if message.error():
                raise KafkaException(message.error())
            found.append(Record(message.partition(), message.value().decode()))
        return found

    def partitions(self):
        return {assigned.partition for assigned in self._consumer.assignment()}

    def close(self):
        self._consumer.close()


class ConfluentKafka(Library):
    def __init__(self, bootstrap):
        self._server = {"bootstrap.servers": bootstrap}
        self._admin = AdminClient(dict(self._server))

    def producer(self, *, codec="none", acks=-1, idempotent=False, transactional_id=None):
        settings = {
            **self._server,
            "compression.type": codec,
            "acks": acks,
            "linger.ms": 5,
            "enable.idempotence": idempotent or transactional_id is not None,
        }
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
        return Producer(settings)

    def consumer(self, topic, *, group=None, committed_only=False):
        isolation = "read_committed" if committed_only else "read_uncommitted"
        partitions = () if group else self.partitions(topic)
        return Consumer(topic, group, partitions, {**self._server, "isolation.level": isolation})

    def create_topic(self, topic, partitions):
        [future] = self._admin.create_topics([NewTopic(topic, partitions, COPIES)]).values()
        future.result(60)

    def delete_topic(self, topic):
        [future] = self._admin.delete_topics([topic]).values()
        future.result(60)

    def topics(self):
        return set(self._admin.list_topics(timeout=60).topics)

    def leaders(self, topic):
        partitions = self._admin.list_topics(topic, timeout=60).topics[topic].partitions
        return {partition: found.leader for partition, found in partitions.items()}

    def groups(self):
        found = self._admin.list_consumer_groups(request_timeout=60).result(60)
        assert not found.errors, found.errors
        return {group.group_id for group in found.valid}

    def topic_config(self, topic):
        [future] = self._admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
        try:
            return {key: entry.value for key, entry in future.result(60).items()}
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return {}
            raise

    def close(self):
        del self._admin
