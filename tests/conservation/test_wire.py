"""The wire knows where frames begin, however TCP has cut them, and loses nothing by itself."""

import asyncio
import socket
from contextlib import closing
from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.conservation.wire import Frame, Frames, Wire
from tests.support.timeouts import TIMEOUT_S


@given(st.lists(st.tuples(st.integers(0, 70), st.binary(min_size=6, max_size=50)), max_size=12), st.data())
def test_frames_are_found_however_they_are_cut(requests, data):
    sent = [(len(rest) + 2).to_bytes(4, "big") + api.to_bytes(2, "big") + rest for api, rest in requests]
    stream = b"".join(sent)
    begins = [0, *accumulate(map(len, sent))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    frames = Frames()
    found = []
    for begin, end in pairwise([0, *cuts, len(stream)]):
        found += [Frame(begin + at, length, api) for at, length, api in frames.begun_in(stream[begin:end])]
    expected = zip(begins, map(len, sent), (api for api, _ in requests), strict=False)
    assert found == [Frame(*frame) for frame in expected]


async def test_what_is_sent_before_the_other_side_is_there_arrives():
    """The bytes are in the kernel before the wire hears of the connection."""
    with closing(socket.create_server(("127.0.0.1", 0))) as node, closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        at = free.getsockname()
        free.close()
        await Wire("1").listen("front", at, node.getsockname())
        with closing(socket.create_connection(at)) as client:
            client.sendall(b"early")
            node.setblocking(False)
            reached, _ = await asyncio.get_running_loop().sock_accept(node)
            with closing(reached):
                reached.setblocking(False)
                async with asyncio.timeout(TIMEOUT_S):
                    assert await asyncio.get_running_loop().sock_recv(reached, 100) == b"early"
