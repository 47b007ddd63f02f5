"""The operations of one second, found in the trace files of the spool."""

import os

import pytest

from kafka_throttle.proxy.config.settings import HistoryConfig, UsageConfig
from kafka_throttle.proxy.usage.past_trace import past_of, traced_in
from kafka_throttle.proxy.usage.spool_file import SpoolFile
from kafka_throttle.quotas.records.usage_record import TRACE, Dropped, Header, TraceEvent

SECOND = 1_764_072_000
EPOCH = 1_764_000_000_000


def event(wall_ms, sequence=1, virtual_cluster="main"):
    return TraceEvent(
        instance="here",
        epoch=EPOCH,
        sequence=sequence,
        at_ms=wall_ms - EPOCH,
        wall_ms=wall_ms,
        virtual_cluster=virtual_cluster,
        node_id=1,
        user="alice",
        client_id="etl\t\n",
        ip="",
        quota_type="produce",
        operation="charge",
        value=10.0,
        throttle_ms=0,
        limit=None,
        rule="",
        sensor=1,
        shadow=0,
        count=1,
    )


def dropped(sequence):
    return Dropped(
        instance="here", epoch=EPOCH, stream=TRACE, first_sequence=sequence, last_sequence=sequence, reason="too_fast"
    )


@pytest.fixture
def write(tmp_path):
    def write(number, *rows, is_complete=True):
        header = Header(stream=TRACE, instance="here", epoch=EPOCH, file=number, first_sequence=1, flush_ms=0)
        file = SpoolFile(tmp_path, header)
        file.add(rows)
        return file.finish() if is_complete else file

    return write


def found(tmp_path, second=SECOND):
    trace = traced_in(tmp_path, "main", second)
    return [each.wall_ms - SECOND * 1000 for each in trace.events], trace.has_gaps


def test_the_events_of_a_second_are_found_in_complete_files_and_in_the_one_that_is_written(tmp_path, write):
    begin = SECOND * 1000
    write(1, event(begin - 1), event(begin), event(begin, virtual_cluster="other"), event(begin + 500))
    write(2, event(begin + 999), event(begin + 1000), is_complete=False)
    old = write(3, event(begin + 1))
    os.utime(old, (SECOND - 1, SECOND - 1))
    (tmp_path / "trace-none-1.tsv").touch()
    assert found(tmp_path) == ([0, 500, 999], False)
    assert found(tmp_path, SECOND + 1) == ([1000], False)
    assert found(tmp_path, SECOND + 2) == ([], False)
    assert found(tmp_path / "missing") == ([], False)


@pytest.mark.parametrize(
    ("times", "has_gaps"),
    [([None, 0], True), ([0, None, 5], True), ([0, None], True), ([-5, None, 1500], True), ([0, 1500, None], False)],
)
def test_dropped_events_beside_those_of_the_second_are_a_gap(tmp_path, write, times, has_gaps):
    rows = [dropped(number) if at is None else event(SECOND * 1000 + at, number) for number, at in enumerate(times)]
    write(1, *rows, is_complete=False)
    assert traced_in(tmp_path, "main", SECOND).has_gaps is has_gaps


def test_damaged_lines_are_skipped(tmp_path, write):
    path = write(1, event(SECOND * 1000), event(SECOND * 1000 + 1))
    path.write_bytes(path.read_bytes().replace(b"charge", b"chargE", 1) + b"\xff\t\t\nno\ttrace\t\n")
    assert found(tmp_path) == ([1], False)


def test_without_a_directory_there_is_no_past():
    assert past_of(HistoryConfig(), UsageConfig()) is None
