import copy
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.common.problems import Problems
from kafka_throttle.common.settings import read_settings, sections
from kafka_throttle.common.yaml_file import parse_yaml
from kafka_throttle.protocol.identity.sasl_names import Claim
from kafka_throttle.proxy.config import load
from kafka_throttle.proxy.config.effective import effective_file
from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.config.load import load_config
from kafka_throttle.proxy.config.page import configuration_page
from kafka_throttle.proxy.config.problems import ConfigErrors, ConfigUnreadable
from kafka_throttle.proxy.config.reload import changes_needing_restart
from kafka_throttle.proxy.config.settings import (
    API_KEYS,
    AdminConfig,
    ClusterConnectionsConfig,
    Config,
    CredentialsConfig,
    EnsembleConfig,
    ListenerConfig,
    ListenerTlsConfig,
    MetricsConfig,
    RequestCost,
    UpstreamTlsConfig,
    UsageConfig,
    UsageTopicConfig,
    ZooKeeperConfig,
    fleet_path,
    pinned_costs,
    quota_entries,
)
from kafka_throttle.proxy.config.warnings import ephemeral_ports, warnings_of
from kafka_throttle.proxy.relay.costs import SHIPPED, cost_kind
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType, Scope
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.request_costs import KIB, Cost, RequestCosts
from kafka_throttle.quotas.sources.entries import EntitySettings, QuotaEntry, ThrottleConfig
from kafka_throttle.quotas.sources.overlay import Entry
from tests.support.places import ROOT

NO_MONTH = f"month must be in 1..12{', not 99' if sys.version_info >= (3, 14) else ''}"


def config_of(data, folder=None):
    """The configuration, which is the same again when it is printed and read."""
    config = load.config_of(data, folder)
    assert load.config_of(parse_yaml(effective_file(config), "printed")) == config
    return config


MINIMAL = {
    "virtual_clusters": [
        {
            "name": "main",
            "upstream": {"bootstrap_servers": ["127.0.0.1:9092"]},
            "listeners": [{"name": "plain", "bind": "127.0.0.1", "port": 19092, "node_ids": ["0-2"]}],
            "quotas": {"entries": [{"client_id": "etl", "producer_byte_rate": 1000}]},
        }
    ]
}
LISTENER = "virtual_clusters[0].listeners[0]"
ENTRIES = "virtual_clusters[0].quotas.entries"
SERVERS = "virtual_clusters[0].upstream.bootstrap_servers"
RATE = "expected a whole number from 1 to 9223372036854775807"
NODE_ID = 'expected a node id or an ascending range "first-last" from 0 to 2147483647'
PORT_RANGE = 'expected a port or an ascending range "first-last" from 1 to 65535'
NAME = "expected a string of 1 to 32767 bytes (numbers need quotes)"
TAKEN = "expected ports that nothing else takes"
SERVER = "expected host:port (IPv6 in brackets)"
HOST = "expected a host name or IP address that clients can reach"


def table_of(cluster):
    """The quotas of a cluster's entries that are enforced."""
    return QuotaTable(
        {
            entity: {key.quota_type: limit for key, limit in entry.limits.items() if not key.shadow}
            for entity, entry in quota_entries(cluster).items()
        }
    )


def changed(path, value):
    """MINIMAL with `value` at `path` (keys and indices; the last may be new), or without it for `...`."""
    data = copy.deepcopy(MINIMAL)
    place = data
    for step in path[:-1]:
        place = place.setdefault(step, {}) if isinstance(step, str) else place[step]
    if value is ...:
        del place[path[-1]]
    elif isinstance(path[-1], int) and path[-1] == len(place):
        place.append(value)
    else:
        place[path[-1]] = value
    return data


def config_in(text):
    """The configuration in the text of a file `a.yaml`."""
    return config_of(parse_yaml(text, "a.yaml"))


def problems(data):
    with pytest.raises(ConfigErrors) as caught:
        config_of(data)
    return [str(problem) for problem in caught.value.problems]


def cluster(*path):
    return ("virtual_clusters", 0, *path)


def listener(*path):
    return cluster("listeners", 0, *path)


def entry(value):
    return changed(cluster("quotas", "entries", 0), value)


def test_the_smallest_configuration_gets_the_defaults():
    config = config_of(MINIMAL)
    [virtual_cluster] = config.virtual_clusters
    assert virtual_cluster.upstream.bootstrap_servers == (HostPort("127.0.0.1", 9092),)
    assert virtual_cluster.throttle.max_throttle_ms == 20_000
    assert virtual_cluster.throttle.max_debt_ms == 60_000
    assert virtual_cluster.listeners[0].advertised_host == "127.0.0.1"
    assert config.metrics.port == 9404
    assert config.limits.max_frame_bytes == 104_857_600


def test_node_ids_take_the_ports_after_the_bootstrap_port_in_their_order():
    data = changed(listener("node_ids"), ["1001-1003", 7, "0-1"])
    data["virtual_clusters"][0]["listeners"][0]["spare_ports"] = ["19110-19112", 19120]
    made = config_of(data).virtual_clusters[0].listeners[0]
    assert made.ports() == {1001: 19093, 1002: 19094, 1003: 19095, 7: 19096, 0: 19097, 1: 19098}
    assert made.spares() == [19110, 19111, 19112, 19120]


def test_a_server_may_be_an_ipv6_address_in_brackets():
    config = config_of(changed(cluster("upstream", "bootstrap_servers"), ["[::1]:9092", "a_b.example:1"]))
    servers = config.virtual_clusters[0].upstream.bootstrap_servers
    assert servers == (HostPort("::1", 9092), HostPort("a_b.example", 1))
    assert [str(server) for server in servers] == ["[::1]:9092", "a_b.example:1"]


def test_configurations_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        config_of(MINIMAL).metrics.port = 1


