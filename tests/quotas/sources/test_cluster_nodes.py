"""The nodes of a cluster, asked of simulated nodes in the versions that Kafka of different ages offers."""

from contextlib import closing
from struct import pack

import pytest

from kafka_throttle.protocol.api_key import DESCRIBE_CLUSTER, DESCRIBE_CONFIGS
from kafka_throttle.protocol.messages.described_configs import node_configs_request
from kafka_throttle.quotas.changes import SourceUnavailable
from kafka_throttle.quotas.sources.cluster_connection import ClusterClient, Credentials
from kafka_throttle.quotas.sources.cluster_nodes import default_partitions_of, nodes_named_by
from tests.quotas.sources.test_cluster_faults import Listener, text
from tests.support.timeouts import TIMEOUT_S

ME = Credentials()
METADATA = pack(">h", 3)
NO_RACK = pack(">h", -1)
NO_CONTROLLER = pack(">i", -1)
NO_TOPICS = pack(">i", 0)


def metadata(*nodes):
    named = b"".join(pack(">i", id_) + text(host) + pack(">i", port) + NO_RACK for id_, host, port in nodes)
    return {3: pack(">i", len(nodes)) + named + NO_CONTROLLER + NO_TOPICS}


def configuration(*values):
    """A response to DescribeConfigs in version 0 about a node."""
    entries = b"".join(text(b"num.partitions") + value + b"\0\0\0" for value in values)
    return {32: pack(">iihhb", 0, 1, 0, -1, 4) + text(b"7") + pack(">i", len(values)) + entries}


@pytest.mark.parametrize("offered", [None, (0, 0), (0, 1), (1, 2)])
async def test_nodes_are_learned_whatever_is_offered_of_describe_cluster(offered):
    """Not before Kafka 2.8; version 0 up to 3.6."""
    listener = Listener(
        responses=metadata((7, b"there", 9092), (1001, b"::1", 1)), versions=offered and {DESCRIBE_CLUSTER: offered}
    )
    with listener.server:
        assert await nodes_named_by(listener.address, ME, TIMEOUT_S) == [(7, "there", 9092), (1001, "::1", 1)]


@pytest.mark.parametrize("nodes", [(), ((7, b"", 9092),)])
async def test_a_response_without_nodes_is_no_cluster(nodes):
    listener = Listener(responses=metadata(*nodes))
    with listener.server, pytest.raises(SourceUnavailable, match="its response to Metadata names no node"):
        await nodes_named_by(listener.address, ME, TIMEOUT_S)


async def test_a_node_that_can_only_tell_all_topics_is_not_asked():
    listener = Listener(responses=metadata(), versions={3: (0, 0)})
    reported = "it offers the API Metadata in versions 0 to 0, the proxy asks in 1 to 13"
    with listener.server, pytest.raises(SourceUnavailable, match=reported):
        await nodes_named_by(listener.address, ME, TIMEOUT_S)


@pytest.mark.parametrize(
    ("responses", "expected"),
    [
        (configuration(text(b"12")), 12),
        (configuration(), None),
        (configuration(pack(">h", -1)), None),
        (configuration(text(b"-5")), None),
        ({}, None),
    ],
)
async def test_what_a_topic_gets_is_what_a_node_says(responses, expected):
    listener = Listener(responses=responses, versions={DESCRIBE_CONFIGS: (0, 0)})
    with listener.server:
        assert await default_partitions_of({7: listener.address}, ME, TIMEOUT_S) == expected


async def test_the_next_node_is_asked_where_the_first_says_nothing():
    silent, speaks = Listener(), Listener(responses=configuration(text(b"3")), versions={DESCRIBE_CONFIGS: (0, 0)})
    with silent.server, speaks.server:
        assert await default_partitions_of({1: silent.address, 7: speaks.address}, ME, TIMEOUT_S) == 3


@pytest.mark.parametrize("port", [-5, 0, 65_536 + 9092])
async def test_a_port_that_there_cannot_be_keeps_no_other_node_from_being_asked(port):
    speaks = Listener(responses=configuration(text(b"3")), versions={DESCRIBE_CONFIGS: (0, 0)})
    with speaks.server:
        assert await default_partitions_of({1: f"127.0.0.1:{port}", 7: speaks.address}, ME, TIMEOUT_S) == 3


async def test_a_node_that_wants_no_request_for_weeks_is_asked_again_after_the_time_out():
    answer = {32: pack(">ii", 2**31 - 1, 0)}
    listener = Listener(responses=answer, versions={DESCRIBE_CONFIGS: (0, 0)})
    with listener.server, closing(ClusterClient(listener.address, ME, 1.0)) as client:
        for _ in range(2):
            assert await client.ask(node_configs_request(7, ["num.partitions"])) == {}


async def test_a_response_with_more_nodes_than_any_cluster_has_is_refused_before_it_comes():
    class Announcing(Listener):
        def _size_of(self, frame, body):
            return 3 << 20 if frame[:2] == METADATA else super()._size_of(frame, body)

    listener = Announcing(responses=metadata((7, b"there", 9092)))
    with listener.server, pytest.raises(SourceUnavailable, match="its response to Metadata cannot be read"):
        await nodes_named_by(listener.address, ME, TIMEOUT_S)
