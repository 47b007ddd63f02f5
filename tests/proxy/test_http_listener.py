"""Connections to an HTTP listener: their number is bounded, and idle ones are closed."""

import asyncio
import socket

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from tests.fakes.http import admin_listener
from tests.timeouts import TIMEOUT_S

REQUEST = b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
async def serve():
    listeners = []

    async def serve(handler=None, **bounds):
        listeners.append(admin_listener([web.get("/page", handler or content)], **bounds))
        return await listeners[-1].start("127.0.0.1", 0)

    yield serve
    for listener in listeners:
        await listener.stop()


async def content(request):
    return web.Response(text="well")


class Visitor:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def ask(self, request=REQUEST):
        self.writer.write(request)
        async with asyncio.timeout(TIMEOUT_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK")
            return await self.reader.readexactly(4)

    async def is_closed(self):
        """Whether the server closes the connection within TIMEOUT_S."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True


async def visit(port, source="127.0.0.1"):
    return Visitor(*await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0)))


async def test_an_address_that_fills_it_makes_room_for_others_and_not_for_itself(serve):
    with capture_logs() as logs:
        port = await serve(most=3)
        idle = [await visit(port) for _ in range(3)]
        assert await (await visit(port)).is_closed()
        other = await visit(port, "127.0.0.2")
        assert await other.ask() == b"well"
        assert await idle[0].is_closed()
        assert [await one.ask() for one in (*idle[1:], other)] == [b"well"] * 3
    reported = [line for line in logs if line["event"] == "http_connections_refused"]
    assert [(line["listener"], line["limit"], line["last_address"]) for line in reported] == [("admin", 3, "127.0.0.1")]


async def test_a_connection_that_has_ended_makes_room(serve):
    port = await serve(most=1)
    for _ in range(5):
        visitor = await visit(port)
        assert await visitor.ask() == b"well"
        visitor.writer.close()
        await visitor.writer.wait_closed()


@pytest.mark.parametrize("sent", [b"", REQUEST[:9]], ids=["nothing", "half a request"])
async def test_an_idle_connection_is_closed(serve, sent):
    visitor = await visit(await serve(idle_s=0.05))
    visitor.writer.write(sent)
    assert await visitor.is_closed()


async def test_a_request_that_never_ends_is_closed_however_often_something_comes(serve):
    visitor = await visit(await serve(idle_s=0.2))

    async def drip():
        while True:
            visitor.writer.write(b"GET /page?x=" if not drip.begun else b"x")
            drip.begun = True
            await asyncio.sleep(0.02)

    drip.begun = False
    dripping = asyncio.create_task(drip())
    assert await visitor.is_closed()
    dripping.cancel()


async def test_a_client_that_does_not_read_the_response_is_closed(serve):
    gone = asyncio.Event()

    async def large(request):
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 1_000_000)
        finally:
            gone.set()

    port = await serve(large, idle_s=0.2)
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as visitor:
        visitor.sendall(REQUEST)
        async with asyncio.timeout(TIMEOUT_S):
            await gone.wait()


async def test_a_connection_with_a_next_request_in_time_stays(serve):
    visitor = await visit(await serve(idle_s=TIMEOUT_S))
    for _ in range(3):
        assert await visitor.ask() == b"well"


GARBAGE = (
    b"\x16\x03\x01 as of a client that speaks TLS\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
)


async def test_what_is_not_http_is_summed_up_and_has_no_traceback(serve, caplog):
    port = await serve()
    with capture_logs() as logs:
        for garbage in GARBAGE * 3:
            visitor = await visit(port)
            visitor.writer.write(garbage)
            async with asyncio.timeout(TIMEOUT_S):
                assert (await visitor.reader.readuntil(b"\r\n")).split()[1] == b"400"
    assert [(line["event"], line["listener"]) for line in logs] == [("http_requests_malformed", "admin")]
    assert not caplog.records


async def test_a_bug_of_ours_has_its_traceback(serve, caplog):
    async def fail(request):
        return 1 / 0

    visitor = await visit(await serve(fail))
    visitor.writer.write(REQUEST)
    async with asyncio.timeout(TIMEOUT_S):
        assert (await visitor.reader.readuntil(b"\r\n")).split()[1] == b"500"
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError]
