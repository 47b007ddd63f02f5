"""Which runs count, and what the command line takes."""

import pytest

from tests.bench.candidates import other
from tests.bench.processes import need_tool
from tests.bench.speed import Runs, columns_named, measure_unspoilt, parse_options


def runs_with(*others):
    left = iter(others)
    return lambda: {"others": next(left)}


def test_a_spoilt_run_is_repeated_until_one_is_not():
    runs = Runs()
    assert measure_unspoilt(runs_with(0.5, 0.3, 0.04, 0.0), runs, 0.1, repeats=4) == {"others": 0.04}
    assert (runs.discarded, runs.spoilt_but_kept) == (2, 0)


def test_when_all_are_spoilt_the_least_spoilt_is_kept_and_told():
    runs = Runs()
    assert measure_unspoilt(runs_with(0.5, 0.2, 0.4), runs, 0.1, repeats=2) == {"others": 0.2}
    assert (runs.discarded, runs.spoilt_but_kept) == (2, 1)


def test_columns_come_in_our_order():
    assert [column.key for column in columns_named("accept,produce-16")] == ["produce-16", "accept"]


@pytest.mark.parametrize("arguments", [["--columns", "nothing"], ["--only", "nothing"], ["--without", "nothing"]])
def test_what_is_not_there_cannot_be_chosen(arguments, capsys):
    with pytest.raises(SystemExit):
        parse_options(arguments)
    assert "nothing" in capsys.readouterr().err


def test_candidates_are_chosen_and_added():
    options = parse_options(["--other", "mine=run {listen} {upstream}", "--only", "mine", "--only", "HAProxy"])
    assert [candidate.name for candidate in options.candidates] == ["HAProxy", "mine"]


def test_any_command_is_a_candidate(tmp_path):
    candidate = other("mine=proxy --from {listen} --to={upstream} 'two words'")
    assert candidate.command(1, 2, tmp_path) == ["proxy", "--from", "127.0.0.1:1", "--to=127.0.0.1:2", "two words"]
    with pytest.raises(SystemExit, match="expected name=command"):
        other("mine=proxy {listen}")


def test_a_missing_tool_is_named_with_the_line_that_installs_it():
    with pytest.raises(SystemExit, match=r"no-such-tool is missing\. Install it with: apt-get install -y a b"):
        need_tool("no-such-tool", "a b")
