"""What a failed run ends with."""

import re
import subprocess
import sys
from pathlib import Path

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


def run(folder, *arguments):
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "test_it.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-ra", "--rootdir", str(folder), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False).stdout


def test_a_run_ends_with_every_failure_and_its_message(tmp_path):
    end = run(tmp_path)[-6000:].partition("what failed, in short")[2]
    assert "test_it.py::test_noise\n" in end
    assert 'test_it.py:7: assert [1, 2] == [1, 3], "the last is another"' in end
    assert "AssertionError: the last is another" in end
    assert re.findall(r"test_needs\[\d\] \(setup\)", end) == [f"test_needs[{n}] (setup)" for n in range(3)]
    assert end.count("ConnectionError: nobody there") == 3
    assert "a log" not in end


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "test_bad.py").write_text("import nothing_of_this_name\n")
    end = run(tmp_path)[-6000:].partition("what failed, in short")[2]
    assert "nothing_of_this_name" in end


def test_a_good_run_ends_as_ever(tmp_path):
    (tmp_path / "test_good.py").write_text("def test_good():\n    pass\n")
    assert "in short" not in run(tmp_path, "test_good.py")
