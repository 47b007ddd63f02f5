"""Which connection is admitted first when many have come at once, on real sockets."""

import asyncio
import gc
import socket
from collections import Counter
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import structlog
from structlog.testing import capture_logs

from demo.proxy_process import free_port_run
from kafka_throttle.protocol.identity.proxy_header import LOCAL_PROXY_HEADER
from kafka_throttle.proxy.config.settings import ListenerConfig
from kafka_throttle.proxy.decisions.sasl import Identity
from kafka_throttle.proxy.gate.admission import Admission
from kafka_throttle.proxy.gate.connection_gate import ConnectionGate
from kafka_throttle.proxy.net.poller import Poller
from kafka_throttle.proxy.observe.throttle_episode import ThrottledClients
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.proxy.relay.relay_counters import RelayCounters
from kafka_throttle.proxy.server.caps import Caps
from kafka_throttle.proxy.server.listener import Listener
from kafka_throttle.proxy.server.sockets import PortsTaken, accept, bind_all
from kafka_throttle.proxy.upstream.node_socket import NodeSocket, NodeUnreachable
from kafka_throttle.proxy.upstream.topology import NodeDirectory
from kafka_throttle.quotas.connection_quotas import AddressLimits, ConnectionLimits, ConnectionQuotas
from tests.fakes.clock import FakeClock
from tests.relay.frames import heartbeat, heartbeaten
from tests.relay.script import quota_manager_with
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import until

STORM, GOOD = "127.0.1.1", "127.0.1.2"


class House:
    """A listener at a free port, and who has come to it."""

    def __init__(self, stack, bind="127.0.0.1"):
        self.stack, self.opened, self.closed, self.logged = stack, [], {}, []
        [self.port] = free_port_run(1)
        clock = self.clock = FakeClock()
        self.gate = ConnectionGate(Admission(ConnectionQuotas(ConnectionLimits(), clock.now_ms()), max_held=10), clock)
        self.gate.admission.add_virtual_cluster("main", 11, 1000)
        upstream = self.upstream = SimpleNamespace(
            directory=NodeDirectory(),
            config=SimpleNamespace(send_proxy_protocol=False),
            open=print,
            discovery=SimpleNamespace(find=None, default_partitions=None),
            recent_topics=None,
        )
        config = ListenerConfig.model_validate(
            {"name": "plain", "bind": bind, "advertised_host": "127.0.0.1", "port": self.port, "node_ids": [0]}
        )
        self.poller = Poller()
        self.may_serve = True
        store = {"quotas": {}, "entities_of": None, "alter_quotas": print, "alteration_turns": None}
        book = SimpleNamespace(**store, may_serve=lambda: self.may_serve)
        last_throttles = SimpleNamespace(note=print)
        self.listener = Listener(
            "main",
            config,
            upstream,
            quota_manager_with(),
            book,
            last_throttles,
            ThrottledClients(),
            self.poller,
            clock,
            lambda: True,
            self.closed,
            Caps(clock),
            self.gate,
        )
        opens = self.listener.acceptor._open

        def note(incoming):
            self.opened.append(incoming.address)
            self.logged.append(structlog.get_context(incoming.log)["client"])
            return opens(incoming)

        self.listener.acceptor._open = note
        [self.socket] = bind_all(bind, [self.port]).values()
        stack.callback(self.socket.close)

    def come(self, *addresses):
        """One connection from each; they wait in the backlog."""
        return [
            self.stack.enter_context(socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S, (address, 0)))
            for address in addresses
        ]

    def accept_all(self):
        """Accept all that wait, up to the limit of one turn."""
        self.listener.acceptor.sockets.accept_all(self.port, self.socket)

    async def until_opened(self, count):
        await until(lambda: len(self.opened) >= count)


@pytest.fixture
async def house():
    with ExitStack() as stack:
        yield House(stack)


async def test_behind_a_crowd_addresses_take_turns(house):
    house.come(*[STORM] * 30, GOOD, *[STORM] * 10, GOOD)
    house.listener.serve({house.port: house.socket})
    await house.until_opened(42)
    assert house.opened == [STORM] * 8 + [STORM, GOOD, STORM, GOOD] + [STORM] * 30
    assert (house.listener.open_sockets, house.gate.admission.quotas.connections) == (42, 42)