LABEL = "expected a name of 1 to 64 letters, digits, '.', '_' or '-'"
EMPTY = "expected a list with at least one entry, got an empty list"
BAD_VALUES = [
    (listener("port"), "ninety", f"{LISTENER}.port: expected a whole number from 1 to 65535, got 'ninety'"),
    (listener("port"), True, f"{LISTENER}.port: expected a whole number from 1 to 65535, got true"),
    (listener("port"), 0, f"{LISTENER}.port: expected a whole number from 1 to 65535, got 0"),
    (listener("port"), 19092.0, f"{LISTENER}.port: expected a whole number from 1 to 65535, got 19092.0"),
    (listener("port"), None, f"{LISTENER}.port: expected a whole number from 1 to 65535, got nothing"),
    (listener("port"), ..., f"{LISTENER}.port: expected a whole number from 1 to 65535, got nothing"),
    (
        listener("port"),
        1 << 5000,
        f"{LISTENER}.port: expected a whole number from 1 to 65535, got a number of 5001 bits",
    ),
    (listener("prot"), 1, f"{LISTENER}.prot: unknown key, did you mean 'port'?"),
    (
        cluster("throttle", "zzz"),
        1,
        "virtual_clusters[0].throttle.zzz: unknown key, "
        "expected mode, max_throttle_ms, max_debt_ms, fetch or charge_validate_only",
    ),
    *(
        (cluster("caps", key), 1, f"virtual_clusters[0].caps.{key}: unknown key, {guess}")
        for key, guess in {
            "ingress_bytes": "did you mean 'ingress_bytes_per_s'?",
            "bytes_per_second": "did you mean 'ingress_bytes_per_s' or 'egress_bytes_per_s'?",
            "max_bytes": "expected ingress_bytes_per_s or egress_bytes_per_s",
            "rate": "expected ingress_bytes_per_s or egress_bytes_per_s",
        }.items()
    ),
    (
        ("limits", "max_connections_per_ip"),
        1,
        "limits.max_connections_per_ip: unknown key here, it belongs in virtual_clusters[].connections",
    ),
    (
        ("limits", "max_conections_per_ip"),
        1,
        "limits.max_conections_per_ip: unknown key here, 'max_connections_per_ip' of virtual_clusters[].connections",
    ),
    (
        cluster("connections", "max_connection_creation_rate"),
        1,
        "virtual_clusters[0].connections.max_connection_creation_rate: unknown key here, "
        "it belongs in virtual_clusters[].listeners[].connections or connections",
    ),
    (
        cluster("connections", "max_connections"),
        1,
        "virtual_clusters[0].connections.max_connections: unknown key here, "
        "it belongs in virtual_clusters[].listeners[].connections, limits or connections",
    ),
    (
        listener("max_connections_per_ip"),
        1,
        f"{LISTENER}.max_connections_per_ip: unknown key here, it belongs in virtual_clusters[].connections",
    ),
    (
        ("a\nb",),
        1,
        r"['a\nb']: unknown key, expected workers, virtual_clusters, metrics, admin, limits, drain, restart,"
        " connections, usage, history or log",
    ),
    (listener("bind"), "localhost", f"{LISTENER}.bind: expected an IP address, got 'localhost'"),
    (listener("bind"), "0.0.0.0", f"{LISTENER}.advertised_host: {HOST}, got nothing"),
    (listener("bind"), "::", f"{LISTENER}.advertised_host: {HOST}, got nothing"),
    (listener("advertised_host"), "0.0.0.0", f"{LISTENER}.advertised_host: {HOST}, got '0.0.0.0'"),
    (listener("advertised_host"), "a b", f"{LISTENER}.advertised_host: {HOST}, got 'a b'"),
    (listener("advertised_host"), "x" * 300, f"{LISTENER}.advertised_host: {HOST}, got '{'x' * 78}…"),
    (listener("node_ids"), "0-5", f"{LISTENER}.node_ids: expected a list, got '0-5'"),
    (listener("node_ids"), ["5-0"], f"{LISTENER}.node_ids[0]: {NODE_ID}, got '5-0'"),
    (listener("node_ids"), ["0-"], f"{LISTENER}.node_ids[0]: {NODE_ID}, got '0-'"),
    (listener("node_ids"), [-1], f"{LISTENER}.node_ids[0]: {NODE_ID}, got -1"),
    (listener("node_ids"), [True], f"{LISTENER}.node_ids[0]: {NODE_ID}, got true"),
    (listener("node_ids"), ["0-2147483648"], f"{LISTENER}.node_ids[0]: {NODE_ID}, got '0-2147483648'"),
    (listener("node_ids"), [], f"{LISTENER}.node_ids: expected node ids, or spare_ports, got nothing"),
    (
        listener("node_ids"),
        ["0-5", "9", "4-7"],
        f"{LISTENER}.node_ids[2]: expected each node id once, got 4-5, also in {LISTENER}.node_ids[0]",
    ),
    (
        listener("node_ids"),
        ["0-50000"],
        f"{LISTENER}.node_ids[0]: expected ports up to 65535, got 19093-69093",
    ),
    (listener("spare_ports"), ["65530-65536"], f"{LISTENER}.spare_ports[0]: {PORT_RANGE}, got '65530-65536'"),
    (
        listener("spare_ports"),
        ["19095-19096"],
        f"{LISTENER}.spare_ports[0]: expected ports that nothing else takes, got 19095, taken by"
        f" {LISTENER}.node_ids[0]",
    ),
    (
        ("metrics", "port"),
        19092,
        f"metrics.port: expected ports that nothing else takes, got 19092, taken by {LISTENER}.port",
    ),
    (("metrics",), None, "metrics: expected a mapping, got nothing"),
    (
        ("admin", "bind"),
        "0.0.0.0",
        "admin: expected token_file, as others than this machine reach 0.0.0.0, got nothing",
    ),
    (("admin",), {"bind": "::"}, "admin: expected token_file, as others than this machine reach ::, got nothing"),
    (("admin", "port"), 9404, "admin.port: expected ports that nothing else takes, got 9404, taken by metrics.port"),
    (("log", "level"), "loud", "log.level: expected 'debug', 'info', 'warning' or 'error', got 'loud'"),
    (("log",), "info", "log: expected a mapping, got 'info'"),
    (cluster("name"), "a b", f"virtual_clusters[0].name: {LABEL}, got 'a b'"),
    (cluster("upstream"), ..., "virtual_clusters[0].upstream: expected a mapping, got nothing"),
    (cluster("listeners"), [], f"virtual_clusters[0].listeners: {EMPTY}"),
    (("virtual_clusters",), ..., "virtual_clusters: expected a list, got nothing"),
    (("virtual_clusters",), {}, "virtual_clusters: expected a list, got a mapping"),
    (cluster("upstream", "bootstrap_servers"), ["kafka"], f"{SERVERS}[0]: {SERVER}, got 'kafka'"),
    (cluster("upstream", "bootstrap_servers"), ["::1:9092"], f"{SERVERS}[0]: {SERVER}, got '::1:9092'"),
    (cluster("upstream", "bootstrap_servers"), ["a:0"], f"{SERVERS}[0]: {SERVER}, got 'a:0'"),
    (cluster("upstream", "bootstrap_servers"), ["a:65536"], f"{SERVERS}[0]: {SERVER}, got 'a:65536'"),
    (
        cluster("upstream", "bootstrap_servers"),
        ["127.0.0.1:19092"],
        f"{SERVERS}[0]: expected a node of the cluster, got '127.0.0.1:19092', the address of {LISTENER}",
    ),
    *(
        (
            cluster("upstream", "bootstrap_servers"),
            ["kafka:9092", server],
            f"{SERVERS}[1]: expected a node of the cluster, got '{server}', the address of {LISTENER}",
        )
        for server in ("127.0.0.1:19092", "127.0.0.1:19093", "127.0.0.1:19095")
    ),
    (
        cluster("upstream", "node_networks"),
        ["10.0.0.1/8"],
        "virtual_clusters[0].upstream.node_networks[0]: expected an IP address or network, a host name, or the end of "
        "host names like .kafka.example.com, got '10.0.0.1/8'",
    ),
    (
        cluster("upstream", "node_networks"),
        ["10.0.0.0/8", ".kafka.example.com"],
        f"{SERVERS}[0]: expected a server in virtual_clusters[0].upstream.node_networks, got '127.0.0.1:9092'",
    ),
    (cluster("throttle", "mode"), "slow", "virtual_clusters[0].throttle.mode: expected 'mute' or 'delay', got 'slow'"),
    (
        cluster("throttle", "max_throttle_ms"),
        90_000,
        "virtual_clusters[0].throttle.max_debt_ms: expected 0 or at least max_throttle_ms, 90000, got 60000",
    ),
]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.9", "::1"])
@pytest.mark.parametrize("bind", ["0.0.0.0", "::"])
def test_a_bootstrap_server_that_is_a_port_of_all_interfaces_of_this_machine_is_a_port_of_the_proxy(bind, host):
    data = changed(cluster("upstream", "bootstrap_servers"), [str(HostPort(host, 19094))])
    data["virtual_clusters"][0]["listeners"][0] |= {"bind": bind, "advertised_host": "kafka.example.com"}
    [problem] = problems(data)
    assert problem.endswith(f"the address of {LISTENER}")


def test_where_nodes_may_be_is_networks_names_and_ends_of_names():
    places = ["127.0.0.0/8", "10.0.0.1", "::1", ".kafka.example.com", "kafka-1"]
    config = config_of(changed(cluster("upstream", "node_networks"), places))
    destinations = config.virtual_clusters[0].upstream.destinations
    for host in ("127.0.0.1", "10.0.0.1", "::1", "b1.kafka.example.com", "kafka-1"):
        assert destinations.refusal(host, "127.0.0.1" if host.startswith(("b", "k")) else host, 9092) is None
    assert destinations.refusal("10.0.0.2", "10.0.0.2", 9092) is not None


def test_each_cluster_knows_where_the_proxy_listens():
    """At the ports of all its clusters, and those of its HTTP listeners."""
    data = changed(("admin", "port"), 9405)
    other = {**data["virtual_clusters"][0], "name": "other"}
    other["listeners"] = [{"name": "plain", "bind": "127.0.0.2", "port": 29092, "spare_ports": ["29100-29101"]}]
    data["virtual_clusters"].append(other)
    config = config_of(data)
    for one in config.virtual_clusters:
        refused = [
            (address, port)
            for address in ("127.0.0.1", "127.0.0.2")
            for port in (9404, 9405, 19091, 19092, 19095, 19096, 29092, 29093, 29100, 29101)
            if one.upstream.destinations.refusal(address, address, port)
        ]
        assert refused == [
            *(("127.0.0.1", port) for port in (9404, 9405, 19092, 19095)),
            *(("127.0.0.2", port) for port in (29092, 29100, 29101)),
        ]


@pytest.mark.parametrize(("path", "value", "problem"), BAD_VALUES)
def test_a_bad_value_is_reported_with_its_path_and_what_was_found(path, value, problem):
    assert problems(changed(path, value)) == [problem]


BAD_ENTRIES = [
    ({"client_id": "a", "producer_byte_rate": 0}, f"{ENTRIES}[0].producer_byte_rate: {RATE}, got 0"),
    ({"client_id": "a", "producer_byte_rate": -5}, f"{ENTRIES}[0].producer_byte_rate: {RATE}, got -5"),
    ({"client_id": "a", "producer_byte_rate": True}, f"{ENTRIES}[0].producer_byte_rate: {RATE}, got true"),
    (
        {"client_id": "a", "producer_byte_rate": float("nan")},
        f"{ENTRIES}[0].producer_byte_rate: {RATE}, got nan",
    ),
    (
        {"client_id": "a", "producer_byte_rate": float("inf")},
        f"{ENTRIES}[0].producer_byte_rate: {RATE}, got inf",
    ),
    (
        {"client_id": "a", "producer_byte_rate": 1 << 63},
        f"{ENTRIES}[0].producer_byte_rate: {RATE}, got {1 << 63}",
    ),
    ({"client_id": "a", "producer_byte_rate": None}, f"{ENTRIES}[0].producer_byte_rate: {RATE}, got nothing"),
    ({"client_id": 5, "producer_byte_rate": 1}, f"{ENTRIES}[0].client_id: {NAME}, got 5"),
    ({"user": "", "producer_byte_rate": 1}, f"{ENTRIES}[0].user: {NAME}, got ''"),
    ({"user": "\ud800", "producer_byte_rate": 1}, rf"{ENTRIES}[0].user: {NAME}, got '\ud800'"),
    (
        {"default_user": "yes", "producer_byte_rate": 1},
        f"{ENTRIES}[0].default_user: expected true or false, got 'yes'",
    ),
    (
        {"user": "a", "default_user": True, "producer_byte_rate": 1},
        f"{ENTRIES}[0]: expected either user or default_user, got both",
    ),
    (
        {"client_id": "a", "default_client_id": True, "producer_byte_rate": 1},
        f"{ENTRIES}[0]: expected either client_id or default_client_id, got both",
    ),
    (
        {"producer_byte_rate": 1},
        f"{ENTRIES}[0]: expected a user, a client-id or an ip, got nothing",
    ),
    (
        {"user": "a"},
        f"{ENTRIES}[0]: expected producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate"
        " or connection_creation_rate, got nothing",
    ),
    (
        {"user": "a", "request_percentage": 0},
        f"{ENTRIES}[0].request_percentage: expected a number above 0, got 0",
    ),
    (
        {"user": "a", "connection_creation_rate": 1},
        f"{ENTRIES}[0]: connection_creation_rate of user=a: expected an address, "
        "as nothing else has this quota, got user=a",
    ),
    (
        {"ip": "10.0.0.1", "client_id": "a", "producer_byte_rate": 1},
        f"{ENTRIES}[0]: expected an ip by itself, got it together with a user or a client-id",
    ),
    (
        {"ip": "10.0.0.256", "connection_creation_rate": 1},
        f"{ENTRIES}[0].ip: expected an IP address, got '10.0.0.256'",
    ),
]


