"""Short runs of the scenarios by a fleet, beside one instance under the same clients at the same time.

Half a minute of Kafka's windows says no more than a tenth of a rate, so these tests tell a limit that is held from one
that is given out twice, or anew at each move. How closely it is held, long runs say: docs/proofs/fleet-measured.md.
"""

import json
import subprocess
import sys

import pytest

from tests.live_fleet.figures import figures
from tests.support.places import ROOT

pytestmark = [pytest.mark.kafka, pytest.mark.nightly, pytest.mark.exclusive]

_SCENARIOS = ("before", "spread over two", "moving, two", "killed", "cut off")
_TENTH_OF_A_MINUTE = 6.0


def run(tmp_path, *arguments):
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "tests.live_fleet", "--rate", "250000", "--json", str(file), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return json.loads(file.read_text())


def of(scenario, kind):
    """The figures of the fleet and of the single instance."""
    found = figures(scenario)
    return found["fleet"][kind], found["single"][kind]


def has_no_burst(fleet, single):
    return fleet["over_s"] < max(0, single["over_s"]) + _TENTH_OF_A_MINUTE


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """All scenarios in one run, so that everything is started once."""
    names = [word for name in _SCENARIOS for word in ("--scenario", name)]
    return run(tmp_path_factory.mktemp("fleet"), "--part", "0.7", *names)["scenarios"]


def test_without_a_fleet_two_instances_let_through_nearly_twice_the_limit(found):
    two, one = of(found["before"], "produce")
    assert two["long_run"] > 1.3 * one["long_run"]


@pytest.mark.parametrize("kind", ["produce", "fetch"])
def test_an_entity_spread_over_two_instances_has_what_it_has_at_one(found, kind):
    fleet, single = of(found["spread over two"], kind)
    assert 0.75 * single["long_run"] < fleet["long_run"] < 1.15 * max(1, single["long_run"])
    assert has_no_burst(fleet, single)


@pytest.mark.parametrize("name", ["moving, two", "killed"])
@pytest.mark.parametrize("kind", ["produce", "fetch"])
def test_load_that_moves_and_instances_that_die_bring_no_burst(found, kind, name):
    fleet, single = of(found[name], kind)
    assert 0.5 * single["long_run"] < fleet["long_run"] < 1.15 * max(1, single["long_run"])
    assert has_no_burst(fleet, single)


@pytest.mark.parametrize("kind", ["produce", "fetch"])
def test_an_instance_that_is_cut_off_adds_no_more_than_its_part(found, kind):
    """The others take all of the limit, and it keeps a third: for as long as it is cut off."""
    [cut, join] = [event["at"] for event in found["cut off"]["events"]]
    fleet, single = of(found["cut off"], kind)
    assert fleet["over_s"] < max(0, single["over_s"]) + (join - cut) / 3 + _TENTH_OF_A_MINUTE


def test_readers_at_two_instances_have_together_what_they_have_at_one(tmp_path):
    """They ask for more than a second's quota at a time; each instance has half of it."""
    arguments = ("--rate", "1000000", "--fetch", "paced", "--scenario", "two readers")
    fleet, single = of(run(tmp_path, *arguments)["scenarios"]["two readers"], "fetch")
    assert abs(fleet["long_run"] - single["long_run"]) < 0.05


def test_no_record_is_lost_while_instances_are_killed_and_the_budget_holds(tmp_path):
    found = run(tmp_path, "--chaos", "60")["chaos"]
    assert found["violations"] == []
    assert found["kills"] >= 8
    assert found["long_run"] < 1.1
