"""Topics are taken out of requests, and put into responses, as Kafka's own message classes do it."""

import random
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.protocol.api_key import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from kafka_throttle.protocol.errors import MalformedMessage, ProtocolError
from kafka_throttle.protocol.messages.topic_mutations import (
    ELEMENTS_AT_ONCE,
    NO_TOPIC_ID,
    STRICT_SINCE,
    MutationReader,
    MutationRequest,
    RefusalsResponse,
    TopicItem,
    refusal,
)
from kafka_throttle.protocol.splices import Splice, splice_frame
from tests.support.message_vectors import KAFKA_VERSIONS, message_vectors
from tests.support.topic_frames import (
    create_partitions,
    create_topics,
    created,
    delete_topics,
    deleted,
    grown,
    grown_topic,
    mutated,
    new_topic,
)
from tests.support.whole_messages import matched, merged, read_mutation_request, read_mutation_response, without

every_kafka = pytest.mark.parametrize("kafka_version", KAFKA_VERSIONS)

STRICT = [(key, version) for key, since in STRICT_SINCE.items() for version in range(since, since + 2 - (key == 37))]
REQUESTS = {CREATE_TOPICS: create_topics, DELETE_TOPICS: delete_topics, CREATE_PARTITIONS: create_partitions}
TOPICS = {CREATE_TOPICS: new_topic, DELETE_TOPICS: lambda version, name: name}
TOPICS[CREATE_PARTITIONS] = lambda version, name: grown_topic(version, name, 3)
RESULTS = {CREATE_TOPICS: created, DELETE_TOPICS: deleted, CREATE_PARTITIONS: grown}


def vectors(kafka_version, is_response):
    found = [v for v in message_vectors(kafka_version) if v.key in STRICT_SINCE and v.is_response is is_response]
    assert len({(v.key, v.version) for v in found}) == (16 if kafka_version.startswith("4") else 19)
    return found


def spliced(frame, splices):
    return b"".join(splice_frame(frame, len(frame) - 4, splices))


@every_kafka
def test_any_topics_are_taken_out_of_a_request_as_kafka_does_it(kafka_version):
    for vector in vectors(kafka_version, is_response=False):
        request = read_mutation_request(vector.frame, vector.key, vector.version)
        assert len(request.items) == vector.topics, vector
        assert spliced(vector.frame, without(request, vector.frame, vector.left_out)) == vector.without, vector


@every_kafka
def test_results_of_the_proxy_are_put_into_a_response_as_kafka_does_it(kafka_version):
    checked = 0
    for vector in vectors(kafka_version, is_response=True):
        response = read_mutation_response(vector.frame, vector.key, vector.version)
        assert (response.throttle_at < 0) == (vector.throttle is None), vector
        if vector.throttle is not None:
            assert vector.frame[response.throttle_at :][:4] == pack(">i", vector.throttle), vector
        if vector.merged is None:
            continue
        items = [TopicItem(0, 0, result.name, result.topic_id) for result in response.results]
        for place in vector.refused_at:
            by_id = vector.key == DELETE_TOPICS and vector.version >= 6 and place % 2
            item = TopicItem(0, 0, None, pack(">qq", place, place)) if by_id else TopicItem(0, 0, b"refused-%d" % place)
            items.insert(place, item)
        request = MutationRequest(vector.key, vector.version, tuple(items), 0, 0, False)
        refusals = {place: refusal(request, items[place], items[place].name) for place in vector.refused_at}
        assert spliced(vector.frame, [merged(response, vector.frame, items, refusals)]) == vector.merged, vector
        checked += 1
    assert checked > 50


