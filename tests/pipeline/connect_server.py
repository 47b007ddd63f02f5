"""A Spark Connect server with Delta Lake on 127.0.0.1, from PySpark's own jars."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from kafka_throttle.common.child_process import die_with_parent
from kafka_throttle.common.jars import spark_delta_jars
from tests.bench.processes import end_group
from tests.pipeline.spark_cluster import SMALL_JAVA, SPARK

_TIMEOUT_S = 120.0
_WITH_DELTA = {
    "spark.jars": ",".join(map(str, spark_delta_jars())),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_ALWAYS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    # Any free port.
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": f"{SMALL_JAVA} -XX:ReservedCodeCacheSize=256m",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # Otherwise it does not log its port.
    "spark.log.level": "INFO",
}


@contextlib.contextmanager
def connect_server(folder: Path, settings: Mapping[str, str] = _WITH_DELTA) -> Iterator[str]:
    """A server on two cores, as long as the `with` block goes on; its URL. What it says is in `folder/server.log`."""
    log = folder / "server.log"
    words = [word for key, value in {**_ALWAYS, **settings}.items() for word in ("--conf", f"{key}={value}")]
    command = [SPARK / "bin" / "spark-submit", "--master", "local[2]", "--driver-memory", "1g", *words,
               "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]  # fmt: skip
    environment = os.environ | {
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        # Its Python gets the project's packages from the client only.
        "PYTHONPATH": "",
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, cwd=folder, start_new_session=True,
            preexec_fn=die_with_parent,
        )  # fmt: skip
    try:
        yield f"sc://127.0.0.1:{_port(log, process)}"
    finally:
        end_group(process, 20)


def _port(log: Path, process: "subprocess.Popen[bytes]") -> int:
    until = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(r"Spark Connect server started at: \S*?:(\d+)", log.read_text()):
            return int(found[1])
        time.sleep(0.1)
    raise RuntimeError(f"no Spark Connect server within {_TIMEOUT_S:.0f} s:\n{log.read_text()}")
