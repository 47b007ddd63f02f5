"""Fetching Kafka's jars: once, by one process at a time, and whole or not at all. Maven is played by a script."""

import hashlib
import os
import re
import subprocess
import sys
import threading
import time

import psutil
import pytest

from kafka_throttle.common.jars import (
    ToolMissing,
    delta_package,
    kafka_jars,
    kafka_source_package,
    spark_delta_jars,
    spark_kafka_jars,
)
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import wait_until

FETCH = "from kafka_throttle.common.jars import kafka_jars; print(kafka_jars('4.3.1', lambda line: print(line)))"


@pytest.fixture
def played_maven(tmp_path, monkeypatch):
    """Puts a `mvn` in front of the real one: it notes its pid, makes one jar, does `script`, and makes another."""
    monkeypatch.setenv("KAFKA_THROTTLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()

    def play(script):
        mvn = tmp_path / "bin" / "mvn"
        mvn.write_text(
            f'#!/bin/sh\necho $$ >> "{tmp_path}/runs"\n'
            'for option; do case "$option" in -DoutputDirectory=*) to=${option#*=};; -f) ;; esac; done\n'
            'mkdir -p "$to"; echo 1 > "$to/one.jar"\n'
            'echo "Downloaded from central: there/one.jar (1 kB at 1 kB/s)"\n'
            f'{script}\necho 2 > "$to/two.jar"\n'
        )
        mvn.chmod(0o755)

    return play


def runs(tmp_path):
    """The pids of the Mavens so far."""
    noted = tmp_path / "runs"
    return [int(line) for line in noted.read_text().splitlines()] if noted.exists() else []


def in_cache(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache").iterdir())


def fetching_process():
    return subprocess.Popen([sys.executable, "-u", "-c", FETCH], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_jars_are_fetched_once_and_progress_is_reported(played_maven, tmp_path):
    played_maven(f'until [ -e "{tmp_path}/go" ]; do sleep 0.1; done')
    printed = []

    def say(line):
        printed.append(line)
        if "so far" in line:
            (tmp_path / "go").touch()

    folder = kafka_jars("4.3.1", say)
    assert sorted(path.name for path in folder.iterdir()) == ["one.jar", "two.jar"]
    first, *progress, last = printed
    assert first == "fetching Apache Kafka 4.3.1 from Maven, about 55 MB, once"
    assert last == "Apache Kafka 4.3.1 is here: 2 jars"
    assert progress
    for line in progress:
        assert re.fullmatch(r"fetching Apache Kafka 4\.3\.1: [012] jars so far, \d+ s", line)
    assert kafka_jars("4.3.1", printed.append) == folder
    assert len(runs(tmp_path)) == 1
    assert in_cache(tmp_path) == ["kafka-4.3.1", "kafka-4.3.1.lock"]


def test_two_processes_at_once_fetch_once_and_the_second_names_the_first(played_maven, tmp_path):
    played_maven(f'until [ -e "{tmp_path}/go" ]; do sleep 0.1; done')
    both = [fetching_process(), fetching_process()]
    printed = [[], []]
    readers = [
        threading.Thread(target=lambda process=process, lines=lines: lines.extend(process.stdout))
        for process, lines in zip(both, printed, strict=True)
    ]
    for reader in readers:
        reader.start()
    waiting = "waiting for another process that fetches Apache Kafka 4.3.1"
    deadline = time.monotonic() + TIMEOUT_S
    while not any(waiting in line for lines in printed for line in lines):
        assert time.monotonic() < deadline, printed
        time.sleep(0.02)
    (tmp_path / "go").touch()
    assert [process.wait(TIMEOUT_S) for process in both] == [0, 0]
    for reader in readers:
        reader.join()
    assert len(runs(tmp_path)) == 1
    assert sum(waiting in line for lines in printed for line in lines) == 1
    assert {lines[-1].strip() for lines in printed} == {str(tmp_path / "cache" / "kafka-4.3.1")}


def test_a_killed_fetch_takes_maven_along_and_leaves_nothing_that_looks_complete(played_maven, tmp_path):
    played_maven("exec sleep 600")
    fetching = fetching_process()
    try:
        while not list(tmp_path.glob("cache/.kafka-4.3.1.*.part/jars/one.jar")):
            time.sleep(0.02)
    finally:
        fetching.kill()
        fetching.communicate()
    [pid] = runs(tmp_path)
    wait_until(lambda: not psutil.pid_exists(pid))
    assert "kafka-4.3.1" not in in_cache(tmp_path)
    played_maven("true")
    assert sorted(path.name for path in kafka_jars("4.3.1").iterdir()) == ["one.jar", "two.jar"]
    assert in_cache(tmp_path) == ["kafka-4.3.1", "kafka-4.3.1.lock"]


def test_a_failing_maven_is_an_error_with_its_last_words(played_maven, tmp_path):
    played_maven("echo 'could not resolve it'; exit 3")
    with pytest.raises(RuntimeError, match="could not resolve it"):
        kafka_jars("4.3.1")
    assert in_cache(tmp_path) == ["kafka-4.3.1.lock"]


@pytest.mark.parametrize(("program", "package"), [("mvn", "maven"), ("java", "openjdk-17-jdk-headless")])
def test_a_missing_program_is_an_error_with_the_line_that_installs_it(
    played_maven, tmp_path, monkeypatch, program, package
):
    played_maven("true")
    if program == "mvn":
        (tmp_path / "bin" / "mvn").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(ToolMissing, match=f"{program} is missing. Install it with: apt-get install -y {package}"):
        kafka_jars("4.3.1")


def test_jars_for_spark_are_those_that_are_meant_or_none(played_maven, tmp_path, monkeypatch):
    played_maven('echo 3 > "$to/three-1.jar"; echo 4 > "$to/four-1.jar"')
    monkeypatch.setattr("kafka_throttle.common.jars.kafka_source_package", lambda: "org:three:1")
    monkeypatch.setattr("kafka_throttle.common.jars._SPARK_KAFKA", ("org:four:1",))
    jars = (("three-1.jar", b"3\n"), ("four-1.jar", b"4\n"))
    meant = {name: hashlib.sha256(content).hexdigest() for name, content in jars}
    monkeypatch.setattr("kafka_throttle.common.jars._SUMS", {**meant, "four-1.jar": "0" * 64})
    with pytest.raises(RuntimeError, match=r"four-1\.jar: expected the SHA-256 0{64}, got [0-9a-f]{64}"):
        spark_kafka_jars()
    assert in_cache(tmp_path) == ["spark-kafka-1.lock"]
    monkeypatch.setattr("kafka_throttle.common.jars._SPARK_KAFKA", ("org:four:1", "org:five:1"))
    monkeypatch.setattr("kafka_throttle.common.jars._SUMS", {**meant, "five-1.jar": "0" * 64})
    with pytest.raises(RuntimeError, match=r"five-1\.jar: .*, got nothing"):
        spark_kafka_jars()
    monkeypatch.setattr("kafka_throttle.common.jars._SPARK_KAFKA", ("org:four:1",))
    assert {path.name for path in spark_kafka_jars()} >= meant.keys()
    assert len(runs(tmp_path)) == 3


@pytest.mark.parametrize(
    ("version", "delta", "source"),
    [("4.0.5", "4.0_2.13:4.4.0", "4.0.4"), ("4.1.4", "4.1_2.13:4.4.0", "4.1.3"), ("4.2.0", "4.2_2.13:4.4.0", "4.2.0")],
)
def test_jars_are_those_of_this_pyspark(monkeypatch, version, delta, source):
    monkeypatch.setattr("kafka_throttle.common.jars.metadata.version", lambda name: version)
    assert delta_package() == f"io.delta:delta-spark_{delta}"
    assert kafka_source_package() == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{source}"


def test_another_pyspark_is_refused(monkeypatch):
    monkeypatch.setattr("kafka_throttle.common.jars.metadata.version", lambda name: "3.5.9")
    for jars in (spark_delta_jars, spark_kafka_jars):
        with pytest.raises(ValueError, match=r"expected PySpark 4\.0, 4\.1, 4\.2, found 3\.5\.9: pip install"):
            jars()
