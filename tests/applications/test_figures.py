"""The arithmetic of the figures: records that were written, outages, and what is good enough."""

import json
from dataclasses import replace

import pytest

from tests.applications.accounts import Account, Written
from tests.applications.figures import Run, line, problems, table
from tests.applications.polling import Poll, outage_s
from tests.applications.programs import dead_threads, fenced

GOOD = Run(
    restart="sigterm",
    outages_s=[1.5, 2.0],
    ends_s=[0.1, 0.2],
    refused=70,
    producer_wait_s=2.5,
    streams=Account(100, 100),
    connect=Account(40, 40),
    done_after_s=3.0,
    streams_fenced=0,
    connect_fenced=0,
    dead_threads=0,
    failed_tasks=0,
)
KILLED = replace(GOOD, restart="sigkill")
HANDED_OVER = replace(GOOD, restart="sigusr2", outages_s=[0.0, 0.0], refused=0)


# --------------------------------------------------------------------- accounts


def account(*records, **expected):
    written = Written()
    written.take(records)
    return written.account(expected)


def test_each_number_once_and_in_order_is_exact():
    found = account(("a", "0"), ("b", "0"), ("a", "1"), ("a", "2"), a=3, b=1)
    assert found == Account(4, 4)
    assert found.exact


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([("a", "0"), ("a", "1")], Account(3, 2)),
        ([("a", "0"), ("a", "1"), ("a", "1"), ("a", "2")], Account(3, 3, doubled=1)),
        ([("a", "0"), ("a", "2"), ("a", "1")], Account(3, 3, out_of_order=1)),
        ([("a", "0"), ("a", "1"), ("a", "0"), ("a", "1"), ("a", "2")], Account(3, 3, doubled=2, out_of_order=1)),
        ([("a", "0"), ("a", "1"), ("a", "2"), ("a", "3")], Account(3, 3, wrong=1)),
        ([("a", "0"), ("a", "1"), ("a", "2"), ("b", "0")], Account(3, 3, wrong=1)),
    ],
)
def test_whatever_else_was_written_is_not(records, found):
    assert account(*records, a=3) == found
    assert not found.exact


def test_a_count_has_to_be_that_of_the_records_so_far():
    assert account(("a", "0 1"), ("a", "1 2"), a=2).exact
    assert account(("a", "0 1"), ("a", "1 1"), a=2) == Account(2, 1, wrong=1)


def test_what_an_account_says_first_is_what_is_missing():
    assert str(Account(4000, 3990)) == "3,990 of 4,000"
    assert str(Account(4, 4, doubled=1, wrong=2)) == "4 of 4, 1 doubled, 2 wrong"


# ---------------------------------------------------------------------- outages


def test_responses_at_all_times_are_no_outage():
    assert outage_s([]) == 0
    assert outage_s([Poll(1.0), Poll(1.1), Poll(1.9)]) == 0


def test_an_outage_is_from_the_last_response_to_the_next():
    assert outage_s([Poll(1.0), Poll(1.1, "refused"), Poll(1.2, "refused"), Poll(3.0), Poll(3.1)]) == 2.0


def test_outages_are_added_up():
    polls = [Poll(1.0), Poll(1.1, "closed"), Poll(1.2), Poll(1.3), Poll(1.4, "refused"), Poll(1.8)]
    assert outage_s(polls) == pytest.approx(0.7)


def test_a_response_that_comes_late_is_an_outage_too():
    assert outage_s([Poll(1.0), Poll(3.5), Poll(3.6)]) == 2.5


def test_an_outage_that_does_not_end_lasts_until_the_last_poll():
    assert outage_s([Poll(1.0), Poll(1.1, "refused"), Poll(9.0, "refused")]) == 8.0


# ------------------------------------------------------------------------- logs


def test_fenced_producers_are_counted_by_what_they_say():
    state = "[Producer clientId=p, transactionalId=t] Transiting to {} error state due to org.apache.kafka.common.{}"
    log = "\n".join(
        state.format(*each)
        for each in [
            ("fatal", "errors.ProducerFencedException: There is a newer producer with the same transactionalId"),
            ("abortable", "errors.InvalidProducerEpochException: Producer attempted to produce with an old epoch."),
            ("fatal", "KafkaException: The producer closed forcefully"),
        ]
    )
    log += "\norg.apache.kafka.common.errors.ProducerFencedException: once more, in a trace"
    assert fenced(log) == {"ProducerFencedException": 1, "InvalidProducerEpochException": 1}


def test_threads_that_died_are_told_with_their_reason():
    assert dead_threads("12:00:00 INFO well\nstream thread died: why\n") == ["stream thread died: why"]


# --------------------------------------------------------------------- decision


def test_a_good_run_has_no_problem():
    assert problems([GOOD, KILLED, HANDED_OVER]) == []


@pytest.mark.parametrize(
    ("runs", "problem"),
    [
        ([replace(KILLED, streams=Account(100, 99))], "not exact: sigkill"),
        ([replace(HANDED_OVER, connect=Account(40, 40, doubled=1))], "not exact: sigusr2"),
        ([replace(GOOD, outages_s=[1.0, 3.5])], "an outage of 3.50 s, more than 3 s"),
        ([replace(GOOD, streams_fenced=2), replace(KILLED, failed_tasks=1)], "2.0 a run, 1.0 after sigkill"),
        ([replace(HANDED_OVER, refused=1)], "harm after a handover"),
        ([replace(HANDED_OVER, connect_fenced=1)], "harm after a handover"),
    ],
)
def test_anything_else_has(runs, problem):
    [words] = problems(runs)
    assert problem in words


def test_fencing_is_judged_beside_sigkill_only():
    assert problems([replace(GOOD, streams_fenced=2)]) == []
    assert problems([replace(GOOD, streams_fenced=2), GOOD, replace(KILLED, dead_threads=1)]) == []


def test_the_table_has_a_row_for_each_way_to_restart():
    *_, terminated, killed = table([GOOD, KILLED, replace(GOOD, outages_s=[2.5, 3.0], streams=Account(100, 90))]).split(
        "\n"
    )
    assert terminated == (
        "| sigterm | 2 | 2.25 (1.50 - 3.00) | 0.15 (0.10 - 0.20) | 70 (70 - 70) | 2.5 (2.5 - 2.5) | 1 of 2 | 10 "
        "| 0 | 0 | 3.0 (3.0 - 3.0) |"
    )
    assert killed.startswith("| sigkill | 1 |")


def test_a_run_is_the_same_after_it_was_written_and_read():
    assert Run.from_json(json.loads(json.dumps(GOOD.as_json()))) == GOOD
    assert line(GOOD).startswith("sigterm: outages 1.50 and 2.00 s, old process ended after 0.10 and 0.20 s, 70 polls")
