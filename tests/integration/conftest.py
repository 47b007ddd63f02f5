"""Real clusters, started once for all tests that need the same one; a failed test shows their logs."""

from pathlib import Path

import pytest

from proxy.demo.kafka_cluster import KafkaCluster

CLUSTERS = {
    "3.9.2-zookeeper": ("3.9.2", "zookeeper"),
    "3.9.2-kraft": ("3.9.2", "kraft"),
    "4.3.1-kraft": ("4.3.1", "kraft"),
}

_running: list[KafkaCluster] = []


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("integration")


@pytest.fixture(scope="session", params=CLUSTERS.values(), ids=CLUSTERS.keys())
def kafka(request):
    """A cluster of three nodes, of each kind in turn."""
    yield from _run(*request.param)


@pytest.fixture(scope="session")
def newest_kafka():
    """A cluster of three nodes of the newest version, for tests that need only one kind."""
    yield from _run("4.3.1", "kraft")


def _run(version, mode):
    with KafkaCluster(version, mode, 3) as cluster:
        _running.append(cluster)
        yield cluster
        _running.remove(cluster)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for cluster in _running:
            for name, tail in cluster.log_tails().items():
                report.sections.append((f"{cluster}: {name}", tail))
    return report
