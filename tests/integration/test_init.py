"""`kafka-throttle init` in front of a real cluster: what it writes fits the cluster, and serves clients."""

import subprocess
import sys

from kafka.admin import KafkaAdminClient

from kafka_throttle.proxy.config.load import load_config
from tests.integration.proxy_process import ProxyProcess
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S


def run(*arguments):
    command = [sys.executable, "-m", "proxy", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * TIMEOUT_S)


def test_what_it_writes_fits_the_cluster_and_serves_it(newest_kafka, tmp_path):
    path = tmp_path / "proxy.yaml"
    first, *others = newest_kafka.bootstrap_servers.split(",")
    written = run("init", "--bootstrap", first, "--out", path)
    assert (written.returncode, written.stderr) == (0, "")
    for arguments in (["check", "-c", path], ["check", "-c", path, "--connect"]):
        checked = run(*arguments)
        assert (checked.returncode, checked.stderr) == (0, "")
    config = load_config(path)
    [cluster] = config.virtual_clusters
    assert list(map(str, cluster.upstream.bootstrap_servers)) == [first, *others]
    [listener] = cluster.listeners
    assert list(listener.ports()) == list(newest_kafka.node_ids)
    proxy = ProxyProcess(newest_kafka)
    proxy.metrics_port, proxy.admin_port = config.metrics.port, config.admin.port
    proxy.write_text(path.read_text())
    with proxy:
        admin = KafkaAdminClient(bootstrap_servers=f"{listener.advertised_host}:{listener.port}")
        brokers = {broker["broker_id"]: broker["port"] for broker in admin.describe_cluster()["brokers"]}
        admin.close()
        assert brokers == listener.ports()