async def test_a_connection_that_may_not_be_served_yet_is_closed_with_its_reason(house):
    house.may_serve = False
    [client] = house.come(GOOD)
    house.accept_all()
    assert client.recv(1) == b""
    assert house.closed == {CloseReason.QUOTAS_UNKNOWN: 1}
    house.may_serve = True
    house.come(GOOD)
    house.accept_all()
    assert house.opened == [GOOD]


def alive():
    """How many objects of connections there are; call it after Python's collector, which is then kept from running."""
    parts = ("Connection", "Relay", "ConnectionFacts", "Stream", "TlsStream", "Login", "InFlight", "ConnectionTimeouts")
    return Counter(name for one in gc.get_objects() if (name := type(one).__name__) in parts)


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("ends", ["client", "node", "proxy", "unreachable"])
@pytest.mark.parametrize("logs_in", [True, False])
async def test_a_closed_connection_is_freed_at_once_and_does_not_wait_for_the_collector(
    house, no_collector, ends, logs_in
):
    ours, node = (house.stack.enter_context(sock) for sock in socket.socketpair())
    ours.setblocking(False)
    outcomes = [NodeUnreachable("no") if ends == "unreachable" else NodeSocket(ours, 0)]
    house.upstream.open = lambda *asked: asyncio.get_running_loop().call_soon(asked[-2], outcomes.pop())
    before = alive()
    [client] = house.come(GOOD)
    house.accept_all()
    [connection] = house.listener.connections
    if logs_in:
        connection.facts.become(Identity("alice", "PLAIN", True))
    client.sendall(heartbeat(1))
    assert alive() - before
    if ends != "unreachable":
        assert await asyncio.to_thread(node.recv, 1_000) == heartbeat(1)
        node.sendall(heartbeaten(1))
        assert await asyncio.to_thread(client.recv, 1_000) == heartbeaten(1)
    if ends == "proxy":
        connection.give_up(CloseReason.SHUTDOWN)
    del connection
    client.close()
    node.close()
    await until(lambda: not (alive() - before))


async def test_when_a_port_is_given_to_another_node_no_client_goes_on_with_the_node_that_is_gone(house):
    house.come(GOOD, GOOD)
    house.accept_all()
    house.listener._let_go_of_port(house.port + 1)
    assert house.closed == {}
    house.listener._let_go_of_port(house.port)
    assert house.closed == {CloseReason.NODE_GONE: 2}
    assert not house.listener.connections


async def test_the_log_spells_addresses_as_usual():
    with ExitStack() as stack:
        house = House(stack, "::")
        house.come("127.0.0.1")
        sixth = stack.enter_context(socket.create_connection(("::1", house.port), TIMEOUT_S))
        house.accept_all()
        assert house.opened == ["127.0.0.1", "::1"]
        assert house.logged[0].startswith("127.0.0.1:")
        assert house.logged[1] == f"[::1]:{sixth.getsockname()[1]}"


def test_the_error_for_a_port_in_use_spells_the_address_as_usual():
    with ExitStack() as stack:
        taken = stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
        port = taken.getsockname()[1]
        with pytest.raises(PortsTaken, match=rf"^\[::1\]:{port}: already in use$"):
            bind_all("::1", [port])


async def test_a_bug_behind_admission_ends_one_connection_that_then_counts_no_more(house):
    house.listener.relays._rights_of = lambda user: 1 / 0
    [client] = house.come(GOOD)
    house.accept_all()
    assert client.recv(1) == b""
    assert (house.closed, house.listener.open_sockets) == ({CloseReason.INTERNAL_ERROR: 1}, 0)
    assert house.gate.admission.quotas.connections == 0


