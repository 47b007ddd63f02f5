"""The programs of tests/java, which tell what Kafka's own classes and the JVM response."""

from pathlib import Path

from common.jars import kafka_jars, need_program

_FOLDER = Path(__file__).parent / "java"


def java_source(name: str) -> Path:
    """Where one of the programs is."""
    return _FOLDER / f"{name}.java"


def java_program(name: str, kafka_version: str) -> list[str]:
    """The command that runs one of them with the jars of a Kafka version; what it is told goes behind."""
    java = need_program("java", "openjdk-17-jdk-headless")
    # Each run compiles the source and ends soon: the fast compiler by itself halves the processor time.
    return [java, "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_jars(kafka_version)}/*", str(java_source(name))]
