"""A node that no port is left for is left out of responses, in every version, and no other node with it.

What must come out is made anew by kafka-python's classes, which know nothing of how the proxy changes a frame.
"""

import random
from struct import pack
from uuid import UUID

import pytest
from kafka.protocol.admin import DescribeClusterResponse
from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse

from kafka_throttle.protocol.api_key import DESCRIBE_CLUSTER, FIND_COORDINATOR, METADATA, PRODUCE
from kafka_throttle.protocol.frames import MAX_HEAD_BYTES
from kafka_throttle.protocol.primitives import compact_string, uvarint
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.proxy.relay.plans import PLANS, plan_key
from tests.relay.frames import frame, request
from tests.relay.script import FixedNodes, Script
from tests.relay.test_share_fetch import share_fetch, share_fetched

GONE = 4
"""The node without a port."""
LEADER_NOT_AVAILABLE, COORDINATOR_NOT_AVAILABLE = 5, 15
ALL = (1, GONE, 2)


def theirs(node_id):
    return f"broker-{node_id}", 9092


def ours(node_id):
    return "proxy.example", 20_000 + node_id


def metadata(version, is_ours, controller=GONE, topics=2, partitions=5):
    """A response of a node, or what the client gets of it."""
    topic, address = MetadataResponse.MetadataResponseTopic, ours if is_ours else theirs
    nodes = [
        MetadataResponse.MetadataResponseBroker(node_id=i, host=address(i)[0], port=address(i)[1], rack="r")
        for i in ALL
        if not is_ours or i != GONE
    ]

    def partition(number):
        leader, error = ALL[number % 3], 0
        if is_ours and leader == GONE:
            leader, error = -1, LEADER_NOT_AVAILABLE
        return topic.MetadataResponsePartition(
            error_code=error,
            partition_index=number,
            leader_id=leader,
            leader_epoch=GONE,
            replica_nodes=list(ALL),
            isr_nodes=[1, GONE],
            offline_replicas=[GONE],
        )

    return MetadataResponse(
        throttle_time_ms=0,
        brokers=nodes,
        cluster_id="cluster",
        controller_id=-1 if is_ours and controller == GONE else controller,
        topics=[
            topic(
                error_code=0,
                name=f"topic-{number}",
                topic_id=UUID(int=GONE),
                is_internal=False,
                partitions=[partition(index) for index in range(partitions)],
            )
            for number in range(topics)
        ],
        error_code=0,
    )


def describe_cluster(version, is_ours, controller=GONE):
    address = ours if is_ours else theirs
    nodes = [
        DescribeClusterResponse.DescribeClusterBroker(
            broker_id=i, host=address(i)[0], port=address(i)[1], rack=None, is_fenced=False
        )
        for i in ALL
        if not is_ours or i != GONE
    ]
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=0,
        error_message=None,
        endpoint_type=1,
        cluster_id="cluster",
        controller_id=-1 if is_ours and controller == GONE else controller,
        brokers=nodes,
    )


def find_coordinator(version, is_ours, node_id=GONE):
    def place(node_id):
        if is_ours and node_id == GONE:
            return {"node_id": -1, "host": "", "port": -1, "error_code": COORDINATOR_NOT_AVAILABLE}
        host, port = (ours if is_ours else theirs)(node_id)
        return {"node_id": node_id, "host": host, "port": port, "error_code": 0}

    if version < 4:
        return FindCoordinatorResponse(throttle_time_ms=0, error_message=None, **place(node_id))
    coordinators = [
        FindCoordinatorResponse.Coordinator(key=f"group-{i}", error_message=None, **place(i)) for i in (*ALL, GONE)
    ]
    return FindCoordinatorResponse(throttle_time_ms=0, coordinators=coordinators)


def framed(api_key, message, version):
    tags = b"\0" if PLANS[plan_key(api_key, version)].response_tags else b""
    return frame(pack(">i", 1) + tags + message.encode(version=version))


def asked(make_relay, api_key, version):
    script = Script(make_relay, nodes=FixedNodes(portless=[GONE])).connected()
    tags = PLANS[plan_key(api_key, version)].request_header > 1
    script.client(request(api_key, version, bytes(20), tags=tags))
    return script


