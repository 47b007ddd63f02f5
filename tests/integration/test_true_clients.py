"""Addresses of clients behind load balancers, and connections that are closed for taking too long."""

import contextlib
import json
import re
import socket
import ssl
import struct
import subprocess
import tempfile
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer

from kafka_throttle.common.child_process import die_with_parent
from kafka_throttle.protocol.identity.proxy_header import Endpoint, proxy_header_v2
from kafka_throttle.proxy.cli.main import main
from tests.bench.processes import need_tool
from tests.integration import certified, steady_producers
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.raw_client import RawClient
from tests.integration.steady_producers import PARTITIONS, Load
from tests.integration.topics import make_topic
from tests.support.certificates import Authority
from tests.support.timeouts import TIMEOUT_S

BALANCER, BALANCER_HOST = "127.0.0.9", "127.0.0.2"
"""Where it connects from, and where it listens: at the proxy's own ports."""
CLIENT = "127.0.0.77"
RATE = 1000


class BehindBalancer(ProxyProcess):
    """A proxy that sends its clients to a load balancer and trusts its headers."""

    def __init__(self, cluster, quotas=(), listener=None, connections=None, **settings):
        self._listener = {"proxy_protocol": "required", **(listener or {})}
        self._connections = connections or {}
        super().__init__(cluster, quotas, **settings)

    def config(self, quotas=()):
        config = super().config(quotas)
        config["virtual_clusters"][0]["listeners"][0].update(self._listener)
        config["virtual_clusters"][0]["connections"] = self._connections
        return config


