"""A cluster that has topics of one partition; requests are read as kafka-python reads them."""

import asyncio
import itertools
import threading

from kafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest
from kafka.record.memory_records import MemoryRecords

from kafka_throttle.protocol.fields import FieldWriter
from kafka_throttle.protocol.messages.described_configs import TopicConfigs
from kafka_throttle.protocol.messages.metadata import MetadataNode, TopicPartition, TopicPlace
from kafka_throttle.protocol.messages.topic_log import LATEST, Appended, Created, Fetched, Offset
from kafka_throttle.quotas.changes import SourceUnavailable
from kafka_throttle.quotas.sources.topic_records import batch_of

UNKNOWN_TOPIC, NOT_LEADER, UNKNOWN_ID = 3, 6, 100
_LONGEST_WAIT_S = 0.3
_REQUESTS = {
    request.__name__.removesuffix("Request"): request
    for request in (
        MetadataRequest,
        DescribeConfigsRequest,
        CreateTopicsRequest,
        ListOffsetsRequest,
        FetchRequest,
        ProduceRequest,
    )
}
GOOD = {
    "cleanup.policy": "compact",
    "max.message.bytes": "1048588",
    "delete.retention.ms": "86400000",
    "compression.type": "uncompressed",
}


class FakeTopic:
    """`records` has key and value by offset, or a batch as it is; compaction takes some away."""

    _ids = itertools.count(1)

    def __init__(self, configs=GOOD, partitions=1):
        self.id = next(self._ids).to_bytes(16, "big")
        self.configs = dict(configs)
        self.partitions = partitions
        self.records = {}
        self.first = 0
        self.end = 0

    def append(self, key, value):
        self.records[self.end] = (key, value)
        self.end += 1

    def append_batch(self, batch):
        self.records[self.end] = batch
        self.end += int.from_bytes(batch[23:27]) + 1

    def compact(self):
        latest = {key: offset for offset, (key, _) in self.records.items()}
        self.records = {offset: record for offset, record in self.records.items() if latest[record[0]] == offset}


class FakeTopicCluster:
    """`down` names servers that cannot be had, `errors` is what each API is answered with instead.

    `epoch` is that of the leader, whoever it is; a change of it is what clients see of an election. `frozen`: nothing
    is answered; `hides`: new records are not shown.
    """

    def __init__(self, nodes=3):
        self.topics = {}
        self.nodes = nodes
        self.down = set()
        self.errors = {}
        self.epoch = 0
        self.frozen = False
        self.hides = False
        self.looks_every_s = 0.004
        self.asked = []
        self.created = []
        self.open_connections = set()
        self.lock = threading.RLock()

    def connect(self, server, credentials, timeout_s):
        client = FakeClient(self, server, timeout_s)
        self.open_connections.add(client)
        return client

    def state(self):
        """What the answers depend on."""
        ends = tuple((topic.id, topic.first, topic.end) for topic in self.topics.values())
        return ends, tuple(self.errors.items()), frozenset(self.down), self.frozen, self.hides, self.epoch

    def answer(self, request):
        version = request.versions[1]
        kind = _REQUESTS[request.name]
        sent = kind.decode(request.write(FieldWriter(True), version), version=version)
        with self.lock:
            return getattr(self, f"_{request.name}")(sent, self.errors.get(request.name, 0))

    def _Metadata(self, sent, error):
        topic = self.topics.get(sent.topics[0].name)
        nodes = {node_id: MetadataNode(node_id, "node", 9000 + node_id) for node_id in range(1, self.nodes + 1)}
        if topic is None:
            return TopicPlace(UNKNOWN_TOPIC, bytes(16), (), nodes, 1)
        partitions = tuple(TopicPartition(number, 1, self.epoch, 0) for number in range(topic.partitions))
        return TopicPlace(error, topic.id, partitions, nodes, 1)

    def _CreateTopics(self, sent, error):
        [new] = sent.topics
        self.created.append((new.name, new.replication_factor, {each.name: each.value for each in new.configs}))
        if not error:
            self.topics[new.name] = FakeTopic()
        return Created(error, "no room" if error else None)

    def _DescribeConfigs(self, sent, error):
        [asked] = sent.resources
        topic = self.topics.get(asked.resource_name)
        return TopicConfigs(topic.configs, error) if topic else TopicConfigs({}, UNKNOWN_TOPIC)

    def _ListOffsets(self, sent, error):
        topic = self.topics[sent.topics[0].name]
        return Offset(error, topic.end if sent.topics[0].partitions[0].timestamp == LATEST else topic.first)

    def _by_id(self, topic_id):
        return next((topic for topic in self.topics.values() if topic.id == topic_id.bytes), None)

    def _Fetch(self, sent, error):
        [of_topic] = sent.topics
        [wanted] = of_topic.partitions
        topic = self._by_id(of_topic.topic_id)
        if topic is None or error:
            return Fetched(error or UNKNOWN_ID, b"")
        if wanted.current_leader_epoch != self.epoch:
            return Fetched(NOT_LEADER, b"")
        if not topic.first <= wanted.fetch_offset <= topic.end:
            return Fetched(1, b"")
        left = [] if self.hides else [offset for offset in topic.records if offset >= wanted.fetch_offset]
        batches = []
        for offset in left[:100]:
            record = topic.records[offset]
            batch = bytearray(record if isinstance(record, bytes) else batch_of([record], 0))
            batch[:8] = offset.to_bytes(8, "big")
            batches.append(bytes(batch))
        return Fetched(0, b"".join(batches))

    def _Produce(self, sent, error):
        [of_topic] = sent.topic_data
        topic = self._by_id(of_topic.topic_id)
        if topic is None or error:
            return Appended(error or UNKNOWN_ID, -1, None)
        first = topic.end
        for batch in MemoryRecords(bytes(of_topic.partition_data[0].records)):
            for record in batch:
                topic.append(record.key, record.value)
        return Appended(0, first, None)


class FakeClient:
    def __init__(self, cluster, server, timeout_s):
        self._cluster = cluster
        self._server = server
        self._timeout_s = timeout_s

    async def ask(self, request):
        cluster = self._cluster
        cluster.asked.append((self._server, request.name))
        answer, state = self._answered(request), cluster.state()
        deadline = asyncio.get_running_loop().time() + _LONGEST_WAIT_S
        while cluster.frozen or (request.name == "Fetch" and answer == Fetched(0, b"")):
            await asyncio.sleep(cluster.looks_every_s)
            if not cluster.frozen and asyncio.get_running_loop().time() > deadline:
                break
            if state != (state := cluster.state()):
                answer = self._answered(request)
        return answer

    def _answered(self, request):
        if self._server in self._cluster.down:
            raise SourceUnavailable(f"{self._server}: down")
        return None if self._cluster.frozen and request.name != "Fetch" else self._cluster.answer(request)

    def close(self):
        self._cluster.open_connections.discard(self)
