"""Incoming connections: which are admitted, held, made to wait or closed. Judged by counts alone; no cluster needed.

Addresses are those of 127.0.0.0/8, which all are this machine.
"""

import json
import socket
from contextlib import ExitStack, suppress

import pytest

from tests.integration.proxy_process import HOST, ProxyProcess
from tests.support.timeouts import TIMEOUT_S

A, B, C, BANNED = "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.9"
NOBODY = "127.0.0.1:1"


class AtTheGate:
    """Connects to a proxy from addresses of its choice; what it has opened is closed at the end."""

    def __init__(self, stack, proxy):
        self.proxy = proxy
        self._stack = stack
        self.sockets = []

    def connect(self, address, count=1, port=None):
        """So many connections, one after another; each stands as far as the kernel goes.

        The proxy may have reset a connection before `connect` returns here: it counts nevertheless.
        """
        for _ in range(count):
            sock = self._stack.enter_context(socket.socket())
            sock.settimeout(TIMEOUT_S)
            sock.bind((address, 0))
            with suppress(ConnectionResetError):
                sock.connect((HOST, port or self.proxy.port))
            self.sockets.append(sock)
        return self.sockets[-count:]

    def admitted(self, **labels):
        """How many have been let in so far."""
        return int(self.proxy.metric("connections_opened_total", **labels))

    def refusals(self, least):
        """The log lines about refused connections; another thread reads them, so they may come late."""
        self.wait_for(lambda: len(self.proxy.events("connection_refused")) >= least, "their log lines")
        return self.proxy.events("connection_refused")

    def wait_for(self, condition, what):
        self.proxy.wait_for(condition, TIMEOUT_S, what)

    def settled(self, admitted, **closed):
        """So many are admitted, so many closed, and none waits: each is accounted for."""

        def are_there():
            return self.admitted() == admitted and self.proxy.closed() == closed

        self.wait_for(are_there, f"{admitted} admitted and {closed} closed")
        assert self.proxy.metric("held_connections") == 0


@pytest.fixture
def start():
    """Starts a proxy without a cluster, with these quotas and limits of connections."""
    with ExitStack() as stack:

        def begin(quotas=(), of_cluster=None, of_listener=None, of_instance=None, second=False, constants=None):
            proxy = ProxyProcess(NOBODY, quotas, ready=False, limits={"drain_s": 0}, constants=constants)
            proxy.write_text(json.dumps(config(proxy, quotas, of_cluster, of_listener, of_instance, second)))
            return AtTheGate(stack, stack.enter_context(proxy))

        yield begin


def config(proxy, quotas=(), of_cluster=None, of_listener=None, of_instance=None, second=False):
    made = proxy.config(quotas)
    [cluster] = made["virtual_clusters"]
    [listener] = cluster["listeners"]
    made["connections"] = of_instance or {}
    cluster["connections"] = of_cluster or {}
    listener["connections"] = of_listener or {}
    if second:
        listener["node_ids"] = ["1"]
        cluster["listeners"].append({**listener, "name": "other", "port": listener["port"] + 2, "connections": {}})
    return made


def rates(**of):
    return [
        {"default_ip": True, "connection_creation_rate": of.pop("default", 1_000_000)},
        *({"ip": ip, "connection_creation_rate": rate} for ip, rate in ((BANNED, 0), (A, of.pop("a", 1)))),
    ]


@pytest.mark.rule("connection rate")
def test_each_address_has_its_rate_a_ban_holds_and_a_change_is_live(start):
    gate = start(rates(default=1_000, a=3))
    first = gate.connect(A, 30)
    gate.connect(B, 50)
    gate.wait_for(lambda: gate.admitted() == 80, "ten seconds' worth at once, and the others")
    refused = gate.connect(BANNED, 5)
    for sock in refused:
        assert sock.recv(1) == b"", "held, then closed"
    gate.settled(80, ip_rate_exceeded=5)
    reported = {one["quota"]: one for one in gate.proxy.admin(f"explain?ip={BANNED}")["quotas"]}[
        "connection_creation_rate"
    ]
    assert (reported["enforced"], reported["rule"]["entity"], reported["rule"]["limit"]) == (True, {"ip": BANNED}, 0)
    assert [(use["limit"], use["throttles"]) for use in reported["use"]] == [(0, 5)]
    assert reported["notes"] == [f"open connections from {BANNED}: 0"]
    gate.proxy.write_text(json.dumps(config(gate.proxy, rates(default=0, a=1_000))))
    gate.wait_for(lambda: gate.proxy.metric("ip_connection_accept_limit", ip=A) == 1_000, "the rate of A as it is now")
    gate.connect(A, 30)
    gate.wait_for(lambda: gate.admitted() == 110, "more of A")
    for sock in gate.connect(B, 2):
        assert sock.recv(1) == b""
    gate.settled(110, ip_rate_exceeded=7)
    assert first[0].fileno() > 0


def test_refused_connections_are_not_counted_and_more_than_may_be_held_are_reset(start):
    gate = start(rates(), constants={"ClusterConnectionsConfig.max_held_per_ip": 4})
    gate.connect(BANNED, 20)
    gate.wait_for(lambda: sum(gate.proxy.closed().values()) == 20, "all of them closed")
    closed = gate.proxy.closed()
    assert closed.keys() == {"ip_rate_exceeded", "too_many_held"}
    assert closed["ip_rate_exceeded"] >= 4
    assert (gate.admitted(), gate.proxy.metric("instance_connections")) == (0, 0)
    line, *_ = gate.refusals(1)
    assert (line["client"].split(":")[0], line["counts_as"], line["level"]) == (BANNED, BANNED, "warning")