@pytest.mark.pure
async def test_a_connection_that_cannot_be_watched_ends_and_then_counts_no_more(house):
    house.poller.add = lambda *_: 1 / 0
    [client] = house.come(GOOD)
    house.accept_all()
    assert client.recv(1) == b""
    assert (house.closed, house.listener.open_sockets) == ({CloseReason.INTERNAL_ERROR: 1}, 0)
    assert house.gate.admission.quotas.connections == 0
    assert [counters.connections_open for counters in house.listener.relays.counters.values()] == [0]


@pytest.mark.pure
async def test_a_socket_that_is_closed_for_a_bug_is_watched_by_no_stream(house):
    house.listener.relays.counters = SimpleNamespace(get=lambda node_id: RelayCounters())
    watched = set(house.poller._handlers)
    [client] = house.come(GOOD)
    house.accept_all()
    assert client.recv(1) == b""
    assert (house.closed, house.listener.open_sockets) == ({CloseReason.INTERNAL_ERROR: 1}, 0)
    assert set(house.poller._handlers) == watched


async def test_a_connection_that_waits_for_a_turn_is_closed_when_none_is_accepted_any_more(house):
    clients = house.come(*[STORM] * 20)
    house.accept_all()
    assert (len(house.opened), house.listener.open_sockets) == (8, 20)
    house.listener.stop_accepting()
    assert (house.closed, house.gate.admission.quotas.connections) == ({CloseReason.SHUTDOWN: 12}, 8)
    assert [client.recv(1) for client in clients[8:]] == [b""] * 12
    await asyncio.sleep(0)
    assert (len(house.opened), house.listener.open_sockets) == (8, 8)


async def test_where_others_listen_too_those_that_wait_for_a_turn_go_on(house):
    house.come(*[STORM] * 20)
    house.listener.serve({house.port: house.socket})
    house.accept_all()
    assert len(house.opened) == 8
    house.listener.stop_listening()
    await house.until_opened(20)
    assert house.closed == {}


async def test_while_suspended_connections_wait_and_another_pause_may_end(house):
    sockets = house.listener.acceptor.sockets
    house.listener.serve({house.port: house.socket})
    sockets.suspend()
    house.come(GOOD)
    await asyncio.sleep(0.05)
    sockets.pause()
    sockets.accept_more()
    await asyncio.sleep(0.05)
    assert house.opened == []
    sockets.resume()
    await house.until_opened(1)


async def test_the_end_of_a_suspension_does_not_end_another_pause(house):
    sockets = house.listener.acceptor.sockets
    house.listener.serve({house.port: house.socket})
    sockets.pause()
    sockets.suspend()
    house.come(GOOD)
    await asyncio.sleep(0.05)
    sockets.resume()
    await asyncio.sleep(0.05)
    assert house.opened == []
    sockets.accept_more()
    await house.until_opened(1)


async def test_all_that_wait_are_accepted_before_the_port_is_closed(house):
    house.listener.serve({house.port: house.socket})
    house.come(*[GOOD] * 100)
    house.listener.acceptor.sockets.accept_rest()
    house.listener.stop_listening()
    await house.until_opened(100)
    assert house.closed == {}


async def test_no_more_are_accepted_while_too_many_wait_for_a_turn(house, monkeypatch):
    monkeypatch.setattr("kafka_throttle.proxy.gate.opening_turns._MOST_IN_TURN", 10)
    house.come(*[STORM] * 40)
    for _ in range(5):
        house.accept_all()
    assert (len(house.opened), len(house.listener.acceptor._turns._waiting)) == (8, 10)
    house.listener.serve({house.port: house.socket})
    await house.until_opened(40)
    assert house.listener.open_sockets == 40


async def test_an_accepted_socket_does_not_wait_and_has_what_the_listening_one_has(house):
    [client] = house.come(GOOD)
    accepted, peer = accept(house.socket)
    assert peer == client.getsockname()
    assert (accepted.getblocking(), accepted.family, accepted.getpeername()) == (False, socket.AF_INET, peer)
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    accepted.close()
    with pytest.raises(BlockingIOError):
        accept(house.socket)


