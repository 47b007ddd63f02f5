"""Short runs of both applications with one restart each: the figures of the tool are consistent."""

import json
import subprocess
import sys

import pytest

from tests.applications.figures import Run
from tests.support.places import ROOT

pytestmark = [pytest.mark.kafka, pytest.mark.nightly, pytest.mark.exclusive]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A handover, and a stop with a start: in one call, so that there is one cluster."""
    folder = tmp_path_factory.mktemp("applications")
    file = folder / "runs.json"
    kinds = ["--restart", "sigusr2", "--restart", "sigterm"]
    least = ["--restarts", "1", "--nodes", "1", "--most-outage-s", "60"]
    command = [sys.executable, "-m", "tests.applications", *kinds, *least, "--json", str(file), "--logs", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[:3000]}\n{done.stderr[-6000:]}"
    return [Run.from_json(kept) for kept in json.loads(file.read_text())]


def test_what_both_applications_write_is_exact_over_a_restart(runs):
    assert [run.restart for run in runs] == ["sigusr2", "sigterm"]
    for run in runs:
        assert run.exact
        assert run.streams.expected > 1000
        assert run.connect.expected > 1000


def test_a_handover_refuses_nobody_and_fences_nobody(runs):
    handed_over, _ = runs
    assert handed_over.refused == 0
    assert handed_over.harm == 0


def test_a_stop_and_a_start_are_an_outage_that_is_longer_than_the_stop(runs):
    _, stopped = runs
    [outage_s], [ended_s] = stopped.outages_s, stopped.ends_s
    assert stopped.refused > 0
    assert outage_s > ended_s > 0
