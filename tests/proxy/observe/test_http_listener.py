"""Connections to an HTTP listener: their number is bounded, and idle ones are closed."""

import asyncio
import contextlib
import socket

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from tests.fakes.http import admin_listener
from tests.support.timeouts import TIMEOUT_S

REQUEST = b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
async def serve():
    listeners = []

    async def serve(handler=None, **bounds):
        listeners.append(admin_listener([web.get("/page", handler or content)], **bounds))
        return await listeners[-1].start("127.0.0.1", 0)

    serve.listeners = listeners
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


async def test_the_oldest_idle_connection_of_the_address_with_most_of_them_gives_way_to_any_new_one(serve):
    with capture_logs() as logs:
        port = await serve(most=3)
        elsewhere = await visit(port, "127.0.0.2")
        idle = [await visit(port) for _ in range(2)]
        assert await idle[0].ask() == b"well"
        probe = await visit(port)
        assert await probe.ask() == b"well"
        assert await idle[0].is_closed()
        assert [await one.ask() for one in (elsewhere, idle[1], probe)] == [b"well"] * 3
    reported = [line for line in logs if line["event"] == "http_connections_refused"]
    assert [(line["listener"], line["limit"], line["last_address"]) for line in reported] == [("admin", 3, "127.0.0.1")]


@pytest.mark.parametrize("sources", [1, 100], ids=["one address", "many addresses"])
@pytest.mark.parametrize("sent", [b"", REQUEST[:9], REQUEST], ids=["nothing", "half a request", "a request"])
async def test_a_probe_is_answered_however_many_idle_connections_hang(serve, sources, sent):
    port = await serve(most=8)
    idle = []
    for number in range(100):
        idle.append(await visit(port, f"127.0.1.{1 + number % sources}"))
        idle[-1].writer.write(sent)
        if not number % 10:
            probe = await visit(port)
            assert await probe.ask() == b"well"
    assert await (await visit(port)).ask() == b"well"


async def test_a_request_under_way_gives_way_to_no_connection_of_the_same_address(serve):
    may_end, asked = asyncio.Event(), asyncio.Semaphore(0)

    async def slow(request):
        asked.release()
        await may_end.wait()
        return web.Response(text="well")

    port = await serve(slow, most=2)
    under_way = [await visit(port) for _ in range(2)]
    displaced, stays = [asyncio.create_task(one.ask()) for one in under_way]
    for _ in under_way:
        await asked.acquire()
    assert await (await visit(port)).is_closed()
    elsewhere = asyncio.create_task((await visit(port, "127.0.0.2")).ask())
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await displaced
    may_end.set()
    assert [await stays, await elsewhere] == [b"well"] * 2


async def test_a_response_that_nobody_reads_gives_way_to_any_new_connection(serve):
    asked = asyncio.Semaphore(0)

    async def large(request):
        asked.release()
        return web.Response(body=b"x" * 30_000_000) if request.query_string else await content(request)

    port = await serve(large, most=2)
    deaf = [await visit(port, f"127.0.0.{number}") for number in (1, 2)]
    for one in deaf:
        one.writer.transport.pause_reading()
        one.writer.write(REQUEST.replace(b"/page", b"/page?large"))
        await asked.acquire()
    assert await (await visit(port)).ask() == b"well"


async def test_addresses_of_one_ipv6_network_count_as_one(serve):
    def arrives(address):
        peer, ours = socket.socketpair()
        ours.setblocking(False)
        guests.take_in(ours, address)
        return peer

    await serve(most=4)
    guests = serve.listeners[-1].guests
    with contextlib.ExitStack() as stack:
        elsewhere = [stack.enter_context(arrives(f"2001:db8:{number}::1")) for number in range(2)]
        hostile = [stack.enter_context(arrives(f"2001:db8:9::{number}")) for number in range(20)]
        for one in hostile[:-2]:
            assert await asyncio.to_thread(one.recv, 1) == b""
        for one in (*elsewhere, *hostile[-2:]):
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                one.recv(1)


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
