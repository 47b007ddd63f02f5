"""Fetching Kafka's jars: once, by one process at a time, and whole or not at all. Maven is played by a script."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from proxy.demo.jars import ToolMissing, kafka_jars

ROOT = Path(__file__).parents[2]
FETCH = "import sys; from proxy.demo.jars import kafka_jars; print(kafka_jars('4.3.1', lambda line: print(line)))"


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
    return subprocess.Popen([sys.executable, "-c", FETCH], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_jars_are_fetched_once_and_progress_is_told(played_maven, tmp_path):
    played_maven("sleep 2.5")
    said = []
    folder = kafka_jars("4.3.1", said.append)
    assert sorted(path.name for path in folder.iterdir()) == ["one.jar", "two.jar"]
    assert said == [
        "fetching Apache Kafka 4.3.1 from Maven, about 55 MB, once",
        "fetching Apache Kafka 4.3.1: 1 jars so far, 2 s",
        "Apache Kafka 4.3.1 is here: 2 jars",
    ]
    assert kafka_jars("4.3.1", said.append) == folder
    assert len(runs(tmp_path)) == 1
    assert in_cache(tmp_path) == ["kafka-4.3.1", "kafka-4.3.1.lock"]


def test_two_processes_at_once_fetch_once_and_the_second_says_for_whom_it_waits(played_maven, tmp_path):
    played_maven("sleep 4")
    both = [fetching_process(), fetching_process()]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len(runs(tmp_path)) == 1
    assert sum("waiting for another process that fetches Apache Kafka 4.3.1" in text for text in said) == 1
    assert {text.splitlines()[-1] for text in said} == {str(tmp_path / "cache" / "kafka-4.3.1")}


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
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
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
