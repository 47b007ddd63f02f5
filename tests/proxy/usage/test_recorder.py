"""From counts to records, and from operations to events."""

from pathlib import Path

import pytest

from kafka_throttle.proxy.relay import use
from kafka_throttle.proxy.relay.use import Meter
from kafka_throttle.proxy.usage import recorder as recorders
from kafka_throttle.proxy.usage.page import usage_page
from kafka_throttle.proxy.usage.recorder import Metered, Recorder, own_name
from kafka_throttle.proxy.usage.spool import BUG, Spool, SpoolRules
from kafka_throttle.proxy.usage.tracer import TOO_FAST, Tracer
from kafka_throttle.quotas.client_quotas import WHOLE_CLUSTER, ClientQuotaManager
from kafka_throttle.quotas.connection_quotas import ADMITTED, Admission, ConnectionLimits, ConnectionQuotas, Outcome
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType, SensorTags
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.records.traced_sensors import Subject, Traced
from kafka_throttle.quotas.records.usage_record import USAGE, UsageRecord, read_line
from kafka_throttle.quotas.request_costs import RequestCosts
from kafka_throttle.quotas.sensors.token_buckets import TokenBuckets
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from tests.fakes.clock import FakeClock
from tests.quotas.trace_replay import Replay

ALICE = Entity(user="alice")
QUOTAS = QuotaTable({ALICE: {QuotaType.PRODUCE: 100}, Entity(ip=DEFAULT): {QuotaType.CONNECTION: 5}})


@pytest.fixture
def clock():
    return FakeClock()


class Put:
    """In place of a spool."""

    instance, epoch, failures = "here", 7, 0

    def __init__(self):
        self.rows = []

    def put(self, stream, rows, first, last):
        assert [row.sequence for row in rows] == list(range(first, last + 1))
        self.rows += rows

    def drop(self, stream, first, last, reason):
        self.rows.append((first, last, reason))


def recorder_of(clock, spool, tracer=None):
    quota_manager = ClientQuotaManager(Sensors(8), QUOTAS)
    meter = Meter("main", 10, 100, RequestCosts())
    connections = ConnectionQuotas(ConnectionLimits(), 0)
    connections.add_virtual_cluster("main", 11, 1000)
    return Recorder([Metered(meter, quota_manager, connections)], spool, 10, clock, tracer), meter


def test_a_record_says_who_used_what_and_which_quota_is_in_force(clock):
    recorder, meter = recorder_of(clock, spool := Put())
    produce = meter.hold(1, "alice", "etl").of(use.PRODUCE)
    produce.add(50, clock.now_us())
    produce.requests, produce.in_bytes = 1, 54
    produce.note_throttle(300, clock.now_us())
    produce.note_unsent(9, clock.now_us())
    recorder.note_connection("main", "10.0.0.1", ADMITTED, clock.now_ms())
    recorder.note_connection("main", "10.0.0.1", Admission(Outcome.TOO_FAST, 5, 70), clock.now_ms())
    recorder.note_connection("main", "10.0.0.1", Admission(Outcome.TOO_MANY), clock.now_ms())
    list(recorder.close_windows())
    assert spool.rows == []
    list(recorder.close_windows(at_end=True))
    first, second = spool.rows
    assert (first.user, first.client_id, first.quota_type, first.used, first.peak) == (
        "alice",
        "etl",
        "produce",
        50,
        50,
    )
    assert (first.limit, first.rule, first.shadow_limit) == (100, "user=alice", None)
    assert (first.throttles, first.throttled_ms, first.unsent_bytes, first.in_bytes) == (1, 300, 9, 54)
    assert first.begin_ms == clock.epoch_ms() // 10_000 * 10_000
    assert (second.ip, second.used, second.throttles, second.throttled_ms) == ("10.0.0.1", 1, 1, 70)
    assert (second.node_id, second.limit, second.rule) == (-2, 5, "ip=<default>")


