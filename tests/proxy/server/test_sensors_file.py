"""What was measured, from one process to the next: as messages, and in a file."""

import json

import pytest
from structlog.testing import capture_logs

from kafka_throttle.proxy.server import sensor_messages, sensors_file
from kafka_throttle.proxy.server.sensor_messages import (
    ABOUT,
    HEAD,
    ROWS,
    Message,
    SensorIntake,
    about,
    of_charges,
    of_rows,
    unpacked,
)
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.connection_quotas import ConnectionLimits, ConnectionQuotas
from kafka_throttle.quotas.entities import Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.row_copies import Copier, Sensing
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from tests.fakes.clock import FakeClock

PRODUCE = QuotaType.PRODUCE


def sensing(clock, window_ms=1000):
    connections = ConnectionQuotas(ConnectionLimits(), clock.now_ms())
    connections.add_virtual_cluster("main", 11, window_ms)
    manager = ClientQuotaManager(Sensors(32, 11, window_ms), QuotaTable({Entity(user="u"): {PRODUCE: 100.0}}))
    return Sensing({"main": manager}, connections)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def old(clock):
    """A process at which the user u has used 1500 of 100 a second."""
    old = sensing(clock)
    charge(old, 1500.0, clock)
    return old


def charge(one, value, clock):
    manager, now_ms = one.clients["main"], clock.now_ms()
    return manager.sensors.charge(manager.bind("main", 1, "u", "c", now_ms).produce, value, now_ms)


def rows_of(one):
    return [of_rows(copies) for copies in Copier(one).changed()]


def taken(messages, new, clock):
    """What an intake makes of the messages, as bytes, and what it logs."""
    intake = SensorIntake(new, clock)
    with capture_logs() as logs:
        for message in unpacked(b"".join(message.packed() for message in messages)):
            intake.take(message)
    return intake, logs


@pytest.mark.rule("handed over")
def test_the_next_process_goes_on_where_the_old_one_was(old, clock):
    new = sensing(clock)
    intake, logs = taken([about(old, clock), *rows_of(old)], new, clock)
    clock.advance(1000)
    assert charge(new, 0.0, clock) == charge(old, 0.0, clock) == 5000
    assert (intake.rows, intake.left_out, logs) == (2, 0, [])


def test_charges_are_added(old, clock):
    new, copier = sensing(clock), Copier(old)
    rows = [of_rows(copies) for copies in copier.changed()]
    charge(old, 500.0, clock)
    charges = [of_charges(charges) for charges in copier.charges()]
    taken([about(old, clock), *rows, *charges], new, clock)
    assert charge(new, 0.0, clock) == charge(old, 0.0, clock) == 10_000


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"format": 2, "version": "9.0"}, "they are in format 2 of version 9.0, expected 1"),
        ({"boot": "another"}, "they were measured by another clock"),
        ({"now_ms": 10**15}, "they were measured by another clock"),
    ],
    ids=["format", "boot", "clock"],
)
def test_rows_that_mean_something_else_here_are_not_used(old, clock, changed, problem):
    new = sensing(clock)
    first = about(old, clock)
    intake, [line] = taken([first._replace(fields={**first.fields, **changed}), *rows_of(old)], new, clock)
    assert (line["event"], intake.rows) == ("sensors_not_taken_over", 0)
    assert line["problem"].startswith(problem)
    assert charge(new, 0.0, clock) == 0