@pytest.mark.parametrize(("value", "problem"), BAD_ENTRIES)
def test_a_quota_that_makes_no_sense_is_refused(value, problem):
    assert problems(entry(value)) == [problem]


def test_every_quota_of_every_entity_is_taken_with_its_shadow():
    both = {"request_percentage": 12.5, "shadow_controller_mutation_rate": 3, "shadow_producer_byte_rate": 9}
    entries = [
        {"user": "a", "scope": "cluster", **both},
        {"ip": "::ffff:10.0.0.1", "connection_creation_rate": 0},
        {"default_ip": True},
    ]
    entries[2]["shadow_connection_creation_rate"] = 5
    data = changed(cluster("quotas", "entries"), entries)
    assert quota_entries(config_of(data).virtual_clusters[0]) == {
        Entity(user="a"): Entry(
            {
                QuotaKey(QuotaType.REQUEST): 12.5,
                QuotaKey(QuotaType.CONTROLLER_MUTATION, shadow=True): 3.0,
                QuotaKey(QuotaType.PRODUCE, shadow=True): 9.0,
            },
            Scope.CLUSTER,
        ),
        Entity(ip="10.0.0.1"): Entry({QuotaKey(QuotaType.CONNECTION): 0.0}),
        Entity(ip=DEFAULT): Entry({QuotaKey(QuotaType.CONNECTION, shadow=True): 5.0}),
    }


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (
            {"user": "a", "controller_mutation_rate": 3, "scope": "cluster"},
            "scope of user=a: expected producer_byte_rate or consumer_byte_rate or request_percentage with it, "
            "as other quotas are per cluster always",
        ),
        (
            {"ip": "10.0.0.1", "connection_creation_rate": 3, "scope": "node"},
            "scope of ip=10.0.0.1: expected producer_byte_rate or consumer_byte_rate or request_percentage with it, "
            "as other quotas are per cluster always",
        ),
    ],
)
def test_a_scope_needs_a_quota_that_has_one(entry, problem):
    with pytest.raises(ConfigErrors) as raised:
        config_of(changed(cluster("quotas", "entries"), [entry]))
    assert str(raised.value) == f"virtual_clusters[0].quotas.entries[0]: {problem}"


def test_a_scope_is_node_or_cluster():
    with pytest.raises(ConfigErrors, match=r"entries\[0\].scope: expected .*node.*cluster.*got 'all'"):
        config_of(changed(cluster("quotas", "entries"), [{"user": "a", "producer_byte_rate": 3, "scope": "all"}]))


QUOTAS = "virtual_clusters[0].quotas"
ADMIN = "virtual_clusters[0].upstream.admin"
BAD_SOURCES = [
    (
        {"source": "zookeeper"},
        [f"{QUOTAS}.zookeeper.servers: expected at least one with the source 'zookeeper', got nothing"],
    ),
    (
        {"source": "upstream", "entries": [{"user": "a", "producer_byte_rate": 1}]},
        [f"{QUOTAS}.entries: expected none, as quotas come from the source 'upstream', got a list"],
    ),
    (
        {"zookeeper": {"servers": ["127.0.0.1:2181"]}},
        [f"{QUOTAS}.zookeeper: expected nothing with the source 'file', got a mapping"],
    ),
    (
        {"source": "zookeeper", "zookeeper": {"servers": ["a:1"], "chroot": "main", "sasl": True, "ca_file": "x"}},
        [f"{QUOTAS}.zookeeper.chroot: expected a path like /kafka-throttle/main, got 'main'"],
    ),
    (
        {"source": "zookeeper", "zookeeper": {"servers": ["a:1"], "sasl": True, "ca_file": "x", "key_file": "k"}},
        [
            f"{QUOTAS}.zookeeper: expected username and password_file with sasl or creator_only",
            f"{QUOTAS}.zookeeper: expected certificate_file and key_file together",
            f"{QUOTAS}.zookeeper: expected tls: true with certificates",
        ],
    ),
    ({"source": "log"}, [f"{QUOTAS}.source: expected 'file', 'zookeeper', 'upstream' or 'topic', got 'log'"]),
    ({"topic": "quotas"}, [f"{QUOTAS}.topic: expected nothing with the source 'file', got 'quotas'"]),
    (
        {"source": "topic", "topic": "no/topic"},
        [f"{QUOTAS}.topic: expected the name of a topic: 1 to 249 letters, digits, '.', '_' or '-', got 'no/topic'"],
    ),
]


@pytest.mark.parametrize(("quotas", "expected"), BAD_SOURCES)
def test_an_impossible_source_is_refused(quotas, expected):
    assert problems(changed(cluster("quotas"), quotas)) == expected


FLEET = "virtual_clusters[0].fleet"
OF_QUOTAS = {"source": "zookeeper", "zookeeper": {"servers": ["a:1"]}}
BAD_FLEETS = [
    ({}, {}, [f"{FLEET}.zookeeper.servers: expected at least one, as quotas do not come from ZooKeeper, got nothing"]),
    (
        {"zookeeper": {"tls": True}},
        OF_QUOTAS,
        [f"{FLEET}.zookeeper.servers: expected at least one beside other settings of the ensemble, got nothing"],
    ),
    ({"topic": "no/topic"}, {}, [f"{FLEET}.topic: expected the name of a topic"]),
    (
        {"topic": "t", "zookeeper": {"servers": ["a:1"]}},
        {},
        [f"{FLEET}.topic: expected either a topic or path and zookeeper, got both, 't'"],
    ),
    (
        {"topic": "__kafka_throttle_quotas_main"},
        {"source": "topic"},
        [f"{FLEET}.topic: expected another topic than that of the quotas, got '__kafka_throttle_quotas_main'"],
    ),
    ({"path": "fleet"}, OF_QUOTAS, [f"{FLEET}.path: expected a path like /kafka-throttle/main/fleet, got 'fleet'"]),
    (
        {"session_timeout_ms": 100},
        OF_QUOTAS,
        [f"{FLEET}.session_timeout_ms: expected a whole number from 4000 to 20000, got 100"],
    ),
    (
        {"zookeeper": {"servers": ["a:1"], "chroot": "/x"}},
        {},
        [f"{FLEET}.zookeeper.chroot: unknown key"],
    ),
    (
        {"zookeeper": {"servers": ["a:1"], "sasl": True}},
        {},
        [f"{FLEET}.zookeeper: expected username and password_file with sasl or creator_only"],
    ),
]


@pytest.mark.parametrize(("fleet", "quotas", "expected"), BAD_FLEETS)
def test_an_impossible_fleet_is_refused(fleet, quotas, expected):
    data = changed(cluster("fleet"), fleet)
    data["virtual_clusters"][0]["quotas"] = quotas
    found = problems(data)
    assert len(found) == len(expected)
    assert all(each.startswith(problem) for each, problem in zip(found, expected, strict=True)), found


def of_fleet(fleet, quotas=OF_QUOTAS):
    data = changed(cluster("fleet"), fleet)
    data["virtual_clusters"][0]["quotas"] = quotas
    return config_of(data)


def test_a_fleet_has_the_ensemble_of_the_quotas_and_a_place_beside_them():
    [found] = of_fleet({}).virtual_clusters
    assert fleet_path(found) == "/kafka-throttle/main/fleet"
    mine = {"source": "zookeeper", "zookeeper": {"servers": ["a:1"], "chroot": "/mine"}}
    [found] = of_fleet({}, mine).virtual_clusters
    assert fleet_path(found) == "/mine/fleet"
    [found] = of_fleet({"path": "/else/where", "zookeeper": {"servers": ["b:1"]}}, {}).virtual_clusters
    assert fleet_path(found) == "/else/where"


def test_a_fleet_that_comes_goes_or_moves_waits_for_a_restart():
    without, one, other = of_fleet(None), of_fleet({}), of_fleet({"session_timeout_ms": 8_000})
    assert changes_needing_restart(one, one) == []
    assert changes_needing_restart(without, one) == changes_needing_restart(one, without) == [FLEET]
    assert changes_needing_restart(one, other) == [f"{FLEET}.session_timeout_ms"]


def test_two_virtual_clusters_cannot_have_their_claims_in_one_topic():
    data = copy.deepcopy(MINIMAL)
    [one] = data["virtual_clusters"]
    other = copy.deepcopy(one)
    other["name"] = "other"
    other["listeners"][0]["port"] += 100
    data["virtual_clusters"] = [{**each, "fleet": {"topic": "claims"}} for each in (one, other)]
    expected = "expected a topic that no other fleet has, got that of virtual_clusters[0].fleet"
    assert problems(data) == [f"virtual_clusters[1].fleet.topic: {expected}"]
    data["virtual_clusters"][1]["fleet"] = {"topic": "other-claims"}
    assert [each.fleet.topic for each in config_of(data).virtual_clusters] == ["claims", "other-claims"]


@pytest.mark.parametrize("path", [None, "/one/fleet"])
def test_two_virtual_clusters_cannot_have_one_fleet(path):
    both = {"source": "zookeeper", "zookeeper": {"servers": ["a:1"], "chroot": "/one"}}
    data = copy.deepcopy(MINIMAL)
    second = copy.deepcopy(data["virtual_clusters"][0])
    second["name"] = "second"
    second["listeners"][0]["port"] += 100
    data["virtual_clusters"].append(second)
    for each in data["virtual_clusters"]:
        each.update(quotas=both, fleet={} if path is None or each["name"] == "main" else {"path": path})
    expected = "expected a path that no other fleet has, got that of virtual_clusters[0].fleet"
    assert problems(data) == [f"virtual_clusters[1].fleet.path: {expected}"]
    data["virtual_clusters"][1]["fleet"] = {"path": "/two"}
    assert len(config_of(data).virtual_clusters) == 2