def test_a_record_says_where_its_limit_holds_and_which_part_of_it_this_instance_enforces(clock):
    recorder, meter = recorder_of(clock, spool := Put())
    [metered] = recorder._metered
    quotas = {Entity("alice"): {QuotaType.PRODUCE: 100}, Entity("bob"): {QuotaType.PRODUCE: 100}}
    metered.quota_manager.replace(QuotaTable(quotas, {Entity("alice")}), clock.now_ms())
    shares = {WHOLE_CLUSTER: 0.25, 1: 0.5}
    for share_of in (None, lambda key: shares[key.node_id]):
        metered.quota_manager.share_of = share_of
        for user in ("alice", "bob", "carol"):
            meter.hold(1, user, "etl").of(use.PRODUCE).add(50, clock.now_us())
        list(recorder.close_windows(at_end=True))
    found = [(row.user, row.node_id, row.limit, row.scope, row.share) for row in spool.rows]
    assert found[:3] == [
        ("alice", 1, 100, "cluster", 1.0),
        ("bob", 1, 100, "node", 1.0),
        ("carol", 1, None, "node", 1.0),
    ]
    assert [row[-1] for row in found[3:]] == [0.25, 0.5, 1.0]


def test_a_record_says_which_part_of_the_rate_of_an_address_this_instance_enforces(clock):
    recorder, _ = recorder_of(clock, spool := Put())
    [metered] = recorder._metered
    metered.connections.share("main", lambda key: 0.5)
    recorder.note_connection("main", "10.0.0.1", ADMITTED, clock.now_ms())
    metered.quota_manager.replace(QuotaTable(), clock.now_ms())
    list(recorder.close_windows(at_end=True))
    recorder.note_connection("main", "10.0.0.1", ADMITTED, clock.now_ms())
    metered.quota_manager.replace(QUOTAS, clock.now_ms())
    list(recorder.close_windows(at_end=True))
    assert [(row.limit, row.share) for row in spool.rows] == [(None, 1.0), (5, 0.5)]


def test_many_records_are_made_in_small_steps(clock):
    recorder, meter = recorder_of(clock, spool := Put())
    for number in range(95):
        meter.hold(number, "alice", "etl").of(use.PRODUCE).add(1, clock.now_us())
    clock.advance(20_000)
    for number in range(500):
        recorder.note_connection("main", f"10.0.0.{number}", ADMITTED, clock.now_ms())
    assert sum(1 for _ in recorder.close_windows(at_end=True)) >= 1
    assert sum(row.used for row in spool.rows) == 595
    assert sum(row.ip == use.OVERFLOW for row in spool.rows) == 1


def test_what_is_recorded_is_in_the_spool(clock, tmp_path):
    spool = Spool(tmp_path / "spool", "here", 7, SpoolRules())
    recorder, meter = recorder_of(clock, spool)
    recorder.start()
    meter.hold(1, "alice", "etl").of(use.FETCH).add(5, clock.now_us())
    list(recorder.close_windows(at_end=True))
    assert spool.close(60)
    [path] = (tmp_path / "spool").glob(f"{USAGE}-*")
    rows = map(read_line, path.read_text().splitlines(keepends=True))
    assert [row.used for row in rows if isinstance(row, UsageRecord)] == [5]
    assert recorder.totals().streams[0].written == 1
    assert recorder.totals().clients == {"main": (1, 100, 0)}


def traced(at_ms, value):
    subject = Subject("main", 1, QuotaType.PRODUCE, False, "alice", "etl", "user=alice")
    return Traced("charge", subject, 77, value, 1, 0, 100.0, at_ms)


