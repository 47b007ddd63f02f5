"""Jars of Kafka and its applications, Spark's Kafka source, Delta Lake, Hadoop's S3 client: Maven fetches them once."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from kafka_throttle.common.child_process import die_with_parent
from kafka_throttle.common.file_lock import Lock, lock

Say = Callable[[str], None]

LOGGING: Mapping[str, tuple[str, ...]] = {
    "2": (),
    "3": ("org.slf4j:slf4j-reload4j:1.7.36",),
    "4": ("org.apache.logging.log4j:log4j-slf4j-impl:2.25.1", "org.apache.logging.log4j:log4j-core:2.25.1"),
}
"""The jars that a node needs to write its log, by the major version of Kafka."""

_KAFKA_SOURCE: Mapping[str, str] = {"4.0": "4.0.4", "4.1": "4.1.3", "4.2": "4.2.0"}
"""The version of Spark's Kafka source by PySpark's first two numbers; it may differ from PySpark's in the third."""
_SPARK_KAFKA = (
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.1",
)
_DELTA = "4.4.0"
_SUMS: Mapping[str, str] = {
    "commons-pool2-2.12.1.jar": "5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef",
    "delta-spark_4.0_2.13-4.4.0.jar": "49e899667168b9412f83cbe894ce264107d7b896d6c5e12edca4e216845c1104",
    "delta-spark_4.1_2.13-4.4.0.jar": "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
    "delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "kafka-clients-3.9.2.jar": "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    "spark-sql-kafka-0-10_2.13-4.0.4.jar": "b2f7b3a4fbf292b5bf10bd4dd6af301eded9c9985b16239b407401d66dbc8a25",
    "spark-sql-kafka-0-10_2.13-4.1.3.jar": "cb31ffd9c8f5527dba061db8af671d295562092e4f3f5ff42fc249fab8a8fde6",
    "spark-sql-kafka-0-10_2.13-4.2.0.jar": "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    "spark-token-provider-kafka-0-10_2.13-4.0.0.jar": "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",  # noqa: E501
}
"""SHA-256 of the jars for Spark, by file name."""

_SPARK_S3 = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    "software.amazon.awssdk:bundle:2.35.4",
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
)
_SPARK_S3_SUMS: Mapping[str, str] = {
    "analyticsaccelerator-s3-1.3.1.jar": "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e",
    "bundle-2.35.4.jar": "db4b55f24ad1b4e70f17eb1717a4de76a8dadc5a27d764be7c44ff67b2c1c677",
    "hadoop-aws-3.5.0.jar": "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa",
}

_PROGRESS_S = 2.0
_DOWNLOADED = re.compile(r"Downloaded from \S+ \S+\.jar ")


class ToolMissing(RuntimeError):
    """A program is not installed; the text says how to install it."""


def cache_dir() -> Path:
    """The folder for downloads, outside of the repository: KAFKA_THROTTLE_CACHE or ~/.cache/kafka-throttle."""
    configured = os.environ.get("KAFKA_THROTTLE_CACHE")
    if configured:
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafka-throttle"


def need_program(program: str, package: str) -> str:
    """The path of a program. Raises ToolMissing with the command that installs it."""
    path = shutil.which(program)
    if path is None:
        raise ToolMissing(f"{program} is missing. Install it with: apt-get install -y {package}")
    return path


class _Wanted(NamedTuple):
    """A set of jars in one folder of the cache."""

    name: str
    """Name of their folder in the cache."""
    what: str
    about: str
    """Size of the download, in words."""
    dependencies: tuple[str, ...]
    """Each as group:artifact:version."""
    alone: bool = False
    """Without their own dependencies."""
    sums: Mapping[str, str] = {}
    """SHA-256 of each jar by file name; not checked if empty."""


def kafka_jars(version: str, say: Say = lambda line: None) -> Path:
    """The folder with all server jars of a Kafka version. Downloads them if needed, and reports progress to `say`.

    Several processes may call it at the same time. A process that is killed leaves nothing that looks complete.
    """
    what = f"Apache Kafka {version}"
    return _jars(_Wanted(f"kafka-{version}", what, "about 55 MB", (*_servers(version), *LOGGING[version[0]])), say)


def kafka_application_jars(version: str, say: Say = lambda line: None) -> Path:
    """The folder with the jars of Kafka Streams and of a Connect worker, otherwise as `kafka_jars`."""
    streams, connect = f"org.apache.kafka:kafka-streams:{version}", f"org.apache.kafka:connect-runtime:{version}"
    wanted = (streams, connect, *LOGGING[version[0]])
    return _jars(
        _Wanted(f"kafka-applications-{version}", f"Kafka Streams and Connect {version}", "about 110 MB", wanted), say
    )


