"""The loop of a fleet: what it passes to the member and to the transport, and what it logs and counts."""

import asyncio
import json

import pytest
import structlog

from kafka_throttle.proxy.server.fleet.fleet import LOOK_MS, WRITE_MS, Fleet
from kafka_throttle.proxy.server.fleet.transport import RefusedRecord
from kafka_throttle.quotas.shares.member import Member
from kafka_throttle.quotas.shares.moves import Use
from tests.fakes.clock import FakeClock
from tests.fakes.fleet import FakeRows, FakeTransport
from tests.support.waiting import until

KEY = ("client", "main", 1, "producer_byte_rate", "alice", "", None)


class Instance:
    """One member with its rows; `exchange` has what all members have published."""

    def __init__(self, exchange, clock, name):
        self.clock = clock
        self.rows = FakeRows()
        self.transport = FakeTransport(exchange, clock)
        self.member = Member(name, 11, 1_000, clock.now_ms(), cut_off_ms=self.transport.cut_off_ms)
        self.fleet = Fleet("main", self.transport, self.member, self.rows, clock)

    async def join(self):
        await self.transport.start(self.member.id, lambda: None)

    def press(self, rate=0.5):
        """Its clients use the limit, and are throttled."""
        self.rows.in_use = [Use(KEY, rate, True, (rate,))]


