"""Real clusters, started once for all tests that need the same one; a failed test keeps their logs and prints where."""

import re
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from demo.kafka_cluster import KafkaCluster
from tests.integration import certified, logins
from tests.integration.certified import Certificates
from tests.integration.proxy_process import ProxyProcess
from tests.integration.quota_client import QuotaClient
from tests.support.timeouts import TIMEOUT_S

CLUSTERS = {
    "3.9.2-zookeeper": ("3.9.2", "zookeeper"),
    "3.9.2-kraft": ("3.9.2", "kraft"),
    "4.3.1-kraft": ("4.3.1", "kraft"),
}
NEWEST = "4.3.1-kraft"
ZOOKEEPER = "3.9.2-zookeeper"

_ALARMS = re.compile(r"\b(WARN|ERROR|FATAL)\b|\"level\": \"(warning|error|critical)\"")
_MOST_ALARMS = 5
_LINE = 240

_REAL = {"kafka", "zookeeper", "kerberos_kafka"}
"""Fixtures that start one. What a test starts by itself is marked where the test stands."""

_running: list[KafkaCluster] = []
_proxies: list[ProxyProcess] = []


def pytest_configure(config):
    config.addinivalue_line("markers", "every_kind: on the old version with KRaft, too")
    config.addinivalue_line("markers", "kraft: not with ZooKeeper, where brokers do it otherwise")


def pytest_itemcollected(item):
    """Mark what has a cluster or a ZooKeeper from a fixture; tests that share a cluster run in one worker."""
    if Path(__file__).parent in item.path.parents and _REAL & set(item.fixturenames):
        item.add_marker("kafka")
        if kind := _kind(item):
            item.add_marker(pytest.mark.xdist_group(kind))


def pytest_generate_tests(metafunc):
    """`kafka` is each kind in turn; with `newest_kafka` or `zookeeper_kafka`, come by however, it is that kind only.

    Old kinds are for `make nightly`. The old one with KRaft is for tests marked `every_kind`: it has the protocol of
    one of the others and the ways of the other.
    """
    if "kafka" in metafunc.fixturenames:
        of_one_kind = {"newest_kafka": NEWEST, "zookeeper_kafka": ZOOKEEPER}
        kinds = [kind for name, kind in of_one_kind.items() if name in metafunc.fixturenames] or list(CLUSTERS)
        if not metafunc.definition.get_closest_marker("every_kind"):
            kinds = [kind for kind in kinds if kind in (NEWEST, ZOOKEEPER)]
        if metafunc.definition.get_closest_marker("kraft"):
            kinds = [kind for kind in kinds if CLUSTERS[kind][1] == "kraft"]
        kinds = [pytest.param(kind, marks=() if kind == NEWEST else pytest.mark.nightly) for kind in kinds]
        metafunc.parametrize("kafka", kinds, indirect=True, scope="session")


def _kind(item):
    return item.callspec.params.get("kafka") if hasattr(item, "callspec") else None


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Certificates of the newest cluster (its TLS listener demands them of clients), of the proxy, and of a client."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def kafka(request, certificates):
    """A cluster of three nodes, of each kind in turn."""
    yield from _run(*CLUSTERS[request.param], certificates)


@pytest.fixture(scope="session")
def newest_kafka(kafka):
    """Three nodes of the newest version, with listeners for SASL and TLS, for tests that need only one kind."""
    return kafka


@pytest.fixture(scope="session")
def zookeeper_kafka(kafka):
    """A cluster of three nodes that keeps its quotas in ZooKeeper."""
    return kafka


@pytest.fixture(scope="session")
def proxy(kafka):
    """A proxy in front of each cluster, without quotas; it has to end well after all that it went through."""
    with ProxyProcess(kafka, limits={"drain_s": 1}) as process:
        _proxies.append(process)
        yield process
        _proxies.remove(process)


@pytest.fixture
def start_proxy(newest_kafka):
    """Starts a proxy with these quotas and settings in front of the newest cluster; all have to end well."""
    with ExitStack() as stack:

        def start(quotas=(), **settings):
            process = ProxyProcess(newest_kafka, quotas, **settings)
            _proxies.append(process)
            stack.callback(_proxies.remove, process)
            return stack.enter_context(process)

        yield start


@pytest.fixture(autouse=True)
def no_quota_left(request):
    """Whatever a test has set in a cluster that others share is gone after it: they would find it there, or feel it."""
    cluster = request.getfixturevalue("kafka") if "kafka" in request.fixturenames else None
    yield
    if cluster is not None:
        _remove_quotas(cluster)


def _remove_quotas(cluster):
    address = next(cluster.address(node_id) for node_id in cluster.node_ids if cluster.is_running(node_id))
    deadline = time.monotonic() + TIMEOUT_S
    with QuotaClient(address) as client:
        while left := client.describe().entries:
            assert time.monotonic() < deadline, f"{cluster} does not let go of {left}"
            client.clear()


def _run(version, mode, certificates):
    secured = {
        "listeners": {logins.LISTENER: "SASL_PLAINTEXT", certified.LISTENER: "SSL", certified.WITH_LOGIN: "SASL_SSL"},
        "extra": lambda node_id: {
            **logins.secured(node_id),
            **certificates.of_nodes(node_id),
            **logins.secured(node_id, certified.WITH_LOGIN),
            **certificates.of_nodes(node_id, certified.WITH_LOGIN, "none"),
        },
    }
    with KafkaCluster(version, mode, 3, **(secured if (version, mode) == CLUSTERS[NEWEST] else {})) as cluster:
        _running.append(cluster)
        yield cluster
        _running.remove(cluster)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        folder = item.config.rootpath / item.config.getini("log_folder") / re.sub(r"[^\w.-]+", "-", item.nodeid)[-150:]
        if reported := keep_logs(folder):
            report.sections.append(("logs", reported))
    return report


def keep_logs(folder):
    """Write all logs into the folder; where they are, and the last words in each of what went wrong."""
    logs = {f"{cluster}: {name}": tail for cluster in _running for name, tail in cluster.log_tails(5_000).items()}
    logs |= {f"proxy at {process.bootstrap}": process.tail(5_000) for process in _proxies}
    reported = []
    for name, text in logs.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{re.sub(r'[^a-zA-Z0-9.]+', '-', name)}.log").write_text(text)
        alarms = [line[:_LINE] for line in text.splitlines() if _ALARMS.search(line)][-_MOST_ALARMS:]
        reported += [f"{name}: {line}" for line in alarms]
    return "\n".join([f"whole logs are in {folder}", *reported]) if logs else ""