def test_what_instances_of_a_fleet_do_not_know_is_warned_about():
    def warned(**quotas):
        found = warnings_of(of_fleet({"zookeeper": {"servers": ["b:1"]}}, quotas), range(60_000, 60_001))
        return [str(each) for each in found if each.path.endswith(("state_file", "instances"))]

    [alone] = [each for each in warned() if "instances" in each]
    assert alone.startswith(f"{QUOTAS}.instances: expected the number of instances of the fleet, got 1")
    several = "expected nothing, as source 'file' of several instances takes no changes, got a file"
    assert warned(instances=2, state_file="state.json") == [f"{QUOTAS}.state_file: {several}"]


TOPIC = {"bootstrap_servers": ["kafka:9092"], "topic": "records"}


def test_a_topic_for_usage_records_has_its_own_credentials():
    secured = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "username": "me", "password_file": "p"}
    config = config_of(changed(("usage",), {"directory": "spool", "kafka": {**TOPIC, **secured}}))
    assert config.usage.kafka.topic == "records"
    [problem] = problems(changed(("usage",), {"directory": "spool", "kafka": {**TOPIC, "username": "me"}}))
    assert problem == "usage.kafka: expected security_protocol SASL_PLAINTEXT or SASL_SSL with a login, got PLAINTEXT"
    [problem] = problems(changed(("usage",), {"kafka": TOPIC}))
    assert problem == "usage: expected directory, as a topic gets what is in files, got nothing"
    [problem] = problems(changed(("usage",), {"directory": "spool", "kafka": {**TOPIC, "topic": "a b"}}))
    assert problem.startswith("usage.kafka.topic: expected the name of a topic")
    assert changes_needing_restart(config, config_of(MINIMAL)) == ["usage.directory", "usage.kafka"]


def test_a_constant_that_was_a_setting_is_named_with_its_value_beside_all_other_problems():
    usage = {"directory": "spool", "keep_s": 60, "fsync": False, "file_mib": 8, "kafka": {**TOPIC, "username": "me"}}
    assert problems(changed(("usage",), usage)) == [
        "usage.keep_s: expected a whole number from 3600 to 2147483647, got 60",
        "usage.kafka: expected security_protocol SASL_PLAINTEXT or SASL_SSL with a login, got PLAINTEXT",
        "usage.fsync: this setting is gone, files are always synced: remove it",
        "usage.file_mib: this setting is gone, it is always 64: remove it",
    ]


def test_every_constant_of_the_configuration_is_named_if_it_is_set():
    seen = 0
    for path, section in sections("", Config):
        for name, value in section.constants().items():
            [problem] = problems_of_setting(section, name)
            assert str(problem) == f"{name}: this setting is gone, it is always {value}: remove it", path
            seen += 1
    assert seen > 20


def problems_of_setting(section, name):
    """What is said of this one, whatever is missing beside it."""
    with pytest.raises(Problems) as caught:
        read_settings(section, {name: 1})
    return [problem for problem in caught.value.problems if problem.path == name]


def test_an_admin_listener_has_to_be_there():
    assert problems(changed(cluster("quotas", "admin_listeners"), ["palin"])) == [
        f"{QUOTAS}.admin_listeners[0]: expected 'plain', got 'palin'"
    ]


def test_the_proxys_own_credentials_belong_together():
    sasl = {"security_protocol": "SASL_PLAINTEXT", "username": "kt"}
    assert problems(changed(cluster("upstream", "admin"), sasl)) == [
        f"{ADMIN}: expected sasl_mechanism, username and password_file together"
    ]
    assert problems(changed(cluster("upstream", "admin"), {"sasl_mechanism": "PLAIN"})) == [
        f"{ADMIN}: expected security_protocol SASL_PLAINTEXT or SASL_SSL with a login, got PLAINTEXT"
    ]


def test_a_protocol_with_a_login_needs_one():
    [problem] = problems(changed(cluster("upstream", "admin"), {"security_protocol": "SASL_PLAINTEXT"}))
    assert problem == f"{ADMIN}: expected sasl_mechanism, as security_protocol is SASL_PLAINTEXT, got nothing"


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_nodes_that_speak_tls_with_the_proxy_itself_do_so_with_clients(protocol):
    login = {"sasl_mechanism": "PLAIN", "username": "kt", "password_file": "/tmp/password"}
    admin = {"security_protocol": protocol, **(login if protocol == "SASL_SSL" else {})}
    raw = changed(cluster("upstream", "admin"), admin)
    [problem] = problems(raw)
    assert problem.startswith("virtual_clusters[0].upstream.tls: expected tls, as the nodes speak TLS with upstream.ad")
    raw["virtual_clusters"][0]["upstream"]["tls"] = {}
    assert config_of(raw).virtual_clusters[0].upstream.tls is not None


@pytest.mark.parametrize(
    ("settings", "place", "other"),
    [
        (
            [(("quotas", "state_file"), "a.json"), (("sasl",), {}), (("restart", "sensors_file"), "./a.json")],
            "restart.sensors_file",
            "virtual_clusters[0].quotas.state_file",
        ),
        (
            [
                (("quotas", "state_file"), "login/password"),
                (
                    ("upstream", "admin"),
                    {
                        "security_protocol": "SASL_PLAINTEXT",
                        "sasl_mechanism": "PLAIN",
                        "username": "kt",
                        "password_file": "login/../login/password",
                    },
                ),
            ],
            "virtual_clusters[0].quotas.state_file",
            "virtual_clusters[0].upstream.admin.password_file",
        ),
    ],
    ids=["two that are written", "one that is read"],
)
@pytest.mark.parametrize("mistake", [False, True], ids=["alone", "beside another mistake"])
def test_a_file_that_the_proxy_writes_is_for_nothing_else(settings, place, other, mistake):
    raw = changed(cluster("quotas"), {})
    for (section, *rest), value in settings:
        target = raw if section == "restart" else raw["virtual_clusters"][0]
        if rest:
            target.setdefault(section, {})[rest[0]] = value
    if mistake:
        raw["log"] = {"level": 5}
    expected = f"{place}: expected a file that nothing else has, got that of {other}"
    assert [each for each in problems(raw) if "log" not in each] == [expected]


def test_two_virtual_clusters_do_not_share_a_state_file():
    raw = changed(cluster("quotas"), {"state_file": "changes.json"})
    second = copy.deepcopy(raw["virtual_clusters"][0])
    second["name"] = "second"
    second["listeners"][0]["port"] += 100
    raw["virtual_clusters"].append(second)
    expected = "expected a file that nothing else has, got that of virtual_clusters[0].quotas.state_file"
    assert problems(raw) == [f"virtual_clusters[1].quotas.state_file: {expected}"]


@pytest.mark.parametrize("setting", ["max_connections_per_ip", "max_connections_per_user"])
def test_a_bound_of_no_connection_for_anybody_serves_nobody(setting):
    where = "virtual_clusters[0].connections"
    expected = f"expected at least 1 without {setting}_overrides, got 0: nobody is served"
    assert problems(changed((*cluster("connections"), setting), 0)) == [f"{where}.{setting}: {expected}"]
    key = "127.0.0.1" if setting.endswith("ip") else "alice"
    config_of(changed(cluster("connections"), {setting: 0, f"{setting}_overrides": {key: 1}}))


def warned_of(raw, *ends):
    return [str(each) for each in warnings_of(config_of(raw), range(60_000, 60_001)) if each.path.endswith(ends)]


def test_a_listener_for_other_machines_that_advertises_this_machine_is_warned_about():
    raw = changed(cluster("listeners", 0, "advertised_host"), "localhost")
    raw["virtual_clusters"][0]["listeners"][0]["bind"] = "0.0.0.0"
    [warning] = warned_of(raw, "advertised_host")
    assert "'localhost' is for each client its own machine" in warning
    raw["virtual_clusters"][0]["listeners"][0]["bind"] = "127.0.0.1"
    assert warned_of(raw, "advertised_host") == []


def test_a_plain_listener_where_clients_log_in_to_nodes_that_speak_tls_is_warned_about():
    raw = changed(cluster("upstream", "tls"), {})
    found = raw["virtual_clusters"][0]
    found["listeners"][0] |= {"bind": "0.0.0.0", "advertised_host": "kafka.example.com"}
    assert warned_of(raw, "listeners[0].tls") == []
    found["sasl"] = {"required": True}
    [warning] = warned_of(raw, "listeners[0].tls")
    assert "passwords of SASL PLAIN can be overheard" in warning
    found["listeners"][0]["bind"] = "127.0.0.1"
    assert warned_of(raw, "listeners[0].tls") == []


def test_certificates_of_a_connection_without_tls_are_warned_about():
    [warning] = warned_of(changed(cluster("upstream", "admin"), {"ca_file": "ca.pem"}), "admin.ca_file")
    assert warning.endswith("is without effect with security_protocol 'PLAINTEXT'")


def with_own_tls(admin):
    """MINIMAL, where the proxy itself and its clients speak TLS to the nodes."""
    data = changed(cluster("upstream", "tls"), {})
    data["virtual_clusters"][0]["upstream"]["admin"] = admin
    return data