def test_a_trace_is_in_order_and_says_what_it_left_out(clock):
    tracer = Tracer([ALICE], 2, clock)
    tracer.identify("here", 7)
    for value in range(5):
        tracer.note(traced(clock.now_ms(), value))
    clock.advance(1000)
    tracer.note(traced(clock.now_ms(), 5))
    spool = Put()
    tracer.flush(spool.put, spool.drop)
    assert [row if isinstance(row, tuple) else (row.sequence, row.value) for row in spool.rows] == [
        (1, 0),
        (2, 1),
        (3, 5, TOO_FAST),
        (6, 5),
    ]
    tracer.flush(spool.put, spool.drop)
    assert len(spool.rows) == 4


def test_settings_come_with_a_trace_and_are_understood(clock):
    tracer = Tracer([ALICE], 1, clock)
    tracer.note_settings("main", Sensors(4, 5, 2000, 300, 400), TokenBuckets(4, 7, 500, 300), clock.now_ms())
    spool, replay = Put(), Replay(4)
    tracer.flush(spool.put, spool.drop)
    for event in spool.rows:
        assert replay.apply(event) == 0
    wanted = {(row.quota_type, row.operation): row.value for row in spool.rows}
    assert wanted["produce", "samples"] == 5
    assert wanted["request", "max_throttle_ms"] == 2000
    assert wanted["controller_mutation", "window_ms"] == 500


@pytest.mark.parametrize(
    ("entity", "tags", "rule", "chosen"),
    [
        (ALICE, ("alice", ""), None, True),
        (ALICE, ("alice", "etl"), None, True),
        (ALICE, ("bob", ""), ALICE, True),
        (ALICE, ("bob", ""), None, False),
        (Entity(user=DEFAULT), ("bob", ""), Entity(user=DEFAULT), True),
        (Entity(user=DEFAULT), ("bob", ""), ALICE, False),
        (Entity(user="alice", client_id="etl"), ("alice", "etl"), None, True),
        (Entity(user="alice", client_id="etl"), ("alice", ""), None, False),
        (Entity(ip="10.0.0.1"), ("", ""), None, False),
    ],
)
def test_entities_choose_sensors(clock, entity, tags, rule, chosen):
    assert Tracer([entity], 10, clock).chooses(SensorTags(*tags), rule) is chosen


def test_connections_of_chosen_addresses_are_traced(clock):
    tracer = Tracer([Entity(ip="10.0.0.1")], 10, clock)
    too_fast = Admission(Outcome.TOO_FAST, 5, 70, rate=5, has_own=True)
    tracer.note_connection("main", "10.0.0.1", too_fast, 3)
    tracer.note_connection("main", "10.0.0.1", ADMITTED, 3)  # its rate is not limited
    tracer.note_connection("main", "10.0.0.2", too_fast, 3)
    spool = Put()
    tracer.flush(spool.put, spool.drop)
    [event] = spool.rows
    assert (event.ip, event.rule, event.limit, event.throttle_ms) == ("10.0.0.1", "ip=10.0.0.1", 5, 70)


def test_a_host_has_a_name_that_a_file_may_have():
    assert own_name()
    assert "/" not in own_name()


def test_the_page_is_in_step():
    """`python -m kafka_throttle.proxy.usage.page > docs/reference/records.md` makes it."""
    assert Path("docs/reference/records.md").read_text() == usage_page()


def test_a_record_that_cannot_be_made_is_reported_as_dropped_and_the_others_are_kept(clock, monkeypatch):
    record_of, made = recorders.record_of, []

    def record(counts, *rest):
        made.append(counts)
        if len(made) == 2:
            raise ValueError("a bug")
        return record_of(counts, *rest)

    monkeypatch.setattr(recorders, "record_of", record)
    recorder, meter = recorder_of(clock, spool := Put())
    for user in ("alice", "bob", "carol"):
        meter.hold(1, user, "etl").of(use.PRODUCE).add(50, clock.now_us())
    list(recorder.close_windows(at_end=True))
    alice, dropped, carol = spool.rows
    assert (alice.user, alice.sequence, carol.user, carol.sequence) == ("alice", 1, "carol", 3)
    assert dropped == (2, 2, BUG)
    assert "ValueError('a bug')" in recorder.duty.trouble
