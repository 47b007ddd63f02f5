"""What a run says of failures, and which of them it runs once more."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.proxy_process import ROOT
from tests.run import MOST_TO_RUN_AGAIN, MOST_UNSEEN, Outcome

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

@pytest.mark.MARK
def test_once():
    conftest._disturbance = Seen()
    runs = Path("runs")
    runs.write_text((runs.read_text() if runs.exists() else "") + "|")
    assert runs.read_text() == ENOUGH
"""
SIDE_BY_SIDE = """
import os
from pathlib import Path

import pytest

def note(name):
    with Path("order").open("a") as file:
        file.write(f"{name}{' in a worker' * ('PYTEST_XDIST_WORKER' in os.environ)}|")

@pytest.mark.alone
def test_alone():
    note("alone")
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


def noted(folder, *, disturbed, enough, mark="fast"):
    text = NOTED.replace("DISTURBED", str(disturbed)).replace("ENOUGH", repr("|" * enough)).replace("MARK", mark)
    (folder / "test_noted.py").write_text(text)
    return pytest_in(folder, module="tests.run")


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


def test_what_fails_undisturbed_has_failed_and_both_streams_end_with_it(tmp_path):
    done = noted(tmp_path, disturbed=False, enough=2)
    assert done.returncode == 1, done.stdout
    assert (tmp_path / "runs").read_text() == "|"
    for said in (done.stdout, done.stderr):
        assert "test_noted.py::test_once\n" in said.partition("what failed, in short")[2]
    assert "test_once" in (tmp_path / "build/test-logs/side-by-side.txt").read_text()


def test_what_must_run_alone_comes_behind_all_others_and_both_are_told(tmp_path):
    (tmp_path / "test_it.py").write_text(SIDE_BY_SIDE)
    done = pytest_in(tmp_path, module="tests.run")
    assert done.returncode == 1, done.stdout
    assert (tmp_path / "order").read_text().startswith("beside in a worker|alone|")
    end = done.stdout.partition("what failed, in short")[2]
    assert "not so" in end
    assert "nor so" in end


@pytest.mark.parametrize(("one", "other", "both"), [(0, 5, 0), (5, 1, 1), (5, 5, 5), (1, 0, 1), (0, -9, -9), (1, 3, 3)])
def test_of_two_runs_the_worse_counts_and_not_that_one_has_no_tests(one, other, both):
    assert (Outcome(one) + Outcome(other)).status == both


def test_what_the_machine_spoilt_is_run_once_more_and_that_is_said(tmp_path):
    done = noted(tmp_path, disturbed=True, enough=2)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "runs").read_text() == "||"
    assert "test_noted.py::test_once: somebody stood still" in done.stdout


@pytest.mark.parametrize("mark", ["integration", "long"])
def test_what_has_real_processes_is_run_once_more_and_that_is_said_in_the_end(tmp_path, mark):
    done = noted(tmp_path, disturbed=False, enough=2, mark=mark)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "runs").read_text() == "||"
    assert "test_noted.py::test_once: unseen" in done.stdout
    assert "to be looked into" in done.stdout.splitlines()[-2]
    assert done.stdout.splitlines()[-1] == "test_noted.py::test_once"


@pytest.mark.parametrize("mark", ["fast", "long"])
def test_what_fails_twice_has_failed(tmp_path, mark):
    done = noted(tmp_path, disturbed=mark == "fast", enough=3, mark=mark)
    assert done.returncode == 1, done.stdout
    assert (tmp_path / "runs").read_text() == "||"
    assert ("meanwhile: somebody stood still" in end_of(done)) == (mark == "fast")


def test_so_many_failures_are_nobodys_doing_but_ours():
    def failed(unseen, seen, real=True):
        names = [f"unseen {n}" for n in range(unseen)]
        disturbances = dict.fromkeys(names, "") | {f"seen {n}": "late" for n in range(seen)}
        return Outcome(1, disturbances=disturbances, real=names if real else [])

    assert failed(MOST_UNSEEN, MOST_TO_RUN_AGAIN - MOST_UNSEEN).may_pass
    assert not failed(MOST_UNSEEN + 1, 0).may_pass
    assert not failed(0, MOST_TO_RUN_AGAIN + 1).may_pass
    assert not failed(1, 0, real=False).may_pass


def test_what_cannot_be_collected_has_failed(tmp_path):
    (tmp_path / "test_bad.py").write_text("import nothing_of_this_name\n")
    done = pytest_in(tmp_path, module="tests.run")
    assert done.returncode == 2
    assert "nothing_of_this_name" in end_of(done)
