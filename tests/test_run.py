"""What a run says of failures and durations, which tests it runs, and which of them once more."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run import MOST_FLAKY, MOST_TO_RUN_AGAIN, Outcome
from tests.support.places import ROOT

CONFTEST = Path(__file__).with_name("conftest.py")
FAILING = """
import pytest

def test_noise():
    for number in range(2000):
        print("a long line of a log " * 10)
    assert [1, 2] == [1, 3], "the last is another"

@pytest.fixture
def broken():
    error = ConnectionError("nobody there")
    error.add_note("a log " * 5000)
    raise error

@pytest.mark.parametrize("number", range(3))
def test_needs(broken, number):
    pass
"""
NOTED = """
from pathlib import Path

import pytest

from tests import conftest

class Seen:
    seen = DISTURBED
    begin_anew = take_stock = lambda self: None
    __str__ = lambda self: "somebody stood still"

def test_good():
    pass

@pytest.mark.parametrize("number", range(TESTS))
def test_once(number):
    conftest._disturbance = Seen()
    runs = Path(f"runs {number}")
    runs.write_text((runs.read_text() if runs.exists() else "") + "|")
    assert runs.read_text() == ENOUGH
"""
EXCLUSIVE = """
import os
from pathlib import Path

import pytest

def note(name):
    with Path("order").open("a") as file:
        file.write(f"{name}{' in a worker' * ('PYTEST_XDIST_WORKER' in os.environ)}|")

@pytest.mark.exclusive
def test_exclusive():
    note("exclusive")
    assert False, "not so"

def test_beside():
    note("beside")
    assert False, "nor so"
"""


def pytest_in(folder, *arguments, module="pytest"):
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    options = ["-p", "no:cacheprovider", "-ra", "--rootdir", str(folder), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    command = [sys.executable, "-m", module, *options]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def end_of(done):
    return done.stdout[-6000:].partition("what failed, in short")[2]


def noted(folder, *, disturbed, enough, tests=1):
    text = NOTED.replace("DISTURBED", str(disturbed)).replace("ENOUGH", repr("|" * enough)).replace("TESTS", str(tests))
    (folder / "test_noted.py").write_text(text)
    return pytest_in(folder, module="tests.run")


def kept(folder, name):
    return json.loads((folder / "build" / name).read_text())


def test_a_run_ends_with_every_failure_and_its_message(tmp_path):
    (tmp_path / "test_it.py").write_text(FAILING)
    end = end_of(pytest_in(tmp_path))
    assert "test_it.py::test_noise\n" in end
    assert 'test_it.py:7: assert [1, 2] == [1, 3], "the last is another"' in end
    assert "AssertionError: the last is another" in end
    assert re.findall(r"test_needs\[\d\] \(setup\)", end) == [f"test_needs[{n}] (setup)" for n in range(3)]
    assert end.count("ConnectionError: nobody there") == 3
    assert "a log" not in end


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "test_bad.py").write_text("import nothing_of_this_name\n")
    assert "nothing_of_this_name" in end_of(pytest_in(tmp_path))


def test_a_good_run_ends_as_ever(tmp_path):
    (tmp_path / "test_good.py").write_text("def test_good():\n    pass\n")
    assert "in short" not in pytest_in(tmp_path, "test_good.py").stdout


def test_what_is_exclusive_comes_behind_all_others_and_both_are_told(tmp_path):
    (tmp_path / "test_it.py").write_text(EXCLUSIVE)
    done = pytest_in(tmp_path, module="tests.run")
    assert done.returncode == 1, done.stdout
    assert (tmp_path / "order").read_text().startswith("beside in a worker|exclusive|")
    for said in (done.stdout, done.stderr):
        end = said.partition("what failed, in short")[2]
        assert "not so" in end
        assert "nor so" in end
    assert "test_beside" in (tmp_path / "build/test-logs/test-parallel.txt").read_text()
    assert "test_exclusive" in (tmp_path / "build/test-logs/test-exclusive.xml").read_text()


def test_every_duration_is_kept_and_the_slowest_are_printed(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import time\n\ndef test_slow():\n    time.sleep(0.3)\n\ndef test_fast():\n    pass"
    )
    (tmp_path / "build").mkdir()
    (tmp_path / "build/durations.json").write_text('{"shard-1": {"test_other.py::test": 1.0}, "test": {"gone": 9.0}}')
    done = pytest_in(tmp_path, module="tests.run")
    assert done.returncode == 0, done.stdout
    durations = kept(tmp_path, "durations.json")
    assert durations["shard-1"] == {"test_other.py::test": 1.0}
    assert durations["test"].keys() == {"test_it.py::test_slow", "test_it.py::test_fast"}
    assert durations["test"]["test_it.py::test_slow"] > 0.3
    slowest, then = [line.split() for line in done.stdout.partition("== slowest")[2].splitlines()[1:3]]
    assert (slowest[1], then[1]) == ("test_it.py::test_slow", "test_it.py::test_fast")


@pytest.mark.parametrize(("one", "other", "both"), [(0, 5, 0), (5, 1, 1), (5, 5, 5), (1, 0, 1), (0, -9, -9), (1, 3, 3)])
def test_of_two_runs_the_worse_counts_and_not_that_one_has_no_tests(one, other, both):
    assert (Outcome(one) + Outcome(other)).status == both


@pytest.mark.parametrize(("disturbed", "why"), [(True, " (somebody stood still)"), (False, "")])
def test_what_passes_when_run_once_more_is_flaky_and_the_last_lines_say_so(tmp_path, disturbed, why):
    done = noted(tmp_path, disturbed=disturbed, enough=2)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "runs 0").read_text() == "||"
    assert "to be looked into" in done.stdout.splitlines()[-2]
    assert done.stdout.splitlines()[-1] == "test_noted.py::test_once[0]" + why
    assert kept(tmp_path, "flaky.json") == {"test": {"test_noted.py::test_once[0]": why.strip(" ()")}}


@pytest.mark.parametrize(("tests", "status"), [(MOST_FLAKY, 0), (MOST_FLAKY + 1, 1)])
def test_more_than_two_flaky_tests_fail_the_run(tmp_path, tests, status):
    done = noted(tmp_path, disturbed=True, enough=2, tests=tests)
    assert done.returncode == status, done.stdout
    assert ("more than 2 tests are flaky" in done.stderr) == bool(status)
    assert len(kept(tmp_path, "flaky.json")["test"]) == tests


@pytest.mark.parametrize("disturbed", [False, True])
def test_what_fails_twice_has_failed(tmp_path, disturbed):
    done = noted(tmp_path, disturbed=disturbed, enough=3)
    assert done.returncode == 1, done.stdout
    assert (tmp_path / "runs 0").read_text() == "||"
    assert ("meanwhile: somebody stood still" in end_of(done)) == disturbed
    assert kept(tmp_path, "flaky.json") == {"test": {}}


def test_many_failures_are_not_run_once_more():
    assert Outcome(1, failed=dict.fromkeys(map(str, range(MOST_TO_RUN_AGAIN)), "")).may_be_flaky
    assert not Outcome(1, failed=dict.fromkeys(map(str, range(MOST_TO_RUN_AGAIN + 1)), "")).may_be_flaky
    assert not Outcome(2, failed={"test": ""}).may_be_flaky


def test_what_cannot_be_collected_has_failed(tmp_path):
    (tmp_path / "test_bad.py").write_text("import nothing_of_this_name\n")
    done = pytest_in(tmp_path, module="tests.run")
    assert done.returncode == 2
    assert "nothing_of_this_name" in end_of(done)
