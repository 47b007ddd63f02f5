"""The one owner of a virtual cluster's quotas: what its source has is in force, without holding the event loop."""

import asyncio
import time
from types import SimpleNamespace

import pytest
import structlog
from structlog.testing import capture_logs

from kafka_throttle.common import duties
from kafka_throttle.proxy.decisions.steps import QuotaAlteration
from kafka_throttle.proxy.relay.actions import Decision
from kafka_throttle.proxy.server.quota_store import QuotaStore
from kafka_throttle.quotas.changes import Alteration, SourceUnavailable, tables_of
from kafka_throttle.quotas.client_quotas import KEYS_PER_STEP, ClientQuotaManager
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType, Scope
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from kafka_throttle.quotas.sources import file
from kafka_throttle.quotas.sources.file import FileSource
from kafka_throttle.quotas.sources.overlay import Entry
from tests.fakes.clock import FakeClock
from tests.support.waiting import until

PRODUCE = QuotaKey(QuotaType.PRODUCE)
EVERYBODY = Entity(client_id=DEFAULT)
LOG = structlog.get_logger()


def entries_of(quotas):
    """What a file with these quotas says."""
    return {entity: Entry(limits) for entity, limits in quotas.items()}


class Bound:
    """A QuotaStore over a file with these entries, and sensors of some clients."""

    def __init__(self, state_file, entries, clients=0):
        self.source = FileSource(entries_of(entries), "proxy.yaml", state_file)
        self.quota_manager = ClientQuotaManager(Sensors(2 * clients + 16), QuotaTable())
        self.problems = []
        self.book = QuotaStore(
            "main", self.source, self.quota_manager, FakeClock(), lambda *new: self.problems.append(new)
        )
        self.clients = clients

    async def __aenter__(self):
        await self.book.start()
        for i in range(self.clients):
            self.bind(i)
        return self

    async def __aexit__(self, *raised):
        await self.book.stop()

    def bind(self, i):
        return self.quota_manager.bind("main", 1, "u", f"c{i}", 0)

    async def alter(self, entity, limit):
        alteration_request = QuotaAlteration(
            (Alteration(entity, {PRODUCE: limit}),), "admin", lambda results: Decision()
        )
        return await self.book.alter_quotas(alteration_request, LOG)


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state.json"


@pytest.mark.rule("live")
async def test_what_is_altered_is_in_force_when_the_response_comes(state):
    async with Bound(state, {EVERYBODY: {PRODUCE: 10.0}}, clients=3) as bound:
        before = [bound.bind(i) for i in range(3)]
        assert await bound.alter(Entity(client_id="c1"), 7.0) == [None]
        assert [bound.quota_manager.renews(client_sensors) for client_sensors in before] == [True, False, True]
        assert bound.quota_manager.sensors.limit(bound.bind(1).produce) == 7.0
        assert bound.book.quotas == bound.source.quotas
        assert await bound.alter(Entity(client_id="c1"), None) == [None]
        assert bound.quota_manager.sensors.limit(bound.bind(1).produce) == 10.0


async def test_a_changed_scope_is_put_in_force_and_logged(state):
    async with Bound(state, {EVERYBODY: {PRODUCE: 10.0}}, clients=1) as bound:
        before = bound.bind(0)
        with capture_logs() as lines:
            await asyncio.to_thread(bound.source.replace, {EVERYBODY: Entry({PRODUCE: 10.0}, Scope.CLUSTER)})
            await bound.book.take_up()
        [line] = [line for line in lines if line["event"] == "quota_changed"]
        assert (line["old"], line["new"], line["scope"]) == (10.0, 10.0, "cluster")
        assert bound.bind(0).produce != before.produce


async def test_a_changed_file_is_put_in_force(state):
    async with Bound(state, {EVERYBODY: {PRODUCE: 10.0}}, clients=1) as bound:
        await asyncio.to_thread(
            bound.source.replace, entries_of({EVERYBODY: {PRODUCE: 11.0}, Entity("v"): {PRODUCE: 1.0}})
        )
        await bound.book.take_up()
        assert bound.quota_manager.table == tables_of(bound.source.quotas).enforced
        assert bound.quota_manager.sensors.limit(bound.bind(0).produce) == 11.0


@pytest.mark.pure
@pytest.mark.parametrize("way", ["the API", "the configuration", "the state file"])
async def test_a_change_is_put_in_force_once_however_it_comes(monkeypatch, state, way):
    """The source reports it, and the caller that has made it puts it in force, too; the state file is read again."""
    monkeypatch.setattr(file, "_POLL_S", 0.01)
    async with Bound(state, {EVERYBODY: {PRODUCE: 10.0}}, clients=1) as bound:
        in_force, reported = counted(bound.quota_manager, "replacing"), []
        bound.book.when_changed = reported.append
        version = bound.quota_manager.version
        if way == "the API":
            await bound.alter(Entity(client_id="c0"), 7.0)
        elif way == "the configuration":
            await asyncio.to_thread(bound.source.replace, entries_of({EVERYBODY: {PRODUCE: 7.0}}))
            await bound.book.take_up()
        else:
            other = FileSource(entries_of({EVERYBODY: {PRODUCE: 10.0}}), "proxy.yaml", state)
            await asyncio.to_thread(other.alter, [Alteration(Entity(client_id="c0"), {PRODUCE: 7.0})])
        await asyncio.sleep(0.2)
        assert bound.quota_manager.sensors.limit(bound.bind(0).produce) == 7.0
        assert (len(in_force), len(reported), bound.quota_manager.version) == (1, 1, version + 1)


def counted(thing, name):
    """The calls of a method from now on."""
    calls, method = [], getattr(thing, name)

    def counting(*args):
        calls.append(args)
        return method(*args)

    setattr(thing, name, counting)
    return calls


async def test_the_entities_of_a_user_are_known(state):
    pair, alone = Entity("u", "c"), Entity("u")
    async with Bound(
        state, {EVERYBODY: {PRODUCE: 10.0}, pair: {PRODUCE: 1.0}, Entity(DEFAULT): {PRODUCE: 1.0}}
    ) as bound:
        assert bound.book.entities_of("u") == (pair,)
        await bound.alter(alone, 7.0)
        assert bound.book.entities_of("u") == (pair, alone)
        await bound.alter(pair, None)
        assert bound.book.entities_of("u") == (alone,)
        await bound.alter(alone, None)
        assert bound.book.entities_of("u") == bound.book.entities_of("nobody") == ()


async def test_alterations_at_the_same_time_are_all_in_force(state):
    async with Bound(state, {}, clients=5) as bound:
        await asyncio.gather(*(bound.alter(Entity(client_id=f"c{i}"), i + 1.0) for i in range(5)))
        assert [bound.quota_manager.sensors.limit(bound.bind(i).produce) for i in range(5)] == [1.0, 2.0, 3.0, 4.0, 5.0]


async def test_others_have_their_turn_while_a_change_of_all_is_put_in_force(state):
    clients = 10 * KEYS_PER_STEP
    async with Bound(state, {EVERYBODY: {PRODUCE: 10.0}}, clients) as bound:
        handles = [bound.bind(i).produce for i in range(0, clients, KEYS_PER_STEP - 1)]
        limits_seen = set()

        async def look():
            while True:
                old = sum(bound.quota_manager.sensors.limit(handle) == 10.0 for handle in handles)
                limits_seen.add(old)
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        assert await bound.alter(EVERYBODY, 20.0) == [None]
        looking.cancel()
        assert len(limits_seen) >= 10
        assert all(reading.limit == 20.0 for _, reading in bound.quota_manager.readings(0))


def audited(logs):
    return [line for line in logs if line["event"] in ("quota_changed", "quota_altered", "quota_changes_unlisted")]


async def test_each_change_of_the_source_has_a_log_line_but_the_first_quotas_have_none(state):
    with capture_logs() as logs:
        async with Bound(state, {EVERYBODY: {PRODUCE: 10.0}, Entity("v"): {PRODUCE: 1.0}}) as bound:
            assert audited(logs) == []
            changed = entries_of({EVERYBODY: {PRODUCE: 10.0}, Entity("u"): {PRODUCE: 3.0}})
            await asyncio.to_thread(bound.source.replace, changed)
            await bound.book.take_up()
            lines = [(line["entity"], line["quota"], line["old"], line["new"], line["layer"]) for line in audited(logs)]
            assert sorted(lines) == [
                ("user=u", "producer_byte_rate", None, 3.0, "proxy.yaml"),
                ("user=v", "producer_byte_rate", 1.0, None, "proxy.yaml"),
            ]
            other = FileSource(changed, "proxy.yaml", state)
            await asyncio.to_thread(other.alter, [Alteration(Entity("u"), {PRODUCE: 4.0})])
            await until(lambda: len(audited(logs)) >= 3)
    last = audited(logs)[-1]
    assert (last["old"], last["new"], last["layer"], last["source"]) == (3.0, 4.0, "state.json", "file")


async def test_a_change_through_the_api_has_one_log_line_with_the_client(state):
    with capture_logs() as logs:
        async with Bound(state, {EVERYBODY: {PRODUCE: 10.0}}) as bound:
            await bound.alter(EVERYBODY, 7.0)
            await asyncio.sleep(0.1)
    [line] = audited(logs)
    keys = {key: line[key] for key in ("event", "client_id", "entity", "old", "new", "source")}
    assert keys == {
        "event": "quota_altered",
        "client_id": "admin",
        "entity": "client-id=<default>",
        "old": 10.0,
        "new": 7.0,
        "source": "file",
    }


@pytest.mark.parametrize("limits", [(7.0, 8.0), (7.0, 7.0), (8.0, None)], ids=str)
async def test_of_changes_of_one_quota_at_the_same_time_each_has_one_log_line_with_its_client(state, limits):
    with capture_logs() as logs:
        async with Bound(state, {EVERYBODY: {PRODUCE: 10.0}}) as bound:
            bound.source = SlowSource(bound.source, 0.05)
            bound.book.source = bound.source
            first, second = limits
            one = asyncio.create_task(bound.alter(EVERYBODY, first))
            await asyncio.sleep(0.02)
            await asyncio.gather(one, bound.alter(EVERYBODY, second))
            await asyncio.sleep(0.1)
    lines = [(line["event"], line["new"]) for line in audited(logs)]
    assert sorted(lines, key=repr) == sorted([("quota_altered", first), ("quota_altered", second)], key=repr)


class SlowSource:
    """A source that takes some time to write, and then has the change at once."""

    def __init__(self, source, takes_s):
        self._source = source
        self._takes_s = takes_s

    def __getattr__(self, name):
        return getattr(self._source, name)

    def alter(self, alterations):
        time.sleep(self._takes_s)
        return self._source.alter(alterations)


def failing_once(monkeypatch, bound):
    """Have new quotas fail once, after they have begun to be put in force. The attempts since then are returned."""
    attempts = []

    def replacing(*args):
        attempts.append(args)
        yield from bound.quota_manager.replacing(*args)
        if len(attempts) == 1:
            raise RuntimeError("a bug")

    monkeypatch.setattr(bound.book, "_quota_manager", SimpleNamespace(replacing=replacing))
    return attempts


async def test_what_could_not_be_put_in_force_is_shown_and_tried_again(monkeypatch, state):
    monkeypatch.setattr(duties, "_AGAIN_S", 0.01)
    monkeypatch.setattr(file, "_POLL_S", 0.01)
    async with Bound(state, {EVERYBODY: {PRODUCE: 10.0}}, clients=1) as bound:
        attempts = failing_once(monkeypatch, bound)
        other = FileSource(entries_of({EVERYBODY: {PRODUCE: 10.0}}), "proxy.yaml", state)
        await asyncio.to_thread(other.alter, [Alteration(Entity(client_id="c0"), {PRODUCE: 7.0})])
        await until(lambda: len(attempts) >= 2 and bound.book.quotas == bound.source.quotas)
        assert bound.quota_manager.sensors.limit(bound.bind(0).produce) == 7.0
        trouble = "main: an error in the proxy itself, in putting quotas in force: RuntimeError('a bug')"
        assert trouble in duties.troubles()  # those of other tests stay for a minute


async def test_who_changes_a_quota_is_told_that_it_is_not_in_force_yet(monkeypatch, state):
    monkeypatch.setattr(duties, "_AGAIN_S", 0.01)
    async with Bound(state, {EVERYBODY: {PRODUCE: 10.0}}, clients=1) as bound:

        def failing(*args):
            raise RuntimeError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(bound.book, "_quota_manager", SimpleNamespace(replacing=failing))
            [result] = await bound.alter(Entity(client_id="c0"), 7.0)
        assert isinstance(result, SourceUnavailable)
        assert str(result).startswith("written, but not in force yet")
        assert any("putting quotas in force" in trouble for trouble in duties.troubles())
        await until(lambda: bound.quota_manager.sensors.limit(bound.bind(0).produce) == 7.0)


async def test_of_very_many_changes_the_first_hundred_are_listed(state):
    with capture_logs() as logs:
        async with Bound(state, {EVERYBODY: {PRODUCE: 10.0}}) as bound:
            await asyncio.to_thread(
                bound.source.replace, {Entity(f"u{i}"): Entry({PRODUCE: 1.0}) for i in range(10_000)}
            )
            await bound.book.take_up()
    lines = audited(logs)
    assert [line["event"] for line in lines] == ["quota_changed"] * 100 + ["quota_changes_unlisted"]
    assert lines[-1]["changes"] == 9_901


async def test_of_very_many_problems_the_first_hundred_are_listed(state):
    """A key that the proxy does not know may be in each entity of a cluster."""
    async with Bound(state, {EVERYBODY: {PRODUCE: 10.0}}) as bound:
        for problems, expected in (
            ({f"u{i}": "wrong" for i in range(10_000)}, ["quota_problem"] * 100 + ["quota_problems_unlisted"]),
            ({f"u{i}": "wrong" for i in range(50)}, ["quota_problem_ended"] * 100 + ["quota_problems_unlisted"]),
            ({}, ["quota_problem_ended"] * 50),
        ):
            bound.source.problems = problems
            with capture_logs() as lines:
                await bound.book.take_up()
            assert [line["event"] for line in lines] == expected
            if len(problems) == 10_000:
                assert (lines[-1]["log_level"], lines[-1]["problems"]) == ("warning", 9_900)
            if len(problems) == 50:
                assert (lines[-1]["log_level"], lines[-1]["ended"]) == ("info", 9_850)
        assert bound.problems == [("file", 10_000)]
