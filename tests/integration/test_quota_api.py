"""Quotas described and altered through the proxy, and a broker's own responses to the same requests."""

import contextlib
import time

import pytest

from kafka_throttle.quotas.entities import plain_ip
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.quota_admins import (
    altering,
    ask_with_java,
    ask_with_kadm,
    ask_with_kafka_python,
    describing,
)
from tests.integration.quota_client import QuotaClient
from tests.integration.quota_rows import ALTERS, DESCRIBES, DIFFERENT, POPULATION

_LAG_S = 30.0


@pytest.fixture
def alterable(kafka, tmp_path):
    """A proxy through which quotas may be altered."""
    with ProxyProcess(
        kafka, source={"state_file": str(tmp_path / "state.json"), "admin_listeners": ["plain"]}
    ) as proxy:
        yield proxy


@pytest.fixture
def sides(kafka, alterable):
    """A broker that enforces quotas, and the proxy before it; both begin without any."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(QuotaClient(kafka.address(1)))
        stack.callback(broker.clear)
        broker.clear()
        yield broker, stack.enter_context(QuotaClient((HOST, alterable.node_ports[1])))


def of_this_row(entries, number):
    """The entries with names that no other row has."""
    return [
        (tuple((part, name and name.replace("row", f"row{number}")) for part, name in entity), operations)
        for entity, operations in entries
    ]


def in_any_order(results):
    return sorted((code, message, sorted(entity, key=str)) for code, message, entity in results)


def plain(entries):
    """The entries with addresses in one spelling, as the proxy describes them."""
    return {
        frozenset((part, plain_ip(name) if part == "ip" and name else name) for part, name in entity): values
        for entity, values in entries.items()
    }


def settled(broker, wanted):
    """What the broker describes, once it is `wanted`, or for good: its Describe lags behind its Alter."""
    deadline = time.monotonic() + _LAG_S
    while (found := plain(broker.describe().entries)) != wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


@pytest.mark.every_kind
@pytest.mark.kraft
def test_every_request_to_alter_has_the_response_and_the_effect_that_it_has_at_a_broker(sides):
    broker, proxy = sides
    different = {}
    for number, (name, entries) in enumerate(ALTERS.items()):
        request, version = of_this_row(entries, number), number % 2
        for validate_only in (True, False):
            if name in DIFFERENT and not validate_only:
                continue
            theirs, ours = (in_any_order(side.alter(request, validate_only, version)) for side in sides)
            if theirs != ours:
                different[name] = (theirs, ours)
    assert different.keys() == DIFFERENT, {name: different.get(name) for name in different.keys() ^ DIFFERENT}
    described = proxy.describe().entries
    assert len(described) > 60
    assert settled(broker, described) == described


@pytest.mark.kraft
def test_every_filter_finds_what_it_finds_at_a_broker(sides):
    broker, proxy = sides
    for side in sides:
        assert {code for code, _, _ in side.alter(POPULATION)} == {0}
    described = proxy.describe().entries
    assert len(described) == len(POPULATION)
    assert settled(broker, described) == described
    for number, (name, components) in enumerate(DESCRIBES.items()):
        for strict in (False, True):
            theirs, ours = (side.describe(components, strict, number % 2) for side in sides)
            assert ours == theirs, f"{name}, strict: {strict}"


# ------------------------------------------------------------- other clients

NAMES = {"user": "ä user=/,'1'", "client-id": "app 1", "ip": "10.7.7.7"}
CLIENT_LIMITS = {
    "producer_byte_rate": 1e12,
    "consumer_byte_rate": 2e12,
    "request_percentage": 1234.5,
    "controller_mutation_rate": 99.25,
}
KINDS = [
    {"user": NAMES["user"]},
    {"user": None},
    {"client-id": NAMES["client-id"]},
    {"client-id": None},
    {"user": NAMES["user"], "client-id": NAMES["client-id"]},
    {"user": NAMES["user"], "client-id": None},
    {"user": None, "client-id": NAMES["client-id"]},
    {"user": None, "client-id": None},
    {"ip": NAMES["ip"]},
    {"ip": "2001:db8::1"},
    {"ip": None},
]
ALL = {frozenset(kind.items()): {"connection_creation_rate": 1e6} if "ip" in kind else CLIENT_LIMITS for kind in KINDS}
ALICE = frozenset({("user", "alice")})
BAD = frozenset({("client-id", "bad")})
ANONYMOUS = frozenset({("user", "ANONYMOUS")})


def is_well(response):
    return set(response.results.values()) == {(0, None)}


def work_as_admin(ask, bootstrap):
    """Every entity kind and key is set, found, judged and removed."""
    with_user = {entity for entity in ALL if "user" in dict(entity)}
    bad = {ALICE: {"producer_byte_rate": -1.0}, BAD: {"fast": 5.0}}
    (altered, everything, by_name, strictly, defaults, judged, changed, refused, after, gone, nothing) = ask(
        bootstrap,
        [
            altering(ALL),
            describing(),
            describing(("user", "exact", NAMES["user"]), ("client-id", "any", None)),
            describing(("user", "any", None), strict=True),
            describing(("ip", "default", None)),
            altering({ALICE: {"producer_byte_rate": 5.0}}, validate_only=True),
            altering({entity: {"consumer_byte_rate": None, "producer_byte_rate": 7.0} for entity in with_user}),
            altering(bad),
            describing(("user", "any", None)),
            altering({entity: dict.fromkeys(limits) for entity, limits in ALL.items()}),
            describing(),
        ],
    )
    assert is_well(altered)
    assert altered.results.keys() == ALL.keys()
    assert everything == (0, ALL)
    assert by_name.entries.keys() == {e for e in ALL if ("user", NAMES["user"]) in e and len(e) == 2}
    assert strictly.entries.keys() == {e for e in with_user if len(e) == 1}
    assert defaults.entries == {frozenset({("ip", None)}): {"connection_creation_rate": 1e6}}
    assert judged.results == {ALICE: (0, None)}
    assert is_well(changed)
    assert refused.results == {
        ALICE: (42, "Quota producer_byte_rate must be greater than 0"),
        BAD: (42, "Invalid configuration key fast"),
    }
    expected = {"producer_byte_rate": 7.0, "request_percentage": 1234.5, "controller_mutation_rate": 99.25}
    assert after.entries == dict.fromkeys(with_user, expected)
    assert is_well(gone)
    assert nothing == (0, {})


def is_refused_without_rights(ask, bootstrap):
    """Nothing is altered, and nothing found but what is one's own."""
    altered, everything, other, default, own = ask(
        bootstrap,
        [
            altering({ALICE: {"producer_byte_rate": 5.0}, ANONYMOUS: {"producer_byte_rate": None}}),
            describing(),
            describing(("user", "exact", "alice")),
            describing(("user", "default", None)),
            describing(("user", "exact", "ANONYMOUS")),
        ],
    )
    assert altered.results == dict.fromkeys([ALICE, ANONYMOUS], (31, "Cluster authorization failed."))
    assert everything == other == default == (31, {})
    assert own == (0, {ANONYMOUS: {"producer_byte_rate": 1e12}})


