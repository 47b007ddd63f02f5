"""Whether the proxy can serve clients: each reason why not, in the list of reasons, in the log and in the metrics."""

from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from kafka_throttle.proxy.config.load import config_of
from kafka_throttle.proxy.observe.fleet_metrics import FleetTotals
from kafka_throttle.proxy.observe.health import ClusterHealth, Muted, Readiness, unwritten
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.server.service import Service
from kafka_throttle.quotas.changes import NO_QUOTAS
from kafka_throttle.quotas.sources.source import SourceState
from tests.fakes.clock import FakeClock

READ = SourceState(known=True, up=True, age_s=1.5)
NOT_READ = SourceState(known=False, up=False, age_s=None)


def health(**changed):
    state = {
        "virtual_cluster": "main",
        "trouble": None,
        "nodes": [1, 2],
        "listeners_without_port": [],
        "source": "upstream",
        "source_state": READ,
        "quotas_known": True,
    }
    return ClusterHealth(**state | changed)


def test_a_cluster_at_which_nothing_is_wrong_is_ready():
    assert list(health().not_ready()) == []


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"trouble": "a:9092: down"}, "the cluster is unreachable: a:9092: down"),
        (
            {"listeners_without_port": ["plain"]},
            "no node has a port at listener plain (nodes of the cluster: 1, 2)",
        ),
        (
            {"listeners_without_port": ["plain"], "nodes": range(11)},
            "no node has a port at listener plain (nodes of the cluster: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...)",
        ),
        ({"quotas_known": False}, "quotas are not known yet (source upstream)"),
    ],
)
def test_each_reason_is_one_line(changed, reason):
    assert list(health(**changed).not_ready()) == [f"virtual cluster main: {reason}"]


@pytest.mark.parametrize(("nodes", "shown"), [([], "none yet"), ([1, 2], "2 so far")])
def test_a_cluster_that_wants_a_login_which_the_proxy_has_not_is_ready_and_says_so(nodes, shown):
    state = health(lacks_login=True, nodes=nodes)
    assert list(state.not_ready()) == []
    [remark] = state.remarks()
    assert remark.startswith("virtual cluster main: the cluster wants a login, and the proxy has none (upstream.admin)")
    assert remark.endswith(shown)


def fleet(**changed):
    counts = dict.fromkeys(
        ("keys", "claimed", "moves", "raises", "lowers", "conflicts", "excesses", "refused", "writes"), 0
    )
    state = {"members": 3, "is_cut_off": False, "trouble": "", "heard_ms_ago": 1500}
    return FleetTotals("main", **counts | {"written_bytes": 0, "read_bytes": 0} | state | changed)


def test_a_cluster_that_is_cut_off_from_its_fleet_is_ready_and_says_so():
    connected, cut_off = health(fleet=fleet()), health(fleet=fleet(is_cut_off=True, trouble="zk:2181: down"))
    assert list(connected.remarks()) == list(health().remarks()) == list(cut_off.not_ready()) == []
    [remark] = cut_off.remarks()
    share = "it gives out at most 1/3 of each limit"
    assert remark == f"virtual cluster main: this instance is cut off from its fleet, and {share}: zk:2181: down"


def test_silent_bootstrap_servers_are_a_remark_while_others_respond():
    [remark] = health(silent=["a:9092", "b:9092"]).remarks()
    assert (
        remark == "virtual cluster main: no response from a:9092, b:9092, so the proxy asks other nodes of the cluster"
    )
    assert list(health(silent=["a:9092"], trouble="down").remarks()) == []


def test_problems_of_the_source_of_quotas_are_a_remark_without_names():
    [remark] = health(quota_problems=2).remarks()
    assert remark.startswith("virtual cluster main: 2 problems with the quotas of source upstream: what cannot ")
    assert list(health(quota_problems=2).not_ready()) == []


def test_what_cannot_be_written_is_a_remark_until_it_can():
    spool = SimpleNamespace(problem="No space left on device")
    assert list(unwritten("usage records", spool)) == ["usage records cannot be written now: No space left on device"]
    spool.problem = None
    assert list(unwritten("usage records", spool)) == list(unwritten("the history", None)) == []


def test_the_metrics_of_a_fleet_are_its_totals():
    metrics = Metrics(CollectorRegistry())
    metrics.add_fleet(lambda: fleet(is_cut_off=True, claimed=0.75, refused=2))

    def value(name):
        return metrics.registry.get_sample_value(f"kafka_throttle_fleet_{name}", {"virtual_cluster": "main"})

    assert (value("members"), value("cut_off"), value("claimed_limits")) == (3, 1, 0.75)
    assert (value("age_seconds"), value("refused_documents_total")) == (1.5, 2)


def test_the_log_has_each_change_of_the_reasons_once():
    reasons = ["the cluster is unreachable"]
    readiness = Readiness(lambda: list(reasons), FakeClock().now_ms)
    with capture_logs() as logged:
        for _ in range(2):
            assert readiness.look() == ["the cluster is unreachable"]
        reasons.clear()
        for _ in range(2):
            assert readiness.look() == []
        reasons.append("another")
        readiness.look()
    assert logged == [
        {"event": "not_ready", "reasons": ["the cluster is unreachable"], "log_level": "info"},
        {"event": "ready", "log_level": "info"},
        {"event": "not_ready", "reasons": ["another"], "log_level": "warning"},
    ]


