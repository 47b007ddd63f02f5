"""Listening sockets that were open before the process."""

import os
import socket
from contextlib import ExitStack

import pytest

from demo.proxy_process import free_port_run
from kafka_throttle.common.service_manager import PassedFd
from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.server.passed_sockets import PassedSockets, address_of, from_systemd

HOST = "127.0.0.1"


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def listening(stack, host=HOST):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return stack.enter_context(socket.create_server((host, 0), family=family))


def passed(sock):
    return PassedFd(os.dup(sock.fileno()), "kafka.socket")


def test_a_setting_gets_the_socket_of_its_address_and_the_others_are_opened(stack):
    one, six = listening(stack), listening(stack, "::1")
    [port] = free_port_run(1)
    sockets = PassedSockets([one, six])
    assert sockets.take(HOST, address_of(one).port) is one
    assert sockets.take("0:0::1", address_of(six).port) is six
    assert not one.getblocking()
    opened = stack.enter_context(sockets.take(HOST, port))
    assert address_of(opened) == HostPort(HOST, port)


def test_sockets_that_no_setting_takes_are_closed(stack):
    one, other = listening(stack), listening(stack)
    sockets, where = PassedSockets([one, other]), address_of(other)
    sockets.take(*address_of(one))
    assert sockets.close_rest() == [where]
    assert other.fileno() == -1
    assert sockets.close_rest() == []


def test_sockets_of_systemd_must_have_a_setting(stack):
    one, other = listening(stack), listening(stack)
    where, elsewhere = address_of(one), address_of(other)
    fds = [passed(one), passed(other)]
    sockets, problems = from_systemd(fds, {where: "metrics.bind"})
    for sock in sockets:
        stack.enter_context(sock)
    [problem] = problems
    assert problem.path == "LISTEN_FDS"
    assert problem.problem == (
        f"expected sockets for ports of the configuration ({where.port}), got {elsewhere}, "
        f"which systemd passes as socket {fds[1].fd} (kafka.socket)"
    )


def test_an_address_other_than_that_of_the_setting_names_both(stack):
    one = listening(stack)
    port, fd = address_of(one).port, passed(one)
    sockets, [problem] = from_systemd([fd], {HostPort("0.0.0.0", port): "virtual_clusters[0].listeners[1].bind"})
    stack.enter_context(sockets[0])
    assert str(problem) == (
        f"virtual_clusters[0].listeners[1].bind: expected 127.0.0.1:{port}, which systemd passes as socket {fd.fd} "
        f"(kafka.socket), got 0.0.0.0:{port}"
    )


def test_only_listening_tcp_sockets_are_of_use(stack):
    silent, local = (stack.enter_context(socket.socket(family)) for family in (socket.AF_INET, socket.AF_UNIX))
    read, write = os.pipe()
    stack.callback(os.close, write)
    sockets, problems = from_systemd([passed(silent), passed(local), PassedFd(read, "pipe")], {})
    stack.callback(os.close, read)
    for sock in sockets:
        stack.enter_context(sock)
    assert [problem.path for problem in problems] == ["LISTEN_FDS"] * 3
    assert "expected listening TCP sockets" in problems[0].problem


def test_two_processes_may_listen_at_a_port_if_both_want_that(stack):
    [port] = free_port_run(1)
    for _ in range(2):
        stack.enter_context(PassedSockets(reuse_port=True).take(HOST, port))
    with pytest.raises(OSError, match="in use"):
        PassedSockets().take(HOST, port)
