"""The stream of a connection of the proxy's own: what becomes of its socket where it comes to nothing."""

import asyncio
import os
import socket
import ssl
import struct

import pytest
import uvloop

from kafka_throttle.quotas.sources.cluster_stream import opened
from tests.support.waiting import until


def reset(peer):
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


PEERS = {
    "resets it": reset,
    "closes it": socket.socket.close,
    "speaks no TLS": lambda peer: peer.sendall(b"nonsense"),
    "says nothing": lambda peer: None,
}


def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("does", PEERS.values(), ids=PEERS)
def test_the_socket_of_a_stream_that_comes_to_nothing_is_closed_and_its_number_left_to_the_next(run, does):
    async def come_to_nothing():
        with socket.create_server(("127.0.0.1", 0)) as server:
            sock = socket.create_connection(server.getsockname())
            peer, _ = server.accept()
        with peer:
            does(peer)
            number = sock.fileno()
            with pytest.raises(OSError):
                async with asyncio.timeout(0.2):
                    await opened(sock, ssl.create_default_context(), "localhost")
            assert sock.fileno() == -1
            await until(lambda: not is_open(number))

    run(come_to_nothing())
