"""Doubled records are excused only where each step of librdkafka's own doing is proved."""

from pathlib import Path

import confluent_kafka
import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from tests.conservation.accounts import Double, Log
from tests.conservation.batches import Batch, read_batches
from tests.conservation.doubles import Journal, judge

TOPIC, PARTITION, CLIENT = "topic", 1, "client-2"
REFUSED = "NOT_LEADER_FOR_PARTITION, actions Refresh,MsgNotPersisted, base seq 3..4, base msgid 5, 7ms ago"


def line(kind, text, client=CLIENT):
    return f"%7|1795401837.040|{kind}|{client}#producer-3| [thrd:127.0.0.3:17844/1]: {text}\n"


def renumbered(old="Id:9,Epoch:0", new="Id:9,Epoch:1", place="topic [1]", client=CLIENT):
    return line("NEWPID", f"{place} changed PID{{{old}}} -> PID{{{new}}} with base MsgId 6", client)


def bumped(reason="skipped sequence numbers", epoch=0):
    return line(
        "DRAIN",
        f"Beginning partition drain in state Assigned for PID{{Id:9,Epoch:{epoch}}} epoch bump for 2 partition(s) with "
        f"in-flight requests: {reason}",
    )


def skipped(cause=REFUSED, epoch=0):
    return line(
        "ERRSEQ",
        "127.0.0.3:17844/1: ProduceRequest for topic [0] with 2 message(s) failed due to skipped sequence numbers "
        f"(PID{{Id:9,Epoch:{epoch}}}, base seq 5 > next seq 3) caused by previous failed request ({cause}): recovering "
        "and retrying",
    )


def batch(first, last, epoch, producer_id=9):
    return Batch(first, last, 4, 1000, producer_id, epoch, 0)


OWN_DOING = [skipped(), bumped(), renumbered()]
BATCHES = [batch(0, 2, 0), batch(3, 4, 0, 8), batch(5, 6, 0), batch(7, 8, 0), batch(9, 10, 1), batch(11, 12, 1)]
"""Of producer id 9, offsets 5 to 8 are the last of epoch 0, and 9 to 12 the first of epoch 1."""

DOUBLES = [Double(2, sequence, sequence, sequence + 4) for sequence in range(5, 9)]


def judged(batches=BATCHES, doubles=DOUBLES, lines=OWN_DOING):
    client_ids = {2: CLIENT, 3: "client-3"}
    return judge(Log("a log", PARTITION), TOPIC, doubles, batches, Journal(lines), client_ids)


def test_what_librdkafka_numbers_anew_after_a_refusal_is_its_own_doing_and_is_told_batch_by_batch():
    findings = judged()
    assert (dict(findings.counts), findings.violations) == ({"doubled by librdkafka": 4}, [])
    assert findings.remarks == [
        f"a log: 2 records of producer 2; first: {BATCHES[first]}; again: {BATCHES[again]}; for "
        "[Gap(sequence=5, error_before='NOT_LEADER_FOR_PARTITION', last_sequence_before=4)]"
        for first, again in ((2, 4), (3, 5))
    ]
    assert "producer id 9, epoch 1, first sequence 0, leader epoch 4, time 1000" in findings.remarks[0]


def test_several_epochs_may_have_ended_by_refusals_between_the_copies():
    lines = [skipped(), bumped(), skipped(epoch=1), bumped(epoch=1), renumbered(new="Id:9,Epoch:2")]
    batches = [one._replace(producer_epoch=2 * one.producer_epoch) for one in BATCHES]
    assert judged(batches, lines=lines).counts == {"doubled by librdkafka": 4}
    assert judged(batches, lines=lines[2:]).counts == {"doubled": 4}
    assert judged(batches, lines=[*lines[:2], lines[4]]).counts == {"doubled": 4}


@pytest.mark.parametrize(
    ("batches", "why"),
    [
        ([one._replace(producer_epoch=0) for one in BATCHES], "the same producer id and epoch twice"),
        ([*BATCHES[:4], batch(9, 10, 1, 7), batch(11, 12, 1, 7)], "no later epoch of the same producer id"),
        ([one._replace(producer_epoch=1 - one.producer_epoch) for one in BATCHES], "no later epoch"),
        ([*BATCHES, batch(13, 14, 0)], "the first are not the last of their epoch"),
        ([BATCHES[0], batch(3, 4, 1), *BATCHES[2:]], "the second are not the first of their epoch"),
    ],
)
def test_other_numbers_are_a_violation_whatever_the_client_says(batches, why):
    findings = judged(batches)
    assert (dict(findings.counts), findings.remarks) == ({"doubled": 4}, [])
    assert len(findings.violations) == 2
    assert all(why in violation for violation in findings.violations)


