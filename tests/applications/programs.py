"""The processes of the applications: instances of Kafka Streams, and workers of Kafka Connect."""

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from demo.kafka_cluster import free_ports, java_argv, logging_properties
from kafka_throttle.common.child_process import die_with_parent
from kafka_throttle.common.jars import kafka_application_jars
from tests.support.java_program import compile_java

VERSION = "4.3.1"
HOST = "127.0.0.1"
TASKS = 4
PER_POLL, PAUSE_MS = 10, 200
"""How many records each task of the source writes in one transaction, and how long it waits before that."""

NUMBERS_PER_SECOND = 40
"""How many records a task can write in a second, with its transactions."""

_NICE = 5
"""The priority of the applications. Mostly they run on other machines, so they must not slow down the proxy's start."""
_HEAP = "256m"
_START_S = 180.0
_FENCED = re.compile(
    r"Transiting to \w+ error state due to \S*\.(\w*(?:Fenced|InvalidProducerEpoch|InvalidPidMapping)\w*)"
)
_THREAD_DIED = re.compile(r"^stream thread died: .*", re.MULTILINE)
_PROVIDERS = "META-INF/services/org.apache.kafka.connect.source.SourceConnector"


class ApplicationFailed(RuntimeError):
    """A process of an application does not run; the message has the end of its log."""


class Programs:
    """What the processes are started with: jars, compiled classes, and a folder for their files and logs."""

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda line: None) -> None:
        self.folder = folder
        self._jars = kafka_application_jars(VERSION, say)
        self._classes = folder / "classes"
        compile_java(["CountingStreams", "NumberSource"], self._jars, self._classes)
        providers = self._classes / _PROVIDERS
        providers.parent.mkdir(parents=True)
        providers.write_text("NumberSource\n")
        self._logging = folder / "log4j.properties"
        self._logging.write_text(logging_properties(VERSION, "INFO", "OUT"))

    def start(self, name: str, main_class: str, settings: Mapping[str, Any], *arguments: str) -> "Program":
        """Run a class with a file of properties as its first argument."""
        file = self.folder / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        argv = java_argv(
            self._jars,
            main_class,
            str(file),
            *arguments,
            heap=_HEAP,
            options=["-XX:TieredStopAtLevel=1"],
            logging=self._logging,
            classes=self._classes,
        )
        return Program(name, argv, self.folder / f"{name}.log")


