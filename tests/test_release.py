"""What is released, as its users have it: installed from the wheels, in environments of their own.

KAFKA_THROTTLE_DIST names a directory that `deploy/release.sh` has made. Without it the tests build one of what is
committed, compiled for one version of Python.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer

from demo.kafka_cluster import KafkaCluster
from deploy.files_of_others import components
from tests.integration.proxy_process import ProxyProcess
from tests.pipeline.spools import Fleet, records, write_spool
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S
from tests.support.user_pages import run_by

pytestmark = [pytest.mark.nightly, pytest.mark.kafka]

OF_THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def released(commit_of: Path, into: Path) -> dict[str, str]:
    """What the release of a fresh clone has: the hash of each file."""
    clone = into / "clone"
    subprocess.run(["git", "clone", "--quiet", commit_of, clone], check=True)
    subprocess.run([clone / "deploy" / "release.sh", into / "dist", OF_THIS_PYTHON], check=True)
    lines = (into / "dist" / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    if named := os.environ.get("KAFKA_THROTTLE_DIST"):
        return Path(named)
    folder = tmp_path_factory.mktemp("release")
    released(ROOT, folder)
    return folder / "dist"


@dataclass(frozen=True)
class Environment:
    """A virtual environment that is nobody's but the test's."""

    folder: Path
    path: str = ""
    """Where other programs are; by itself there is nothing, no compiler either."""

    def made(self, python: str) -> "Environment":
        subprocess.run([python, "-m", "venv", self.folder], check=True)
        return self

    def install(self, *what: Path | str) -> None:
        pip = [self.folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, *what], check=True, env=self.variables())

    def uninstall(self, *names: str) -> None:
        subprocess.run([self.folder / "bin" / "pip", "uninstall", "--quiet", "--yes", *names], check=True)

    def variables(self, **others: str) -> dict[str, str]:
        """Nothing of this checkout."""
        kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME", "KAFKA_THROTTLE_CACHE") if name in os.environ}
        return {**kept, "PATH": f"{self.folder / 'bin'}:{self.path}", **others}

    def run(self, *arguments: Path | str, cwd: Path, **variables: str) -> str:
        """What `kafka-throttle` prints. It has to end with status 0."""
        command = [self.folder / "bin" / "kafka-throttle", *arguments]
        done = subprocess.run(command, cwd=cwd, env=self.variables(**variables), capture_output=True, text=True)
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout


class Installed(ProxyProcess):
    """A proxy that is started by the command of an environment, in a directory of the test's."""

    def __init__(self, *arguments, environment: Environment, cwd: Path, **settings) -> None:
        super().__init__(*arguments, **settings)
        self._of, self._cwd = environment, cwd

    def command(self):
        variables = [f"{name}={value}" for name, value in self._of.variables(PYTHONPATH=str(self._cwd)).items()]
        program = [str(self._of.folder / "bin" / "kafka-throttle"), "run", "-c", str(self.config_path)]
        return ["env", "--ignore-environment", f"--chdir={self._cwd}", *variables, *program]


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    with KafkaCluster(nodes=1) as cluster:
        yield cluster


def wheels(dist: Path) -> Mapping[str, Path]:
    """The wheels of a release by the tag of their Python."""
    return {re.split("-", file.name)[2]: file for file in dist.glob("*.whl")}


