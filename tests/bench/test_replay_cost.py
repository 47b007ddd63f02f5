"""What is measured is what its name says. How fast it is, is not asked."""

from itertools import pairwise

import pytest

from tests.bench import replay_cost
from tests.bench.replay_cost import KINDS, cost_us


@pytest.mark.parametrize("name", KINDS)
def test_who_was_throttled_live_was_so_in_all_windows_that_count_and_nobody_else_was(name):
    kind = KINDS[name]()
    throttled = [window for windows in kind.clients.values() for window in windows if window.throttled_ms]
    assert len(throttled) == (kind.windows if name.startswith("throttled") else 0)
    assert all(one.end_ms == other.begin_ms for its in kind.clients.values() for one, other in pairwise(its))


def test_the_table_has_a_line_for_each_kind_that_was_asked_for(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["replay_cost", "--only", "one client", "--rounds", "1"])
    replay_cost.main()
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [
        name for name in KINDS if "one client" in name
    ]


def test_a_replay_costs_something():
    name = next(name for name in KINDS if name.startswith("throttled"))
    assert cost_us(KINDS[name](), 1) > 0