class Program:
    """One JVM; it ends with the thread that started it."""

    def __init__(self, name: str, argv: Sequence[str], log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(argv, stdout=file, stderr=file, preexec_fn=_begin)

    def log(self) -> str:
        """Its output so far."""
        return self._log.read_text(errors="replace")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until this is so. Raises ApplicationFailed after three minutes, or when the process has ended."""
        deadline = time.monotonic() + _START_S
        while not condition():
            if self._process.poll() is not None:
                raise ApplicationFailed(f"{self.name} has ended\n{self.log()[-3000:]}")
            if time.monotonic() > deadline:
                raise ApplicationFailed(f"{self.name}: no {what} within {_START_S:.0f} s\n{self.log()[-3000:]}")
            time.sleep(0.2)

    def close(self) -> None:
        """End it for good."""
        self._process.kill()
        self._process.wait()


def _begin() -> None:
    """In the process that becomes the JVM."""
    die_with_parent()
    os.nice(_NICE)


def fenced(log: str) -> Counter[str]:
    """How many producers were fenced, by the error that a producer took for final or for the end of a transaction."""
    return Counter(_FENCED.findall(log))


def dead_threads(log: str) -> list[str]:
    """The lines of an instance of Streams about its threads that died."""
    return _THREAD_DIED.findall(log)


class Streams:
    """Instances of one application with exactly_once_v2, which commits every 100 ms; they may have further settings."""

    def __init__(
        self,
        programs: Programs,
        bootstrap: str,
        name: str,
        topics: Sequence[str],
        instances: int = 2,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.programs = [
            programs.start(
                f"streams-{number}",
                "CountingStreams",
                {
                    "application.id": name,
                    "client.id": f"{name}-{number}",
                    "bootstrap.servers": bootstrap,
                    "processing.guarantee": "exactly_once_v2",
                    "commit.interval.ms": 100,
                    "auto.offset.reset": "earliest",
                    "state.dir": programs.folder / f"state-{number}",
                    **(settings or {}),
                },
                *topics,
            )
            for number in range(1, instances + 1)
        ]

    def wait_until_running(self) -> None:
        """Wait until each instance has its part of the tasks."""
        for program in self.programs:
            program.wait_for(lambda program=program: "to RUNNING" in program.log(), "running instance")

    def fenced(self) -> Counter[str]:
        """As `fenced`, of all instances."""
        return sum((fenced(program.log()) for program in self.programs), Counter())

    def failures(self) -> list[str]:
        """Threads that died."""
        return [line for program in self.programs for line in dead_threads(program.log())]


class Connect:
    """Distributed workers with exactly-once sources, and one connector of four tasks."""

    def __init__(self, programs: Programs, bootstrap: str, name: str, copies: int, workers: int = 2) -> None:
        self._name = name
        self._ports = free_ports(workers, HOST)
        text = "org.apache.kafka.connect.storage.StringConverter"
        topics = {
            f"{of}.storage.{key}": value
            for of in ("config", "offset", "status")
            for key, value in (("topic", f"{name}-{of}"), ("replication.factor", copies))
        }
        self.programs = [
            programs.start(
                f"connect-{number}",
                "org.apache.kafka.connect.cli.ConnectDistributed",
                {
                    "bootstrap.servers": bootstrap,
                    "group.id": name,
                    "exactly.once.source.support": "enabled",
                    "key.converter": text,
                    "value.converter": text,
                    "plugin.discovery": "service_load",
                    "listeners": f"http://{HOST}:{port}",
                    "offset.storage.partitions": 5,
                    **topics,
                },
            )
            for number, port in enumerate(self._ports, start=1)
        ]

    def write_numbers(self, topic: str, numbers: int) -> None:
        """Start the connector, and wait until its tasks run at all workers."""
        config = {
            "connector.class": "NumberSource",
            "tasks.max": TASKS,
            "exactly.once.support": "required",
            "topic": topic,
            "numbers": numbers,
            "per.poll": PER_POLL,
            "pause.ms": PAUSE_MS,
        }
        for program, port in zip(self.programs, self._ports, strict=True):
            program.wait_for(lambda port=port: self._ask(port, "connectors") is not None, "response")
        first, port = self.programs[0], self._ports[0]
        body = {key: str(value) for key, value in config.items()}
        first.wait_for(lambda: self._ask(port, f"connectors/{self._name}/config", body) is not None, "connector")
        first.wait_for(lambda: [task["state"] for task in self._tasks()] == ["RUNNING"] * TASKS, "tasks")

    def fenced(self) -> Counter[str]:
        """As `fenced`, of all workers."""
        return sum((fenced(program.log()) for program in self.programs), Counter())

    def failures(self) -> list[str]:
        """Tasks that have failed, and the reasons."""
        return [
            f"task {task['id']} {task['state']}: {task.get('trace', '').partition('at org.')[0].strip()}"
            for task in self._tasks()
            if task["state"] == "FAILED"
        ]

    def _tasks(self) -> list[dict[str, Any]]:
        """As the first worker has them that responds."""
        for port in self._ports:
            if status := self._ask(port, f"connectors/{self._name}/status"):
                return list(status["tasks"])
        return []

    @staticmethod
    def _ask(port: int, path: str, body: Mapping[str, str] | None = None) -> Any:
        """The response of a worker's REST API, None while there is no good one."""
        request = urllib.request.Request(
            f"http://{HOST}:{port}/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method="GET" if body is None else "PUT",
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)
        except OSError:
            return None
