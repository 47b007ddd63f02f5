"""Over Spark Connect the commands give what they give here, and say what they cannot do."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from kafka_throttle.pipeline.ingest.frames import plain
from kafka_throttle.pipeline.jobs import report
from kafka_throttle.pipeline.jobs.ingest import ingest_spool
from kafka_throttle.pipeline.jobs.simulate import simulate
from kafka_throttle.pipeline.simulate.candidate import load_candidate
from kafka_throttle.pipeline.steps import Steps
from kafka_throttle.pipeline.table.table import read_usage
from tests.pipeline.connect_server import connect_server
from tests.pipeline.spools import write_many
from tests.pipeline.test_cluster import CANDIDATE, FLEET, ROWS, rows_of
from tests.support.places import ROOT

ANOTHER_PROGRAM = """
import sys
from pyspark.sql import SparkSession
from kafka_throttle.pipeline.jobs import gaps

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
assert gaps.main(table=sys.argv[2]) == 0
assert spark.range(3).count() == 3, "the session is there still"
"""


@pytest.fixture(scope="module")
def inputs(spark, tmp_path_factory):
    """A spool, a candidate, and a table with two files each day, with a copy for Spark Connect."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "candidate.yaml").write_text(CANDIDATE)
    write_many(folder / "spool", ROWS, per_file=1_000, processes=1, fleet=FLEET)
    for files in ("*[02468].tsv", "*"):
        (folder / "part").mkdir(exist_ok=True)
        for path in (folder / "spool").glob(files):
            shutil.copy2(path, folder / "part")
        ingest_spool(spark, str(folder / "part"), str(folder / "table"), say=lambda line: None)
    shutil.copytree(folder / "table", folder / "there")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with connect_server(tmp_path_factory.mktemp("server")) as url:
        yield url


def usage(*arguments, **environment):
    """A command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "proxy", "usage", *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=600, env=os.environ | environment,
    )  # fmt: skip


@pytest.fixture
def there(inputs, server):
    """Runs a command over Spark Connect, and gives what it printed."""

    def run(command, *arguments, status=0):
        table = ("--table", f"file://{inputs}/there", "--master", server)
        done = usage(command, *arguments, *table)
        assert done.returncode == status, done.stderr
        return done.stdout if status != 2 else done.stderr

    return run


def test_the_simulation_is_the_same(spark, inputs, there):
    found = json.loads(there("simulate", "--candidate", inputs / "candidate.yaml", "--json"))
    expected = simulate(spark, str(inputs / "table"), load_candidate(inputs / "candidate.yaml"))
    assert expected["clients"], "somebody is concerned"
    for kind in ("clients", "sensors"):
        assert rows_of(found, kind) == pytest.approx(rows_of(expected, kind))
    assert {**found, "clients": 0, "sensors": 0} == {**expected, "clients": 0, "sensors": 0}


def test_the_report_has_the_same_figures(spark, inputs, there, tmp_path):
    there("report", "--out", tmp_path / "found")
    (tmp_path / "expected" / "tables").mkdir(parents=True)
    table = str(inputs / "table")
    findings = report.find(read_usage(spark, table), Steps(7), table=table, top_n=20)
    report.write(findings, tmp_path / "expected")
    found, expected = (
        {path.name: path.read_text() for path in (tmp_path / of / "tables").glob("*.csv")}
        for of in ("found", "expected")
    )
    assert {"clients.csv", "quotas.csv"} & expected.keys(), expected.keys()
    assert found == expected


def test_the_recommendation_is_the_same(inputs, there, tmp_path):
    few = ("--least-days", 1, "--least-windows", 1)
    there("recommend", "--out", tmp_path / "found", *few)
    done = usage("recommend", "--out", tmp_path / "expected", *few, "--table", inputs / "table", "--master", "local[2]")
    assert done.returncode == 0, done.stderr
    found, expected = ((tmp_path / of / "recommendation.csv").read_text().splitlines() for of in ("found", "expected"))
    assert len(expected) > 2
    assert found == expected


def test_gaps_are_listed_at_the_server_of_sparks_own_variable(inputs, server):
    done = usage("gaps", "--table", f"file://{inputs}/there", SPARK_REMOTE=server)
    assert (done.returncode, done.stdout) == (0, "no record is missing\n"), done.stderr


def test_a_program_with_a_remote_session_has_the_command_run_in_it(inputs, server):
    arguments = [sys.executable, "-c", ANOTHER_PROGRAM, server, f"file://{inputs}/there"]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "no record is missing\n"), done.stderr


def test_a_table_is_kept_small(spark, inputs, there):
    assert "small files merged" in there("compact")
    assert "usage: 0 records" in there("expire", "--before", "2000-01-01")
    found = read_usage(spark, str(inputs / "there")).orderBy("sequence").collect()
    assert len(found) == ROWS
    assert found == read_usage(spark, str(inputs / "table")).orderBy("sequence").collect()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("ingest", "--from", "{}/spool"), "usage ingest does not run over Spark Connect: "),
        (("gaps", "--table", "file://{}/nothing"), "file://{}/nothing: expected a table of `usage ingest`, found none"),
        (("gaps", "--conf", "spark.sql.extensions=x"), "--conf spark.sql.extensions: only the start of the Spark "),
        (("gaps", "--master", "sc://127.0.0.1:1"), "no Spark Connect server at 127.0.0.1:1: Connection refused"),
        (("gaps", "--master", "sc://127.0.0.1:x"), "sc://127.0.0.1:x: "),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(inputs, server, arguments, problem):
    words = [word.format(inputs) for word in arguments]
    for option, value in (("--table", f"file://{inputs}/there"), ("--master", server)):
        words += [] if option in words else [option, value]
    done = usage(*words)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2, done.stderr
    assert last.startswith(problem.format(inputs))
    assert "Traceback" not in done.stderr


def test_a_damaged_file_is_named(inputs, there):
    [file, *_] = sorted((inputs / "there" / "usage").rglob("*.parquet"))
    whole = file.read_bytes()
    for damaged in sorted((inputs / "there" / "usage").rglob("*.parquet")):
        damaged.write_bytes(whole[:-30])
    said = there("simulate", "--candidate", inputs / "candidate.yaml", status=2).splitlines()[-1]
    assert plain(said).startswith(f"{inputs}/there/usage/")
    assert " cannot be read: " in said
    assert said.endswith("it is damaged, or gone")


def test_a_server_without_delta_lake_is_refused(inputs, tmp_path):
    with connect_server(tmp_path, {}) as url:
        done = usage("gaps", "--table", f"file://{inputs}/there", "--master", url)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("this Spark was started without Delta Lake: ")