@contextlib.contextmanager
def haproxy(proxy, version, routes=None):
    """HAProxy before all ports of the proxy.

    `routes` are addresses from which to come there, each by an address to connect to: for clients that cannot choose
    their address.
    """
    header = {1: "send-proxy", 2: "send-proxy-v2 proxy-v2-options unique-id,crc32c"}[version]
    proxies = "".join(
        f"""
listen port{port}
  bind {BALANCER_HOST}:{port}
  unique-id-format %rt
  server proxy {HOST}:{port} source {BALANCER} {header}
"""
        for port in sorted(proxy.ports)
    )
    proxies += "".join(
        f"""
listen from{source}port{port}
  bind {gate}:{port}
  server balancer {BALANCER_HOST}:{port} source {source}
"""
        for source, gate in (routes or {}).items()
        for port in sorted(proxy.ports)
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "haproxy.cfg"
        file.write_text(
            "global\n  nbthread 1\n  maxconn 500\ndefaults\n  mode tcp\n  timeout connect 60s\n"
            f"  timeout client 1h\n  timeout server 1h\n{proxies}"
        )
        command = [need_tool("haproxy", "haproxy"), "-db", "-q", "-f", str(file)]
        process = subprocess.Popen(command, preexec_fn=die_with_parent)
        try:
            proxy.wait_for(lambda: reachable(BALANCER_HOST, proxy.port), TIMEOUT_S, "HAProxy")
            yield
        finally:
            process.kill()
            process.wait()


def reachable(host, port):
    try:
        socket.create_connection((host, port), TIMEOUT_S).close()
    except ConnectionRefusedError:
        return False
    return True


def write_and_read(library, topic):
    """Ten records there and back, by librdkafka, in a separate group."""
    producer = Producer({**library, "client.id": "true"})
    for number in range(10):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({**library, "group.id": f"{topic}-{uuid4()}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    with contextlib.closing(consumer):
        messages = [consumer.poll(TIMEOUT_S) for _ in range(10)]
    assert [message.value() for message in messages] == [str(number).encode() for number in range(10)]


def explained(proxy, **who):
    arguments = [argument for key, value in who.items() for argument in (f"--{key.replace('_', '-')}", value)]
    done = CliRunner().invoke(main, ["explain", "-c", str(proxy.config_path), *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize(("version", "encrypted"), [(1, False), (2, True)], ids=["v1", "v2 and TLS"])
def test_behind_haproxy_the_client_is_the_client(newest_kafka, tmp_path, version, encrypted):
    topic = f"balanced-{version}"
    make_topic(newest_kafka.bootstrap_servers, topic)
    listener = {"advertised_host": BALANCER_HOST, "trusted_networks": [f"{BALANCER}/32"]}
    tls, library = None, {}
    if encrypted:
        authority = Authority(tmp_path)
        issued = authority.issue(BALANCER_HOST)
        listener["tls"] = {"certificate_file": str(issued.certificate_file), "key_file": str(issued.key_file)}
        tls = ssl.create_default_context(cafile=authority.file)
        library = {"security.protocol": "SSL", "ssl.ca.location": str(authority.file)}
    quota = {"client_id": "raw", "producer_byte_rate": RATE}
    counts = {"max_connections_per_ip_overrides": {CLIENT: 2}}
    with BehindBalancer(newest_kafka, [quota], listener, counts) as proxy, haproxy(proxy, version):
        library["bootstrap.servers"] = f"{BALANCER_HOST}:{proxy.port}"
        write_and_read(library, topic)
        proxy.wait_for(lambda: of_clients(proxy, HOST), TIMEOUT_S, "closed connections of the library")
        assert all(line["proxied_by"] == BALANCER for line in of_clients(proxy, HOST))

        with RawClient((BALANCER_HOST, proxy.node_ports[1]), "raw", CLIENT, tls) as raw:
            assert raw.produce(20 * RATE).throttle_time_ms > 0
            [started] = proxy.wait_for(lambda: proxy.events("throttle_started"), TIMEOUT_S, "word of the throttle")
            assert started["client"].startswith(f"{CLIENT}:")
            reported = explained(proxy, client_id="raw")
            only_so_many_connect_from_its_address(proxy, tls)
            write_and_read(library, topic)
        ips = {past["ip"] for quota in reported["quotas"] for past in quota["throttles"]}
        assert ips == {CLIENT}

        with socket.create_connection((HOST, proxy.port), TIMEOUT_S, (CLIENT, 0)) as around:
            around.sendall(proxy_header_v2(Endpoint("192.0.2.1", 1), Endpoint(HOST, proxy.port)))
            assert ends(around)
        closed = proxy.closed()
        assert closed.pop("proxy_peer_untrusted") == closed.pop("too_many_from_ip") == 1
        assert not [reason for reason in closed if reason.startswith(("proxy", "too_many"))]


ROUTES = {"127.0.0.81": "127.0.0.31", "127.0.0.82": "127.0.0.32", "127.0.0.83": "127.0.0.33"}
"""A client's address is where it connects to; HAProxy alone is in between, and sends no header."""
ADDRESSES = dict(zip(("Java", "kafka-python", "franz-go"), ROUTES, strict=True))
NAME = "balancer.kafka.test"
OFTEN = 50


def address_quotas(banned=None):
    """Connections per second of each client's address: none of one."""
    rates = {address: 0 if address == banned else OFTEN for address in ROUTES}
    return [{"ip": address, "connection_creation_rate": rate} for address, rate in rates.items()]


@pytest.mark.nightly
def test_java_python_and_go_behind_haproxy_are_known_by_their_own_addresses(newest_kafka, certificates, tmp_path):
    """HAProxy sends it in version 2 of the protocol, and passes TLS on, with a certificate of the client."""
    topic = "balanced-libraries"
    make_topic(newest_kafka.bootstrap_servers, topic, PARTITIONS)
    tls = certificates.of_listener(NAME, *ROUTES.values(), name="balanced")
    listener = {"advertised_host": NAME, "trusted_networks": [f"{BALANCER}/32"], "tls": tls}
    rate = {"user": certified.USER, "producer_byte_rate": RATE}
    quotas = [rate, *address_quotas()]
    soon = {"max_throttle_ms": 200, "max_debt_ms": 0}
    behind = BehindBalancer(newest_kafka, quotas, listener, throttle=soon)
    with behind as proxy, haproxy(proxy, 2, ROUTES), contextlib.ExitStack() as stack:
        loads = {}
        for library, address in ADDRESSES.items():
            producer = start_behind(library, proxy, ROUTES[address], topic, newest_kafka, certificates, tmp_path)
            loads[library] = stack.enter_context(Load(producer, 20 * RATE))
        for load in loads.values():
            for _ in range(PARTITIONS):
                load.send()
        for library, load in loads.items():
            load.arrive()
            is_known_by_its_address(proxy, library, ADDRESSES[library])

        banned = ADDRESSES["Java"]
        proxy.write_config([rate, *address_quotas(banned)])
        proxy.wait_for(lambda: rate_of(proxy, banned)["limit"] == 0, TIMEOUT_S, "the ban")
        with socket.create_connection((ROUTES[banned], proxy.port), TIMEOUT_S) as refused:
            assert ends(refused)
        assert proxy.closed()["ip_rate_exceeded"] > 0
        with RawClient((ROUTES[ADDRESSES["franz-go"]], proxy.port), "raw", tls=certificates.context()) as raw:
            raw.produce(100)
        for load in loads.values():
            load.send()
            load.arrive()


def start_behind(library, proxy, gate, topic, cluster, certificates, folder):
    """A producer for which the balancer's name is the address of its route there."""
    hosts = folder / f"hosts-{library}"
    hosts.write_text(f"127.0.0.1 localhost\n{gate} {NAME}\n")
    servers = f"{NAME}:{proxy.port}"
    match library:
        case "Java":
            java = {"bootstrap.servers": servers, "client.id": library, **certificates.java()}
            return steady_producers.with_java(cluster, topic, folder / "java.properties", java, hosts)
        case "franz-go":
            go = {"bootstrap": servers, "client_id": library, "tls": certificates.go()}
            return steady_producers.with_franz_go(topic, go, hosts)
    python = {"bootstrap_servers": servers, "client_id": library, **certificates.python_files()}
    return steady_producers.piped(library, topic, python, hosts)


def is_known_by_its_address(proxy, library, address):
    """In the log, and where quotas are explained."""
    lines = proxy.wait_for(
        lambda: [line for line in proxy.events("throttle_started") if line["client_id"] == library],
        TIMEOUT_S,
        "word of a throttle",
    )
    assert {(line["user"], line["client"].split(":")[0]) for line in lines} == {(certified.USER, address)}
    reported = explained(proxy, user=certified.USER, client_id=library)
    throttles = [past for quota in reported["quotas"] for past in quota["throttles"] if past["client_id"] == library]
    assert {past["ip"] for past in throttles} == {address}
    assert rate_of(proxy, address)["limit"] == OFTEN
    of_address = [note for quota in explained(proxy, ip=address)["quotas"] for note in quota["notes"]]
    assert [note for note in of_address if re.match(f"open connections from {address}: [1-9]", note)]


def rate_of(proxy, address):
    """The rule for connections from an address."""
    reported = explained(proxy, ip=address)
    [rule] = [quota["rule"] for quota in reported["quotas"] if quota["quota"] == "connection_creation_rate"]
    return rule


def only_so_many_connect_from_its_address(proxy, tls):
    """Two may; that they all come from the load balancer is nothing to it."""
    with RawClient((BALANCER_HOST, proxy.node_ports[2]), "another", CLIENT, tls) as second:
        second.produce(100)
        with socket.create_connection((BALANCER_HOST, proxy.port), TIMEOUT_S, (CLIENT, 0)) as third:
            assert ends(third)
            client = "{}:{}".format(*third.getsockname())
        refused = proxy.wait_for(lambda: proxy.events("connection_refused"), TIMEOUT_S, "word of the refusal")
        assert [(line["client"], line["proxied_by"]) for line in refused] == [(client, BALANCER)]
        second.produce(100)


def of_clients(proxy, host):
    """The ends of clients at an address that a load balancer has reported."""
    lines = proxy.events("connection_closed")
    return [line for line in lines if line["client"].startswith(f"{host}:") and "proxied_by" in line]


def ends(sock):
    """Whether the other end closes without a word."""
    sock.settimeout(TIMEOUT_S)
    with contextlib.suppress(ConnectionResetError):
        return sock.recv(1) == b""
    return True


def test_a_proxy_before_a_proxy_passes_the_addresses_of_its_clients_on(newest_kafka):
    """Both the requests that it carries and its own ones."""
    topic = "chained"
    make_topic(newest_kafka.bootstrap_servers, topic)
    sending_headers = {"send_proxy_protocol": True, "source_addresses": [BALANCER]}
    with BehindBalancer(newest_kafka, listener={"trusted_networks": [f"{BALANCER}/32", HOST]}) as inner:
        with ProxyProcess(inner.bootstrap, upstream=sending_headers) as outer:
            write_and_read({"bootstrap.servers": outer.bootstrap}, topic)
            with RawClient((HOST, outer.node_ports[2]), "raw", CLIENT) as raw:
                raw.produce(100)
            [line] = inner.wait_for(lambda: of_clients(inner, CLIENT), TIMEOUT_S, "the end of the raw client")
        assert (line["proxied_by"], line["node_id"], line["requests"]) == (BALANCER, 2, 1)
        own = [line for line in inner.events("connection_closed") if "proxied_by" not in line]
        assert own, "no request was sent over connections of the proxy's own"
        assert set(inner.closed()) <= {"client_closed", "client_lost", "client_sent_nothing"}


API_VERSIONS = struct.pack(">ihhih", 14, 18, 0, 7, 4) + b"slow"


def test_a_client_that_takes_too_long_is_closed_and_no_other_is(newest_kafka):
    limits = {"request_timeout_ms": 8000, "idle_timeout_ms": 8000}
    soon = {"LimitsConfig.first_byte_timeout_ms": 8000}
    log = {"level": "debug"}  # of three that take too long for a request, one is logged
    with (
        ProxyProcess(newest_kafka, limits=limits, log=log, constants=soon) as proxy,
        contextlib.ExitStack() as stack,
    ):
        clients = {
            stack.enter_context(socket.create_connection((HOST, proxy.port), TIMEOUT_S)): (sent, reason)
            for sent, reason in (
                (b"", "first_byte_timeout"),
                (API_VERSIONS[:3], "request_timeout"),
                (API_VERSIONS[:-1], "request_timeout"),
                (API_VERSIONS, "idle_timeout"),
                (API_VERSIONS + API_VERSIONS[:9], "request_timeout"),
            )
        }
        for sock, (sent, _) in clients.items():
            sock.sendall(sent)
        for sock, (_, reason) in clients.items():
            client = "{}:{}".format(*sock.getsockname())
            while sock.recv(4096):
                pass
            assert proxy.closing_line(client)["reason"] == reason
        assert proxy.closed() == {"first_byte_timeout": 1, "request_timeout": 3, "idle_timeout": 1}