OWN = [{"user": "ANONYMOUS", "producer_byte_rate": 10**12}, {"user": "alice", "producer_byte_rate": 10**12}]


def test_kafka_python_alters_and_describes_every_entity_and_key(start_proxy, tmp_path):
    proxy = start_proxy(source={"state_file": str(tmp_path / "state.json"), "admin_users": ["ANONYMOUS"]})
    work_as_admin(ask_with_kafka_python, proxy.bootstrap)
    audited = [line for line in proxy.events("quota_altered") if line["entity"] == "client-id='app 1'"]
    changes = [(line["quota"], line.get("old"), line.get("new")) for line in audited]
    set_and_removed = [(key, None, value) for key, value in CLIENT_LIMITS.items()]
    assert changes == set_and_removed + [(key, value, None) for key, _, value in set_and_removed]
    who = {"user": "ANONYMOUS", "client_id": "kafka-throttle", "listener": "plain", "virtual_cluster": "main"}
    for line in audited:
        assert {key: line.get(key) for key in who} == who
        assert line["client"].startswith("127.0.0.1:")


def test_kafka_python_is_refused_what_is_not_its_own(start_proxy):
    is_refused_without_rights(ask_with_kafka_python, start_proxy(OWN).bootstrap)


@pytest.mark.nightly
def test_javas_admin_client_alters_and_describes_every_entity_and_key(kafka, alterable):
    work_as_admin(ask_with_java(kafka.version), alterable.bootstrap)


@pytest.mark.nightly
def test_kadm_alters_and_describes_every_entity_and_key(newest_kafka, alterable):
    work_as_admin(ask_with_kadm, alterable.bootstrap)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "ask", [ask_with_java("4.3.1"), ask_with_java("3.9.2"), ask_with_kadm], ids=["4.3.1", "3.9.2", "kadm"]
)
def test_admin_clients_are_refused_what_is_not_their_own(start_proxy, ask):
    is_refused_without_rights(ask, start_proxy(OWN).bootstrap)