def test_a_virtual_cluster_with_other_windows_begins_anew(old, clock):
    new = sensing(clock, window_ms=2000)
    intake, [line] = taken([about(old, clock), *rows_of(old)], new, clock)
    assert (line["virtual_cluster"], intake.rows, intake.left_out) == ("main", 1, 1)
    assert charge(new, 0.0, clock) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rows": [[["client"], 1]]},
        {"rows": [[["client", "main", 1, "x", "u", "", None], 1]]},
        {"rows": [[["client", "main", 1, None, "u", "", None], 1]]},
        {"rows": [[["client", "main", 1, "producer_byte_rate", "u", "", [[1, "u"]]], 1]]},
        {"rows": [7]},
    ],
    ids=["nothing", "short", "unknown", "no quota", "no part", "number"],
)
def test_messages_without_sense_are_logged_and_nothing_further_is_used(old, clock, fields):
    new = sensing(clock)
    intake, [line] = taken([about(old, clock), Message(ROWS, fields, b""), *rows_of(old)], new, clock)
    assert (line["event"], intake.rows) == ("sensors_not_taken_over", 0)


@pytest.mark.parametrize(("word", "value"), [(3, 7), (3, 10**9), (3, -1), (4, 13), (4, 0)])
def test_a_damaged_row_is_left_out_and_the_sensor_goes_on(old, clock, word, value):
    [[copy]] = [list(copies) for copies in Copier(old).changed() if copies and copies[0].key[0] == "client"]
    words = bytearray(copy.words)
    words[8 * word : 8 * word + 8] = value.to_bytes(8, "little", signed=True)
    new = sensing(clock)
    intake, [line] = taken([about(old, clock), of_rows([copy._replace(words=bytes(words))])], new, clock)
    assert (line["event"], intake.rows) == ("sensors_not_taken_over", 0)
    assert charge(new, 0.0, clock) == 0


async def test_a_file_is_read_once(old, clock, tmp_path):
    file, new = tmp_path / "sensors", sensing(clock)
    await sensors_file.keep(file, old, clock)
    assert file.stat().st_mode & 0o777 == 0o600
    assert await sensors_file.take_up(file, SensorIntake(new, clock))
    assert charge(new, 0.0, clock) == 5000
    assert not await sensors_file.take_up(file, SensorIntake(sensing(clock), clock))


@pytest.mark.parametrize("size", [1, 7, 9, -1])
async def test_a_file_that_is_cut_short_is_used_as_far_as_it_goes(old, clock, tmp_path, size):
    file = tmp_path / "sensors"
    await sensors_file.keep(file, old, clock)
    file.write_bytes(file.read_bytes()[:size])
    with capture_logs() as logs:
        assert await sensors_file.take_up(file, SensorIntake(sensing(clock), clock))
    assert [line["problem"] for line in logs] == ["it is cut short"]


@pytest.mark.parametrize(
    "content",
    [
        b"\2\0\0\0\0\0\0\0[]",
        b"\xff" * 100,
        b"\3\0\0\0\0\0\0\0{x}",
        b"\1\0\0\0\0\0\0\x001",
        HEAD.pack(100_000, 0) + b"[" * 100_000,
    ],
    ids=["empty", "binary", "no JSON", "number", "deep"],
)
async def test_a_file_of_something_else_is_left_out(clock, tmp_path, content):
    file = tmp_path / "sensors"
    file.write_bytes(content)
    with capture_logs() as logs:
        await sensors_file.take_up(file, SensorIntake(sensing(clock), clock))
    assert [line["event"] for line in logs] == ["sensors_not_taken_over"]


async def test_a_file_that_cannot_be_written_is_logged(old, clock, tmp_path):
    with capture_logs() as logs:
        await sensors_file.keep(tmp_path / "gone" / "sensors", old, clock)
    assert [line["event"] for line in logs] == ["sensors_not_kept"]


def test_a_machine_that_does_not_tell_its_boot_is_always_the_same(monkeypatch, tmp_path):
    monkeypatch.setattr(sensor_messages, "_BOOT_ID", tmp_path / "gone")
    assert sensor_messages._boot_id() == ""


def test_messages_are_json_and_bytes():
    message = Message(ABOUT, {"a": [1, None]}, b"rows")
    assert list(unpacked(message.packed() * 2)) == [message, message]
    assert json.loads(message.packed()[8:-4]) == [ABOUT, {"a": [1, None]}]
