"""Bytecodes are counted by function, and alike each time; of a connection they are of the order that they must be."""

import subprocess
import sys

import pytest

from tests.bench.bytecodes import Taken, as_markdown, compared, place
from tests.bench.counting_proxy import Bytecodes
from tests.support.places import ROOT


def twice(value):
    return once(value) + once(value)


def once(value):
    return value + 1


def counted(runs):
    bytecodes = Bytecodes()
    bytecodes.begin()
    for _ in range(runs):
        twice(1)
    bytecodes.end()
    return {name: (calls, codes) for _, _, name, calls, codes in bytecodes.rows()}


def test_calls_and_bytecodes_are_counted_by_function():
    one, five = counted(1), counted(5)
    assert (one["twice"][0], one["once"][0]) == (1, 2)
    assert one["twice"][1] > one["once"][1] / 2 > 0
    assert (five["twice"], five["once"]) == tuple(
        (5 * calls, 5 * codes) for calls, codes in (one["twice"], one["once"])
    )


def test_nothing_is_counted_behind_the_end():
    bytecodes = Bytecodes()
    bytecodes.begin()
    bytecodes.end()
    twice(1)
    assert "twice" not in {name for _, _, name, _, _ in bytecodes.rows()}


def test_a_table_begins_with_all_and_shows_the_dearest():
    table = as_markdown([Taken("a", 1, 30), Taken("b", 2, 12.25)], 1)
    assert table.splitlines()[2:] == ["| all | 42.2 | 3.00 |", "| a | 30.0 | 1.00 |"]


def test_files_of_two_ways_are_compared_the_dearest_first():
    alone = [Taken("quotas/a.py:1 a", 1, 30), Taken("quotas/a.py:9 b", 1, 10), Taken("proxy/b.py:1 c", 1, 5)]
    in_fleet = [Taken("quotas/a.py:1 a", 1, 41), Taken("quotas/shares/c.py:1 look", 0.1, 7)]
    assert compared(alone, in_fleet, 2).splitlines()[2:] == [
        "| quotas/a.py | 40.0 | 41.0 |",
        "| quotas/shares/c.py | 0.0 | 7.0 |",
    ]


def test_a_function_is_named_by_where_it_stands_in_the_project():
    assert place(str(ROOT / "proxy" / "cli" / "main.py"), 3, "main") == "proxy/cli/main.py:3 main"
    assert place("/usr/lib/python3/json/decoder.py", 7, "decode") == "json/decoder.py:7 decode"


@pytest.mark.nightly
def test_a_connection_takes_thousands_of_bytecodes_in_hundreds_of_calls():
    command = [sys.executable, ROOT / "tests" / "bench" / "bytecodes.py", "--seconds", "1", "--top", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = {where: (float(codes), float(calls)) for where, codes, calls in map(cells, done.stdout.splitlines()[2:])}
    bytecodes, calls = rows["all"]
    assert 1_000 < bytecodes < 50_000
    assert 50 < calls < 2_000
    [opened] = [calls for where, (_, calls) in rows.items() if where.endswith(" Listener._open")]
    assert 0.9 < opened < 1.1


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]
