"""Connections to hosts with real sockets: which address takes the connection, and what is said when none does."""

import asyncio
import errno
import os
import socket

import pytest
import uvloop

from kafka_throttle.common.connecting import connected, connected_to_first
from tests.support.deaf import deaf_address
from tests.support.timeouts import TIMEOUT_S


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(TIMEOUT_S)
        yield made


@pytest.fixture(params=[asyncio.run, uvloop.run])
def run(request):
    """Runs a coroutine on an event loop of each kind."""
    return request.param


def test_the_socket_does_not_wait_and_has_sent_the_first_words(server, run):
    with run(connected("127.0.0.1", server.getsockname()[1], b"PROXY")) as sock:
        accepted, peer = server.accept()
        with accepted:
            assert (sock.getblocking(), sock.getsockname(), accepted.recv(100)) == (False, peer, b"PROXY")


def test_a_place_that_does_not_answer_is_raced_by_the_next(server, run):
    with deaf_address() as deaf:
        places = [(socket.AF_INET, deaf), (socket.AF_INET, server.getsockname())]
        number, sock = run(connected_to_first(places))
    with sock:
        assert (number, sock.getpeername()) == (1, server.getsockname())


def test_the_first_failure_is_told_in_the_words_of_the_system(server, run):
    where = server.getsockname()
    server.close()
    with pytest.raises(ConnectionRefusedError) as raised:
        run(connected_to_first([(socket.AF_INET, where), (socket.AF_INET6, ("::1", where[1], 0, 0))]))
    assert (raised.value.errno, raised.value.strerror) == (errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


@pytest.mark.parametrize("port", [-1, 0, 65_536])
def test_there_is_no_port_beyond_those_of_tcp(run, port):
    with pytest.raises(OSError, match=f"there is no port {port}"):
        run(connected("127.0.0.1", port))


def test_a_connection_that_is_not_wanted_any_more_leaves_nothing_open(run, monkeypatch):
    made = []

    class Noted(socket.socket):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    async def give_up():
        with deaf_address() as deaf, monkeypatch.context() as patch:
            patch.setattr(socket, "socket", Noted)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(connected(*deaf), 0.01)
            await asyncio.sleep(0)
        assert [sock.fileno() for sock in made] == [-1]

    run(give_up())
