"""Ways to a cluster that lead back to the proxy: a connection ends when it comes back for the first time."""

import socket
import threading
import time
from contextlib import ExitStack, suppress

import pytest

from demo.proxy_process import free_port_run
from kafka_throttle.protocol.api_key import API_VERSIONS
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.quotas.sources.test_cluster_faults import Listener
from tests.quotas.sources.test_cluster_nodes import metadata
from tests.relay.frames import request
from tests.support.timeouts import TIMEOUT_S

CLIENTS = 20
TURNS = 4
"""The most connections for one of a client: if it were passed on in a circle, there would be hundreds."""


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


class Balancer:
    """An address that leads to a port of this machine."""

    def __init__(self, port=0):
        self.port = port
        self.server = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self.server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self.server.accept()
                try:
                    node = socket.create_connection((HOST, self.port), TIMEOUT_S)
                except OSError:
                    client.close()
                    continue
                for ends in ((client, node), (node, client)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source, target):
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        for sock in (source, target):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        source.close()


def ends(port):
    """Whether a client that asks for something at a port sees its connection end."""
    with socket.create_connection((HOST, port), TIMEOUT_S) as sock:
        try:
            sock.sendall(request(API_VERSIONS, 0))
            return sock.recv(1) == b""
        except ConnectionError:
            return True


def leads_back(proxy):
    return [line for line in proxy.events("cluster_unreachable") if line["reason"] == "leads_back"]


def clients_come(*proxies, port):
    before = sum(proxy.metric("connections_opened_total") for proxy in proxies)
    assert all(ends(port) for _ in range(CLIENTS))
    time.sleep(1)
    after = sum(proxy.metric("connections_opened_total") for proxy in proxies)
    assert sum(proxy.metric("connections_open") for proxy in proxies) <= TURNS
    return after - before


def test_two_proxies_that_name_each_other_serve_nobody_and_do_not_pass_one_connection_round_and_round(stack):
    ports = free_port_run(6), free_port_run(6)
    one, other = (
        stack.enter_context(
            ProxyProcess(f"{HOST}:{of_other[0]}", ready=False, first_port=own[0], limits={"drain_s": 1})
        )
        for own, of_other in (ports, ports[::-1])
    )
    one.wait_for(lambda: leads_back(one) or leads_back(other), TIMEOUT_S, "word of the way back")
    for proxy in (one, other):
        assert clients_come(one, other, port=proxy.port) <= CLIENTS * TURNS
        assert proxy.status("readyz") == 503
        assert proxy.status("livez") == 200


def test_a_bootstrap_server_that_leads_back_by_a_balancer_is_none(stack):
    balancer = stack.enter_context(Balancer())
    proxy = stack.enter_context(ProxyProcess(balancer.address, ready=False, limits={"drain_s": 1}))
    balancer.port = proxy.port
    proxy.wait_for(lambda: leads_back(proxy), TIMEOUT_S, "word of the way back")
    assert clients_come(proxy, port=proxy.port) <= CLIENTS * TURNS


def test_servers_that_are_configured_anew_and_lead_back_are_not_tried_by_a_client_before_that_is_seen(stack):
    balancer = stack.enter_context(Balancer())
    node = Listener(responses=metadata((1, b"127.0.0.1", 9)))
    stack.callback(node.server.close)
    proxy = stack.enter_context(ProxyProcess(node.address, limits={"drain_s": 1}))
    balancer.port = proxy.port
    proxy._servers = [balancer.address]
    proxy.write_config([])
    before = proxy.metric("connections_opened_total")
    proxy.wait_for(lambda: proxy.events("config_reloaded"), TIMEOUT_S, "the other servers")
    assert clients_come(proxy, port=proxy.port) <= CLIENTS * TURNS
    assert leads_back(proxy)
    assert proxy.metric("connections_opened_total") - before <= CLIENTS * TURNS


def test_a_node_that_is_advertised_at_a_balancer_before_the_proxy_is_not_connected_to(stack):
    balancer = stack.enter_context(Balancer())
    host, port = balancer.address.split(":")
    node = Listener(responses=metadata((1, host.encode(), int(port))))
    stack.callback(node.server.close)
    proxy = ProxyProcess(node.address, ready=False, limits={"drain_s": 1})
    balancer.port = proxy.node_ports[1]
    stack.enter_context(proxy)
    [line] = proxy.wait_for(lambda: proxy.events("node_address_refused"), TIMEOUT_S, "word of the node")
    assert (line["node_id"], line["problem"]) == (1, "it leads back to this proxy, so the proxy does not connect to it")
    assert clients_come(proxy, port=proxy.node_ports[1]) <= CLIENTS * TURNS
