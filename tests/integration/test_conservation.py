"""`python -m tests.conservation` finds every record where it belongs, whatever breaks around the proxy."""

import json
import os
import subprocess
import sys

import psutil
import pytest

from kafka_throttle.common.child_process import die_with_parent
from tests.conservation.faults import APIS, BACK, FRONT
from tests.support.places import ROOT

pytestmark = pytest.mark.kafka

_GRACE_S = 780.0
"""Beyond the seconds of producing: to start a cluster, to see every kind of fault, to read all twice, to end."""


def check(tmp_path, seconds, *arguments):
    """Run the checker on a new cluster; return its report."""
    path = tmp_path / "report.json"
    command = [sys.executable, "-m", "tests.conservation", "--seconds", str(seconds), "--json", str(path), *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=seconds + _GRACE_S,
        cwd=ROOT,
        preexec_fn=die_with_parent,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    [report] = json.loads(path.read_text())
    return report


def assert_that_it_was_hard(report):
    """Everything that can go wrong has gone wrong, and both ways of ending were seen for records."""
    assert report["missing_faults"] == []
    faults = report["faults"]
    for link in (FRONT, BACK):
        for api in APIS:
            assert faults[f"reset in a {api} request ({link})"] >= 1
            assert faults[f"reset in a {api} answer ({link})"] >= 1
        for side in ("request", "answer"):
            assert faults[f"{side} side half broken ({link})"] >= 1
    for kind in ("node killed and restarted", "node stopped and restarted", "node frozen", "leaders moved"):
        assert faults[kind] >= 1
    assert faults["bad configuration refused"] >= 1
    assert report["throttles"]["produce"] >= 1
    assert report["throttles"]["fetch"] >= 1
    assert sum(report["connections_closed"].values()) > 20


def assert_that_all_is_there(report):
    records = report["records"]
    assert report["violations"] == []
    assert report["internal_errors"] == 0
    assert records["sent"] == records["acknowledged"] + records["failed"]
    assert records["acknowledged"] > 5000
    assert records["failed"] > 0
    assert sum(report["sizes"].values()) == records["sent"]


@pytest.mark.rule("nothing lost")
@pytest.mark.exclusive
def test_half_a_minute_of_everything_costs_no_record(tmp_path):
    """Exclusive: beside other tests its readers may be too slow to be throttled within the half minute."""
    report = check(tmp_path, 30)
    assert_that_it_was_hard(report)
    assert_that_all_is_there(report)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["3.9.2-zookeeper", "4.3.1-kraft"])
def test_minutes_of_everything_cost_no_record(tmp_path, kind):
    report = check(tmp_path, 120, "--kafka", kind)
    assert_that_it_was_hard(report)
    assert_that_all_is_there(report)


@pytest.mark.nightly
def test_nothing_outlives_a_checker_that_is_killed(tmp_path):
    command = [sys.executable, "-m", "tests.conservation", "--seconds", "120"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as checker:
        try:
            assert any("records sent" in line for line in checker.stderr)
            family = psutil.Process(checker.pid).children(recursive=True)
        finally:
            checker.kill()
    assert len(family) >= 10  # a keeper, three nodes, the proxy, the wire, four client processes
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive
    assert not list(tmp_path.glob("kafka-throttle-cluster-*"))
