"""What deploy/setup.sh asks for where neither a Python nor a JDK nor Maven is."""

import re
import shutil
import subprocess

import pytest

from tests.deploy.tools import DEPLOY


@pytest.fixture
def bare(tmp_path):
    """A PATH with next to nothing. By its `id` nobody is root: the script names what is missing, and stops."""
    for tool in ("bash", "dirname"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    return tmp_path


def missing(kind, bare):
    variables = {"PATH": str(bare), "HOME": str(bare), "KAFKA_THROTTLE_PYTHON": "none"}
    done = subprocess.run([DEPLOY / "setup.sh", kind], env=variables, capture_output=True, text=True)
    assert done.returncode == 1
    return re.findall(r"setup: missing: (.*)\. Run once", done.stderr)


@pytest.mark.parametrize("kind", ["demo", "pipeline", "dev"])
def test_what_starts_kafka_or_spark_needs_a_jdk_and_maven(kind, bare):
    assert missing(kind, bare) == ["python3 python3-venv openjdk-17-jdk-headless maven"]


@pytest.mark.parametrize("kind", ["build", "fuzz", "release"])
def test_what_starts_neither_needs_no_jdk(kind, bare):
    assert missing(kind, bare) == ["python3 python3-venv"]
