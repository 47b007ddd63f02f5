"""With other versions of PySpark the commands make what the locked one makes."""

import fcntl
import json
import os
import subprocess
import sys

import pytest

from kafka_throttle.common.jars import cache_dir
from kafka_throttle.pipeline.jobs import report
from kafka_throttle.pipeline.jobs.ingest import ingest_spool
from kafka_throttle.pipeline.jobs.simulate import simulate
from kafka_throttle.pipeline.simulate.candidate import load_candidate
from kafka_throttle.pipeline.steps import Steps
from kafka_throttle.pipeline.table.table import read_usage
from tests.pipeline.spools import write_many
from tests.pipeline.test_cluster import CANDIDATE, FLEET, ROWS, Made, rows_of
from tests.support.places import ROOT

VERSIONS = ("4.0.5", "4.1.4")


@pytest.fixture(scope="module")
def here(spark, tmp_path_factory):
    """By the session of the tests; its folder has the inputs, too."""
    folder = tmp_path_factory.mktemp("here")
    write_many(folder / "spool", ROWS, per_file=1_000, processes=1, fleet=FLEET)
    (folder / "candidate.yaml").write_text(CANDIDATE)
    table = str(folder / "table")
    ingest_spool(spark, str(folder / "spool"), table, say=lambda line: None)
    (folder / "report" / "tables").mkdir(parents=True)
    report.write(report.find(read_usage(spark, table), Steps(7), table=table, top_n=20), folder / "report")
    made = Made(spark, folder, simulate(spark, table, load_candidate(folder / "candidate.yaml")))
    made.folder = folder
    return made


@pytest.fixture(scope="module", params=VERSIONS)
def there(spark, here, request, tmp_path_factory):
    """By the commands, in processes that have another PySpark."""
    folder = tmp_path_factory.mktemp("there")
    path = os.pathsep.join([str(installed(request.param)), str(ROOT)])
    environment = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"} | {"PYTHONPATH": path}

    def run(*command):
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=800,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("-c", "import pyspark; print(pyspark.__version__)") == f"{request.param}\n"
    run("tests/pipeline/on_master.py", here.folder / "spool", folder, here.folder / "candidate.yaml")
    made = Made(spark, folder, json.loads((folder / "answer.json").read_text()))
    made.gaps = run("-m", "proxy", "usage", "gaps", "--table", folder / "table")
    return made


def installed(version):
    """A folder with this PySpark, without what it needs: that is here. Downloaded once."""
    folder = cache_dir() / f"pyspark-{version}"
    with (cache_dir() / f"pyspark-{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".complete").exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "--no-deps", "--upgrade", "--target", folder, f"pyspark=={version}"], check=True)
            (folder / ".complete").touch()
    return folder


def test_the_table_the_report_and_the_simulation_are_the_same(here, there):
    assert len(there.records) == ROWS
    assert there.records == here.records
    assert {"clients.csv", "quotas.csv"} & there.tables.keys(), there.tables.keys()
    assert there.tables == here.tables
    for kind in ("clients", "sensors"):
        assert here.response[kind]
        assert rows_of(there.response, kind) == pytest.approx(rows_of(here.response, kind))
    assert {**there.response, "clients": 0, "sensors": 0} == {**here.response, "clients": 0, "sensors": 0}
    assert there.gaps == "no record is missing\n"
