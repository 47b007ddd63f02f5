"""Stages that wait for the client: each socket ends in exactly one way."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import structlog

from kafka_throttle.proxy.gate.admission import ConnectionSlot
from kafka_throttle.proxy.gate.stages import IncomingConnection, SlowStage, TurnedAway
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.quotas.connection_quotas import ListenerKey
from tests.support.waiting import until

LATE, FULL = CloseReason.CLIENT_LOST, CloseReason.TOO_MANY_CONNECTIONS


def incoming() -> IncomingConnection:
    return IncomingConnection(socket.socket(), 9092, 0, "192.0.2.1", "ANONYMOUS", structlog.get_logger())


def ends(
    work: Callable[[IncomingConnection], Awaitable[None]],
    count: int = 1,
    timeout_ms: int = 60_000,
    stopped: bool = False,
) -> list[str]:
    """How so many sockets leave a stage for two: "on", or why they are turned away."""

    async def run() -> list[str]:
        found: list[str] = []
        stage = SlowStage(work, timeout_ms, 2, LATE, FULL)
        for _ in range(count):
            stage.begin(incoming(), lambda _: found.append("on"), lambda _a, reason, _d: found.append(reason.value))
        if stopped:
            await asyncio.sleep(0)
            stage.stop()
        await until(lambda: not stage.under_way)
        return found

    return asyncio.run(run())


async def pass_on(_incoming: IncomingConnection) -> None:
    await asyncio.sleep(0)


async def hang(_incoming: IncomingConnection) -> None:
    await asyncio.get_running_loop().create_future()


async def refuse(_incoming: IncomingConnection) -> None:
    raise TurnedAway(CloseReason.REQUEST_MALFORMED, "no")


async def fail(_incoming: IncomingConnection) -> None:
    raise ZeroDivisionError


def test_a_socket_that_passes_goes_on() -> None:
    assert ends(pass_on, count=2) == ["on", "on"]


def test_a_refusal_has_its_reason() -> None:
    assert ends(refuse) == ["request_malformed"]


def test_more_than_there_is_room_for_are_refused_at_once() -> None:
    assert ends(pass_on, count=3) == [FULL.value, "on", "on"]


def test_an_address_crowds_out_only_itself() -> None:
    async def run() -> list[tuple[str, int, str]]:
        found: list[tuple[str, int, str]] = []
        stage = SlowStage(hang, 60_000, 4, LATE, FULL)

        def begin(origin: str, number: int) -> None:
            one = incoming()
            one.place = ConnectionSlot(ListenerKey("main", "tls"), origin)
            stage.begin(one, lambda _: None, lambda _a, reason, _d: found.append((origin, number, reason.value)))

        for number in range(6):
            begin("10.0.0.1", number)
        for number in range(3):
            begin("10.0.0.2", number)
        begin("10.0.0.3", 0)
        begin("10.0.0.1", 6)
        assert stage.under_way == 4
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stage.stop()
        await until(lambda: not stage.under_way)
        return found

    one, two, three = "10.0.0.1", "10.0.0.2", "10.0.0.3"
    at_once = [(one, 4), (one, 5), (two, 2), (one, 6)]
    made_to_leave = [(one, 0), (one, 1), (one, 2)]
    stayed = [(one, 3), (two, 0), (two, 1), (three, 0)]
    assert asyncio.run(run()) == [
        *((*which, FULL.value) for which in (*at_once, *made_to_leave)),
        *((*which, "shutdown") for which in stayed),
    ]


def test_one_that_takes_too_long_is_refused() -> None:
    assert ends(hang, timeout_ms=1) == [LATE.value]


def test_those_that_are_under_way_at_the_end_are_refused() -> None:
    assert ends(hang, count=2, stopped=True) == ["shutdown", "shutdown"]


def test_a_bug_ends_the_socket_that_met_it() -> None:
    assert ends(fail) == ["internal_error"]


@pytest.mark.parametrize(
    ("host", "address", "client"),
    [
        ("::ffff:198.51.100.7", "198.51.100.7", "198.51.100.7:40000"),
        ("2001:DB8:0::7", "2001:db8::7", "[2001:db8::7]:40000"),
    ],
)
def test_a_peer_may_speak_for_a_client_at_another_address(host, address, client) -> None:
    one = incoming()
    one.came_from(host, 40_000)
    assert (one.address, structlog.get_context(one.log)["client"]) == (address, client)