def release(version: str) -> tuple[int, int]:
    """The first two numbers of a Kafka version, which decide about its features."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _servers(version: str) -> tuple[str, ...]:
    """The artifacts of a server and its command-line tools.

    Before Kafka 2.4 they exist for Scala 2.12 only. Their ZooKeeper client cannot resolve addresses with Java 14 and
    later (ZOOKEEPER-3779), so a later client replaces it.
    """
    is_older = release(version) < (2, 4)
    scala, instead = ("2.12", ("org.apache.zookeeper:zookeeper:3.5.8",)) if is_older else ("2.13", ())
    return f"org.apache.kafka:kafka_{scala}:{version}", f"org.apache.kafka:kafka-tools:{version}", *instead


def spark_kafka_jars(say: Say = lambda line: None) -> list[Path]:
    """The jars with which this PySpark reads Kafka topics. Downloads them if needed, and checks their hashes.

    Spark can download them with `spark.jars.packages`, but that resolves all dependencies and checks no hashes. Raises
    ValueError if there are none for this PySpark.
    """
    source = kafka_source_package()
    name = f"spark-kafka-{source.rpartition(':')[2]}"
    return _for_spark(name, "Spark's Kafka source", (source, *_SPARK_KAFKA), say)


def spark_delta_jars(say: Say = lambda line: None) -> list[Path]:
    """The jars with which this PySpark reads and writes Delta tables; otherwise as `spark_kafka_jars`."""
    name = f"spark-{_pyspark()}-delta-{_DELTA}"
    return _for_spark(name, "Delta Lake", (delta_package(), f"io.delta:delta-storage:{_DELTA}"), say)


def kafka_source_package() -> str:
    """The Kafka source for this PySpark, as `spark.jars.packages` takes it."""
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{_KAFKA_SOURCE[_pyspark()]}"


def delta_package() -> str:
    """Delta Lake for this PySpark, as `spark.jars.packages` takes it."""
    return f"io.delta:delta-spark_{_pyspark()}_2.13:{_DELTA}"


def _pyspark() -> str:
    """The first two numbers of PySpark's version. Raises ValueError if it is none of those that have jars."""
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        version = "none"
    first_two = ".".join(version.split(".")[:2])
    if first_two not in _KAFKA_SOURCE:
        expected = ", ".join(_KAFKA_SOURCE)
        raise ValueError(f"expected PySpark {expected}, found {version}: pip install '.[pipeline]' in the repository")
    return first_two


def _for_spark(name: str, what: str, packages: tuple[str, ...], say: Say) -> list[Path]:
    sums = {jar: _SUMS[jar] for jar in map(_file_of, packages)}
    return sorted(_jars(_Wanted(name, what, "about 10 MB", packages, True, sums), say).glob("*.jar"))


def _file_of(package: str) -> str:
    """The name of a jar."""
    _, artifact, version = package.split(":")
    return f"{artifact}-{version}.jar"


def spark_s3_jars(say: Say = lambda line: None) -> list[Path]:
    """The jars with which the Hadoop of PySpark 4.2.0 reaches S3; otherwise as `spark_kafka_jars`."""
    wanted = _Wanted("spark-s3-3.5.0", "Hadoop's S3 client", "about 690 MB", _SPARK_S3, True, _SPARK_S3_SUMS)
    return sorted(_jars(wanted, say).glob("*.jar"))


def _jars(wanted: _Wanted, say: Say) -> Path:
    folder = cache_dir() / wanted.name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f"{wanted.name}.lock").open("w") as file:
            _lock(file.fileno(), lambda: say(f"waiting for another process that fetches {wanted.what}"))
            if not folder.exists():
                _fetch(wanted, folder, say)
    return folder


def _lock(file: int, tell: Callable[[], None]) -> None:
    """Take the lock. While another process holds it, call `tell` every 2 s."""
    reported_at = time.monotonic()
    while True:
        if lock(file) is not Lock.HELD:
            return
        time.sleep(0.1)
        if time.monotonic() - reported_at > _PROGRESS_S:
            tell()
            reported_at = time.monotonic()


def _fetch(wanted: _Wanted, folder: Path, say: Say) -> None:
    """Download into a temporary folder and rename it. The caller has the lock, so other such folders are leftovers."""
    maven = need_program("mvn", "maven")
    need_program("java", "openjdk-17-jdk-headless")
    for left in folder.parent.glob(f".{folder.name}.*.part"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent) as aside:
        jars = Path(aside) / "jars"
        pom = Path(aside) / "pom.xml"
        pom.write_text(_pom(wanted))
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        _run_maven([maven, "-B", "-f", str(pom), *copy], Path(aside) / "maven.log", wanted, say)
        _check(jars, wanted)
        jars.rename(folder)
    say(f"{wanted.what} is here: {len(list(folder.glob('*.jar')))} jars")


def _check(jars: Path, wanted: _Wanted) -> None:
    """Raise RuntimeError if a jar does not have its expected hash."""
    for name, expected in wanted.sums.items():
        path = jars / name
        found = _sha256(path) if path.exists() else "nothing"
        if found != expected:
            raise RuntimeError(f"{wanted.what}: {name}: expected the SHA-256 {expected}, got {found}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _run_maven(command: list[str], log: Path, wanted: _Wanted, say: Say) -> None:
    """Run Maven, and report how many jars it has downloaded. Raises RuntimeError with the end of its log."""
    what = wanted.what
    say(f"fetching {what} from Maven, {wanted.about}, once")
    began = time.monotonic()
    with log.open("w") as output:
        maven_run = subprocess.Popen(command, stdout=output, stderr=output, preexec_fn=die_with_parent)
    try:
        while maven_run.poll() is None:
            try:
                maven_run.wait(_PROGRESS_S)
            except subprocess.TimeoutExpired:
                jars = len(_DOWNLOADED.findall(log.read_text(errors="replace")))
                say(f"fetching {what}: {jars} jars so far, {time.monotonic() - began:.0f} s")
    finally:
        maven_run.kill()
        maven_run.wait()
    if maven_run.returncode:
        raise RuntimeError(f"Maven could not fetch {what}:\n{log.read_text(errors='replace')[-2000:]}")


_NOTHING_ELSE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def _pom(wanted: _Wanted) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{number}</version>"
        f"{_NOTHING_ELSE if wanted.alone else ''}</dependency>"
        for group, artifact, number in (name.split(":") for name in wanted.dependencies)
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>local</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )
