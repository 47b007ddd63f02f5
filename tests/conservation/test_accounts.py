"""The accounting sees what it is there for: records that are lost, doubled, swapped or changed, and nothing else."""

import random
from itertools import count

import pytest

from tests.conservation.accounts import ChangeStatus, Log, Sent, compare
from tests.conservation.logs import Logs
from tests.conservation.pace import Plan, Sender
from tests.conservation.records import LARGE_BYTES, LARGE_EVERY, Values, identify

PRODUCERS = (3, 7)
EACH = 50


@pytest.fixture
def sent():
    """Two producers whose records in partition 1 have all been acknowledged."""
    accounts = {}
    for number in PRODUCERS:
        accounts[number] = account = Sent(number, 2)
        for sequence in range(EACH):
            account.add(1)
            account.settle(1, sequence, None)
    return accounts


@pytest.fixture
def written():
    """The values of those producers, mixed as a node might have them, each producer's in its order."""
    sequences = {number: count() for number in PRODUCERS}
    order = random.Random(1).sample(PRODUCERS * EACH, EACH * len(PRODUCERS))
    makers = {number: Values(number, 1) for number in PRODUCERS}
    return [makers[number].make(1, next(sequences[number])) for number in order]


def read(values):
    log = Log("a log", 1)
    for offset, value in enumerate(values):
        log.take(offset, value)
    return log


def found(log, sent):
    findings = compare(log, sent)
    return dict(findings.counts), log.faults + findings.violations


def test_a_whole_log_is_without_fault(sent, written):
    assert found(read(written), sent) == ({}, [])


def test_a_lost_record_is_found(sent, written):
    lost = identify(written.pop(20))
    counts, violations = found(read(written), sent)
    assert counts == {"lost": 1}
    assert violations == [f"lost: a log: record {lost.sequence} of producer {lost.producer}"]


def test_a_doubled_record_is_found(sent, written):
    written.insert(60, written[20])
    double = identify(written[20])
    findings = compare(read(written), sent)
    assert findings.doubles == [(double.producer, double.sequence, 20, 60)]
    assert (dict(findings.counts), findings.violations) == ({}, [])  # whose doing it is, is judged elsewhere


def test_a_record_that_is_there_three_times_is_held_against_its_latest_copy(sent, written):
    written.insert(60, written[20])
    written.insert(70, written[20])
    assert [double[2:] for double in compare(read(written), sent).doubles] == [(20, 60), (60, 70)]


def test_swapped_records_are_found(sent, written):
    first, second = [at for at, value in enumerate(written) if identify(value).producer == 3][10:12]
    written[first], written[second] = written[second], written[first]
    counts, violations = found(read(written), sent)
    assert counts == {"out of order": 1}
    assert "record 10 of producer 3 comes after 11" in violations[0]


@pytest.mark.parametrize("at", [0, 5, 8, 15, -1])
def test_a_changed_byte_is_found_wherever_it_is(sent, written, at):
    changed = bytearray(written[20])
    changed[at] ^= 1
    written[20] = bytes(changed)
    counts, violations = found(read(written), sent)
    assert "offset 20 is corrupt" in violations[0]
    assert counts == {"lost": 1}


@pytest.mark.parametrize("value", [None, b"", b"abc"])
def test_what_is_no_record_of_ours_is_found(sent, written, value):
    counts, violations = found(read([*written, value]), sent)
    assert counts == {}
    assert len(violations) == 1
    assert f"offset {len(written)} is corrupt" in violations[0]


def test_a_record_in_the_wrong_partition_is_found(sent, written):
    stranger = Values(3, 2).make(0, EACH)
    assert "it was sent to 0" in found(read([*written, stranger]), sent)[1][0]


@pytest.mark.parametrize(("producer", "sequence"), [(3, EACH), (5, 0)])
def test_a_record_that_nobody_has_sent_is_found(sent, written, producer, sequence):
    counts, _ = found(read([*written, Values(producer, 2).make(1, sequence)]), sent)
    assert counts == {"never sent": 1}


def test_a_record_whose_producer_was_told_nothing_is_found(sent, written):
    sent[3].statuses[1][20] = ChangeStatus.NOTHING
    assert found(read(written), sent)[0] == {"unanswered": 1}


def test_a_failed_record_may_be_absent_or_present_once_wherever_it_is(sent, written):
    for producer, sequence in ((3, 5), (3, 10), (7, 20)):
        sent[producer].settle(1, sequence, "timed out")
    late = next(value for value in written if identify(value)[::2] == (3, 10))
    absent = next(value for value in written if identify(value)[::2] == (7, 20))
    written.remove(absent)
    written.remove(late)
    written.append(late)
    assert found(read(written), sent) == ({"failed but present": 2}, [])
    assert len(compare(read([*written, late]), sent).doubles) == 1


def test_offsets_that_are_left_out_are_found_even_when_they_come_later(sent, written):
    log = Log("a log", 1)
    for offset in (*range(10), *range(12, len(written)), 10, 11):
        log.take(offset, written[offset])
    assert log.faults == ["a log: offsets 10 to 11 were left out"]
    assert found(log, sent)[0] == {}


def test_reading_again_is_no_fault_but_reading_something_else_is(sent, written):
    log = read(written)
    for offset in range(5, 15):
        log.take(offset, written[offset])
    assert (log.read_again, found(log, sent)) == (10, ({}, []))
    log.take(5, written[6])
    assert log.faults == ["a log: offset 5 holds another record when it is read again"]


def test_accounts_and_logs_are_the_same_after_they_went_through_files(sent, written, tmp_path):
    logs = Logs("a view", {"topic": 2})
    for offset, value in enumerate(written):
        logs.take("topic", 1, offset, value)
    logs.save(tmp_path)
    again = Logs("a view", {"topic": 2})
    again.load(tmp_path)
    assert again.by_topic["topic"][1].identities == logs.by_topic["topic"][1].identities
    assert again.have({"topic": [0, len(written)]})
    assert not again.have({"topic": [0, len(written) + 1]})
    assert not again.have(None)
    sent[3].save(tmp_path)
    assert Sent.load(tmp_path, 3, 2).statuses == sent[3].statuses


def test_one_record_in_two_thousand_is_large_and_the_others_are_around_300_bytes():
    values = Values(1, 5)
    lengths = [len(values.make(0, sequence)) for sequence in range(2 * LARGE_EVERY)]
    small = sorted(length for length in lengths if length != LARGE_BYTES)
    assert len(small) == 2 * LARGE_EVERY - 2
    assert 280 < small[len(small) // 2] < 320
    assert small[0] >= 16
    assert small[-1] > 1500


def test_a_sender_offers_the_same_record_until_it_is_taken_and_ends_with_its_plan():
    sender = Sender(Plan(2, "client", "topic", partitions=4, records=3, per_second=1e9, seed=1))
    while not sender.finished:
        partition, sequence, value = sender.next()
        assert sender.next() == (partition, sequence, value)
        assert identify(value) == (2, partition, sequence)
        sender.accepted()
        sender.sent.settle(partition, sequence, None)
    assert sender.sent.count(ChangeStatus.ACKNOWLEDGED) == sender.count == sum(sender.sizes.values()) == 3
