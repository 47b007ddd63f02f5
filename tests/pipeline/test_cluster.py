"""On a Spark standalone cluster: a master and two workers, each a process of its own, give what this machine gives."""

import json
import os
import re
import subprocess
import sys

import pytest

from kafka_throttle.common.jars import spark_delta_jars
from kafka_throttle.pipeline.jobs import report
from kafka_throttle.pipeline.jobs.ingest import ingest_spool
from kafka_throttle.pipeline.jobs.simulate import simulate
from kafka_throttle.pipeline.simulate.candidate import load_candidate
from kafka_throttle.pipeline.steps import Steps
from kafka_throttle.pipeline.table.table import read_usage
from tests.pipeline.spark_cluster import ON_CLUSTER, SMALL_JAVA, SPARK, spark_cluster
from tests.pipeline.spools import Fleet, write_many
from tests.support.places import ROOT

ROWS = 4_000
FLEET = Fleet(entities=40, per_window=40)
CANDIDATE = """
entries:
  - {default_user: true, producer_byte_rate: 1000000, consumer_byte_rate: 2000000, request_percentage: 25}
  - {user: big, producer_byte_rate: 20000000, consumer_byte_rate: 40000000}
"""


class Made:
    """What the three commands have made in a folder."""

    def __init__(self, spark, folder, response):
        usage = read_usage(spark, str(folder / "table"))
        self.records = sorted(usage.collect(), key=lambda row: row["sequence"])
        self.tables = {path.name: path.read_text() for path in sorted((folder / "report" / "tables").glob("*.csv"))}
        self.response = response


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_many(folder / "spool", ROWS, per_file=1_000, processes=1, fleet=FLEET)
    (folder / "candidate.yaml").write_text(CANDIDATE)
    return folder


@pytest.fixture(scope="module")
def here(spark, inputs, tmp_path_factory):
    """By the session of the tests, on this machine."""
    folder = tmp_path_factory.mktemp("here")
    table = str(folder / "table")
    ingest_spool(spark, str(inputs / "spool"), table, say=lambda line: None)
    (folder / "report" / "tables").mkdir(parents=True)
    report.write(report.find(read_usage(spark, table), Steps(7), table=table, top_n=20), folder / "report")
    return Made(spark, folder, simulate(spark, table, load_candidate(inputs / "candidate.yaml")))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """What its processes say and leave is in this folder."""
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def there(spark, inputs, cluster, tmp_path_factory):
    """By the commands, with `spark-submit --master spark://...`."""
    folder = tmp_path_factory.mktemp("there")
    with spark_cluster(cluster) as master:
        small = dict.fromkeys(("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"), SMALL_JAVA)
        settings = [word for item in (ON_CLUSTER | small).items() for word in ("--conf", "=".join(item))]
        jars = ["--jars", ",".join(map(str, spark_delta_jars()))]
        submit = [SPARK / "bin" / "spark-submit", "--master", master, "--driver-memory", "700m", *jars, *settings]
        done = subprocess.run(
            [*submit, "tests/pipeline/on_master.py", inputs / "spool", folder, inputs / "candidate.yaml"],
            cwd=ROOT, capture_output=True, text=True, timeout=600,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "SPARK_HOME": str(SPARK),
                 "SPARK_LOCAL_IP": "127.0.0.1"},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = Made(spark, folder, json.loads((folder / "answer.json").read_text()))
    made.refused = (folder / "refused.txt").read_text()
    return made


def test_the_table_is_the_same(here, there):
    assert len(there.records) == ROWS
    assert there.records == here.records


def test_the_report_has_the_same_figures(here, there):
    assert {"clients.csv", "quotas.csv"} & there.tables.keys(), there.tables.keys()
    assert there.tables == here.tables


def test_the_response_is_the_same(here, there):
    assert here.response["clients"], "somebody is concerned"
    assert rows_of(there.response, "clients") == pytest.approx(rows_of(here.response, "clients"))
    assert rows_of(there.response, "sensors") == pytest.approx(rows_of(here.response, "sensors"))
    assert {**there.response, "clients": 0, "sensors": 0} == {**here.response, "clients": 0, "sensors": 0}


def rows_of(response, kind):
    """Each number by whose it is: sums of doubles depend, in their last digits, on the order in which rows came."""
    names = ("virtual_cluster", "node_id", "quota_type", "place_user", "place_client_id", "user", "client_id")
    return {
        (*(row.get(name) for name in names), key): value
        for row in response[kind]
        for key, value in row.items()
        if isinstance(value, int | float)
    }


def test_a_path_of_the_driver_is_refused(inputs, there):
    spool = inputs / "spool"
    [refused] = [line for line in there.refused.splitlines() if line.startswith(str(spool))]
    assert refused.startswith(f"{spool}: expected a place that all machines of the cluster see")
    assert refused.endswith(f"file://{spool}")


def test_both_workers_had_executors_that_ran_python(there, cluster):
    for number in (1, 2):
        reported = "".join(log.read_text() for log in (cluster / f"worker-{number}").glob("app-*/*/stderr"))
        assert len(re.findall(r"Finished task", reported)) > 10
        assert "Starting Python task execution" in reported
