"""A connection storm on the proxy, on HAProxy and on a broker, each with a rate for every address; figures and a plot.

python -m tests.storm [--seconds 66] [--rate 5] [--addresses 20] [--json FILE] [--plot FILE]

All of them stand in front of, or are, one real node of Kafka 3.9.2. What each bad address was admitted is compared with
what Kafka's own arithmetic admits of the same attempts. Exit status 1 if the proxy is more than 5 % away from that, or
has turned a good client away.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from demo.kafka_cluster import KafkaCluster, accepts, free_ports
from kafka_throttle.common.jars import need_program
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.quota_client import QuotaClient
from tests.storm.plot import draw
from tests.storm.storm import Seen, bad, blow, summary, table

_TOLERANCE = 0.05
_HAPROXY = """
global
    maxconn 4000
    nbthread 1
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen kafka
    bind {listen}
    stick-table type ip size 100k expire 60s store conn_rate(10s)
    tcp-request connection track-sc0 src
    tcp-request connection reject if {{ src_conn_rate gt {ten_seconds} }}
    server node {upstream}
"""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", default=66.0, show_default=True, help="How long each storm lasts.")
@click.option("--rate", default=5, show_default=True, help="Connections/s that each address may have.")
@click.option("--addresses", default=20, show_default=True, help="How many addresses storm.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Keep the figures there.")
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), help="Draw them there.")
def main(seconds: float, rate: int, addresses: int, json_file: Path | None, plot_file: Path | None) -> None:
    """As the head of this file says."""
    found: dict[str, Any] = {}
    with KafkaCluster("3.9.2", "kraft", 1) as cluster:
        for name, gate in (("kafka-throttle", _proxy), ("HAProxy", _haproxy), ("Kafka 3.9.2", _broker)):
            with gate(cluster, rate) as (target, pid):
                seen = blow(target, bad(addresses), seconds, pid)
            found[name] = {**summary(seen, rate), **_kept(seen)}
            print(f"{name}: done", file=sys.stderr, flush=True)
            result = {"seconds": seconds, "rate": rate, "addresses": addresses, "doors": found}
            if json_file:
                json_file.write_text(json.dumps(result))
    table(found)
    if plot_file:
        draw(result, plot_file)
    ours = found["kafka-throttle"]
    sys.exit(not (
        1 - _TOLERANCE <= ours["ratio"][0] <= ours["ratio"][1] <= 1 + _TOLERANCE
        and ours["good_admitted"] == ours["good_attempts"]
    ))  # fmt: skip


def _kept(seen: Seen) -> dict[str, Any]:
    """What the plot needs."""
    return {
        "storm_admitted": [reported["admitted"] for reported in seen.storm.values()],
        "good_took_ms": [took_ms for reported in seen.good.values() for took_ms in reported["took_ms"]],
        "calm_took_ms": [took_ms for reported in seen.calm.values() for took_ms in reported["took_ms"]],
        "samples": asdict(seen)["samples"],
    }


@contextmanager
def _proxy(cluster: KafkaCluster, rate: int) -> Iterator[tuple[tuple[str, int], int | None]]:
    quotas = [{"default_ip": True, "connection_creation_rate": rate}]
    with ProxyProcess(cluster, quotas, limits={"drain_s": 1}) as proxy:
        yield (HOST, proxy.port), proxy.pid


@contextmanager
def _haproxy(cluster: KafkaCluster, rate: int) -> Iterator[tuple[tuple[str, int], int | None]]:
    [port] = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "haproxy.cfg"
        path.write_text(
            _HAPROXY.format(listen=f"{HOST}:{port}", upstream=cluster.bootstrap(), ten_seconds=10 * rate).lstrip()
        )
        process = subprocess.Popen([need_program("haproxy", "haproxy"), "-db", "-q", "-f", str(path)])
        try:
            while not accepts(HOST, port):
                assert process.poll() is None, "HAProxy does not start"
                time.sleep(0.05)
            yield (HOST, port), process.pid
        finally:
            process.terminate()
            process.wait()


@contextmanager
def _broker(cluster: KafkaCluster, rate: int) -> Iterator[tuple[tuple[str, int], int | None]]:
    with QuotaClient(cluster.address(1)) as client:
        client.alter([([("ip", None)], [("connection_creation_rate", float(rate), False)])])
        time.sleep(3)
        yield cluster.address(1), None
        client.clear()


if __name__ == "__main__":
    main()