ENDPOINT = {"url": "https://id.example.com/token", "client_id": "kafka", "client_secret_file": "secret"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"token_file": "token"}, None),
        ({"token_endpoint": ENDPOINT, "sasl_extensions": {"logicalCluster": "lkc-1"}}, None),
        ({"token_endpoint": {**ENDPOINT, "scope": "kafka", "ca_file": "ca.pem"}}, None),
        ({}, "expected token_file or token_endpoint alone"),
        ({"token_file": "token", "token_endpoint": ENDPOINT}, "expected token_file or token_endpoint alone"),
        ({"token_file": "token", "username": "me"}, "expected token_file or token_endpoint alone"),
        ({"sasl_mechanism": "PLAIN", "token_file": "token"}, "expected sasl_mechanism OAUTHBEARER with token_file"),
        (
            {"sasl_mechanism": "PLAIN", "username": "a", "password_file": "b", "sasl_extensions": {"a": "b"}},
            "expected sasl_mechanism OAUTHBEARER with sasl_extensions",
        ),
    ],
)
def test_tokens_go_with_oauthbearer(settings, expected):
    admin = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", **settings}
    data = with_own_tls(admin)
    if expected is not None:
        [problem] = problems(data)
        assert problem.startswith(f"{ADMIN}: {expected}")
        return
    found = config_of(data, Path("/etc")).virtual_clusters[0].upstream.admin
    assert found.token_file in (None, "/etc/token")
    assert found.token_endpoint is None or found.token_endpoint.client_secret_file == "/etc/secret"


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"token_endpoint": {**ENDPOINT, "url": url}}, "token_endpoint.url")
        for url in (
            "http://id.example.com/token",
            "https://",
            "ftp://a/",
            "https://user@a/",
            "https://a:0/",
            "https://a:x/",
            "https://a/ b",
            "https://a/#b",
            "https://a/\n",
            "token",
            5,
        )
    ]
    + [
        ({"token_file": "token", "sasl_extensions": {"auth": "x"}}, "sasl_extensions.auth"),
        ({"token_file": "token", "sasl_extensions": {"a": "x\1y"}}, "sasl_extensions.a"),
        ({"token_file": "token", "sasl_extensions": {"a": 5}}, "sasl_extensions.a"),
    ],
)
def test_a_token_goes_nowhere_without_tls_and_extensions_are_what_sasl_takes(settings, place):
    admin = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", **settings}
    [problem] = problems(with_own_tls(admin))
    assert problem.startswith(f"{ADMIN}.{place}")


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/token", "http://[::1]/token", "http://localhost/t?a=b"])
def test_an_endpoint_on_this_machine_needs_no_tls(url):
    admin = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "token_endpoint": {**ENDPOINT, "url": url},
    }
    assert config_of(with_own_tls(admin)).virtual_clusters[0].upstream.admin.token_endpoint.url == url


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        (("quotas", "source"), "upstream"),
        (("quotas", "state_file"), "/tmp/state"),
        (("quotas", "windows", "quota_window_num"), 3),
        (("upstream", "admin", "ca_file"), "/tmp/ca.pem"),
    ],
)
def test_a_change_of_the_source_waits_for_a_restart(setting, value):
    old = changed(cluster("quotas"), {})
    new = copy.deepcopy(old)
    *sections_of_it, name = setting
    inner = new["virtual_clusters"][0]
    for section in sections_of_it:
        inner = inner.setdefault(section, {})
    inner[name] = value
    expected = f"virtual_clusters[0].{'.'.join(setting)}"
    assert changes_needing_restart(config_of(old), config_of(new)) == [expected]


def test_two_entries_of_one_entity_are_refused():
    data = changed(cluster("quotas", "entries", 1), {"client_id": "etl", "consumer_byte_rate": 1})
    assert problems(data) == [f"{ENTRIES}[1]: expected one entry for each entity, got the entity of {ENTRIES}[0]"]


def test_a_user_and_a_pair_with_that_user_are_two_entities():
    data = changed(cluster("quotas", "entries", 1), {"client_id": "etl", "user": "a", "consumer_byte_rate": 1})
    data["virtual_clusters"][0]["quotas"]["entries"].append({"user": "a", "consumer_byte_rate": 1})
    assert len(config_of(data).virtual_clusters[0].quotas.entries) == 3


def test_the_quotas_of_the_file_become_a_table():
    table = table_of(load_config(ROOT / "deploy" / "proxy.example.yaml").virtual_clusters[0])
    assert table.tags_and_limit(QuotaType.PRODUCE, "bob", "etl").limit == 1_048_576.0
    assert table.tags_and_limit(QuotaType.PRODUCE, "bob", "x").limit == 5_000_000.0
    assert table.tags_and_limit(QuotaType.FETCH, "alice", "x").entity == Entity(user="alice", client_id=DEFAULT)
    assert table[Entity(user=DEFAULT)][QuotaType.FETCH] == 10_000_000.0


def test_a_user_named_like_the_default_is_not_the_default():
    data = changed(cluster("quotas", "entries", 1), {"default_user": True, "producer_byte_rate": 7})
    data["virtual_clusters"][0]["quotas"]["entries"].append({"user": "<default>", "producer_byte_rate": 9})
    table = table_of(config_of(data).virtual_clusters[0])
    assert table[Entity(user=DEFAULT)][QuotaType.PRODUCE] == 7
    assert table[Entity(user="<default>")][QuotaType.PRODUCE] == 9


def test_names_are_unique():
    data = copy.deepcopy(MINIMAL)
    data["virtual_clusters"].append(copy.deepcopy(data["virtual_clusters"][0]))
    data["virtual_clusters"][1]["listeners"] = [
        {"name": "plain", "bind": "127.0.0.1", "port": 20000, "node_ids": [0]},
        {"name": "plain", "bind": "127.0.0.1", "port": 20010, "node_ids": [0]},
    ]
    assert problems(data) == [
        "virtual_clusters[1].name: expected a unique name, got 'main', the name of virtual_clusters[0]",
        "virtual_clusters[1].listeners[1].name: expected a unique name, got 'plain', the name of"
        " virtual_clusters[1].listeners[0]",
    ]


def second_listener(bind, port):
    value = {"name": "two", "bind": bind, "port": port, "node_ids": [0], "advertised_host": "b"}
    return changed(cluster("listeners", 1), value)


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0", "::"])
def test_listeners_may_not_share_a_port(bind):
    other = "virtual_clusters[0].listeners[1]"
    assert problems(second_listener(bind, 19094)) == [
        f"{other}.port: {TAKEN}, got 19094, taken by {LISTENER}.node_ids[0]",
        f"{other}.node_ids[0]: {TAKEN}, got 19095, taken by {LISTENER}.node_ids[0]",
    ]


def test_two_addresses_may_have_the_same_ports():
    assert len(config_of(second_listener("127.0.0.2", 19092)).virtual_clusters[0].listeners) == 2


@pytest.mark.rule("reload")
def test_all_problems_are_reported_in_one_run_even_where_one_could_hide_another():
    data = second_listener("127.0.0.1", 19094)
    data["virtual_clusters"][0]["listeners"][0].update(advertised_host="0.0.0.0", prot=3)
    data["virtual_clusters"][0]["quotas"]["entries"] = [{"user": "a"}, {"user": 7}]
    data["log"] = {"level": 1}
    assert [line.partition(":")[0] for line in problems(data)] == [
        f"{LISTENER}.advertised_host",
        f"{LISTENER}.prot",
        f"{ENTRIES}[0]",
        f"{ENTRIES}[1].user",
        "log.level",
        "virtual_clusters[0].listeners[1].port",
        "virtual_clusters[0].listeners[1].node_ids[0]",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "(file): expected a mapping, got nothing"),
        ("- a\n", "(file): expected a mapping, got a list"),
        (
            "log:\n  level: info\n  level: debug\n",
            'a.yaml: line 3, column 3: found duplicate key "level" with value "debug" (original value: "info")',
        ),
        ("log: [1\nx: 2\n", "a.yaml: line 2, column 2: expected ',' or ']', but got ':'"),
        ("a: *unknown\n", "a.yaml: line 1, column 4: found undefined alias 'unknown'"),
        ("a: 1\n---\nb: 2\n", "a.yaml: line 2, column 1: but found another document"),
        ("a: &x [*x]\n", "a.yaml: line 1, column 4: an alias inside the value that it refers to"),
        ("log: {1: x}\n", "a.yaml: line 1, column 7: expected a key that is text, got '1'"),
        ('log: {level: x, "\\ud800": y}\n', "a.yaml: line 1, column 17: expected a key that is text, got '\\ud800'"),
        ("log: {? [a] : x}\n", "a.yaml: line 1, column 9: expected a key that is text, got a list or mapping"),
        (
            "a: !!python/object:os.system x\n",
            "a.yaml: line 1, column 4: could not determine a constructor for the tag"
            " 'tag:yaml.org,2002:python/object:os.system'",
        ),
        ("ok: 1\na: \x00\n", "a.yaml: line 2: the character U+0000 is not allowed"),
        ("a: 2001-99-99\n", f"a.yaml: line 1, column 4: {NO_MONTH}"),
        ("ok: 1\na: !!int x\n", "a.yaml: line 2, column 4: invalid literal for int() with base 10: 'x'"),
        ('a: !!int ""\n', "a.yaml: line 1, column 4: expected a value of type int, got ''"),
        ('a: !!float ""\n', "a.yaml: line 1, column 4: expected a value of type float, got ''"),
        ("a: !!bool x\n", "a.yaml: line 1, column 4: expected a value of type bool, got 'x'"),
        ("[" * 60 + "]" * 60, "a.yaml: line 1, column 51: expected at most 50 levels, got more"),
        ("[" * 5000, "a.yaml: line 1, column 51: expected at most 50 levels, got more"),
        ("log:\n\tlevel: info\n", "a.yaml: line 2, column 1: a tab; YAML wants spaces"),
        ("log:\n  level: info\n \tformat: json\n", "a.yaml: line 3, column 2: a tab; YAML wants spaces"),
        ("- a: 1\n-\tb: 2\n", "a.yaml: line 2, column 2: a tab; YAML wants spaces"),
        ("\tlog: {}\n", "a.yaml: line 1, column 1: a tab; YAML wants spaces"),
        ("log:\n  level: info\n\t\tx\n", "a.yaml: line 3, column 1: a tab; YAML wants spaces"),
    ],
)
def test_invalid_yaml_is_reported_with_its_file_and_line(text, problem):
    with pytest.raises(Problems) as caught:
        config_in(text)
    assert str(caught.value) == problem