@pytest.mark.parametrize("reason", ["shutting down", "handed over to pid 7"])
def test_a_process_that_ends_because_somebody_wants_that_is_no_alarm(reason):
    reasons = []
    readiness = Readiness(lambda: list(reasons), FakeClock().now_ms)
    with capture_logs() as logged:
        readiness.look()
        reasons.append(reason)
        readiness.look()
        reasons.append("the cluster is unreachable")
        readiness.look()
    assert [line["log_level"] for line in logged] == ["info", "info", "warning"]


def test_a_start_that_takes_long_becomes_an_alarm_once():
    clock = FakeClock()
    readiness = Readiness(lambda: ["the cluster is unreachable"], clock.now_ms)
    with capture_logs() as logged:
        for _ in range(45):
            readiness.look()
            clock.advance(1_000)
    assert [(line["event"], line["log_level"]) for line in logged] == [("not_ready", "info"), ("not_ready", "warning")]


def test_the_metrics_say_the_same():
    metrics = Metrics(CollectorRegistry())
    metrics.add_health(health)
    metrics.add_muted(lambda: [Muted("main", "plain", 3)])
    metrics.add_health(
        lambda: health(virtual_cluster="other", trouble="down", nodes=[], source_state=NOT_READ, quotas_known=False)
    )

    def value(name, cluster="main", **labels):
        return metrics.registry.get_sample_value(f"kafka_throttle_{name}", {"virtual_cluster": cluster, **labels})

    assert (value("cluster_up"), value("cluster_nodes")) == (1, 2)
    assert (value("cluster_up", "other"), value("cluster_nodes", "other")) == (0, 0)
    source = {"source": "upstream"}
    assert (value("quota_source_up", **source), value("quota_source_age_seconds", **source)) == (1, 1.5)
    assert value("quota_source_up", "other", **source) == 0
    assert value("quota_source_age_seconds", "other", **source) is None
    assert (value("quotas_known", **source), value("quotas_known", "other", **source)) == (1, 0)
    assert value("connections_muted", listener="plain") == 3


class FakeSource:
    """A source that is read when a test says so."""

    name = "upstream"

    def __init__(self):
        self.quotas, self.problems, self.state = NO_QUOTAS, {}, NOT_READ


@pytest.fixture
async def service(tmp_path):
    """A proxy that is not started; its cluster and its source of quotas are what a test makes of them."""
    listener = {"name": "plain", "bind": "127.0.0.1", "port": 9092, "node_ids": [1]}
    cluster = {"name": "main", "upstream": {"bootstrap_servers": ["127.0.0.1:9"]}, "listeners": [listener]}
    return Service(tmp_path / "proxy.yaml", config_of({"virtual_clusters": [cluster]}), FakeClock())


async def test_a_proxy_is_ready_once_ports_cluster_and_quotas_are_there(service):
    [cluster] = service.instance.clusters
    directory, discovery = cluster.upstream.directory, cluster.upstream.discovery
    cluster.book.source = cluster.source = FakeSource()
    assert service.not_ready() == ["listeners are not bound yet"]
    service.instance._is_serving = True
    assert service.not_ready() == [
        "virtual cluster main: the cluster is unreachable: it has not named its nodes yet",
        "virtual cluster main: quotas are not known yet (source upstream)",
    ]
    directory.learn(7, "node", 9092)
    directory.note_all([7])
    discovery.trouble = None
    cluster.source.state = READ
    no_port = "virtual cluster main: no node has a port at listener plain (nodes of the cluster: 7)"
    assert service.not_ready() == [no_port]
    directory.learn(1, "node", 9092)
    directory.note_all([1, 7])
    assert service.not_ready() == []
    cluster.source.state = NOT_READ
    assert service.not_ready() == [], "what was known once stays known"
    directory.note_all([7])
    assert service.not_ready() == [no_port]


async def test_a_proxy_that_was_told_to_stop_is_not_ready(service):
    service.instance._is_serving = True
    service._ask_to_stop()
    assert service.not_ready() == ["shutting down"]
    assert not service.instance.end_asked.is_set()
    service._ask_to_stop()
    assert service.instance.end_asked.is_set()


async def test_the_log_says_loudly_that_quotas_are_not_known_and_what_that_means(service):
    [cluster] = service.instance.clusters
    book, clock = cluster.book, service.clock
    book.source = FakeSource()
    with capture_logs() as logged:
        book.report_unknown(clock.now_us())
        clock.advance(59_999)
        book.report_unknown(clock.now_us())
        book.refuses_while_unknown = True
        clock.advance(1)
        book.report_unknown(clock.now_us())
        book.source.state = READ
        for _ in range(2):
            book.report_unknown(clock.now_us())
    assert [(line["event"], line["log_level"]) for line in logged] == [
        ("quotas_unknown", "error"),
        ("quotas_unknown", "error"),
        ("quotas_known", "info"),
    ]
    assert logged[0]["problem"] == "the quotas are not known yet: connections are served without them"
    assert logged[1]["problem"] == "the quotas are not known yet: connections are refused"


async def test_connections_are_refused_only_while_quotas_are_not_known_and_only_if_that_is_wanted(service):
    [cluster] = service.instance.clusters
    book = cluster.book
    book.source = FakeSource()
    assert book.may_serve()
    book.refuses_while_unknown = True
    assert not book.may_serve()
    book.source.state = READ
    assert book.may_serve()