async def test_a_name_that_clients_share_is_logged_once(house):
    gssapi, opaque = (Identity(f"?{mechanism}", mechanism, False) for mechanism in ("GSSAPI", "OAUTHBEARER"))
    with capture_logs() as logs:
        for identity in (gssapi, opaque, gssapi, Identity("alice", "PLAIN", True), opaque):
            house.listener._note_identity(None, structlog.get_logger(), identity)
    assert [line["user"] for line in logs if line["event"] == "user_not_visible"] == ["?GSSAPI", "?OAUTHBEARER"]


def lines(logs, event):
    return [line for line in logs if line["event"] == event and line["log_level"] != "debug"]


HTTP, HALF = b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x20\0\x12"


@pytest.mark.parametrize(("sent", "reason"), [(HTTP, "request_not_kafka"), (HALF, "client_closed"), (b"", None)])
async def test_hostile_and_broken_clients_are_summed_up_for_each_address(house, sent, reason):
    with capture_logs() as logs:
        for source in (STORM, GOOD) * 10:
            [client] = house.come(source)
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
        house.listener.serve({house.port: house.socket})
        await until(lambda: sum(house.closed.values()) >= 20)
        house.clock.advance(61_000)
        house.gate.log.sum_up()
    assert [line["reason"] for line in lines(logs, "connection_closed")] == [reason] * 2 * (reason is not None)
    summed = {line["counts_as"]: line["connections"] for line in lines(logs, "connections_closed")}
    assert summed == ({} if reason is None else {STORM: 10, GOOD: 10})
    assert house.closed == {CloseReason(reason or "client_sent_nothing"): 20}


@pytest.mark.parametrize(
    ("reason", "reported"),
    [(CloseReason.NODE_UNREACHABLE, 1), (CloseReason.INTERNAL_ERROR, 5)],
    ids=lambda value: value,
)
async def test_an_unreachable_node_is_logged_once_for_all_addresses_and_a_bug_each_time(house, reason, reported):
    house.come(*[GOOD] * 3, *[STORM] * 2)
    house.accept_all()
    with capture_logs() as logs:
        for connection in list(house.listener.connections):
            connection.give_up(reason, "10.0.0.1:9092: Connection refused")
    assert [line["reason"] for line in lines(logs, "connection_closed")] == [reason.value] * reported


async def test_a_balancers_own_connections_spend_no_rate_and_its_looks_none_either(house):
    trusts = {"proxy_protocol": "required", "trusted_networks": ["127.0.0.0/8"], "node_ids": [0]}
    config = {"name": "plain", "bind": "127.0.0.1", "port": house.port} | trusts
    house.listener.acceptor.set_origin(ListenerConfig.model_validate(config))
    quotas = house.gate.admission.quotas
    quotas.set_address_limits("main", AddressLimits(creation_rate=0))
    house.listener.serve({house.port: house.socket})
    for client in house.come(*[GOOD] * 5):
        client.shutdown(socket.SHUT_WR)
    for client in house.come(*[GOOD] * 5):
        client.sendall(LOCAL_PROXY_HEADER)
    await house.until_opened(5)
    await until(lambda: house.closed == {CloseReason.CLIENT_SENT_NOTHING: 5})
    assert quotas.listener_reading(house.listener.key, house.clock.now_ms()).rate == 0
    [client] = house.come(GOOD)
    client.sendall(b"PROXY TCP4 192.0.2.7 192.0.2.1 40000 9092\r\n")
    await until(lambda: house.gate.admission.held)


async def test_requests_without_the_right_to_them_are_logged_once_and_summed_up(house):
    house.come(GOOD)
    house.accept_all()
    [incoming] = house.listener._incoming_of.values()
    with capture_logs() as logs:
        for _ in range(61):
            house.listener._note_denied(incoming, "AlterClientQuotas", "bob", b"tool\x1b")
            house.clock.advance(1_000)
        house.gate.log.sum_up()
    [line] = lines(logs, "quota_request_denied")
    assert (line["api"], line["user"], line["client_id"]) == ("AlterClientQuotas", "bob", "tool\\x1b")
    [summed] = lines(logs, "quota_requests_denied")
    assert summed["requests"] == ["61 AlterClientQuotas of bob"]