def test_one_port_that_two_of_very_many_listeners_claim_is_found():
    listeners = [
        {
            "name": f"l{i}",
            "advertised_host": "h",
            "bind": f"127.0.{i // 250}.{i % 250 + 1}",
            "port": 20_000,
            "node_ids": ["0-9"],
        }
        for i in range(1_500)
    ]
    listeners.append({**listeners[0], "name": "twin", "port": 20_010})
    raw = changed(("virtual_clusters", 0, "listeners"), listeners)
    with pytest.raises(ConfigErrors) as caught:
        config_of(raw)
    path = "virtual_clusters[0].listeners"
    assert [str(problem) for problem in caught.value.problems] == [
        f"{path}[1500].port: {TAKEN}, got 20010, taken by {path}[0].node_ids[0]"
    ]


def test_aliases_that_stand_for_millions_of_values_are_refused():
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    for i in range(1, 10):
        bomb += f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n"
    with pytest.raises(Problems) as caught:
        config_in(bomb)
    assert str(caught.value) == "a.yaml: line 5, column 5: expected at most 100000 values, got more"


@pytest.mark.parametrize(
    ("throttle", "cap_ms", "fetch"),
    [
        ({}, 20_000, "paced"),
        ({"mode": "mute", "fetch": "empty"}, 20_000, "empty"),
        ({"mode": "delay"}, 8_000, "paced"),
        ({"mode": "delay", "max_throttle_ms": 30_000}, 30_000, "paced"),
        ({"max_throttle_ms": 2**31 - 1, "max_debt_ms": 0, "fetch": "empty"}, 2**31 - 1, "empty"),
    ],
)
def test_a_delay_has_a_shorter_cap_unless_it_is_given_and_fetches_are_paced(throttle, cap_ms, fetch):
    config = config_of(changed(cluster("throttle"), throttle))
    throttle = config.virtual_clusters[0].throttle
    assert (throttle.max_throttle_ms, throttle.fetch) == (cap_ms, fetch)


def test_caps_are_taken_up_by_a_running_proxy():
    for path in (cluster("caps"), listener("caps")):
        new = config_of(changed(path, {"ingress_bytes_per_s": 1000, "egress_bytes_per_s": 2000}))
        assert changes_needing_restart(config_of(MINIMAL), new) == []
    assert new.virtual_clusters[0].listeners[0].caps.egress_bytes_per_s == 2000
    assert new.virtual_clusters[0].caps.egress_bytes_per_s is None
    expected = "expected a whole number from 1 to 9223372036854775807, got 0"
    wrong = changed(listener("caps"), {"ingress_bytes_per_s": 0})
    assert problems(wrong) == [f"{LISTENER}.caps.ingress_bytes_per_s: {expected}"]


def test_limits_of_connections_are_taken_up_by_a_running_proxy():
    overrides = {"max_connections_per_ip_overrides": {"10.0.0.1": 3}, "max_connections_per_user_overrides": {"bob": 0}}
    for path, value in (
        (("connections",), {"max_connections": 5, "max_connection_creation_rate": 0}),
        (listener("connections"), {"max_connections": 5, "max_connection_creation_rate": 7}),
        (cluster("connections"), {**overrides, "ip_refusal": "wait", "ipv6_prefix": 64}),
    ):
        assert changes_needing_restart(config_of(MINIMAL), config_of(changed(path, value))) == []


def test_counts_by_name_are_checked_one_by_one():
    counts = {"10.0.0.1": -1, "host": 3, "10.0.0.2": "5", "::ffff:10.0.0.9": 1, "10.0.0.9": 1}
    path = "virtual_clusters[0].connections.max_connections_per_ip_overrides"
    assert problems(changed(cluster("connections"), {"max_connections_per_ip_overrides": counts})) == [
        f"{path}['10.0.0.1']: expected a whole number from 0 to 2147483647, got -1",
        f"{path}.host: expected an IP address, got 'host'",
        f"{path}['10.0.0.2']: expected a whole number from 0 to 2147483647, got '5'",
    ]
    twice = {"max_connections_per_ip_overrides": {"::ffff:10.0.0.9": 1, "10.0.0.9": 1}}
    assert problems(changed(cluster("connections"), twice)) == [
        "virtual_clusters[0].connections: expected each address once in max_connections_per_ip_overrides,"
        " got '::ffff:10.0.0.9' and '10.0.0.9'"
    ]
    assert problems(changed(cluster("connections"), {"max_connections_per_user_overrides": 5})) == [
        "virtual_clusters[0].connections.max_connections_per_user_overrides: expected a mapping, got 5"
    ]
    users = {7: 1}
    assert problems(changed(cluster("connections"), {"max_connections_per_user_overrides": users})) == [
        "virtual_clusters[0].connections.max_connections_per_user_overrides[7]: "
        "expected the name of a user (numbers need quotes), got 7"
    ]


def test_connections_that_would_be_closed_before_they_wait_are_warned_about():
    config = config_of(changed(("connections",), {"max_connections": 10_000}))
    warned = [str(warning) for warning in warnings_of(config, range(0)) if warning.path.startswith("connections")]
    assert warned == [
        "connections.max_connections: expected less than limits.max_connections, 10000: beyond that they are closed"
        " and do not wait, got 10000"
    ]


def test_a_state_file_of_several_instances_is_warned_about():
    data = changed(cluster("quotas", "instances"), 2)
    data["virtual_clusters"][0]["quotas"]["state_file"] = "state.json"
    reported = [str(warning) for warning in warnings_of(config_of(data), range(60_000, 60_001))]
    problem = "expected nothing, as source 'file' of several instances takes no changes, got a file"
    assert f"virtual_clusters[0].quotas.state_file: {problem}" in reported


def test_an_empty_response_is_not_delayed():
    assert problems(changed(cluster("throttle"), {"mode": "delay", "fetch": "empty"})) == [
        "virtual_clusters[0].throttle: "
        "expected fetch: paced with mode: delay, got 'empty': an empty answer is never late"
    ]


def test_a_modest_alias_is_welcome():
    text = """
    virtual_clusters:
      - name: main
        upstream: {bootstrap_servers: ["k:9092"]}
        listeners:
          - {name: one, bind: 127.0.0.1, port: 1000, node_ids: &ids ["0-2"]}
          - {name: two, bind: 127.0.0.1, port: 2000, node_ids: *ids}
    """
    assert config_in(text).virtual_clusters[0].listeners[1].ports() == {0: 2001, 1: 2002, 2: 2003}


KEYS = [
    *("virtual_clusters", "upstream", "listeners", "quotas", "entries", "throttle", "metrics", "limits", "log"),
    *("name", "bind", "port", "node_ids", "spare_ports", "user", "client_id", "bootstrap_servers", "max_debt_ms"),
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=3)
    | st.dates()
    | st.sampled_from(["127.0.0.1", "::", "a:1", "0-5", "main", 19092, "7"])
)


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        SCALARS,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=5)
        ),
        max_leaves=40,
    ),
    st.sampled_from([(), ("log",), ("metrics",), ("virtual_clusters",), cluster(), cluster("quotas"), listener()]),
)
def test_whatever_is_in_the_file_becomes_a_configuration_or_problems_of_one_line(value, path):
    reported = "a configuration"
    try:
        config_of(changed(path, value) if path else value)
    except ConfigErrors as errors:
        reported = "; ".join(str(problem) for problem in errors.problems)
    assert reported
    assert reported.isprintable()


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!|>'\"#% \n\t\x00\x85?<,.0") | st.characters(), max_size=40))
def test_any_text_becomes_problems_of_one_line(text):
    with pytest.raises(Problems) as caught:
        config_in(text)
    assert str(caught.value).isprintable() or len(caught.value.problems) > 1


def test_files_that_cannot_be_read_are_named(tmp_path):
    def reported(path):
        with pytest.raises(ConfigErrors) as caught:
            load_config(path)
        return str(caught.value)

    missing = tmp_path / "missing.yaml"
    assert reported(missing) == f"{missing}: cannot be read: No such file or directory"
    assert reported(tmp_path) == f"{tmp_path}: cannot be read: Is a directory"
    huge = tmp_path / "huge.yaml"
    huge.write_bytes(b"#" * 4_194_305)
    assert reported(huge) == f"{huge}: expected at most 4194304 bytes, got more"
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("a: 1\nb: é\n".encode("latin-1"))
    assert reported(latin) == f"{latin}: line 2: expected UTF-8, got the byte 0xe9"
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    assert reported(empty) == f"{empty}: expected a mapping, got nothing"
    broken = tmp_path / "broken.yaml"
    broken.write_text("log: [1\nx: 2\n")
    assert reported(broken) == f"{broken}: line 2, column 2: expected ',' or ']', but got ':'"


def test_of_very_many_problems_the_first_hundred_are_reported():
    entries = [{"user": f"u{i}", "producer_byte_rat": 1} for i in range(5_000)]
    *first, last = problems(changed(cluster("quotas", "entries"), entries))
    assert [line.partition(":")[0] for line in first] == [f"{ENTRIES}[{i}].producer_byte_rat" for i in range(100)]
    assert last == "(file): has more problems than these"
    entries = [{"user": "u", "producer_byte_rate": 1}] * 102
    *first, last = problems(changed(cluster("quotas", "entries"), entries))
    assert (len(first), last) == (100, "(file): has more problems than these")
    assert len(problems(changed(cluster("quotas", "entries"), entries[:101]))) == 100


def test_ports_in_the_ephemeral_range_and_missing_quotas_are_warned_about():
    data = changed(cluster("quotas"), ...)
    warnings = [str(warning) for warning in warnings_of(config_of(data), range(19095, 30000))]
    assert warnings == [
        f"{LISTENER}.node_ids[0]: expected ports outside of the system's ephemeral range 19095-29999, got 19095",
        f"{ENTRIES}: expected quotas, got none: nobody is throttled",
    ]
    assert warnings_of(config_of(MINIMAL), range(32_768, 61_000)) == []