@pytest.mark.rule("connections")
def test_an_address_has_as_many_connections_as_it_may_and_those_that_leave_count_no_more(start):
    gate = start(of_cluster={"max_connections_per_ip": 3, "max_connections_per_ip_overrides": {B: 1}})
    first, *_ = gate.connect(A, 3)
    gate.connect(B)
    gate.wait_for(lambda: gate.admitted() == 4, "all that may")
    for sock in (*gate.connect(A, 2), *gate.connect(B)):
        assert sock.recv(1) == b""
    gate.settled(4, too_many_from_ip=3)
    first.close()
    gate.wait_for(lambda: gate.proxy.metric("instance_connections") == 3, "one less")
    gate.connect(A)
    gate.wait_for(lambda: gate.admitted() == 5, "one more")


def test_a_full_listener_has_the_next_ones_wait_and_another_goes_on(start):
    gate = start(of_listener={"max_connections": 2}, second=True)
    first, _ = gate.connect(A, 2)
    waiting = gate.connect(A, 3)
    gate.wait_for(lambda: gate.proxy.metric("client_sockets") == 3, "one that waits, the others in the backlog")
    gate.connect(B, 5, port=gate.proxy.port + 2)
    gate.wait_for(lambda: gate.admitted(listener="other") == 5, "those of the other listener")
    assert gate.admitted(listener="plain") == 2
    first.close()
    gate.wait_for(lambda: gate.admitted(listener="plain") == 3, "the one that waited")
    gate.proxy.write_text(json.dumps(config(gate.proxy, second=True)))
    gate.wait_for(lambda: gate.admitted(listener="plain") == 5, "the others, without a limit")
    assert all(sock.fileno() > 0 for sock in waiting)


def test_a_listener_over_its_rate_has_them_come_one_after_the_other_and_loses_none(start):
    gate = start(of_listener={"max_connection_creation_rate": 2}, of_instance={"max_connection_creation_rate": 1_000})
    gate.connect(A, 32)
    gate.wait_for(lambda: gate.admitted() == 32, "all of them, the last ones late")
    assert gate.proxy.closed() == {}
    waits = gate.proxy.metric("connection_accept_throttles_total", listener="plain")
    assert waits >= 1
    assert gate.proxy.metric("connection_accept_throttle_seconds_total", listener="plain") > 0
    assert gate.proxy.metric("connection_accept_limit", listener="plain") == 2
    assert gate.proxy.metric("instance_connection_accept_limit") == 1_000


def test_the_instance_has_as_many_as_it_may_over_all_listeners(start):
    gate = start(of_instance={"max_connections": 3}, second=True)
    first, *_ = gate.connect(A, 3)
    gate.wait_for(lambda: gate.admitted() == 3, "as many as may")
    gate.connect(A, port=gate.proxy.port)
    gate.connect(B, port=gate.proxy.port + 2)
    gate.wait_for(lambda: gate.proxy.metric("client_sockets") == 5, "one that waits at each listener")
    first.close()
    gate.wait_for(lambda: gate.admitted() == 4, "one of the two")
    gate.wait_for(lambda: gate.proxy.metric("client_sockets") == 4, "the other one waits on")


def test_more_sockets_than_there_may_be_are_closed_at_once_and_a_live_limit_lets_in_more(start):
    gate = start()
    made = config(gate.proxy)
    for most in (3, 100):
        gate.proxy.write_text(json.dumps({**made, "limits": {**made["limits"], "max_connections": most}}))
        gate.wait_for(lambda most=most: gate.proxy.metric("client_sockets_limit") == most, "the limit")
        kept = gate.connect(A, 5)
        if most == 3:
            assert [sock.recv(1) for sock in kept[3:]] == [b"", b""]
    gate.wait_for(lambda: gate.admitted() == 8, "those that may")
    assert gate.proxy.closed() == {"too_many_connections": 2}
    [line] = gate.refusals(1)
    assert line["reason"] == "too_many_connections"


def test_what_waits_or_is_held_keeps_no_process_from_ending(start):
    gate = start(rates(), of_listener={"max_connections": 1})
    gate.connect(BANNED, 2)
    gate.connect(C)
    gate.wait_for(lambda: gate.admitted() == 1, "the only one that may")
    waiting, *_ = gate.connect(A, 3)
    gate.wait_for(lambda: gate.proxy.metric("client_sockets") >= 2, "one that waits")
    gate.proxy.stop()
    assert waiting.fileno() > 0


def test_a_storm_that_never_gets_to_the_gate_is_a_line_for_each_address(start):
    gate = start()
    made = config(gate.proxy)
    [listener] = made["virtual_clusters"][0]["listeners"]
    listener |= {"proxy_protocol": "required", "trusted_networks": ["10.0.0.0/8"]}
    gate.proxy.write_text(json.dumps(made))
    gate.wait_for(lambda: gate.proxy.events("config_reloaded"), "proxies that are trusted")
    for sock in gate.connect(A, 30):
        assert sock.recv(1) == b""
    made["limits"]["max_connections"] = 1
    listener["proxy_protocol"] = "off"
    gate.proxy.write_text(json.dumps(made))
    gate.wait_for(lambda: len(gate.proxy.events("config_reloaded")) == 2, "a bound")
    gate.connect(C)
    for sock in gate.connect(B, 30):
        assert sock.recv(1) == b""
    gate.settled(1, proxy_peer_untrusted=30, too_many_connections=30)
    reported = [(line["counts_as"], line["reason"], line.get("detail")) for line in gate.refusals(2)]
    untrusted = f"{A} is in none of the trusted networks"
    assert reported == [(A, "proxy_peer_untrusted", untrusted), (B, "too_many_connections", None)]
    assert gate.proxy.events("connection_closed") == []
