"""What each worker has of the limits of the whole process: together exactly what is written."""

import pytest

from kafka_throttle.proxy.config.kinds import worker_count
from kafka_throttle.proxy.config.load import config_of
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.server.workers.division import config_of_worker


def config(**sections):
    listener = {"name": "plain", "bind": "127.0.0.1", "port": 9092, "node_ids": [1], **sections.pop("listener", {})}
    cluster = {"name": "main", "upstream": {"bootstrap_servers": ["127.0.0.1:9"]}, "listeners": [listener]}
    return config_of({"workers": 3, "virtual_clusters": [cluster | sections.pop("cluster", {})], **sections})


def divided(found):
    return [config_of_worker(found, number, 3) for number in range(3)]


def test_limits_of_the_process_add_up_to_what_is_written():
    whole = config(
        limits={"max_connections": 1000},
        connections={"max_connections": 100, "max_connection_creation_rate": 20},
        listener={"connections": {"max_connections": 50}, "caps": {"ingress_bytes_per_s": 1_000_000}},
        cluster={"caps": {"egress_bytes_per_s": 5}},
    )
    workers = divided(whole)
    assert [one.limits.max_connections for one in workers] == [334, 333, 333]
    assert sum(one.connections.max_connections for one in workers) == 100
    assert sum(one.connections.max_connection_creation_rate for one in workers) == pytest.approx(20)
    listeners = [one.virtual_clusters[0].listeners[0] for one in workers]
    assert sum(one.connections.max_connections for one in listeners) == 50
    assert sum(one.caps.ingress_bytes_per_s for one in listeners) == 1_000_000
    assert [one.virtual_clusters[0].caps.egress_bytes_per_s for one in workers] == [2, 2, 1]


def test_limits_of_single_connections_and_the_sizes_of_tables_stay():
    whole = config(limits={"max_sensors": 5000, "request_timeout_ms": 7})
    for one in divided(whole):
        assert (one.limits.max_sensors, one.limits.request_timeout_ms) == (5000, 7)
        assert one.connections == whole.connections
        assert one.virtual_clusters[0].caps == whole.virtual_clusters[0].caps


def test_each_worker_has_its_own_records_and_its_own_file_of_sensors():
    whole = config(usage={"instance": "proxy-1", "total_mib": 10}, restart={"sensors_file": "sensors"})
    workers = divided(whole)
    assert [one.usage.instance for one in workers] == ["proxy-1.0", "proxy-1.1", "proxy-1.2"]
    assert sum(one.usage.total_mib for one in workers) == 10
    assert [one.restart.sensors_file for one in workers] == ["sensors.0", "sensors.1", "sensors.2"]


def test_auto_is_one_worker_for_each_processor_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 3, 5})
    whole = config().model_copy(update={"workers": "auto"})
    assert worker_count(whole.workers) == 3


def test_auto_on_one_processor_is_a_single_process_and_may_have_a_history(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3})
    assert worker_count(config(workers="auto", history={"directory": "history"}).workers) == 1
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 3})
    with pytest.raises(ConfigErrors, match=r"history\.directory: with workers: auto there is no history"):
        config(workers="auto", history={"directory": "history"})


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"workers": 0}, "workers: expected a whole number from 1 to 64, or 'auto', got 0"),
        ({"workers": "many"}, "workers: expected a whole number from 1 to 64, or 'auto', got 'many'"),
        (
            {"connections": {"max_connections": 2}},
            "connections.max_connections: expected at least one for each of 3 workers, got 2",
        ),
        (
            {"listener": {"connections": {"max_connections": 1}}},
            "virtual_clusters[0].listeners[0].connections.max_connections: "
            "expected at least one for each of 3 workers, got 1",
        ),
        (
            {"history": {"directory": "history"}},
            "history.directory: with workers: 3 there is no history: remove this setting",
        ),
    ],
)
def test_what_cannot_be_divided_is_a_problem(section, problem):
    with pytest.raises(ConfigErrors) as raised:
        config(**section)
    assert [str(found) for found in raised.value.problems] == [problem]