@pytest.mark.parametrize("bind", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_the_admin_listener_needs_no_token_where_only_this_machine_reaches_it(bind):
    assert config_of(changed(("admin", "bind"), bind)).admin.token_file is None


def test_an_http_listener_for_other_machines_whose_secrets_can_be_overheard_is_warned_about():
    admin = {"bind": "10.0.0.1", "token_file": "token"}
    metrics = {"bind": "0.0.0.0", "username": "prometheus", "password_file": "password"}
    config = config_of(changed(("admin",), admin) | {"metrics": metrics})
    assert [str(warning) for warning in warnings_of(config, range(0))] == [
        "admin.bind: expected a loopback address without tls, got '10.0.0.1': the token and what is told can be"
        " overheard",
        "metrics.bind: expected a loopback address without tls, got '0.0.0.0': the password can be overheard",
    ]
    tls = {"tls": {"certificate_file": "c"}}
    config = config_of(changed(("admin",), admin | tls) | {"metrics": metrics | tls})
    assert warnings_of(config, range(0)) == []
    without_password = changed(("admin",), admin | tls) | {"metrics": {"bind": "0.0.0.0"}}
    assert warnings_of(config_of(without_password), range(0)) == []


def overridden(*entries):
    config = config_of(changed(cluster("quotas", "entries"), list(entries)))
    return [str(warning).removeprefix(ENTRIES) for warning in warnings_of(config, range(0))]


def test_an_entry_that_another_one_always_beats_is_warned_about():
    everybody = {"default_user": True, "producer_byte_rate": 5}
    nobody = "binds nobody, as entries[1] of user=<default> always comes before"
    assert overridden({"client_id": "etl", "producer_byte_rate": 1}, everybody) == [f"[0].producer_byte_rate: {nobody}"]
    assert overridden({"default_client_id": True, "producer_byte_rate": 1}, everybody) == [
        f"[0].producer_byte_rate: {nobody}"
    ]
    assert overridden({"client_id": "etl", "consumer_byte_rate": 1}, everybody) == []
    assert overridden({"client_id": "etl", "shadow_producer_byte_rate": 1}, everybody) == []
    assert overridden({"client_id": "etl", "producer_byte_rate": 1}, {"user": "a", "producer_byte_rate": 5}) == []
    assert overridden({"default_ip": True, "connection_creation_rate": 1}, everybody) == []
    assert overridden({"user": "<default>", "producer_byte_rate": 1}, everybody) == [
        "[0].user: is the user of that name, for all others it is default_user: true"
    ]


def test_an_entry_that_binds_only_clients_without_a_client_id_is_warned_about():
    alice = {"user": "alice", "producer_byte_rate": 5}
    assert overridden(alice, {"user": "alice", "default_client_id": True, "producer_byte_rate": 1}) == [
        "[0].producer_byte_rate: binds only clients without a client-id, as entries[1] of user=alice,"
        " client-id=<default> always comes before"
    ]


def test_the_ephemeral_range_is_the_systems():
    ports = ephemeral_ports()
    assert 1 <= ports.start < ports.stop <= 65_536


LIVE = [
    (cluster("upstream", "bootstrap_servers"), ["127.0.0.9:9092"]),
    (cluster("quotas", "entries"), []),
    (cluster("throttle", "max_throttle_ms"), 5),
    (("limits", "max_frame_bytes"), 5_000),
    (("log", "level"), "debug"),
    (("metrics", "top_entities"), 3),
]


@pytest.mark.parametrize(("path", "value"), LIVE)
def test_a_running_proxy_takes_up(path, value):
    assert changes_needing_restart(config_of(MINIMAL), config_of(changed(path, value))) == []


FIXED = [
    (cluster("quotas", "instances"), 2, ["virtual_clusters[0].quotas.instances"]),
    (cluster("fleet"), {"zookeeper": {"servers": ["a:1"]}}, ["virtual_clusters[0].fleet"]),
    (listener("port"), 19093, [f"{LISTENER}.port"]),
    (listener("node_ids"), ["0-3"], [f"{LISTENER}.node_ids"]),
    (listener("advertised_host"), "b", [f"{LISTENER}.advertised_host"]),
    (listener("name"), "other", [f"{LISTENER}: added", f"{LISTENER}: removed"]),
    (cluster("name"), "other", ["virtual_clusters[0]: added", "virtual_clusters[0]: removed"]),
    (("metrics", "bind"), "127.0.0.2", ["metrics.bind"]),
    (("metrics", "port"), 9406, ["metrics.port"]),
    (("admin", "port"), 9406, ["admin.port"]),
    (("admin", "token_file"), "token", ["admin.token_file"]),
    (("limits", "max_sensors"), 50, ["limits.max_sensors"]),
    (("log", "format"), "console", ["log.format"]),
]


@pytest.mark.parametrize(("path", "value", "changes"), FIXED)
def test_a_restart_is_needed_for(path, value, changes):
    assert changes_needing_restart(config_of(MINIMAL), config_of(changed(path, value))) == changes


def test_the_order_of_listeners_in_the_file_does_not_matter():
    old = second_listener("127.0.0.1", 20_000)
    new = copy.deepcopy(old)
    new["virtual_clusters"][0]["listeners"].reverse()
    assert changes_needing_restart(config_of(old), config_of(new)) == []


def test_the_example_is_valid_and_shows_the_defaults():
    config = load_config(ROOT / "deploy" / "proxy.example.yaml")
    assert config.limits == Config.model_fields["limits"].default
    assert config.metrics == Config.model_fields["metrics"].default
    assert config.admin == Config.model_fields["admin"].default
    assert config.log == Config.model_fields["log"].default
    assert len(config.virtual_clusters[0].listeners[0].ports()) == 12


def test_the_page_about_the_configuration_is_in_step():
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    assert page == configuration_page(), (
        "run: python -m kafka_throttle.proxy.config.page > docs/reference/configuration.md"
    )


def test_the_page_has_the_cost_of_an_api_that_the_proxy_comes_with_none_for():
    without = next(api_key for api_key in API_KEYS.values() if cost_kind(api_key) not in SHIPPED)
    base_us, per_kib_us = re.search(
        r"any other API ([\d.]+) us, and ([\d.]+) us for each KiB", configuration_page()
    ).groups()
    costs = RequestCosts(SHIPPED).of_node(1)
    assert costs.us(cost_kind(without), 0) == float(base_us)
    assert costs.us(cost_kind(without), KIB) == float(base_us) + float(per_kib_us)


def test_every_setting_is_explained():
    rows = [line.split(" | ") for line in configuration_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 35
    assert [row[0] for row in rows if len(row) != 5 or len(row[3]) < 10] == []


def test_an_unreadable_file_has_another_error_than_an_invalid_one(tmp_path):
    """The first may pass by itself: it is read again."""
    with pytest.raises(ConfigUnreadable, match="cannot be read: Is a directory"):
        load_config(tmp_path)
    (tmp_path / "proxy.yaml").write_text("virtual_clusters: 1")
    with pytest.raises(ConfigErrors) as raised:
        load_config(tmp_path / "proxy.yaml")
    assert not isinstance(raised.value, ConfigUnreadable)


COSTS = "virtual_clusters[0].quotas.request_costs"


@pytest.mark.parametrize(
    ("cost", "problem"),
    [
        ({"api": "Produces", "base_us": 1}, f"{COSTS}[0].api: expected the name of a Kafka API, like Produce"),
        (
            {"api": "JoinGroup", "base_us": 1},
            f"{COSTS}[0].api: expected Heartbeat, whose cost is also that of JoinGroup",
        ),
        ({"api": "ShareFetch", "base_us": 1}, f"{COSTS}[0].api: expected Fetch, whose cost is also that of ShareFetch"),
        ({"api": "Produce"}, f"{COSTS}[0].base_us: expected a number of microseconds from 0 to 10000000, got nothing"),
        ({"api": "Produce", "base_us": -1}, f"{COSTS}[0].base_us: expected a number of microseconds from 0"),
        ({"api": "Produce", "base_us": 1, "per_kib_us": True}, f"{COSTS}[0].per_kib_us: expected a number of micro"),
        ({"api": "Produce", "base_us": float("nan")}, f"{COSTS}[0].base_us: expected a number of microseconds from 0"),
    ],
)
def test_a_cost_that_makes_no_sense_is_refused(cost, problem):
    [found] = problems(changed(cluster("quotas", "request_costs"), [cost]))
    assert found.startswith(problem)


def test_an_api_has_one_pinned_cost():
    costs = [{"api": "Fetch", "base_us": 80, "per_kib_us": 0.5}, {"api": "Produce", "base_us": 60.5}]
    config = config_of(changed(cluster("quotas", "request_costs"), costs))
    assert pinned_costs(config.virtual_clusters[0].quotas) == {0: Cost(60.5, 0.0), 1: Cost(80.0, 0.5)}
    assert problems(changed(cluster("quotas", "request_costs"), [*costs, costs[0]])) == [
        f"{COSTS}[2].api: expected one cost for each API, got that of {COSTS}[0]"
    ]


BALANCED = {"proxy_protocol": "required", "trusted_networks": ["10.0.0.0/8", "::1", "::ffff:192.0.2.0/120"]}


def balanced(**settings):
    data = copy.deepcopy(MINIMAL)
    data["virtual_clusters"][0]["listeners"][0].update(BALANCED, **settings)
    return data


def test_a_listener_may_trust_load_balancers():
    old, new = config_of(MINIMAL), config_of(balanced())
    assert changes_needing_restart(old, new) == []
    listeners = new.virtual_clusters[0].listeners
    assert [str(network) for network in listeners[0].trusted_networks] == ["10.0.0.0/8", "::1/128", "192.0.2.0/24"]
    assert warnings_of(new, range(0)) == []
    assert config_in(
        "virtual_clusters: [{name: a, upstream: {bootstrap_servers: ['b:1']}, listeners: [{name: c, "
        "bind: 127.0.0.1, port: 1, node_ids: [1], proxy_protocol: off}]}]"
    )


def test_the_networks_of_load_balancers_have_to_be_given():
    for mode in ("optional", "required"):
        assert problems(balanced(proxy_protocol=mode, trusted_networks=[])) == [
            f"{LISTENER}.trusted_networks: expected the networks of load balancers with proxy_protocol '{mode}', "
            "got nothing"
        ]
    for wrong in ("10.0.0.1/8", "fe80::1%eth0", "ten", 10):
        [found] = problems(balanced(trusted_networks=["10.0.0.1", wrong]))
        assert found.startswith(f"{LISTENER}.trusted_networks[1]: expected an IP address, or a network like 10.0.0.0/8")


def test_trusting_too_much_is_warned_about():
    everybody = config_of(balanced(proxy_protocol="optional", trusted_networks=["10.0.0.1", "0.0.0.0/0"]))
    assert [str(warning) for warning in warnings_of(everybody, range(0))] == [
        f"{LISTENER}.proxy_protocol: counts a load balancer that sends no header as one client: once all of them do, "
        "set 'required'",
        f"{LISTENER}.trusted_networks[1]: 0.0.0.0/0 is everybody: every client may claim to be at any address",
    ]


def test_settings_of_connections_to_nodes_may_change_but_not_send_proxy_protocol():
    paced = {**MINIMAL["virtual_clusters"][0]["upstream"], "connections_per_second": 20, "source_addresses": ["::1"]}
    assert changes_needing_restart(config_of(MINIMAL), config_of(changed(cluster("upstream"), paced))) == []
    telling = changed(cluster("upstream", "send_proxy_protocol"), True)
    assert changes_needing_restart(config_of(MINIMAL), config_of(telling)) == [
        "virtual_clusters[0].upstream.send_proxy_protocol"
    ]
    path = "virtual_clusters[0].upstream.source_addresses[0]"
    assert problems(changed(cluster("upstream", "source_addresses"), ["0.0.0.0"])) == [
        f"{path}: expected an IP address of this machine, got '0.0.0.0'"
    ]
    assert problems(changed(cluster("upstream", "connections_per_second"), 0)) == [
        "virtual_clusters[0].upstream.connections_per_second: expected a number above 0, got 0"
    ]


def test_sasl_is_demanded_where_the_proxy_itself_logs_in_unless_the_file_says_otherwise():
    admin = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "username": "a", "password_file": "b"}
    data = changed(cluster("upstream", "admin"), admin)
    assert config_of(MINIMAL).virtual_clusters[0].sasl.required is False
    assert config_of(data).virtual_clusters[0].sasl.required is True
    data["virtual_clusters"][0]["sasl"] = {"required": False}
    assert config_of(data).virtual_clusters[0].sasl.required is False
    data["virtual_clusters"][0]["sasl"] = {"oauth_claims": ["email"]}
    assert config_of(data).virtual_clusters[0].sasl.required is True


def test_claims_that_are_none_are_refused():
    claims = ["sub", {"claim": "azp", "prefix": "sa-"}, "", {"prefix": "x"}, {"claim": "a", "name": "b"}, 7]
    path = "virtual_clusters[0].sasl"
    assert sorted(problems(changed(cluster("sasl"), {"oauth_claims": claims, "required": "yes"}))) == [
        *(
            f"{path}.oauth_claims[{i}]: expected the name of a claim, or a mapping of `claim` and `prefix`, got {got}"
            for i, got in ((2, "''"), (3, "a mapping"), (4, "a mapping"), (5, 7))
        ),
        f"{path}.required: expected true or false, got 'yes'",
    ]


def test_a_setting_that_is_gone_is_refused_with_what_to_write():
    old = {"principals": [{"mechanism": "GSSAPI", "user": "kerberos"}], "subject_claim": "email"}
    path = "virtual_clusters[0].sasl"
    assert sorted(problems(changed(cluster("sasl"), old))) == [
        f"{path}.principals: this setting is gone, write user_names, like {{'?GSSAPI': the name of the user}}",
        f"{path}.subject_claim: this setting is gone, write oauth_claims: [the name of the claim]",
    ]


def test_users_stand_for_the_names_that_logins_show_and_may_change_without_a_restart():
    user_names = {"AKIAIOSFODNN7EXAMPLE": "billing", "?GSSAPI": "kerberos"}
    data = changed(cluster("sasl"), {"required": True, "user_names": user_names})
    assert config_of(data).virtual_clusters[0].sasl.user_names == user_names
    assert changes_needing_restart(config_of(MINIMAL), config_of(data)) == []
    path = "virtual_clusters[0].sasl"
    assert sorted(
        problems(changed(cluster("sasl"), {"user_names": {7: "a", "": "b", "c": "", "d": 7, "e": None}}))
    ) == [
        f"{path}.user_names.c: expected the name of a user (numbers need quotes), got ''",
        f"{path}.user_names.d: expected the name of a user (numbers need quotes), got 7",
        f"{path}.user_names.e: expected the name of a user (numbers need quotes), got nothing",
        f"{path}.user_names['']: expected a name that logins show (numbers need quotes), got ''",
        f"{path}.user_names[7]: expected a name that logins show (numbers need quotes), got 7",
    ]
    assert problems(changed(cluster("sasl"), {"user_names": ["a"]})) == [
        f"{path}.user_names: expected a mapping, got a list"
    ]


def test_the_claims_that_name_users_come_in_an_order():
    def sasl(**settings):
        return config_of(changed(cluster("sasl"), settings)).virtual_clusters[0].sasl

    claims = ["preferred_username", {"claim": "client_id", "prefix": "service-account-"}]
    assert sasl().claims() == (Claim("sub"),)
    assert sasl(oauth_claims=claims).claims() == (Claim("preferred_username"), Claim("client_id", "service-account-"))


def reported_warnings(data):
    return [str(warning) for warning in warnings_of(config_of(data), range(0))]


def test_trusted_networks_without_proxy_protocol_are_warned_about():
    data = copy.deepcopy(MINIMAL)
    [cluster] = data["virtual_clusters"]
    cluster["listeners"][0] |= {"trusted_networks": ["10.0.0.0/8"]}
    assert any(f"{LISTENER}.trusted_networks: is without effect while" in each for each in reported_warnings(data))
    cluster["listeners"][0] |= {"proxy_protocol": "required"}
    assert not any("trusted_networks" in each for each in reported_warnings(data))


@pytest.mark.parametrize(
    ("mechanism", "expected"),
    [
        ("PLAIN", "is without effect with PLAIN: its tokens name their users"),
        ("SCRAM-SHA-512", "is without effect with SCRAM-SHA-512"),
        ("gssapi", "expected the mechanism as nodes call it, GSSAPI, got gssapi"),
        ("GSSAPI", None),
        ("OAUTHBEARER", None),
    ],
)
def test_users_of_mechanisms_that_name_theirs_are_warned_about(mechanism, expected):
    data = copy.deepcopy(MINIMAL)
    data["virtual_clusters"][0]["sasl"] = {"user_names": {f"?{mechanism}": "u"}}
    path = f"virtual_clusters[0].sasl.user_names['?{mechanism}']"
    found = [each for each in reported_warnings(data) if each.startswith(path)]
    assert [expected in each for each in found] == ([True] if expected else [])


WRONG_TOGETHER = {
    CredentialsConfig: ({"username": "a"}, "", "expected security_protocol SASL_PLAINTEXT or SASL_SSL with a login"),
    UsageTopicConfig: (
        {**TOPIC, "username": "a"},
        "",
        "expected security_protocol SASL_PLAINTEXT or SASL_SSL with a login",
    ),
    UpstreamTlsConfig: ({"key_file": "k"}, "", "expected certificate_file with key_file"),
    ListenerConfig: ({"proxy_protocol": "required"}, ".trusted_networks", "expected the networks of load balancers"),
    ListenerTlsConfig: ({"certificate_file": "c", "ca_file": "a"}, "", "expected ca_file with client_auth"),
    QuotaEntry: ({"user": "a"}, "", "expected producer_byte_rate"),
    EntitySettings: ({"user": "a", "ip": "10.0.0.1"}, "", "expected an ip by itself"),
    EnsembleConfig: ({"username": "a"}, "", "expected username and password_file together"),
    ZooKeeperConfig: ({"username": "a"}, "", "expected username and password_file together"),
    ThrottleConfig: ({"max_debt_ms": 1}, ".max_debt_ms", "expected 0 or at least max_throttle_ms"),
    ClusterConnectionsConfig: (
        {"max_connections_per_ip_overrides": {"::1": 1, "0::1": 2}},
        "",
        "expected each address once",
    ),
    AdminConfig: ({"bind": "0.0.0.0"}, "", "expected token_file"),
    MetricsConfig: ({"username": "prometheus"}, "", "expected username and password_file together"),
    RequestCost: ({"api": "JoinGroup", "base_us": 1}, ".api", "expected Heartbeat, whose cost is also that of"),
    UsageConfig: ({"kafka": TOPIC}, "", "expected directory, as a topic gets what is in files"),
}


def together(model):
    """Whether settings of a section can be wrong together."""
    rules = model.__pydantic_decorators__
    return rules.field_validators or any(each.info.mode == "after" for each in rules.model_validators.values())


@pytest.mark.parametrize(
    ("pattern", "model"), [(pattern, model) for pattern, model in sections("", Config) if together(model)]
)
def test_problems_of_a_section_are_reported_wherever_the_section_stands(pattern, model):
    data, below, problem = WRONG_TOGETHER[model]
    for step in reversed(pattern.split(".")):
        data = {step.removesuffix("[]"): [data] if step.endswith("[]") else data}
    place = pattern.replace("[]", "[0]") + below
    assert any(each.startswith(f"{place}: {problem}") for each in problems(data))
