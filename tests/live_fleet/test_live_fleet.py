"""Short runs of the scenarios, as a command each: what it finds is compared with what one instance does meanwhile.

Clients, nodes and instances share the cores of one machine, so that nothing is said about how
much a client gets in a second; a fleet must not let through more than one instance does, and nearly as much.
"""

import json
import subprocess
import sys

import pytest

from tests.bench.processes import ROOT
from tests.live_fleet.figures import excess_s, figures, total_of

pytestmark = [pytest.mark.kafka, pytest.mark.nightly, pytest.mark.exclusive]

_SCENARIOS = ("before", "spread over two", "moving, two", "killed", "cut off")
_TWO_S = 2.0


def run(tmp_path, *arguments):
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "tests.live_fleet", "--json", str(file), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """All scenarios in one run, so that everything is started once."""
    names = [word for name in _SCENARIOS for word in ("--scenario", name)]
    return run(tmp_path_factory.mktemp("fleet"), "--part", "0.7", *names)["scenarios"]


def test_without_a_fleet_two_instances_let_through_twice_the_limit(found):
    of_two, of_one = (figures(found["before"])[side]["produce"]["long_run"] for side in ("fleet", "single"))
    assert of_two > 1.4 * of_one


@pytest.mark.parametrize("kind", ["produce", "fetch"])
def test_an_entity_spread_over_two_instances_has_what_it_has_at_one(found, kind):
    of_fleet, of_one = (figures(found["spread over two"])[side][kind] for side in ("fleet", "single"))
    assert of_fleet["long_run"] == pytest.approx(of_one["long_run"], rel=0.05)
    assert of_fleet["worst_s"] < of_one["worst_s"] + _TWO_S


@pytest.mark.parametrize("kind", ["produce", "fetch"])
def test_load_that_moves_has_no_burst_at_each_instance(found, kind):
    of_fleet, of_one = (figures(found["moving, two"])[side][kind] for side in ("fleet", "single"))
    assert of_fleet["long_run"] < 1.05 * max(1, of_one["long_run"])
    assert of_fleet["worst_s"] < of_one["worst_s"] + _TWO_S


@pytest.mark.parametrize("kind", ["produce", "fetch"])
def test_an_instance_that_is_killed_leaves_its_share_and_no_burst(found, kind):
    of_fleet, of_one = (figures(found["killed"])[side][kind] for side in ("fleet", "single"))
    assert of_fleet["long_run"] == pytest.approx(of_one["long_run"], rel=0.1)
    assert of_fleet["worst_s"] < of_one["worst_s"] + _TWO_S


@pytest.mark.parametrize("kind", ["produce", "fetch"])
def test_an_instance_that_is_cut_off_adds_no_more_than_its_part(found, kind):
    """The others may take all of the limit, and it may have a third: for as long as it is cut off."""
    scenario = found["cut off"]
    [cut, join] = [event["at"] for event in scenario["events"]]
    series = total_of(scenario["sides"]["fleet"][kind])
    single = excess_s(total_of(scenario["sides"]["single"][kind]), scenario["limit"])
    assert excess_s(series, scenario["limit"]) < single + (join - cut) / 3 + _TWO_S
    assert excess_s(series[: int(cut)], scenario["limit"]) < single + _TWO_S


def test_no_record_is_lost_while_instances_are_killed_and_the_budget_holds(tmp_path):
    found = run(tmp_path, "--chaos", "60")
    assert found["violations"] == []
    assert found["kills"] >= 8
    assert found["long_run"] < 1.05
