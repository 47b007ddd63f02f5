"""What is shipped: the wheel, in an environment of its own, started in an empty directory."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parents[1]
OURS = {"common", "pipeline", "proxy", "protocol", "quotas"}


def test_no_other_distribution_claims_our_names():
    claimed = {name: owners for name, owners in packages_distributions().items() if name in OURS}
    assert all(set(owners) == {"kafka-throttle"} for owners in claimed.values()), claimed


@pytest.mark.parametrize("package", sorted(OURS))
def test_package_roots_hold_a_docstring_and_nothing_else(package):
    for init in (ROOT / package).rglob("__init__.py"):
        assert re.fullmatch(r'"""[^"]+"""\n', init.read_text()), init


def test_the_locks_pin_every_dependency_by_hash():
    for lock in ROOT.glob("requirements*.lock"):
        pinned = re.findall(r"^([A-Za-z0-9._-]+)(\[[^\]]*\])?==\S+ \\\n    --hash=sha256:", lock.read_text(), re.M)
        assert len(pinned) > 8, lock
        assert "://" not in lock.read_text(), lock


@pytest.mark.nightly
def test_the_wheel_runs_in_an_environment_of_its_own(tmp_path):
    """The steps of the Dockerfile, which no container engine can build here."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "dist"], cwd=ROOT, check=True
    )
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = [environment / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--require-hashes", "-r", ROOT / "requirements.lock"], check=True)
    subprocess.run([*pip, *(tmp_path / "dist").glob("*.whl")], check=True)
    told = [environment / "bin" / "kafka-throttle", "--version"]
    build = "compiled" if shutil.which("cc") else "pure"
    for forced, expected in (("", build), ("1", "pure")):
        environment_variables = {"KAFKA_THROTTLE_PURE": forced}
        done = subprocess.run(told, cwd=tmp_path, env=environment_variables, check=True, capture_output=True, text=True)
        assert done.stdout.endswith(f", {expected}\n")
    names = subprocess.run(
        [
            environment / "bin" / "python",
            "-c",
            "import kafka, uvloop, sys, kafka_throttle.proxy.server.service; print('confluent_kafka' in sys.modules)",
        ],
        cwd=tmp_path / "dist",
        env={},
        check=True,
        capture_output=True,
        text=True,
    )
    assert names.stdout.strip() == "False"
    _serves(environment / "bin" / "kafka-throttle", tmp_path)


def _serves(program: Path, tmp_path: Path) -> None:
    ports = _free_ports(5)
    config = tmp_path / "proxy.yaml"
    config.write_text(
        json.dumps(
            {
                "virtual_clusters": [
                    {
                        "name": "main",
                        "upstream": {"bootstrap_servers": [f"127.0.0.1:{ports[3]}"]},
                        "listeners": [
                            {"name": "plain", "bind": "127.0.0.1", "port": ports[0], "spare_ports": [ports[1]]}
                        ],
                    }
                ],
                "metrics": {"port": ports[2]},
                "admin": {"port": ports[4]},
            }
        )
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    service = subprocess.Popen([program, "run", "--config", config], cwd=empty, env={"PATH": os.environ["PATH"]})
    try:
        assert _body(f"http://127.0.0.1:{ports[2]}/livez")
        assert b"kafka_throttle_build_info" in _body(f"http://127.0.0.1:{ports[2]}/metrics")
        page = _body(f"http://127.0.0.1:{ports[4]}/").decode()
        assert all(_body(f"http://127.0.0.1:{ports[4]}{path}") for path in re.findall(r'"(/static/[^"]+)"', page))
        assert "/static/uPlot.iife.min.js" in page
    finally:
        service.terminate()
        assert service.wait(TIMEOUT_S) == 0


def _body(url: str) -> bytes:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
                return response.read()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for sock in sockets:
        sock.bind(("127.0.0.1", 0))
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