@pytest.mark.parametrize(("key", "version"), STRICT)
def test_results_come_in_the_order_of_the_request_in_whichever_order_the_node_gave_them(key, version):
    names = [b"topic-%d" % i for i in range(12)]
    request = read_mutation_request(
        REQUESTS[key](version, [TOPICS[key](version, name) for name in names]), key, version
    )
    refused = {1, 2, 7, 11}
    results = {name: RESULTS[key](version, name, i % 3) for i, name in enumerate(names)}
    kept = [results[name] for i, name in enumerate(names) if i not in refused]
    random.Random(key).shuffle(kept)
    frame = mutated(key, version, kept, corr=9)
    refusals = {i: refusal(request, request.items[i], request.items[i].name) for i in refused}
    splice = merged(read_mutation_response(frame, key, version), frame, request.items, refusals)
    expected = [refusals.get(i, results[name]) for i, name in enumerate(names)]
    assert spliced(frame, [splice]) == mutated(key, version, expected, corr=9)


def test_a_topic_named_twice_and_a_topic_that_was_not_asked_for_come_last():
    request = read_mutation_request(delete_topics(6, [b"a", b"b", b"a", b"c"]), DELETE_TOPICS, 6)
    results = [deleted(6, b"x", 1), deleted(6, b"c"), deleted(6, b"a", 42)]
    frame = mutated(DELETE_TOPICS, 6, results)
    response = read_mutation_response(frame, DELETE_TOPICS, 6)
    refusals = {1: refusal(request, request.items[1], b"b")}
    expected = [results[2], refusals[1], results[1], results[0]]
    assert spliced(frame, [merged(response, frame, request.items, refusals)]) == mutated(DELETE_TOPICS, 6, expected)


def test_results_with_a_name_and_an_id_are_found_by_either():
    topic_id = b"id-of-the-topic."
    results = [deleted(6, b"b", 3), b"\x02a" + topic_id + b"\0\0\0\0", b"\0" + NO_TOPIC_ID + b"\0\x2a\0\0"]
    response = read_mutation_response(mutated(DELETE_TOPICS, 6, results), DELETE_TOPICS, 6)
    items = [TopicItem(0, 0, None, topic_id), TopicItem(0, 0, b"b"), TopicItem(0, 0, None), TopicItem(0, 0, b"c")]
    errors = [None if result is None else result.error_code for result in matched(response, items)]
    assert errors == [0, 3, 42, None]
    assert [result.error_code for result in matched(response, [TopicItem(0, 0, b"a", topic_id)])] == [0]


@pytest.mark.parametrize(("key", "version"), STRICT)
def test_a_response_of_refusals_only_is_one_that_kafka_would_give(key, version):
    request = read_mutation_request(REQUESTS[key](version, [TOPICS[key](version, b"t")] * 200), key, version)
    refusals = [refusal(request, item, item.name) for item in request.items]
    writer = RefusalsResponse(-7, len(refusals))
    for one in refusals:
        writer.add(one)
    response = writer.frame()
    assert response == mutated(key, version, [RESULTS[key](version, b"t", 89)] * 200, corr=-7)
    assert all(result.error_code == 89 for result in read_mutation_response(response, key, version).results)


def test_the_fields_that_a_charge_depends_on_are_read():
    topics = [
        new_topic(7, b"plain", 12, 3),
        new_topic(7, b"assigned", -1, -1, assigned=[1, 0], configs=[(b"a", None), (b"b", b"c" * 200)]),
    ]
    request = read_mutation_request(create_topics(7, topics, validate_only=True), CREATE_TOPICS, 7)
    plain, assigned = request.items
    assert (plain.name, plain.partitions, plain.replication_factor, plain.assigned) == (b"plain", 12, 3, 0)
    assert (assigned.name, assigned.partitions, assigned.assigned) == (b"assigned", -1, 2)
    assert request.validate_only
    assert request.strict
    request = read_mutation_request(create_topics(0, [new_topic(0, b"t", 5)]), CREATE_TOPICS, 0)
    assert not request.validate_only
    assert not request.strict
    frame = create_partitions(3, [grown_topic(3, b"t", 5, 2), grown_topic(3, b"u", 6)])
    request = read_mutation_request(frame, CREATE_PARTITIONS, 3)
    assert [(item.partitions, item.assigned) for item in request.items] == [(5, 2), (6, 0)]


