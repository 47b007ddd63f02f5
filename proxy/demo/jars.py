"""Apache Kafka's server jars, fetched once through Maven into the cache."""

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

Say = Callable[[str], None]

LOGGING = {
    "3": ("org.slf4j:slf4j-reload4j:1.7.36",),
    "4": ("org.apache.logging.log4j:log4j-slf4j-impl:2.25.1", "org.apache.logging.log4j:log4j-core:2.25.1"),
}
"""What makes a node write its log, by the major version of Kafka."""

_PROGRESS_S = 2.0


class ToolMissing(RuntimeError):
    """A program that the cluster needs is not installed; the message says how to install it."""


def cache_dir() -> Path:
    """Where downloads are kept: outside of the tree, KAFKA_THROTTLE_CACHE or ~/.cache/kafka-throttle."""
    configured = os.environ.get("KAFKA_THROTTLE_CACHE")
    if configured:
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafka-throttle"


def need_program(program: str, package: str) -> str:
    """The path of a program. Raises ToolMissing with the line that installs it."""
    path = shutil.which(program)
    if path is None:
        raise ToolMissing(f"{program} is missing. Install it with: apt-get install -y {package}")
    return path


def kafka_jars(version: str, say: Say = lambda line: None) -> Path:
    """The folder with all server jars of a Kafka version; downloads them if need be and tells how far it is.

    Two processes may ask at once, and one that is killed leaves nothing that looks complete.
    """
    folder = cache_dir() / f"kafka-{version}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f"kafka-{version}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                _fetch(version, folder, say)
    return folder


def _fetch(version: str, folder: Path, say: Say) -> None:
    maven = need_program("mvn", "maven")
    need_program("java", "openjdk-17-jdk-headless")
    aside = folder.with_name(folder.name + ".part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    pom = aside / "pom.xml"
    pom.write_text(_pom(version))
    say(f"fetching Apache Kafka {version} through Maven, about 55 MB, once")
    command = [maven, "-B", "-q", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    began = time.monotonic()
    with (aside / "maven.log").open("w+") as log:
        maven_run = subprocess.Popen([*command, f"-DoutputDirectory={aside}"], stdout=log, stderr=log)
        try:
            while maven_run.poll() is None:
                try:
                    maven_run.wait(_PROGRESS_S)
                except subprocess.TimeoutExpired:
                    found = len(list(aside.glob("*.jar")))
                    say(f"fetching Apache Kafka {version}: {found} jars, {time.monotonic() - began:.0f} s")
        finally:
            maven_run.kill()
        if maven_run.returncode:
            log.seek(0)
            raise RuntimeError(f"Maven could not fetch Kafka {version}:\n{log.read()[-2000:]}")
    aside.rename(folder)
    say(f"Apache Kafka {version} is here: {len(list(folder.glob('*.jar')))} jars")


def _pom(version: str) -> str:
    wanted = [f"org.apache.kafka:kafka_2.13:{version}", f"org.apache.kafka:kafka-tools:{version}"]
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{number}</version></dependency>"
        for group, artifact, number in (name.split(":") for name in (*wanted, *LOGGING[version[0]]))
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>local</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )
