"""A replay of the lines of a trace gives every throttle time to the millisecond."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.records.trace import NO_USE, Operation
from kafka_throttle.quotas.records.traced_sensors import TracedBuckets, TracedSensors
from kafka_throttle.quotas.records.usage_record import TraceEvent, line_of, read_line
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from tests.quotas.trace_replay import Replay, Unknown

pytestmark = pytest.mark.pure
"""A proxy that traces runs pure Python: a traced handle is an int with more in it, which compiled code would drop."""

ALICE = Entity(user="alice")
LIMITS = {
    QuotaType.PRODUCE: 1000.0,
    QuotaType.FETCH: 2000.0,
    QuotaType.REQUEST: 5.0,
    QuotaType.CONTROLLER_MUTATION: 2.0,
}
CAPS = (20_000, 60_000)
VC = "main"


class Lines:
    """What the proxy would have written."""

    def __init__(self):
        self.lines = []
        for quota_type in list(QuotaType)[:4]:
            samples, window_ms, throttle_ms, debt_ms = 11, 1000, *CAPS
            if quota_type is QuotaType.REQUEST:
                throttle_ms, debt_ms = window_ms, 0
            settings = zip(list(Operation)[:4], (samples, window_ms, throttle_ms, debt_ms), strict=True)
            for shadow in (0, 1):
                for operation, value in dict(settings).items() if not shadow else ():
                    for which in (0, 1):
                        self.add(quota_type, which, 0, operation, value)

    def add(self, quota_type, shadow, sensor, operation, value, at_ms=0, throttle_ms=0, count=1, subject=None):
        self.lines.append(
            line_of(
                TraceEvent(
                    instance="here",
                    epoch=1,
                    sequence=len(self.lines) + 1,
                    at_ms=at_ms,
                    wall_ms=at_ms,
                    virtual_cluster=VC,
                    node_id=1 if subject is None else subject.node_id,
                    user="" if subject is None else subject.user,
                    client_id="" if subject is None else subject.client_id,
                    ip="",
                    quota_type=quota_type.name.lower(),
                    operation=operation,
                    value=float(value),
                    throttle_ms=throttle_ms,
                    limit=None,
                    rule="" if subject is None else subject.rule,
                    sensor=sensor,
                    shadow=int(shadow),
                    count=count,
                )
            )
        )

    def note(self, done):
        self.add(
            done.subject.quota_type,
            done.subject.shadow,
            done.sensor,
            done.operation,
            done.value,
            done.at_ms,
            done.throttle_ms,
            done.requests,
            done.subject,
        )

    @property
    def events(self):
        return [read_line(line) for line in self.lines]


def quota_manager_of(lines, traces=lambda tags, entity: True):
    sensors = TracedSensors(lines.note, 64, 11, 1000, *CAPS)
    buckets = TracedBuckets(lines.note, 64, 11, 1000, CAPS[0])
    table = QuotaTable({ALICE: LIMITS, Entity(user=DEFAULT): LIMITS})
    return ClientQuotaManager(sensors, table, QuotaTable({ALICE: LIMITS}), buckets, traces=traces)


def charge(quota_manager, client_sensors, value, now_ms):
    return quota_manager.sensors.charge(client_sensors.produce, value, now_ms)


def run(quota_manager, client_sensors, value, now_ms):
    return 0 if quota_manager.sensors.charge_unthrottled(client_sensors.produce, value, 3, now_ms) else None


def one_of_several(quota_manager, client_sensors, value, now_ms):
    return quota_manager.sensors.charge_each(client_sensors.produce, iter([(now_ms, value)]))


def fetch(quota_manager, client_sensors, value, now_ms):
    return quota_manager.sensors.charge(client_sensors.fetch, value, now_ms)


def owe(quota_manager, client_sensors, value, now_ms):
    return quota_manager.sensors.owed_ms(client_sensors.fetch, now_ms)


def withhold(quota_manager, client_sensors, value, now_ms):
    return quota_manager.sensors.charge_if_within(client_sensors.fetch, value, now_ms)


def give_back(quota_manager, client_sensors, value, now_ms):
    return quota_manager.sensors.give_back(client_sensors.fetch, value, now_ms) or 0


def shadow(quota_manager, client_sensors, value, now_ms):
    return (
        None
        if client_sensors.shadow_produce is None
        else quota_manager.shadow_sensors.charge(client_sensors.shadow_produce, 9e4, now_ms)
    )


def request_time(quota_manager, client_sensors, value, now_ms):
    return quota_manager.request_sensors.charge(client_sensors.request, value / 300.3, now_ms)


def spend(quota_manager, client_sensors, value, now_ms):
    return quota_manager.buckets.spend_permissively(client_sensors.mutation, value // 1000, now_ms) or 0


def spend_strictly(quota_manager, client_sensors, value, now_ms):
    return quota_manager.buckets.spend_strictly(client_sensors.mutation, value // 1000, now_ms) or 0


def put_back(quota_manager, client_sensors, value, now_ms):
    return quota_manager.buckets.give_back(client_sensors.mutation, 1, now_ms) or 0


def change(quota_manager, client_sensors, value, now_ms):
    changed = {t: limit * (1 + value % 3) for t, limit in LIMITS.items()}
    quota_manager.replace(
        QuotaTable({ALICE: changed, Entity(user=DEFAULT): LIMITS}), now_ms, quota_manager.shadow, {ALICE}
    )
    return 0


def reshare(quota_manager, client_sensors, value, now_ms):
    share, gain = (0.125, 0.5, 1.0)[value % 3], (0.0, value / 10_000, 0.25) if value % 2 else ()
    for key in quota_manager.sensor_keys:
        quota_manager.reshare(key, share, share, gain, value % 5, now_ms)
    return 0


WAYS = (charge, charge, one_of_several, run, fetch, owe, withhold, withhold, give_back, shadow)
WAYS += (request_time, spend, spend_strictly, put_back, change, reshare)
REPORTED_OTHERWISE = {change, reshare}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(WAYS), st.sampled_from(["alice", "bob"]), st.integers(0, 30_000), st.integers(0, 4_000)
        ),
        max_size=60,
    )
)
def test_a_replay_of_the_lines_gives_every_throttle_time(steps):
    lines = Lines()
    quota_manager = quota_manager_of(lines)
    now_ms, live = 5_000, []
    for way, user, value, pause_ms in steps:
        now_ms += pause_ms
        client_sensors = quota_manager.bind(VC, 1, user, "etl", now_ms)
        if (
            throttle_ms := way(quota_manager, client_sensors, value, now_ms)
        ) is not None and way not in REPORTED_OTHERWISE:
            live.append(throttle_ms)
    replay = Replay(64)
    reported = [(event, replay.apply(event)) for event in lines.events]
    assert [(event.operation, event.throttle_ms) for event, _ in reported] == [
        (event.operation, throttle_ms) for event, throttle_ms in reported
    ]
    of_use = set(Operation) - NO_USE
    assert [throttle_ms for event, throttle_ms in reported if event.operation in of_use] == live


def test_only_chosen_sensors_are_traced():
    lines = Lines()
    before = len(lines.lines)
    quota_manager = quota_manager_of(lines, traces=lambda tags, entity: tags.user == "bob")
    charge(quota_manager, quota_manager.bind(VC, 1, "alice", "etl", 0), 10, 0)
    assert len(lines.lines) == before
    charge(quota_manager, quota_manager.bind(VC, 1, "bob", "etl", 0), 10, 0)
    event = lines.events[-1]
    assert (event.user, event.client_id, event.rule) == ("bob", "etl", "user=<default>")
    assert (event.operation, event.value) == (Operation.CHARGE, 10)


def test_a_traced_sensor_that_is_closed_is_in_the_trace():
    lines = Lines()
    quota_manager = quota_manager_of(lines)
    quota_manager.bind(VC, 1, "alice", "etl", 0)
    quota_manager.replace(QuotaTable(), 10, QuotaTable())
    assert [event.operation for event in lines.events].count(Operation.CLOSE) == 4
    replay = Replay(64)
    for event in lines.events:
        replay.apply(event)


def test_what_is_not_traced_is_no_other_table():
    assert type(ClientQuotaManager(Sensors(4), QuotaTable()).request_sensors) is Sensors


def test_a_replay_refuses_operations_that_it_cannot_know():
    lines = Lines()
    lines.add(QuotaType.PRODUCE, 0, 77, "charge", 1)
    *settings, event = lines.events
    replay = Replay(64)
    for setting in settings:
        replay.apply(setting)
    with pytest.raises(Unknown, match="sensor 77 of produce in main: it was not opened"):
        replay.apply(event)
    lines.add(QuotaType.PRODUCE, 0, 77, "juggle", 1)
    with pytest.raises(Unknown, match="operation 'juggle'"):
        replay.apply(lines.events[-1])
