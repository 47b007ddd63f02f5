"""The log: a version after the other, one writer each, and no more files than are needed."""

import json

import pytest

from pipeline.table.accounts import Account, LostEnd, Writer, accounts_of, form_of, lost_ends
from pipeline.table.files import LocalFiles, Taken
from pipeline.table.table_log import BadTable, Commit, Part, read_state, write_commit


def part(number, size=1):
    return Part("usage", f"usage/commit=c{number}/day=d/virtual_cluster=v", "d", "v", size)


def commit(number, removed=()):
    account = {Writer("usage", "a", 1): Account(((number, number),), (), number)}
    return Commit(number, "source", number, (part(number),), tuple(removed), account, {"usage records": 1})


def test_a_table_is_what_its_commits_come_to(tmp_path):
    files = LocalFiles(tmp_path)
    state = read_state(files)
    for number in range(1, 251):
        state = write_commit(files, state, commit(number, [part(number - 1).path] if number % 2 else []))
        assert read_state(files) == state
    assert state.version == 250
    assert state.accounts == {Writer("usage", "a", 1): Account(((1, 250),), (), 250)}
    assert state.batches == {"source": 250}
    assert state.counts == {"usage records": 250}
    assert len(state.parts) == 126
    assert len(list((tmp_path / "_log").iterdir())) < 200


def test_of_two_writers_of_a_version_the_second_is_told(tmp_path):
    files = LocalFiles(tmp_path)
    state = read_state(files)
    write_commit(files, state, commit(1))
    with pytest.raises(Taken):
        write_commit(files, state, commit(2))
    assert read_state(files).batches == {"source": 1}


def test_a_log_with_a_hole_is_refused(tmp_path):
    files = LocalFiles(tmp_path)
    state = read_state(files)
    for number in range(1, 4):
        state = write_commit(files, state, commit(number))
    files.remove("_log/000000000002.json")
    with pytest.raises(BadTable, match="version 2 is missing"):
        read_state(files)


def test_the_log_keeps_which_epochs_are_complete():
    accounts = {Writer("usage", "a", 1): Account(((1, 5),), (), 5, final=True, alone=True, flush_ms=500)}
    form = json.loads(json.dumps(form_of(accounts)))
    assert accounts_of(form) == accounts


def test_epochs_of_a_log_that_does_not_say_whether_they_are_complete_are_not_lost():
    old = [
        {"stream": "usage", "instance": "a", "epoch": n, "present": [[1, 5]], "dropped": [], "told": 5} for n in (1, 2)
    ]
    known = accounts_of(old)
    assert lost_ends(known) == []
    later = {Writer("usage", "a", epoch): Account(((1, 5),), (), 5, alone=True) for epoch in (3, 4)}
    assert [lost.writer.epoch for lost in lost_ends({**known, **later})] == [3]


def test_a_later_epoch_counts_in_any_stream_of_the_instance_and_in_no_other_instance():
    killed, whole = Account(((1, 5),), (), 5, alone=True, flush_ms=500), Account((), (), 0, final=True, alone=True)
    accounts = {
        Writer("usage", "a", 1): whole,
        Writer("trace", "a", 1): killed,
        Writer("usage", "a", 7): whole,
        Writer("usage", "b", 1): killed,
        Writer("usage", "c", 9): whole,
    }
    assert lost_ends(accounts) == [LostEnd(Writer("trace", "a", 1), 7, 500)]
