"""Which port stands for which node, while nodes come and go."""

import pytest
from structlog.testing import capture_logs

from kafka_throttle.proxy.config.settings import ListenerConfig
from kafka_throttle.proxy.decisions.facts import NoPortForNode
from kafka_throttle.proxy.upstream.topology import MAX_LEARNED_NODES, ListenerPorts, NodeDirectory
from tests.fakes.clock import FakeClock

SPARES = 9100


class Cluster:
    """A listener with ports for nodes 0 to 2, and three spares, if nothing else is given."""

    def __init__(self, spares=3, **settings):
        self.clock = FakeClock()
        self.left_out, self.let_go, self.looks = [], [], []
        self.directory = NodeDirectory("main", self.clock.now_us, self.left_out.append)
        self.directory.look = lambda: self.looks.append(self.clock.now_ms())
        config = {"name": "plain", "bind": "127.0.0.1", "port": 9000, "node_ids": ["0-2"], **settings}
        config |= {"spare_ports": [f"{SPARES}-{SPARES + spares - 1}"]} if spares else {}
        self.ports = ListenerPorts(ListenerConfig.model_validate(config), self.directory, self.let_go.append)

    def has(self, *node_ids):
        """These are its nodes, as the proxy's own look says."""
        for node_id in node_ids:
            self.directory.learn(node_id, "node", 9092)
        self.directory.note_all(node_ids)

    def reported(self, *node_ids):
        """The ports that clients get in one response; None for a node that is left out."""
        return [self._reported(node_id) for node_id in node_ids]

    def _reported(self, node_id):
        self.directory.learn(node_id, "node", 9092)
        try:
            host, port = self.ports.advertised(node_id)
        except NoPortForNode:
            return None
        assert (host, self.ports.node_of(port)) == (b"127.0.0.1", node_id)
        return port


@pytest.fixture
def cluster():
    return Cluster()


def test_ports_of_declared_nodes_are_their_own_and_others_take_the_spare_of_their_number(cluster):
    assert cluster.reported(0, 1, 2, 3, 4, 5) == [9001, 9002, 9003, 9100, 9101, 9102]
    assert Cluster().reported(5, 4, 3) == [9102, 9101, 9100]
    assert Cluster(spares=4).reported(8, 4, 5) == [9100, 9101, 9102]


def test_node_ids_may_grow_for_ever(cluster):
    for first in range(100):
        ids = range(first, first + 3)
        cluster.has(*ids)
        ports = cluster.reported(*ids)
        assert None not in ports
        assert len(set(ports)) == 3
        cluster.clock.advance(3_000)
    assert cluster.left_out == []
    assert cluster.reported(100, 101) == [SPARES + 100 % 3, SPARES + 101 % 3]


def test_all_nodes_may_be_replaced_at_once(cluster):
    for ids in ([10, 11, 12], [100, 101, 102], [10, 11, 12], [200, 201, 202]):
        cluster.has(*ids)
        assert None not in cluster.reported(*ids)


def test_a_node_without_a_port_is_left_out_counted_and_logged_once_a_minute(cluster):
    with capture_logs() as logs:
        assert cluster.reported(3, 4, 5, 6) == [9100, 9101, 9102, None]
        assert cluster.reported(6, 3) == [None, 9100]
        assert [(line["event"], line["node_id"], line["settings"]) for line in logs] == [
            ("node_left_out", 6, ["node_ids", "spare_ports"])
        ]
        cluster.clock.advance(60_000)
        assert cluster.reported(6) == [None]
    assert len(logs) == 2
    assert cluster.left_out == ["plain"] * 3
    assert len(cluster.looks) == 2, "perhaps another is gone; but one look does for five seconds"
    cluster.has(3, 4, 6)
    assert cluster.reported(6) == [9102]
    assert cluster.let_go == [9102]


def test_without_spare_ports_nodes_with_other_ids_are_left_out():
    with capture_logs() as logs:
        assert Cluster(spares=0).reported(2, 3) == [9003, None]
    problem = "it is not in node_ids, and no spare port is left for it: clients are not told of it"
    assert [line["problem"] for line in logs] == [problem]


def test_the_port_of_a_node_that_is_gone_stays_its_own_for_a_while_where_others_are_free():
    cluster = Cluster(spares=4)
    cluster.has(4, 5)
    assert cluster.reported(4, 5) == [9100, 9101]
    cluster.has(5)
    cluster.clock.advance(299_000)
    assert cluster.reported(8) == [9102], "its own number is that of node 4, which may come back"
    assert cluster.reported(4) == [9100]
    cluster.has(5, 8)
    cluster.clock.advance(300_000)
    assert cluster.reported(12) == [9100]
    assert cluster.let_go == [9100]


def test_of_nodes_that_are_gone_the_one_gone_for_longest_gives_way(cluster):
    cluster.has(3, 4, 5)
    assert cluster.reported(3, 4, 5) == [9100, 9101, 9102]
    for left in ((3, 5), (3,), ()):
        cluster.directory.note_all(left or (0,))
        cluster.clock.advance(1_000)
    assert cluster.reported(6, 7, 8) == [9101, 9102, 9100]
    assert cluster.let_go == [9101, 9102, 9100]
    assert cluster.reported(3) == [None], "its port is another's now, and all of those are there"


def test_a_node_that_is_named_again_is_not_gone(cluster):
    cluster.has(3, 4, 5)
    cluster.reported(3, 4, 5)
    cluster.has(4, 5)
    assert cluster.reported(3, 6) == [9100, None]


def test_ports_may_be_given_away_once_they_have_been_kept_for_a_gone_node(monkeypatch):
    monkeypatch.setattr(ListenerConfig, "spare_ports_kept_s", 0)
    cluster = Cluster()
    cluster.has(3)
    assert cluster.reported(3) == [9100]
    cluster.has(6)
    assert cluster.reported(6) == [9100]


def test_a_node_has_a_port_if_there_is_one_for_it():
    cluster = Cluster(spares=1)
    assert all(map(cluster.ports.has_port, (0, 2, 3, 4)))
    cluster.has(3)
    assert cluster.reported(3) == [9100]
    assert [cluster.ports.has_port(node_id) for node_id in (0, 3, 4)] == [True, True, False]
    assert not Cluster(spares=0).ports.has_port(3)


def test_the_nodes_that_a_cluster_has_now_are_those_that_it_named_last(cluster):
    assert cluster.directory.present == []
    cluster.has(4, 3)
    assert cluster.directory.present == [3, 4]
    cluster.has(3)
    assert cluster.directory.present == [3]


def test_of_very_many_nodes_the_longest_gone_are_forgotten():
    directory = NodeDirectory("main", FakeClock().now_us)
    for node_id in range(MAX_LEARNED_NODES):
        directory.learn(node_id, "node", 9092)
    directory.note_all(range(1, MAX_LEARNED_NODES))
    directory.learn(MAX_LEARNED_NODES, "new", 9092)
    assert directory.address(0) is None
    assert directory.address(MAX_LEARNED_NODES) == ("new", 9092)
