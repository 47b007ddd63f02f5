"""Apache Kafka's server jars, fetched once through Maven into the cache."""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from proxy.demo.keeper import die_with_parent

Say = Callable[[str], None]

LOGGING = {
    "3": ("org.slf4j:slf4j-reload4j:1.7.36",),
    "4": ("org.apache.logging.log4j:log4j-slf4j-impl:2.25.1", "org.apache.logging.log4j:log4j-core:2.25.1"),
}
"""What makes a node write its log, by the major version of Kafka."""

_PROGRESS_S = 2.0
_DOWNLOADED = re.compile(r"Downloaded from \S+ \S+\.jar ")


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
            _lock(lock.fileno(), lambda: say(f"waiting for another process that fetches Apache Kafka {version}"))
            if not folder.exists():
                _fetch(version, folder, say)
    return folder


def _lock(file: int, tell: Callable[[], None]) -> None:
    """Take the lock, and tell every now and then that somebody else has it."""
    told_at = time.monotonic()
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.1)
        if time.monotonic() - told_at > _PROGRESS_S:
            tell()
            told_at = time.monotonic()


def _fetch(version: str, folder: Path, say: Say) -> None:
    """Download aside and rename; the caller has the lock, so what lies aside is of those that were killed."""
    maven = need_program("mvn", "maven")
    need_program("java", "openjdk-17-jdk-headless")
    for left in folder.parent.glob(f".{folder.name}.*.part"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent) as aside:
        jars = Path(aside) / "jars"
        pom = Path(aside) / "pom.xml"
        pom.write_text(_pom(version))
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        _run_maven([maven, "-B", "-f", str(pom), *copy], Path(aside) / "maven.log", f"Apache Kafka {version}", say)
        jars.rename(folder)
    say(f"Apache Kafka {version} is here: {len(list(folder.glob('*.jar')))} jars")


def _run_maven(command: list[str], log: Path, what: str, say: Say) -> None:
    """Run Maven and tell how many jars it has downloaded. Raises RuntimeError with the end of its log."""
    say(f"fetching {what} from Maven, about 55 MB, once")
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
