"""The commands with spool, table, inputs and outputs in an S3-compatible store give what they give on this machine.

The store is moto's server. Spark reaches it by Hadoop's S3 client, the commands themselves by PyArrow.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyarrow.fs import FileSystem, LocalFileSystem, copy_files

from kafka_throttle.common.jars import spark_s3_jars
from kafka_throttle.common.remote_path import path_of
from kafka_throttle.pipeline.table.intervals import union
from kafka_throttle.pipeline.table.table import read_quarantine, read_usage, stored
from kafka_throttle.proxy.cli.main import main
from tests.pipeline.object_store import BUCKET, object_store, reached_by_spark
from tests.pipeline.spark_cluster import SMALL_JAVA
from tests.pipeline.spools import Fleet, records, write_spool
from tests.pipeline.stopped_ingest import STEPS
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S

ROWS = 2_000
FLEET = Fleet(entities=20, per_window=40)
INPUTS = {
    "candidate.yaml": "entries: [{default_user: true, producer_byte_rate: 1000000, consumer_byte_rate: 2000000}]",
    "capacity.yaml": "virtual_clusters: [{name: main, produce: {per_node: 100000000}}]",
    "prices.yaml": "{currency: EUR, prices: {gb_in: 1, gb_out: 2}, tenants: [{name: big, match: [{user: big}]}]}",
}


class Place(NamedTuple):
    """A folder, or a prefix of the bucket, with `spool` and INPUTS, for the table and what is made of it."""

    root: str

    def run(self, command, *arguments, status=0):
        done = CliRunner().invoke(main, ["usage", command, "--table", f"{self.root}/table", *arguments])
        assert done.exit_code == status, (command, done.output, done.exception)
        return done.output if status else done.stdout

    def text(self, name):
        with path_of(f"{self.root}/{name}").open("rb") as file:
            return file.read().decode()


@pytest.fixture(scope="module")
def store(s3a, tmp_path_factory):
    """In the environment are the variables of a store with an empty bucket, and Spark knows them, too."""
    with object_store(tmp_path_factory.mktemp("store") / "log") as variables:
        configuration = s3a.sparkContext._jsc.hadoopConfiguration()
        for name, value in reached_by_spark(variables).items():
            configuration.set(name, value)
        yield


@pytest.fixture(scope="module")
def here(store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    write_spool(folder / "spool", records(FLEET, ROWS), per_file=500)
    for name, text in INPUTS.items():
        (folder / name).write_text(text)
    return _made(Place(str(folder)))


@pytest.fixture(scope="module")
def there(store, here):
    prefix = f"{BUCKET}/all"
    for name in ("spool", *INPUTS):
        put(f"{here.root}/{name}", f"{prefix}/{name}")
    return _made(Place(f"s3a://{prefix}"))


def _made(place):
    reported = place.run("ingest", "--from", f"{place.root}/spool")
    assert f"{ROWS:,} records new" in reported
    assert "no record is missing" in reported
    place.run("report", "--out", f"{place.root}/report", "--prices", f"{place.root}/prices.yaml")
    few = ["--least-days", "1", "--least-windows", "5", "--capacity", f"{place.root}/capacity.yaml"]
    place.run("recommend", "--out", f"{place.root}/advice", *few)
    return place


def put(source, destination):
    system, path = FileSystem.from_uri(f"s3://{destination}")
    if Path(source).is_dir():
        return copy_files(source, path, source_filesystem=LocalFileSystem(), destination_filesystem=system)
    with system.open_output_stream(path) as file:
        return file.write(Path(source).read_bytes())


def test_the_table_has_the_same_records(s3a, here, there):
    rows = [
        sorted(read_usage(s3a, f"{place.root}/table").collect(), key=lambda row: row["sequence"])
        for place in (here, there)
    ]
    assert len(rows[0]) == ROWS
    assert rows[0] == rows[1]


def test_the_report_has_the_same_tables(here, there):
    tables = sorted(path.name for path in path_of(f"{there.root}/report/tables").glob("*.csv"))
    assert {"clients.csv", "quotas.csv"} & set(tables), tables
    for name in tables:
        assert there.text(f"report/tables/{name}") == here.text(f"report/tables/{name}")
    assert "</html>" in there.text("report/report.html")
    assert path_of(f"{there.root}/report/tables/{tables[0].replace('.csv', '.parquet')}").is_file()


def test_the_recommendation_is_the_same(here, there):
    assert "big" in here.text("advice/quotas.yaml")
    for name in ("recommendation.csv", "quotas.yaml", "stage-1.yaml"):
        assert there.text(f"advice/{name}") == here.text(f"advice/{name}")


def test_the_response_to_a_candidate_is_the_same(here, there):
    def response(place):
        return json.loads(place.run("simulate", "--json", "--candidate", f"{place.root}/candidate.yaml"))

    assert response(here)["clients"]
    assert _numbers(response(there)) == pytest.approx(_numbers(response(here)))


def _numbers(response):
    """By client: sums of doubles depend, in their last digits, on the order in which rows came."""
    return {
        (row["node_id"], row["quota_type"], row["user"], row["client_id"], name): value
        for row in response["clients"]
        for name, value in row.items()
        if isinstance(value, int | float)
    }


def test_small_files_are_merged_and_nothing_is_missing(s3a, there):
    def rows():
        return sorted(read_usage(s3a, f"{there.root}/table").collect())

    before = rows()
    there.run("compact", "--keep-hours", "24")
    assert there.run("gaps") == "no record is missing\n"
    assert rows() == before


def test_others_read_the_table(there):
    storage = {"AWS_ALLOW_HTTP": "true", **{name: value for name, value in os.environ.items() if name[:4] == "AWS_"}}
    table = DeltaTable(f"{there.root}/table/usage", storage_options=storage)
    assert len(table.to_pyarrow_table()) == ROWS


def test_an_ingest_that_is_killed_half_way_takes_each_record_once(s3a, store, tmp_path):
    taken = records(FLEET, 1_000)
    write_spool(tmp_path / "spool", taken, per_file=500)
    put(str(tmp_path / "spool"), f"{BUCKET}/killed/spool")
    place = Place(f"s3a://{BUCKET}/killed")
    step, sign = "after-usage", tmp_path / "sign"
    assert step in STEPS
    settings = {
        "spark.driver.extraClassPath": ":".join(map(str, spark_s3_jars())),
        "spark.driver.extraJavaOptions": SMALL_JAVA,
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    arguments = [word for item in settings.items() for word in ("--conf", "=".join(item))]
    command = ["usage", "ingest", "--from", f"{place.root}/spool", "--table", f"{place.root}/table", *arguments]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.stopped_ingest", step, str(sign), *command, "--memory", "600m"],
            cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 8 * TIMEOUT_S
        while not sign.exists():
            assert process.poll() is None, (tmp_path / "log").read_text()[-2_000:]
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-2_000:]
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert read_usage(s3a, f"{place.root}/table").count() == 1_000
    assert not stored(s3a, f"{place.root}/table", "numbers").count()
    assert "no record is missing" in place.run("ingest", "--from", f"{place.root}/spool")
    rows = read_usage(s3a, f"{place.root}/table").select("sequence").collect()
    assert sorted(row["sequence"] for row in rows) == [record.sequence for record in taken]
    numbers = stored(s3a, f"{place.root}/table", "numbers").where("what = 'present'").collect()
    assert union((row["first"], row["last"]) for row in numbers) == ((1, 1_000),)


def test_an_object_that_cannot_be_read_ends_the_ingest_and_is_taken_once_it_can(s3a, store, tmp_path):
    [_, second, _] = write_spool(tmp_path / "spool", records(FLEET, 300), per_file=100)
    put(str(tmp_path / "spool"), f"{BUCKET}/archived/spool")
    place = Place(f"s3a://{BUCKET}/archived")
    archive(f"{BUCKET}/archived/spool/{second.name}")
    refused = place.run("ingest", "--from", f"{place.root}/spool", status=2)
    assert f"--from: {place.root}/spool/{second.name} cannot be read: " in refused
    put(str(second), f"{BUCKET}/archived/spool/{second.name}")
    reported = place.run("ingest", "--from", f"{place.root}/spool")
    assert "300 records new" in reported
    assert "no record is missing" in reported
    assert read_quarantine(s3a, f"{place.root}/table").count() == 0


def archive(path):
    """Move the object to a storage class from which it cannot be read before it is restored."""
    import boto3

    bucket, _, key = path.partition("/")
    boto3.client("s3").copy_object(
        Bucket=bucket, Key=key, CopySource={"Bucket": bucket, "Key": key}, StorageClass="GLACIER"
    )