# ------------------------------------------------------------- kafka-configs


OPTIONS = {"user": "users", "client-id": "clients", "ip": "ips"}
LABELS = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}
PLAIN_NAMES = {NAMES["user"]: "dc=it, user 1"}
"""An argument of a program that is beyond ASCII needs a locale that a machine may not have."""


class KafkaConfigs:
    """Kafka's own tool for quotas, of the cluster's version, at a proxy."""

    def __init__(self, cluster, proxy):
        self._cluster = cluster
        self._proxy = proxy

    def set(self, kind, limits):
        """Set limits of an entity."""
        self.run("--alter", *self._options(kind), "--add-config", ",".join(f"{k}={v}" for k, v in limits.items()))

    def remove(self, kind, keys):
        """Remove limits of an entity."""
        self.run("--alter", *self._options(kind), "--delete-config", ",".join(keys))

    def describe(self, kind):
        """The described limits of an entity; there may be no other entities."""
        printed = self.run("--describe", *self._options(kind)).strip()
        if not printed:
            return {}
        subject = ", ".join(
            f"the default {LABELS[part]}" if name is None else f"{LABELS[part]} '{name}'" for part, name in kind.items()
        )
        start, _, limits = printed.rpartition(" are ")
        assert start == f"Quota configs for {subject}"
        return {key: float(value) for key, value in (limit.split("=") for limit in limits.split(", "))}

    def run(self, *options):
        """What it prints. RuntimeError if it fails."""
        return self._cluster.tool("kafka-configs", "--bootstrap-server", self._proxy.bootstrap, *options)

    def _options(self, kind):
        for part, name in kind.items():
            yield from ("--entity-type", OPTIONS[part])
            yield from ("--entity-default",) if name is None else ("--entity-name", name)


def test_kafka_configs_alters_and_describes(newest_kafka, alterable):
    configs, kind = KafkaConfigs(newest_kafka, alterable), {"user": "alice", "client-id": None}
    configs.set(kind, CLIENT_LIMITS)
    assert configs.describe(kind) == CLIENT_LIMITS
    configs.remove(kind, ["consumer_byte_rate", "request_percentage"])
    with QuotaClient((HOST, alterable.port)) as client:
        left = {"producer_byte_rate": 1e12, "controller_mutation_rate": 99.25}
        assert client.describe().entries == {frozenset(kind.items()): left}


@pytest.mark.nightly
def test_kafka_configs_alters_and_describes_every_entity_and_key(kafka, alterable):
    configs = KafkaConfigs(kafka, alterable)
    kinds = [{part: PLAIN_NAMES.get(name, name) for part, name in kind.items()} for kind in KINDS]
    limits = [dict(ALL[frozenset(kind.items())]) for kind in KINDS]
    for kind, wanted in zip(kinds, limits, strict=True):
        configs.set(kind, wanted)
    for kind, wanted in zip(kinds, limits, strict=True):
        assert configs.describe(kind) == wanted
    for kind, wanted in zip(kinds, limits, strict=True):
        configs.remove(kind, wanted)
    with QuotaClient((HOST, alterable.port)) as client:
        assert client.describe().entries == {}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--entity-name", "alice", "--add-config", "producer_byte_rate=-5"], "must be greater than 0"),
        (["--entity-name", "alice", "--add-config", "request_percentage=NaN"], "expected a number above 0, got nan"),
        (["--entity-name", "alice", "--add-config", "shadow_producer_byte_rate=5"], "shadow_producer_byte_rate"),
    ],
)
def test_kafka_configs_shows_what_is_refused(newest_kafka, alterable, options, problem):
    with pytest.raises(RuntimeError, match=problem):
        KafkaConfigs(newest_kafka, alterable).run("--alter", "--entity-type", "users", *options)


@pytest.mark.nightly
def test_kafka_configs_is_refused_what_is_not_its_own(newest_kafka, start_proxy):
    configs = KafkaConfigs(newest_kafka, start_proxy(OWN))
    assert configs.describe({"user": "ANONYMOUS"}) == {"producer_byte_rate": 1e12}
    for attempt in (lambda: configs.describe({"user": "alice"}), lambda: configs.set({"user": "alice"}, CLIENT_LIMITS)):
        with pytest.raises(RuntimeError, match="ClusterAuthorizationException: Cluster authorization failed"):
            attempt()