def cuts(data, seed):
    rng = random.Random(seed)
    yield [data]
    yield [data[i : i + 1] for i in range(len(data))]
    for _ in range(5):
        at = sorted(rng.randrange(len(data)) for _ in range(4))
        yield [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


CASES = [
    *((METADATA, version, metadata) for version in range(14)),
    *((DESCRIBE_CLUSTER, version, describe_cluster) for version in range(3)),
    *((FIND_COORDINATOR, version, find_coordinator) for version in range(7)),
]


@pytest.mark.parametrize(("api_key", "version", "made"), CASES)
def test_a_node_without_a_port_is_left_out_and_responses_that_name_it_are_those_of_a_broker(
    make_relay, api_key, version, made
):
    response, reported = (framed(api_key, made(version, is_ours), version) for is_ours in (False, True))
    for pieces in cuts(response, version):
        script = asked(make_relay, api_key, version)
        sent = b"".join(script.node(piece) for piece in pieces)
        assert sent == reported, script.closed
        assert script.relay.idle
        assert set(script.nodes.learned) == ({GONE} if made is find_coordinator and version < 4 else set(ALL))


@pytest.mark.parametrize(("api_key", "made"), [(METADATA, metadata), (DESCRIBE_CLUSTER, describe_cluster)])
def test_a_controller_with_an_advertised_address_stays(make_relay, api_key, made):
    response, reported = (framed(api_key, made(1, is_ours, controller=2), 1) for is_ours in (False, True))
    assert asked(make_relay, api_key, 1).node(response) == reported


def test_very_many_partitions_pass_as_they_come(make_relay):
    response, reported = (
        framed(METADATA, metadata(12, is_ours, topics=40, partitions=400), 12) for is_ours in (False, True)
    )
    assert len(response) > 4 * MAX_HEAD_BYTES
    script = asked(make_relay, METADATA, 12)
    sent = b""
    for at in range(0, len(response), 10_000):
        sent += script.node(response[at : at + 10_000])
        assert len(script.relay._responses.unread) <= MAX_HEAD_BYTES + 10_000
    assert sent == reported
    assert script.relay.idle


def test_the_next_response_follows_at_once(make_relay):
    response, reported = (framed(METADATA, metadata(9, is_ours), 9) for is_ours in (False, True))
    script = asked(make_relay, METADATA, 9)
    script.client(request(METADATA, 9, bytes(20), tags=True))
    assert script.node(response + response) == reported + reported
    assert script.relay.idle


@pytest.mark.parametrize("cut_bytes", [1, 5])
def test_partitions_that_do_not_hold_what_they_announce_close_the_connection(make_relay, cut_bytes):
    response = framed(METADATA, metadata(9, is_ours=False), 9)
    script = asked(make_relay, METADATA, 9)
    script.node(frame(response[4:-cut_bytes]))
    assert script.close_reason is CloseReason.RESPONSE_MALFORMED


def test_what_follows_the_last_field_closes_the_connection(make_relay):
    script = asked(make_relay, METADATA, 9)
    script.node(frame(framed(METADATA, metadata(9, is_ours=False), 9)[4:] + b"x"))
    assert script.close_reason is CloseReason.RESPONSE_MALFORMED


def test_hints_go_as_a_whole_where_they_name_a_node_without_a_port(make_relay):
    """Clients then ask for Metadata. The tagged field of Produce only gets an unknown number."""
    hints = b"\2" + pack(">i", GONE) + compact_string(b"node") + pack(">i", 9092) + b"\0\0"
    script = Script(make_relay, nodes=FixedNodes(portless=[GONE])).connected()
    script.client(share_fetch())
    assert script.node(share_fetched(size=1500, endpoints=hints)) == share_fetched(size=1500)
    script.client(request(PRODUCE, 10, b"\0" + pack(">hi", 1, 1000) + b"\1\0", tags=True))
    head = pack(">i", 1) + b"\0\1" + bytes(4) + b"\1"
    field = uvarint(len(hints)) + hints
    assert script.node(frame(head + b"\0" + field)) == frame(head + b"\x7f" + field)
    assert script.relay.idle
