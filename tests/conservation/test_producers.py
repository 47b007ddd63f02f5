"""The checker's producers live through every moment in which a client may refuse a record, and count none wrongly."""

import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka.errors import KafkaTimeoutError

from tests.conservation import confluent_producers, kafka_python_both
from tests.conservation.accounts import ChangeStatus
from tests.conservation.confluent_producers import ConfluentProducer
from tests.conservation.kafka_python_both import PythonProducer
from tests.conservation.pace import Plan

RECORDS = 3
PLAN = Plan(0, "client", "topic", 2, records=RECORDS, per_second=1e9, seed=7)


class ScriptedProducer:
    """Stands in for librdkafka's producer: each call of `produce` takes the next step of a script for all of them.

    A step is an error to raise, or None: then the record is taken, and answered when `response` is called.
    """

    script: list[Exception | None]
    made: list["ScriptedProducer"]

    def __init__(self, settings):
        self.tell_error = settings["error_cb"]
        self.values = []
        self.under_way = []
        self.to_be_reported = []
        self.made.append(self)

    def __len__(self):
        return len(self.under_way) + len(self.to_be_reported)

    def produce(self, topic, value, *, partition, on_delivery):
        if error := self.script.pop(0) if self.script else None:
            raise error
        self.values.append(value)
        self.under_way.append(on_delivery)

    def poll(self, timeout):
        while self.to_be_reported:
            error = self.to_be_reported.pop()
            if error.fatal():
                raise KafkaException(error)
            self.tell_error(error)

    def response(self, error=None):
        for on_delivery in self.under_way:
            on_delivery(error, None)
        self.under_way.clear()


def refusal(code):
    return KafkaException(KafkaError(code))


def fatal():
    """As librdkafka's poll raises it."""
    return KafkaError(KafkaError._FATAL, "out of order sequence number", True)


@pytest.fixture
def producer(monkeypatch):
    """Makes a producer whose client keeps to a script, and has given it nothing yet."""
    monkeypatch.setattr(confluent_producers, "Producer", ScriptedProducer)
    monkeypatch.setattr(ScriptedProducer, "made", [], raising=False)

    def make(*script):
        monkeypatch.setattr(ScriptedProducer, "script", list(script), raising=False)
        return ConfluentProducer(PLAN, "nowhere:1")

    return make


def test_a_client_that_is_fatal_before_it_has_told_so_is_replaced_and_its_record_goes_to_the_next(producer, capsys):
    one = producer(refusal(KafkaError._FATAL))
    [first] = ScriptedProducer.made
    refused = one.sender.next()
    one.work()
    assert (one.sender.count, first.values) == (0, [])
    one.work()
    [_, second] = ScriptedProducer.made
    assert one.made == 2
    assert second.values[0] == refused[2]
    assert (one.sender.count, len(second.values)) == (RECORDS, RECORDS)
    second.response()
    assert one.sender.sent.count(ChangeStatus.ACKNOWLEDGED) == RECORDS


def test_what_a_fatal_client_has_under_way_is_answered_before_it_is_replaced(producer, capsys):
    one = producer(None, refusal(KafkaError._FATAL))
    [first] = ScriptedProducer.made
    first.to_be_reported.append(fatal())
    one.work()
    assert "out of order sequence number" in capsys.readouterr().out
    one.work()
    assert ScriptedProducer.made == [first]
    first.response(fatal())
    one.work()
    assert len(ScriptedProducer.made) == 2
    ScriptedProducer.made[1].response()
    assert (one.sender.sent.count(ChangeStatus.FAILED), one.sender.sent.count(ChangeStatus.ACKNOWLEDGED)) == (
        1,
        RECORDS - 1,
    )


def test_a_client_that_turns_fatal_while_nothing_is_sent_is_replaced_when_its_records_are_answered(producer, capsys):
    """As by a node that was stopped, was followed by another leader, and goes on as if it were the leader still."""
    one = producer()
    [first] = ScriptedProducer.made
    one.work()
    first.to_be_reported.append(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "out of order", True))
    one.work()
    assert "out of order" in capsys.readouterr().out
    first.response(fatal())
    one.work()
    assert one.made == 2
    assert one.sender.sent.count(ChangeStatus.FAILED) == RECORDS


@pytest.mark.parametrize("code", [KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION])
def test_a_topic_that_a_node_has_yet_to_hear_of_is_waited_for_by_the_same_client(producer, code):
    one = producer(refusal(code))
    expected = one.sender.next()[2]
    one.work()
    assert one.sender.count == 0
    one.work()
    assert one.made == 1
    assert ScriptedProducer.made[0].values[0] == expected


def test_a_full_queue_is_waited_for(producer):
    one = producer(None, BufferError("full"))
    one.work()
    assert one.sender.count == 1
    one.work()
    assert (one.sender.count, one.made) == (RECORDS, 1)


def test_any_other_refusal_ends_the_checker(producer):
    with pytest.raises(KafkaException, match="_INVALID_ARG"):
        producer(refusal(KafkaError._INVALID_ARG)).work()


# ------------------------------------------------------------- kafka-python


class ScriptedKafkaPython:
    """Its `send` raises what it is given; flushing and closing find something that never gets a response."""

    def __init__(self, error):
        self.error = error
        self.ends = []

    def send(self, topic, value, *, partition):
        raise self.error

    def flush(self, timeout):
        self.ends.append("flush")
        raise KafkaTimeoutError

    def close(self, timeout):
        self.ends.append("close")
        raise KafkaTimeoutError


@pytest.mark.parametrize("error", [ValueError("Unrecognized partition 1 for topic t"), KeyError("t")])
def test_a_topic_that_vanishes_while_kafka_python_looks_costs_no_record(monkeypatch, error):
    monkeypatch.setattr(kafka_python_both.time, "sleep", lambda seconds: None)
    one = PythonProducer(PLAN, "nowhere:1")
    record = one.sender.next()
    assert one._send(ScriptedKafkaPython(error))
    assert one.sender.count == 0
    assert one.sender.next() == record


def test_a_client_of_kafka_python_that_cannot_end_well_is_left_behind(capsys):
    client = ScriptedKafkaPython(None)
    PythonProducer(PLAN, "nowhere:1")._close(client)
    assert client.ends == ["flush", "close"]
    assert capsys.readouterr().out.count("KafkaTimeoutError") == 2
