"""An S3-compatible store on this machine: moto's server, a process of its own."""

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow.fs import FileSystem

from kafka_throttle.common.child_process import die_with_parent
from tests.bench.processes import end_group

BUCKET = "usage"
_TIMEOUT_S = 120.0


@contextlib.contextmanager
def object_store(log: Path) -> Iterator[dict[str, str]]:
    """A store with an empty bucket, as long as the `with` block goes on.

    The variables with which clients reach it are in the environment.
    """
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with log.open("w") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True, preexec_fn=die_with_parent
        )
    try:
        variables = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": _address(log, server),
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            system, bucket = FileSystem.from_uri(f"s3://{BUCKET}?allow_bucket_creation=true")
            system.create_dir(bucket)
            yield variables
    finally:
        end_group(server, 20)


def _address(log: Path, server: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < until and server.poll() is None:
        if found := re.search(r"Running on (http://127\.0\.0\.1:\d+)", log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise RuntimeError(f"moto's server does not listen:\n{log.read_text()}")


def reached_by_spark(variables: dict[str, str]) -> dict[str, str]:
    """Hadoop's settings for a Spark that was started without the variables."""
    return {
        "fs.s3a.endpoint": variables["AWS_ENDPOINT_URL"],
        "fs.s3a.endpoint.region": variables["AWS_REGION"],
        "fs.s3a.access.key": variables["AWS_ACCESS_KEY_ID"],
        "fs.s3a.secret.key": variables["AWS_SECRET_ACCESS_KEY"],
        "fs.s3a.path.style.access": "true",
    }