async def pass_time(instances, ms):
    """Let all of them take their turns for so long."""
    clock = instances[0].clock
    for _ in range(ms // LOOK_MS):
        clock.advance(LOOK_MS)
        for instance in instances:
            await instance.fleet.turn()
            await asyncio.sleep(0)
            await asyncio.sleep(0)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def exchange():
    return {}


@pytest.fixture
async def pair(exchange, clock):
    """Two members that know each other."""
    instances = [Instance(exchange, clock, name) for name in ("a#1", "b#2")]
    for instance in instances:
        await instance.join()
    await pass_time(instances, 4_000)
    assert [instance.member.is_known for instance in instances] == [True, True]
    return instances


async def test_what_two_use_is_divided_and_applied(pair):
    a, b = pair
    a.press()
    await pass_time(pair, 10_000)
    assert a.member.share_of(KEY) > 0.9
    b.press()
    await pass_time(pair, 10_000)
    shares = [instance.member.share_of(KEY) for instance in pair]
    assert sum(shares) <= 1
    assert min(shares) > 0.45
    for instance, share in zip(pair, shares, strict=True):
        assert [move.share for move in instance.rows.applied if move.key == KEY][-1] == share


async def test_at_most_one_document_a_second_is_published_and_none_when_nothing_changes(pair):
    a, b = pair
    a.press()
    before = len(a.transport.published)
    await pass_time(pair, 10 * WRITE_MS)
    assert before < len(a.transport.published) <= before + 10
    written = [len(instance.transport.published) for instance in pair]
    await pass_time(pair, 5 * WRITE_MS)
    a.rows.in_use = b.rows.in_use = []
    await pass_time(pair, 120_000)
    written = [len(instance.transport.published) for instance in pair]
    await pass_time(pair, 60_000)
    assert [len(instance.transport.published) for instance in pair] == written


async def test_a_document_that_could_not_be_published_is_published_later(pair):
    a, b = pair
    a.transport.is_reachable = False
    a.press()
    await pass_time(pair, 2_000)
    a.transport.is_reachable = True
    await pass_time(pair, 10_000)
    assert a.member.share_of(KEY) > 0.9
    assert b.member.share_of(KEY) < 0.02


async def test_a_member_that_is_cut_off_and_comes_back_says_so_once(pair):
    a, b = pair
    with structlog.testing.capture_logs() as logs:
        a.transport.is_reachable = False
        a.transport.problems = {"": "no connection"}
        await pass_time(pair, 8_000)
        assert a.fleet.trouble == "no connection"
        assert a.fleet.totals().is_cut_off
        assert a.fleet.totals().heard_ms_ago >= 7_000
        assert a.member.share_of(KEY) == pytest.approx(0.5, abs=0.01)
        a.transport.is_reachable = True
        a.transport.problems = {}
        await pass_time(pair, 5_000)
    assert a.fleet.trouble == b.fleet.trouble == ""
    assert [line["event"] for line in logs if line["member"] == "a#1"] == [
        "fleet_problem", "fleet_cut_off", "fleet_problem_ended", "fleet_joined", "fleet_reached",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("away_s", "events"), [(20, ["fleet_joined"]), (35, ["fleet_cut_off", "fleet_joined", "fleet_reached"])]
)
async def test_a_member_that_joins_late_is_cut_off_only_if_it_takes_very_long(exchange, clock, away_s, events):
    late = Instance(exchange, clock, "late#1")
    await late.join()
    late.transport.is_reachable = False
    with structlog.testing.capture_logs() as logs:
        await late.fleet.turn()
        await pass_time([late], 1_000 * away_s)
        late.transport.is_reachable = True
        await pass_time([late], 10_000)
    assert [line["event"] for line in logs] == events


async def test_a_member_whose_document_is_gone_does_not_go_on_with_what_it_claimed(pair):
    a, _ = pair
    a.press()
    await pass_time(pair, 10_000)
    assert a.member.share_of(KEY) > 0.9
    a.transport.expire()
    await a.fleet.turn()
    assert a.member.share_of(KEY) < 0.51
    await pass_time(pair, 10_000)
    assert a.member.share_of(KEY) > 0.9


async def test_a_document_made_before_the_others_dropped_the_member_is_not_published(pair, exchange):
    a, _ = pair
    a.press()
    a.clock.advance(WRITE_MS)
    before = len(a.transport.published)
    await a.fleet.turn()
    a.transport.expire()
    await asyncio.sleep(0)
    assert len(a.transport.published) == before
    assert "a#1" not in exchange
    await pass_time(pair, 10_000)
    assert a.member.share_of(KEY) > 0.9


BAD = {
    "an empty one": (b"", "it is empty"),
    "a foreign one": (b"PNG", "expected JSON"),
    "a huge one": (b" " * 1_000_000, "expected at most"),
    "an older one": (b'{"format": 0}', "expected format 1"),
}


@pytest.mark.parametrize("bad", BAD)
async def test_a_document_that_makes_no_sense_is_counted_and_logged_once(pair, exchange, bad):
    a, _ = pair
    content, reason = BAD[bad]
    with structlog.testing.capture_logs() as logs:
        exchange["x"] = content
        await pass_time(pair, 3_000)
        exchange["x"] = content + b" " if content else content
        await pass_time(pair, 3_000)
    [line] = [line for line in logs if line["event"] == "fleet_document_refused" and line["member"] == "a#1"]
    assert line["other"] == "x"
    assert reason in line["problem"]
    assert a.fleet.totals().refused >= 1
    assert a.fleet.totals().members == 3


async def test_records_that_make_no_sense_are_all_counted_and_logged_once_a_minute(pair):
    a, _ = pair
    with structlog.testing.capture_logs() as logs:
        for second in range(90):
            a.transport.refused = [RefusedRecord("topic claims", f"offset {second}: expected JSON")]
            await pass_time(pair, 1_000)
    lines = [line for line in logs if line["event"] == "fleet_document_refused"]
    assert [(line["other"], line["documents"]) for line in lines] == [("topic claims", 1), ("topic claims", 60)]
    assert a.fleet.totals().refused == 90
    assert not [line for line in logs if line["event"].startswith("fleet_problem")]


async def test_the_last_good_document_of_a_member_stays_in_force(pair, exchange):
    a, b = pair
    a.press()
    await pass_time(pair, 10_000)
    exchange["a#1"] = b"foreign"
    b.press()
    await pass_time([b], 10_000)
    assert b.member.share_of(KEY) < 0.02


async def test_claims_that_add_up_to_more_than_the_limit_are_logged_and_not_followed(pair, exchange):
    a, _ = pair
    a.press()
    await pass_time(pair, 10_000)
    document = json.loads(exchange["b#2"])
    document["seq"] += 100
    document["keys"] = [[list(KEY), 0.9, 1.0, 0.0, []]]
    with structlog.testing.capture_logs() as logs:
        for _ in range(30):
            document["seq"] += 1
            document["seen"]["a#1"] = json.loads(exchange["a#1"])["seq"]
            exchange["b#2"] = json.dumps(document).encode()
            await pass_time([a], 1_000)
    assert [line["event"] for line in logs].count("fleet_claims_exceed_limit") >= 1
    assert a.fleet.totals().excesses >= 1
    assert a.member.share_of(KEY) + 0.9 <= 1


async def test_newcomers_that_want_more_than_there_is_are_no_error(pair, exchange):
    """Each of them says for 8 s what it wants, and dies."""
    a, _ = pair
    a.press()
    await pass_time(pair, 10_000)
    document = json.loads(exchange["b#2"])
    with structlog.testing.capture_logs() as logs:
        for number in range(8):
            document |= {"member": f"c{number}#9", "seq": 2, "asks": 2, "keys": [[list(KEY), 0.9, 1.0, 0.0, []]]}
            exchange[f"c{number}#9"] = json.dumps(document).encode()
            await pass_time([a], 4_000)
            exchange.pop(f"c{number - 1}#9", None)
            await pass_time([a], 4_000)
    assert "fleet_claims_exceed_limit" not in [line["event"] for line in logs]
    assert a.fleet.totals().excesses == 0


async def test_newcomers_that_claim_nothing_hide_no_excess(pair, exchange):
    a, _ = pair
    a.press()
    await pass_time(pair, 10_000)
    document = json.loads(exchange["b#2"])
    document |= {"seq": document["seq"] + 100, "keys": [[list(KEY), 0.9, 1.0, 0.0, []]]}
    with structlog.testing.capture_logs() as logs:
        for number in range(6):
            document["seen"], document["seq"] = {"a#1": json.loads(exchange["a#1"])["seq"]}, document["seq"] + 1
            exchange["b#2"] = json.dumps(document).encode()
            new = document | {"member": f"c{number}#9", "seq": 2, "keys": [[list(KEY), 0.0, 0.01, 0.0, []]]}
            exchange[new["member"]] = json.dumps(new).encode()
            await pass_time([a], 9_000)
            del exchange[new["member"]]
    assert "fleet_claims_exceed_limit" in [line["event"] for line in logs]


async def test_members_that_come_and_go_are_logged(pair, exchange, clock):
    a, b = pair
    with structlog.testing.capture_logs() as logs:
        c = Instance(exchange, clock, "c#3")
        await c.join()
        await pass_time([a, b, c], 4_000)
        await c.fleet.stop()
        await pass_time(pair, 1_000)
    of_a = [(line["event"], line.get("other"), line["members"]) for line in logs if line["member"] == "a#1"]
    assert of_a == [("fleet_member_joined", "c#3", 3), ("fleet_member_left", "c#3", 2)]
    [joined] = [line for line in logs if line["event"] == "fleet_joined"]
    assert (joined["member"], joined["members"], joined["others"]) == ("c#3", 3, ["a#1", "b#2"])


async def test_two_members_with_one_name_are_logged_if_it_lasts(exchange, clock):
    instances = [Instance(exchange, clock, name) for name in ("a#1", "a#2")]
    with structlog.testing.capture_logs() as logs:
        for instance in instances:
            await instance.join()
        await pass_time(instances, 50_000)
        assert not [line for line in logs if line["event"] == "fleet_name_taken"]
        await pass_time(instances, 50_000)
    taken = [(line["member"], line["other"]) for line in logs if line["event"] == "fleet_name_taken"]
    assert sorted(taken) == [("a#1", "a#2"), ("a#2", "a#1")]
    assert [instance.member.members for instance in instances] == [2, 2]


async def test_a_fault_is_logged_and_the_loop_goes_on(pair):
    a, _ = pair
    is_broken = True

    def uses(now_ms):
        if is_broken:
            raise LookupError("a fault")
        return []

    a.rows.uses = uses
    with structlog.testing.capture_logs() as logs:
        joining = asyncio.create_task(a.fleet.join(0.01))
        await joining
        await asyncio.sleep(0)
        await until(lambda: logs)
    assert [line["event"] for line in logs] == ["background_task_failed"]
    await a.fleet.stop()


async def test_who_leaves_is_gone_and_publishes_nothing_more(pair, exchange):
    a, b = pair
    a.press()
    await a.fleet.turn()
    await a.fleet.stop()
    assert list(exchange) == ["b#2"]
    await pass_time([b], 3_000)
    assert b.member.members == 1
    assert b.member.share_of(KEY) == 1


async def test_a_document_is_made_only_when_the_member_knows_that_the_last_one_was_ordered(pair):
    """It is ordered while a move for all rows is under way."""
    a, _ = pair
    told, member, rows = [], a.member, iter([True, True, True, False])
    publish, document, published, ordered = a.transport.publish, member.document, member.published, asyncio.Event()

    async def publish_slowly(content):
        await ordered.wait()
        await publish(content)

    def go_on(now_ms):
        ordered.set()
        return next(rows, False)

    a.transport.publish = publish_slowly
    member.document = lambda now_ms: (made := document(now_ms)) and (told.append(("document", made.seq)), made)[1]
    member.published = lambda seq, now_ms: (told.append(("published", seq)), published(seq, now_ms))
    for _ in range(2):
        a.press()
        a.clock.advance(WRITE_MS)
        await a.fleet.turn()
        await asyncio.sleep(0)
        a.rows.go_on = go_on
    await a.fleet.turn()
    assert [what for what, _ in told[:2]] == ["document", "published"]


async def test_no_client_is_served_between_the_steps_of_a_move_for_all_when_the_member_may_soon_be_cut_off(pair):
    a, _ = pair
    served = []
    for is_reachable in (True, False):
        a.transport.is_reachable = is_reachable
        a.clock.advance(a.transport.cut_off_ms // 2 if not is_reachable else 0)
        steps, turns = iter([True] * 5), []
        a.rows.go_on = lambda now_ms, steps=steps: next(steps, False)
        turn = asyncio.create_task(a.fleet.turn())
        while not turn.done():
            turns.append(1)
            await asyncio.sleep(0)
        served.append(len(turns))
    assert served[0] > 5 > served[1]
