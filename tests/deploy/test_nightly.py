"""The pipeline each night: what deploy/nightly.sh runs, and what its exit status says."""

import os
import signal
import subprocess
import sys

import pytest

from kafka_throttle.pipeline.rollout.plan_file import read_plan
from tests.deploy.tools import DEPLOY
from tests.pipeline.spark_cluster import SMALL_JAVA
from tests.pipeline.spools import DAY_MS, Fleet, records, write_file
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import wait_until

SCRIPT = DEPLOY / "nightly.sh"
ALL = ["ingest", "compact", "gaps", "report", "recommend", "plan"]
ADVICE = {"NIGHTLY_RECOMMEND": "--by user", "NIGHTLY_PLAN": "-c proxy.yaml"}


class Night:
    """A folder in which the script is run, with a program that is found as kafka-throttle."""

    def __init__(self, folder, program):
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "bin" / "kafka-throttle").write_text(f"#!/bin/sh\n{program}")
        (folder / "bin" / "kafka-throttle").chmod(0o755)

    def started(self, **settings):
        here = {"NIGHTLY_TABLE": f"{self.folder}/table", "NIGHTLY_OUT": f"{self.folder}/out"}
        here |= {"NIGHTLY_INGEST": f"--from {self.folder}/spool", **settings}
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        environment = {**os.environ, **here, "PATH": path}
        pipe = subprocess.PIPE
        return subprocess.Popen([SCRIPT], cwd=self.folder, env=environment, stdout=pipe, stderr=pipe, text=True)

    def status(self, **settings):
        """The exit status, after what was printed: to standard output, and to the other."""
        with self.started(**settings) as process:
            self.out, self.err = process.communicate(timeout=600)
        return process.returncode

    @property
    def calls(self):
        """The commands that the program was called with."""
        return [line.split() for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def night(tmp_path):
    """Its program writes down what it is asked for, and ends with the status that STATUS_<command> has."""
    return Night(tmp_path, f'echo "$@" >> {tmp_path}/calls\neval exit \\${{STATUS_$2:-0}}\n')


def test_each_command_has_its_options_and_the_table(night):
    settings = {"NIGHTLY_SPARK": "--master local[*] --memory 4g", "NIGHTLY_REPORT": "--prices p.yaml"}
    (night.folder / "local*").write_text("a pattern would match this")
    assert night.status(**settings, **ADVICE) == 0
    here, spark = night.folder, ["--table", f"{night.folder}/table", "--master", "local[*]", "--memory", "4g"]
    assert night.calls == [
        ["usage", "ingest", *spark, "--from", f"{here}/spool"],
        ["usage", "compact", *spark],
        ["usage", "gaps", *spark],
        ["usage", "report", *spark, "--out", f"{here}/out/report", "--prices", "p.yaml"],
        ["usage", "recommend", *spark, "--out", f"{here}/out/advice", "--by", "user"],
        ["usage", "plan", "--quotas", f"{here}/out/advice/stage-1.yaml", "--out", f"{here}/out/plan.json", "-c",
         "proxy.yaml"],
    ]  # fmt: skip


def test_the_report_is_of_the_last_nine_weeks_unless_its_options_are_set(night):
    assert night.status() == night.status(NIGHTLY_REPORT="") == 0
    assert [call[6:] for call in night.calls if call[1] == "report"] == [["--since", "-9w"], []]


def test_old_records_are_deleted_before_files_are_merged_if_that_is_wanted(night):
    assert night.status(NIGHTLY_KEEP_DAYS="400") == 0
    assert [call[1] for call in night.calls] == ["ingest", "expire", "compact", "gaps", "report"]
    assert night.calls[1][4:] == ["--before", "-400d"]
    assert night.status(NIGHTLY_KEEP_DAYS="400", STATUS_expire="1") == 2


@pytest.mark.parametrize(
    ("statuses", "expected", "run"),
    [
        ({}, 0, ALL),
        ({"gaps": 1}, 1, ALL),
        ({"gaps": 2}, 2, ALL),
        ({"ingest": 1}, 2, ["ingest"]),
        ({"ingest": 3}, 2, ["ingest"]),
        ({"compact": 1}, 2, ALL),
        ({"compact": 1, "gaps": 1}, 2, ALL),
        ({"gaps": 1, "report": 1}, 2, ALL),
        ({"report": 3, "recommend": 3}, 3, ALL[:-1]),
        ({"gaps": 1, "report": 3, "recommend": 3}, 1, ALL[:-1]),
        ({"report": 137}, 2, ALL),
        ({"recommend": 3}, 0, ALL[:-1]),
        ({"recommend": 1}, 2, ALL[:-1]),
        ({"plan": 1}, 2, ALL),
    ],
    ids=str,
)
def test_the_exit_status_says_what_to_do_and_one_failure_stops_nothing_that_does_not_need_it(
    night, statuses, expected, run
):
    settings = {f"STATUS_{command}": str(status) for command, status in statuses.items()}
    assert night.status(**ADVICE, **settings) == expected
    assert [call[1] for call in night.calls] == run
    failures = {command for command in statuses if f"usage {command} failed with exit status" in night.err}
    assert bool(failures) == (expected == 2)


def test_nothing_is_recommended_unless_wanted(night):
    assert night.status(NIGHTLY_PLAN="-c proxy.yaml") == 0
    assert [call[1] for call in night.calls] == ALL[:4]


@pytest.mark.parametrize("name", ["NIGHTLY_TABLE", "NIGHTLY_OUT", "NIGHTLY_INGEST"])
def test_without_a_setting_nothing_is_run(night, name):
    assert night.status(**{name: ""}) == 2
    assert name in night.err
    assert not (night.folder / "calls").exists()


def test_who_ends_the_script_ends_the_command_that_runs(tmp_path):
    """As process 1 of a container gets the signal, and nothing else does."""
    night = Night(tmp_path, f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 600")
    with night.started() as process:
        wait_until(lambda: (tmp_path / "pid").exists())
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.nightly
@pytest.mark.spark
def test_a_night_with_a_missing_record_has_its_report_and_the_next_one_its_plan(tmp_path):
    """The real commands, on Spark."""
    night = Night(tmp_path, f'cd {ROOT} && exec {sys.executable} -m proxy "$@"')
    spool, fleet = tmp_path / "spool", Fleet(entities=5, per_window=5, window_ms=DAY_MS // 50)
    spool.mkdir()
    mine = records(fleet, 1_000)
    write_file(spool, mine[:400], 1)
    write_file(spool, mine[401:], 2)
    spark = f"--master local[2] --memory 1g --conf spark.driver.extraJavaOptions={SMALL_JAVA.split()[0]}"
    assert night.status(NIGHTLY_SPARK=spark) == 1, night.err
    assert "999 records new" in night.out
    assert "1 records, numbers 401 to 401" in night.out
    assert (tmp_path / "out" / "report" / "report.html").exists()

    write_file(spool, mine[400:401], 3)
    wanted = "--least-days 1 --least-windows 1 --no-simulate"
    (tmp_path / "proxy.yaml").write_text(PROXY)
    place = f"-c {tmp_path}/proxy.yaml"
    assert night.status(NIGHTLY_SPARK=spark, NIGHTLY_RECOMMEND=wanted, NIGHTLY_PLAN=place) == 0, night.err
    assert "no record is missing" in night.out
    assert read_plan(tmp_path / "out" / "plan.json").changes


PROXY = """\
virtual_clusters:
- name: main
  upstream: {bootstrap_servers: ["127.0.0.1:9"]}
  listeners: [{name: plain, port: 19092, advertised_host: here, node_ids: [1]}]
"""
