"""The connection gate on the event loop: the log lines about limits that are reached."""

import socket

import pytest
import structlog
from structlog.testing import capture_logs

from kafka_throttle.proxy.gate.admission import Admission, ConnectionSlot
from kafka_throttle.proxy.gate.connection_gate import ConnectionGate
from kafka_throttle.proxy.gate.stages import IncomingConnection
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.quotas.connection_quotas import ConnectionLimits, ConnectionQuotas, ListenerKey
from kafka_throttle.quotas.entities import ANONYMOUS
from tests.fakes.clock import FakeClock

KEY, OTHER = ListenerKey("main", "plain"), ListenerKey("main", "tls")


@pytest.fixture
async def at_the_gate():
    clock = FakeClock()
    gate = ConnectionGate(Admission(ConnectionQuotas(ConnectionLimits(), clock.now_ms()), 10), clock)
    gate.admission.add_virtual_cluster("main", 11, 1000)
    for key in (KEY, OTHER):
        gate.add_listener(key, lambda what: None)
    with capture_logs() as logs:
        yield gate, clock, logs
        gate.empty()


def incoming():
    return IncomingConnection(socket.socket(), 9092, 1, "192.0.2.1", ANONYMOUS, structlog.get_logger())


def reported(logs):
    return [
        {k: v for k, v in line.items() if k not in ("event", "log_level", "virtual_cluster")}
        for line in logs
        if line["event"].startswith("connection_limit_")
    ]


async def test_a_full_listener_is_logged_when_the_first_connection_waits_and_when_none_has_for_long(at_the_gate):
    gate, clock, logs = at_the_gate
    gate.set_listener_limits(KEY, ConnectionLimits(connections=1))
    assert gate.arrive(KEY, incoming())
    place = gate.admit(KEY, incoming())
    assert isinstance(place, ConnectionSlot)
    assert reported(logs) == []
    for _ in range(3):  # each waits until one has left, and is then the one that is there
        assert not gate.arrive(KEY, incoming())
        gate.admission.left(place)
        [what] = gate.admission.due(clock.now_ms())
        place = gate.admit(KEY, what.ticket)
        clock.advance(3_000)
    setting = {"listener": "plain", "setting": "listeners[].connections.max_connections"}
    assert reported(logs) == [{**setting, "limit": 1, "others": "wait"}]
    clock.advance(6_999)
    gate.log.sum_up()
    assert len(reported(logs)) == 1
    clock.advance(1)
    gate.log.sum_up()
    assert reported(logs)[1:] == [{**setting, "duration_ms": 6_000, "waited": 3}]


async def test_the_limit_that_has_a_connection_wait_is_named(at_the_gate):
    gate, _, logs = at_the_gate
    gate.set_limits(ConnectionLimits(creation_rate=1), 10)
    for _ in range(11):
        if not gate.arrive(KEY, incoming()):
            break
        gate.admit(KEY, incoming())
    [line] = reported(logs)
    assert line == {"setting": "connections.max_connection_creation_rate", "limit": 1, "others": "wait"}
    gate.set_limits(ConnectionLimits(connections=0), 10)
    assert not gate.arrive(OTHER, incoming())
    assert [line["setting"] for line in reported(logs)][1:] == ["connections.max_connections"]


@pytest.mark.parametrize(
    ("reason", "detail"),
    [(CloseReason.CLIENT_LOST, "Connection reset by peer"), (CloseReason.CLIENT_CLOSED, "")],
)
async def test_a_client_that_resets_each_time_has_as_many_lines_as_one_that_closes_and_then_a_sum(
    at_the_gate, reason, detail
):
    gate, clock, logs = at_the_gate
    for minute in (1, 2):
        lines = [gate.log.note_fault(KEY, "192.0.2.1", reason, detail) for _ in range(100)]
        assert lines == [True] * 10 + [False] * 90
        clock.advance(60_000 - minute)  # less than without any for a minute
        gate.log.note_fault(KEY, "192.0.2.1", reason, detail)
        clock.advance(minute)
        gate.log.sum_up()
    summed = [line for line in logs if line["event"] == "connections_closed"]
    assert [line["connections"] for line in summed] == [101, 101]


async def test_a_full_process_logs_how_many_connections_it_has_closed(at_the_gate):
    gate, clock, logs = at_the_gate
    for _ in range(500):
        gate.log.note_full(10_000)
    clock.advance(10_000)
    gate.log.sum_up()
    setting = {"setting": "limits.max_connections"}
    assert reported(logs) == [
        {**setting, "limit": 10_000, "others": "are closed at once"},
        {**setting, "duration_ms": 0, "refused": 500},
    ]