def pythons() -> dict[str, str]:
    """The Pythons of this machine that the product is for, by version."""
    find = '. deploy/find_python.sh; for v in "${PYTHONS[@]}"; do echo $v $(python_of $v); done'
    found = subprocess.run(["bash", "-c", find], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {version: python for version, *of_it in map(str.split, found.splitlines()) for python in of_it}


PYTHONS = pythons()


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        return response.read().decode()


def produces(bootstrap: str) -> None:
    failed = []
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(100):
        producer.produce("released", str(number), on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(60) == 0
    assert failed == []


def test_the_same_commit_gives_the_same_bytes(dist, tmp_path):
    commit_of = dist.parent / "clone"
    again = released(commit_of if commit_of.exists() else ROOT, tmp_path)
    first = dict(reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert {name: first.get(name) for name in again} == again


def test_a_release_has_the_source_wheels_for_users_without_a_compiler_and_what_it_is_made_of(dist):
    tags = wheels(dist)
    assert {"py3", f"cp{OF_THIS_PYTHON.replace('.', '')}"} <= tags.keys()
    assert all("manylinux" in file.name for tag, file in tags.items() if tag != "py3")
    for file in tags.values():
        with zipfile.ZipFile(file) as wheel:
            tops = {name.partition("/")[0] for name in wheel.namelist()}
        assert {top for top in tops if not top.startswith("kafka_throttle-")} == {"kafka_throttle"}
    bill = json.loads((dist / "kafka-throttle.cdx.json").read_text())
    of_others = {(part["name"], part["version"]) for part in components()}
    assert {(part["name"], part["version"]) for part in bill["components"]} == of_others.union(pinned())


def pinned() -> list[tuple[str, str]]:
    """The packages that the product needs, with their versions."""
    lock = (ROOT / "requirements.lock").read_text()
    return re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", lock, re.M)


@pytest.mark.parametrize("version", PYTHONS)
def test_an_installed_wheel_serves_a_client_without_a_compiler(dist, kafka, version, tmp_path):
    tag = f"cp{version.replace('.', '')}"
    compiled = wheels(dist).get(tag)
    empty = tmp_path / "empty"
    empty.mkdir()
    for build, wheel in {"pure": wheels(dist)["py3"], "compiled": compiled}.items():
        if wheel is not None:
            begin = time.monotonic()
            environment = Environment(tmp_path / build).made(PYTHONS[version])
            environment.install("--require-hashes", "-r", ROOT / "requirements.lock")
            environment.install(wheel)
            assert environment.run("--version", cwd=empty).strip().endswith(f", {build}")
            assert environment.run("--version", cwd=empty, KAFKA_THROTTLE_PURE="1").strip().endswith(", pure")
            with Installed(kafka, environment=environment, cwd=empty) as proxy:
                produces(proxy.bootstrap)
                seconds = time.monotonic() - begin
                page = read(f"http://{proxy.host}:{proxy.admin_port}/")
                files = re.findall(r'"(/static/[^"]+)"', page)
                assert any(file.startswith("/static/uPlot.iife.min.js") for file in files)
                assert all(read(f"http://{proxy.host}:{proxy.admin_port}{file}") for file in files)
            print(f"{tag}, {build}: installed and serving after {seconds:.1f} s")


def test_the_quick_start_installs_the_wheel_and_what_it_needs(dist, tmp_path):
    """As the page has it, with the Python of this test, and with the versions that the lock has."""
    name = "test_the_quick_start_installs_the_wheel_and_what_it_needs"
    script = "\n".join(text for _, text in run_by(f"tests/test_release.py::{name}"))
    shutil.copy(wheels(dist)["py3"], tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(f'#!/bin/sh\nexec {PYTHONS[OF_THIS_PYTHON]} "$@"\n')
    (tmp_path / "bin" / "python3").chmod(0o755)
    (tmp_path / "versions").write_text("\n".join(f"{name}=={version}" for name, version in pinned()))
    variables = Environment(tmp_path, "/usr/bin:/bin").variables(PIP_CONSTRAINT=str(tmp_path / "versions"))
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"kafka-throttle, version [\d.]+, pure", done.stdout.splitlines()[-1])


def hostile(folder: Path, name: str) -> Path:
    """A distribution whose one package, of this name, ends whoever imports it."""
    file = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", f"raise SystemExit('this is the {name} of another')\n")
        wheel.writestr(f"{name}/__main__.py", f"raise SystemExit('this is the {name} of another')\n")
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "".join(f"{part}/{end},,\n" for part, end in _files(name, about)))
    return file


def _files(name: str, about: str) -> list[tuple[str, str]]:
    ours = [(name, "__init__.py"), (name, "__main__.py")]
    return [*ours, *((about, end) for end in ("METADATA", "WHEEL", "RECORD"))]


def test_packages_of_others_that_are_named_as_our_rooms_change_nothing(dist, kafka, tmp_path):
    """Beside them, after their removal, and with folders of these names where the command is started."""
    environment = Environment(tmp_path / "environment", os.environ["PATH"]).made(sys.executable)
    for lock in ("requirements.lock", "requirements-pipeline.lock"):
        environment.install("--require-hashes", "-r", ROOT / lock)
    compiled = wheels(dist)[f"cp{OF_THIS_PYTHON.replace('.', '')}"]
    names = ("common", "proxy", "quotas", "protocol", "pipeline")
    environment.install(compiled)
    environment.install(*(hostile(tmp_path, name) for name in names))
    spool, work = tmp_path / "spool", tmp_path / "work"
    write_spool(spool, records(Fleet(entities=20), 2_000))
    for name in ("common", "proxy"):
        (work / name).mkdir(parents=True)
        (work / name / "__init__.py").write_text(f"raise SystemExit('this is the {name} of a folder')\n")

    def works(stage: str) -> None:
        here = {"cwd": work, "PYTHONPATH": str(work)}
        assert environment.run("--version", **here).strip().endswith(", compiled")
        with Installed(kafka, environment=environment, cwd=work) as proxy:
            assert "valid" in environment.run("check", "-c", proxy.config_path, **here)
            produces(proxy.bootstrap)
        table, out = tmp_path / f"table-{stage}", tmp_path / f"out-{stage}"
        environment.run("usage", "ingest", "--from", spool, "--table", table, **here)
        environment.run("usage", "report", "--table", table, "--out", out, **here)
        assert list(out.rglob("*.html"))

    works("beside")
    environment.uninstall(*names)
    works("after")
