"""The measurement itself, run for moments: what it prints and writes is sane. How fast anything is, is not asked."""

import json
import re
import subprocess
import sys

import pytest

from tests.bench.candidates import DIRECT, HAPROXY, OURS
from tests.bench.columns import COLUMNS
from tests.support.places import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2000)]

CANDIDATES = (DIRECT.name, HAPROXY.name, "nginx", OURS.name)
KEYS = ("produce-1", "fetch-64k", "accept")
GOALS = len(KEYS) + 1
_ATTEMPTS = 3
_TIMEOUT_S = 600


def run(program, *arguments, measured=lambda printed: True):
    """What one of the programs of this folder prints on stdout.

    In the short time that it has here it may not come to measure anything: it is run again then.
    """
    command = [sys.executable, ROOT / "tests" / "bench" / program, *arguments]
    for _ in range(_ATTEMPTS):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
        assert done.returncode == 0, done.stderr
        if measured(done.stdout):
            break
    return done.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What `speed.py` prints, and the folder with its report and plot."""
    folder = tmp_path_factory.mktemp("bench")
    only = [word for name in CANDIDATES for word in ("--only", name)]
    short = ["--rounds", "1", "--seconds", "0.5", "--repeats", "0", "--columns", ",".join(KEYS)]
    files = ["--json", folder / "speed.json", "--plot", folder / "speed.svg"]

    def something(printed):
        columns = json.loads((folder / "speed.json").read_text())["runs"].values()
        runs = [(name, figures) for of_column in columns for name, [figures] in of_column.items()]
        return all(
            figures["requests"] > 10 and (name == DIRECT.name or figures["cpu_us_per_request"] > 0)
            for name, figures in runs
        )

    return run("speed.py", *short, *only, *files, measured=something), folder


def test_every_candidate_moves_requests_in_every_column(measured):
    _, folder = measured
    report = json.loads((folder / "speed.json").read_text())
    assert set(report["runs"]) == set(KEYS)
    for key, of_column in report["runs"].items():
        assert tuple(of_column) == CANDIDATES, key
        for name, [figures] in of_column.items():
            assert figures["requests"] > 10, (key, name)
            assert figures["requests"] <= figures["requests_in_all"], (key, name)
            assert figures["requests_per_second"] == pytest.approx(figures["requests"] / figures["seconds"], rel=0.01)
            assert (figures["cpu_us_per_request"] > 0) == (name != DIRECT.name), (key, name)
            if key != "accept":
                assert 0 < figures["p50_us"] <= figures["p99_us"] <= figures["max_us"] + 1, (key, name)
                assert figures["throttled"] == 0, (key, name)


def test_the_report_says_on_what_it_was_made(measured):
    _, folder = measured
    machine = json.loads((folder / "speed.json").read_text())["machine"]
    assert machine["cores"] >= 2
    assert all(machine[fact] not in ("", "unknown", "missing") for fact in ("processor", "kernel", "haproxy", "nginx"))


def test_the_tables_have_every_candidate_and_every_goal(measured):
    printed, _ = measured
    for column in COLUMNS:
        assert (f"**{column.title}**" in printed) == (column.key in KEYS)
    for name in CANDIDATES:
        assert printed.count(f"\n| {name} | ") == len(KEYS)
    summary = printed.partition(f"| | {OURS.name} / {HAPROXY.name} | goal | met |")[2]
    assert summary.count(" or more | ") == GOALS


def test_the_plot_is_drawn_and_can_be_drawn_again(measured, tmp_path):
    printed, folder = measured
    again = run("speed.py", "--from", folder / "speed.json", "--plot", tmp_path / "again.svg")
    assert again == printed
    assert (tmp_path / "again.svg").read_bytes() == (folder / "speed.svg").read_bytes()
    assert b"<svg" in (folder / "speed.svg").read_bytes()


def test_memory_is_measured_of_every_proxy():
    """Of so many connections that they do not fit into memory that a start has freed."""
    printed = run("memory.py", "--stalled-mib", "8", "--stall-seconds", "0.5", "--connections", "2000")
    rows = [line for line in printed.splitlines() if line.startswith("| 2,000 idle connections")]
    [(haproxy, ours)] = [re.findall(r"([\d.]+) KiB", row) for row in rows]
    assert 0 < float(haproxy) < 1000
    assert 0 < float(ours) < 1000


def test_the_profile_counts_what_a_request_costs():
    """One request and its response are read and sent on: two of each, or fewer where several travel together."""

    def reported(printed):
        return dict(re.findall(r"^\| (?:- )?([^|]+) \| ([\d.,]+) \|$", printed, re.M))

    def is_plausible(printed):
        cells = reported(printed)
        return float(cells["CPU, us/request"]) > 0 and 2 < float(cells["system calls/request"]) < 100

    arguments = ("--column", "latency", "--seconds", "0.5", "--candidates", OURS.name)
    printed = run("cpu_profile.py", *arguments, measured=is_plausible)
    assert is_plausible(printed), reported(printed)


@pytest.mark.kafka
def test_a_real_node_is_reached_in_three_ways(tmp_path):
    short = ["--rounds", "1", "--seconds", "0.5", "--repeats", "0", "--workloads", "produce-100,latency"]

    def runs_found():
        return json.loads((tmp_path / "kafka.json").read_text())["runs"]

    def something(printed):
        produced = {name: found[0] for name, found in runs_found()["produce-100"].items()}
        return all(
            found["records_per_second"] > 10 and (name == DIRECT.name or found.get("cpu_us_per_record", 0) > 0)
            for name, found in produced.items()
        )

    printed = run("real_kafka.py", *short, "--json", tmp_path / "kafka.json", measured=something)
    runs = runs_found()
    assert set(runs) == {"produce-100", "latency"}
    for name in (DIRECT.name, HAPROXY.name, OURS.name):
        [produced], [latency] = runs["produce-100"][name], runs["latency"][name]
        assert produced["records_per_second"] > 10
        assert 0 < latency["p50_us"] <= latency["p99_us"]
        # Its records went through the proxy: nobody else has had work.
        assert (produced.get("cpu_us_per_record", 0) > 0) == (name != DIRECT.name), name
    assert printed.count("\n| 100 B produce, records/s |") == 1
    assert printed.count("\n| end to end at half load, p") == 2
