"""Files that commands read and write themselves, in an S3-compatible store: no Spark is needed to see what they do."""

import json

import pytest
from click.testing import CliRunner

from kafka_throttle.common.remote_path import path_of, replace_whole, writable_folder
from kafka_throttle.proxy.cli.main import main
from tests.pipeline.object_store import BUCKET, object_store

ROOT = f"s3a://{BUCKET}/files"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with object_store(tmp_path_factory.mktemp("store") / "log"):
        yield


def test_a_file_is_written_read_found_and_removed(store):
    path = path_of(f"{ROOT}/a/stage-1.yaml")
    assert not path.exists()
    for data in (b"first", b"second"):
        replace_whole(path, data)
        with path.open("rb") as file:
            assert file.read() == data
    assert path.is_file()
    assert [str(found) for found in path_of(f"{ROOT}/a").glob("stage-*.yaml")] == [str(path)]
    path.unlink()
    assert not path.exists()
    path.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        path.open("rb")


def test_a_folder_needs_not_be_made(store):
    folder = writable_folder(f"{ROOT}/new/folder")
    assert list(folder.glob("*")) == []


CONFIG = """
virtual_clusters:
- name: main
  upstream: {bootstrap_servers: ["127.0.0.1:9"]}
  listeners: [{name: plain, bind: 127.0.0.1, port: 19092, node_ids: ["0-2"]}]
  quotas: {state_file: state.json, entries: [{user: big, producer_byte_rate: 100000000}]}
"""


def test_a_plan_is_made_applied_and_taken_back(store, tmp_path):
    def run(*arguments):
        done = CliRunner().invoke(main, ["usage", *arguments, "-c", str(tmp_path / "proxy.yaml")])
        return done.exit_code, done.stdout, done.stderr

    (tmp_path / "proxy.yaml").write_text(CONFIG)
    plan, audit = f"{ROOT}/plan.json", tmp_path / "audit.jsonl"
    replace_whole(path_of(f"{ROOT}/quotas.yaml"), b"entries: [{user: big, producer_byte_rate: 60000000}]")
    quotas = ["--quotas", f"{ROOT}/quotas.yaml"]
    assert run("plan", *quotas, "--out", plan)[0] == 0
    assert run("plan", *quotas, "--out", plan)[0] == 0, "a plan may be replaced"
    assert (
        f"{ROOT}/quotas.yaml: is there already, and is no plan"
        in run("plan", *quotas, "--out", f"{ROOT}/quotas.yaml")[2]
    )
    beside = f"{ROOT}/quota-audit.jsonl"
    refused = f"--audit: expected a file of this machine, to which lines are appended, got {beside}\n"
    assert run("apply", plan) == (2, "", refused)
    status, out, _ = run("apply", plan, "--audit", str(audit))
    assert status == 0
    assert f"`kafka-throttle usage apply {ROOT}/plan.rollback.json`" in out
    assert run("apply", f"{ROOT}/plan.rollback.json", "--audit", str(audit))[0] == 0
    events = [json.loads(line)["event"] for line in audit.read_text().splitlines()]
    assert events.count("applied") == events.count("intended") == 2


def test_a_place_that_cannot_be_written_is_one_line(store):
    done = CliRunner().invoke(main, ["usage", "report", "--table", "nowhere", "--out", "s3a://nobodys/out"])
    assert done.exit_code == 2
    assert done.stderr.startswith("s3a://nobodys/out: expected a directory to write to: ")
    assert "The specified bucket does not exist" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_price_sheet_that_is_not_there_is_one_line(store):
    arguments = ["--table", "nowhere", "--out", f"s3a://{BUCKET}/out", "--prices", f"s3a://{BUCKET}/none.yaml"]
    done = CliRunner().invoke(main, ["usage", "report", *arguments])
    assert done.exit_code == 2
    assert done.stderr == f"s3a://{BUCKET}/none.yaml: cannot be read: No such file or directory\n"
