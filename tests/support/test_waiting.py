"""Waiting ends as soon as something is so; a failure says what was waited for."""

import pytest

from tests.fakes.virtual_time import run
from tests.support.waiting import until, wait_until


def test_what_the_condition_gives_comes_back_as_soon_as_it_is_true():
    found = iter([0, "", "it"])
    assert wait_until(lambda: next(found)) == "it"
    found = iter([0, "", "it"])
    assert run(until(lambda: next(found))) == "it"


def test_a_failure_says_what_was_waited_for():
    with pytest.raises(AssertionError, match="waited 0 s for the end of the world"):
        wait_until(lambda: False, "the end of the world", timeout_s=0)
    with pytest.raises(AssertionError, match="waited 60 s for the end of the world"):
        run(until(lambda: False, "the end of the world"))


def test_a_failure_has_the_line_with_the_condition_if_nothing_else_is_said():
    with pytest.raises(AssertionError, match=r"waited 0 s for wait_until\(lambda: 1 == 2, timeout_s=0\)"):
        wait_until(lambda: 1 == 2, timeout_s=0)