@pytest.mark.parametrize(
    "words",
    [
        b"changed %s -> %s with base MsgId",
        b"Beginning partition drain in state %s for %s epoch bump for %d partition(s) with in-flight requests: %s",
        b"skipped sequence numbers\0",
        b"failed due to skipped sequence numbers (%s, base seq %d > next seq %d) "
        b"caused by previous failed request (%s, actions %s, base seq %d..%d,",
    ],
)
def test_the_installed_librdkafka_says_it_in_these_words(words):
    [library] = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka-*")
    assert words in library.read_bytes()


@pytest.mark.parametrize("left_out", [Double(2, 5, 5, 9), Double(2, 8, 8, 12)])
def test_doubles_that_are_not_all_that_had_no_response_are_a_violation(left_out):
    assert judged(doubles=[one for one in DOUBLES if one != left_out]).counts == {"doubled": 3}


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "does not say that it has changed its epoch"),
        ([skipped(), bumped(), renumbered(client="client-3")], "does not say"),
        ([skipped(), bumped(), renumbered(place="topic [0]")], "does not say"),
        ([skipped(), bumped(), renumbered(place="other [1]")], "does not say"),
        ([skipped(), bumped(), renumbered(old="Id:8,Epoch:0")], "does not say"),
        ([skipped(), renumbered()], "epoch 0 has ended by []"),
        ([skipped(), bumped(epoch=1), renumbered()], "epoch 0 has ended by []"),
        ([skipped(), bumped("message sequence gap"), renumbered()], "['message sequence gap']"),
        ([*OWN_DOING, bumped("1 message(s) timed out on topic [0]")], "1 message(s) timed out"),
        ([bumped(), renumbered()], "no node is known to have refused"),
        *(
            ([*OWN_DOING, skipped(REFUSED.replace("NOT_LEADER_FOR_PARTITION", error))], repr(error))
            for error in ("_TRANSPORT", "NO_ERROR", "NOT_ENOUGH_REPLICAS_AFTER_APPEND")
        ),
        ([*OWN_DOING, skipped(REFUSED.replace("3..4", "1..2"))], "last_sequence_before=2"),
    ],
)
def test_a_step_that_the_client_has_not_logged_leaves_a_violation(lines, why):
    findings = judged(lines=lines)
    assert (dict(findings.counts), findings.remarks) == ({"doubled": 4}, [])
    assert all(why in violation for violation in findings.violations)


def test_each_pair_of_epochs_is_judged_for_itself():
    again = [Double(2, 0, 20, 22), Double(2, 1, 21, 23)]
    findings = judged([*BATCHES, batch(20, 21, 1, 5), batch(22, 23, 1, 5)], [*DOUBLES, *again])
    assert findings.counts == {"doubled by librdkafka": 4, "doubled": 2}


def written(offset, epoch, sequence, count):
    """A batch as a node writes it."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=9,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=10_000,
    )
    for number in range(count):
        builder.append(number, timestamp=1000 + number, key=None, value=b"value", headers=[])
    content = bytearray(builder.build())
    content[:8] = offset.to_bytes(8, "big")
    content[12:16] = (4).to_bytes(4, "big")
    return bytes(content)


def test_batches_are_read_from_all_segments_up_to_what_is_not_whole_yet(tmp_path):
    (tmp_path / "00000000000000000005.log").write_bytes(written(5, 1, 0, 1) + written(6, 1, 1, 2)[:40])
    (tmp_path / "00000000000000000000.log").write_bytes(written(0, 0, 7, 3) + written(3, 0, 10, 2))
    assert read_batches(tmp_path) == [
        Batch(0, 2, 4, 1002, 9, 0, 7),
        Batch(3, 4, 4, 1001, 9, 0, 10),
        Batch(5, 5, 4, 1000, 9, 1, 0),
    ]


def test_an_old_format_is_no_batch(tmp_path):
    (tmp_path / "00000000000000000000.log").write_bytes(bytes(16) + b"\1" + bytes(60))
    with pytest.raises(ValueError, match="magic 1"):
        read_batches(tmp_path)
