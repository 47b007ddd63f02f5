"""The programs of tests/java, which tell what Kafka's own classes and the JVM response."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from kafka_throttle.common.jars import kafka_jars, need_program
from tests.support.places import ROOT

_FOLDER = ROOT / "tests/java"


def java_source(name: str) -> Path:
    """Where one of the programs is."""
    return _FOLDER / f"{name}.java"


def java_program(name: str, kafka_version: str) -> list[str]:
    """The command that runs one of them with the jars of a Kafka version; what it is told goes behind."""
    java = need_program("java", "openjdk-17-jdk-headless")
    # Each run compiles the source and ends soon: the fast compiler by itself halves the processor time.
    return [java, "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_jars(kafka_version)}/*", str(java_source(name))]


def compile_java(names: Sequence[str], jars: Path, folder: Path) -> None:
    """Compile some of them with these jars into a folder: for what is started more than once, or loaded by others."""
    javac = need_program("javac", "openjdk-17-jdk-headless")
    command = [javac, "-proc:none", "-cp", f"{jars}/*", "-d", str(folder), *(str(java_source(name)) for name in names)]
    subprocess.run(command, check=True)