@pytest.mark.parametrize("version", [5, 4])
def test_a_request_of_very_many_topics_is_read_whole(version):
    request = read_mutation_request(delete_topics(version, [b"t%d" % i for i in range(30_000)]), DELETE_TOPICS, version)
    assert [item.name for item in request.items] == [b"t%d" % i for i in range(30_000)]


def test_a_topic_with_very_many_assignments_is_read_in_steps():
    frame = create_topics(7, [new_topic(7, b"t", -1, -1, assigned=range(1000), configs=[(b"a", None)] * 1000)])
    items = list(MutationReader(frame, CREATE_TOPICS, 7).items())
    steps = 1000 // ELEMENTS_AT_ONCE
    assert items[: 2 * steps] == [None] * 2 * steps
    assert items[2 * steps].assigned == 1000
    frame = create_partitions(3, [grown_topic(3, b"t", 1001, 1000)])
    assert list(MutationReader(frame, CREATE_PARTITIONS, 3).items())[:steps] == [None] * steps


@pytest.mark.parametrize(("key", "since"), STRICT_SINCE.items())
def test_nulls_that_kafka_does_not_accept_are_malformed(key, since):
    for version in (since - 3, since):
        whole = REQUESTS[key](version, [])
        compact = version >= since
        count = b"\1" if compact else b"\0\0\0\0"
        null = b"\0" if compact else b"\xff\xff\xff\xff"
        at = whole.index(b"etl") + 3 + compact
        assert whole[at : at + len(count)] == count
        with pytest.raises(MalformedMessage, match="null"):
            read_mutation_request(whole[:at] + null + whole[at + len(count) :], key, version)


@every_kafka
def test_bytes_too_few_or_too_many_are_malformed(kafka_version):
    rng = random.Random(1)
    for is_response, read in ((False, read_mutation_request), (True, read_mutation_response)):
        for vector in vectors(kafka_version, is_response):
            for cut in {rng.randrange(8, len(vector.frame)) for _ in range(5)}:
                with pytest.raises(ProtocolError):
                    read(vector.frame[:cut], vector.key, vector.version)
            with pytest.raises(MalformedMessage, match="after the last field"):
                read(vector.frame + b"\0", vector.key, vector.version)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_bytes_raise_nothing_but_protocol_errors(data):
    is_response = data.draw(st.booleans())
    vector = data.draw(st.sampled_from([v for v in vectors("4.3.1", is_response) if len(v.frame) < 500]))
    frame = bytearray(vector.frame)
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    read = read_mutation_response if is_response else read_mutation_request
    try:
        found = read(bytes(frame), vector.key, vector.version)
    except ProtocolError:
        return
    if is_response:
        items = [TopicItem(0, 0, result.name, result.topic_id) for result in found.results]
        assert [result and result.start for result in matched(found, items)] == [r.start for r in found.results]
    else:
        cut = spliced(bytes(frame), without(found, bytes(frame), range(len(found.items))))
        assert read(cut, vector.key, vector.version).items == []


@pytest.mark.parametrize("value", [b"\0", b"\x80\0", b"\x80\x80\0", b"\x81\0", b"\x85\x00abcd"])
def test_a_configuration_in_a_result_may_have_lengths_of_any_form(value):
    frame = mutated(CREATE_TOPICS, 7, [created(7, b"a", partitions=3, configs=2)]).replace(b"\x051000", value)
    [result] = read_mutation_response(frame, CREATE_TOPICS, 7).results
    assert (result.end, result.partitions) == (len(frame) - 1, 3)


def test_without_refused_topics_there_is_no_splice():
    frame = delete_topics(5, [b"a"])
    request = read_mutation_request(frame, DELETE_TOPICS, 5)
    assert without(request, frame, []) == ()
    assert without(request, frame, [0]) == (Splice(request.count_at, request.first_at, b"\1"), Splice(19, 21, b""))
