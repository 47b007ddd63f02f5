"""Every nightly test is in one shard, shards take about as long as each other, and a group runs in one worker."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shards import SHARDS, costs_of, group_of, longest_first, shards_of, unknown_among
from tests.test_run import pytest_in

NIGHTLY = """
import pytest

@pytest.mark.nightly
@pytest.mark.parametrize("number", range(3))
def test_night(number):
    pass

def test_day():
    pass
"""
GROUPS = """
import os
from pathlib import Path

import pytest

@pytest.mark.parametrize("kafka", ["old", "new"] * 4)
def test_it(kafka):
    with Path(f"ran {Path(__file__).stem} {kafka}").open("a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


def item(name, *markers, kafka=None):
    """As pytest has it, with the markers as name or (name, argument)."""
    of_name = {marker[0]: SimpleNamespace(args=marker[1:]) for marker in markers}
    callspec = {"callspec": SimpleNamespace(params={"kafka": kafka})} if kafka else {}
    return SimpleNamespace(nodeid=name, get_closest_marker=of_name.get, **callspec)


@given(st.dictionaries(st.text(max_size=5), st.floats(0, 1000)))
def test_each_unit_is_in_one_shard(costs):
    shards = shards_of(costs)
    assert len(shards) == SHARDS
    assert sorted(unit for shard in shards for unit in shard) == sorted(costs)


@given(st.dictionaries(st.text(max_size=5), st.floats(1, 1000), min_size=1))
def test_no_shard_is_longer_than_the_shortest_by_more_than_one_unit(costs):
    sums = [sum(costs[unit] for unit in shard) for shard in shards_of(costs)]
    assert max(sums) - min(sums) <= max(costs.values()) * 1.001


def test_a_unit_costs_what_its_tests_took():
    items = [item("a.py::one"), item("a.py::two"), item("a.py::three", kafka="old"), item("b.py::new", ("exclusive",))]
    durations = {"a.py::one": 3.0, "a.py::two": 5.0, "a.py::three": 7.0}
    assert costs_of(items, durations) == {"a.py": 8.0, "a.py old": 7.0, "b.py": 2 * 5.0}


def test_a_run_warns_when_more_than_a_tenth_of_its_tests_have_no_known_duration():
    tests, nine = [f"a.py::test_{number}" for number in range(10)], {f"a.py::test_{number}": 1.0 for number in range(9)}
    assert unknown_among([], {}) == unknown_among(tests, nine) == ""
    assert unknown_among([*tests, "a.py::test_new"], nine).startswith("2 of 11 tests are not in tests/durations.json")


def test_a_shard_says_in_its_last_lines_that_durations_are_not_known(tmp_path):
    (tmp_path / "test_a.py").write_text(NIGHTLY)
    done = pytest_in(tmp_path, "--shard=1", module="tests.run")
    assert done.returncode == 0, done.stdout
    assert "3 of 3 tests are not in tests/durations.json" in done.stdout


def test_groups_run_whole_and_the_longest_come_first():
    spark = [item(f"{module}.py::spark", ("xdist_group", "spark")) for module in "ac"]
    short, long = item("a.py::short"), item("b.py::long")
    assert [group_of(each) for each in (*spark, short)] == ["spark", "spark", "a.py"]
    assert longest_first([short, spark[0], long, spark[1]], {"b.py::long": 5.0}) == [long, *spark, short]


def test_the_shards_run_every_nightly_test_once(tmp_path):
    for name in "abcdefgh":
        (tmp_path / f"test_{name}.py").write_text(NIGHTLY)
    ran = []
    for shard in range(1, SHARDS + 1):
        done = pytest_in(tmp_path, "-m", "nightly", f"--shard={shard}", f"--outcome={tmp_path / 'outcome.json'}")
        assert done.returncode == 0, done.stdout
        ran += json.loads((tmp_path / "outcome.json").read_text())["durations"]
    assert sorted(ran) == sorted(f"test_{name}.py::test_night[{number}]" for name in "abcdefgh" for number in range(3))


def test_a_worker_runs_all_tests_of_a_group(tmp_path):
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(GROUPS)
    done = pytest_in(tmp_path, "-n", "2", "--dist=loadscope", "--no-loadscope-reorder")
    assert done.returncode == 0, done.stdout
    workers = [file.read_text().split() for file in tmp_path.glob("ran *")]
    assert [(len(ran), len(set(ran))) for ran in workers] == [(4, 1)] * 4


@pytest.mark.parametrize("shard", ["0", "7"])
def test_there_are_six_shards(tmp_path, shard):
    assert pytest_in(tmp_path, f"--shard={shard}").returncode == 4
