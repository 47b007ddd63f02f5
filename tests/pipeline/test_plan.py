"""What a run may change: always nearer to what is wanted, never further than it may, and there in the end."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.common.problems import Problems
from kafka_throttle.pipeline.rollout.apply import alterations_of
from kafka_throttle.pipeline.rollout.page import plan_page, warnings_of
from kafka_throttle.pipeline.rollout.plan import Bounds, Change, Inherited, other_scopes, planned, same, step
from kafka_throttle.pipeline.rollout.plan_file import Made, PlanFile, parse_plan, read_plan, write_plan
from kafka_throttle.quotas.entities import BYTE_RATES, DEFAULT, Entity, QuotaType, Scope
from kafka_throttle.quotas.quota_table import QuotaTable

PRODUCE, FETCH, REQUEST, CONNECTION = QuotaType.PRODUCE, QuotaType.FETCH, QuotaType.REQUEST, QuotaType.CONNECTION
MUTATION = QuotaType.CONTROLLER_MUTATION

NAMES = st.sampled_from(["a", "b", DEFAULT])
CLIENTS = st.one_of(
    st.builds(Entity, user=NAMES),
    st.builds(Entity, client_id=NAMES),
    st.builds(Entity, user=NAMES, client_id=NAMES),
)
WHOLE = st.integers(1, 10**9).map(float)
SHARES = st.floats(0.01, 1e6, allow_nan=False)


def limits_of(entity):
    if entity.ip is not None:
        return st.fixed_dictionaries({CONNECTION: st.integers(0, 5_000).map(float)})
    return st.fixed_dictionaries({}, optional={PRODUCE: WHOLE, FETCH: WHOLE, REQUEST: SHARES})


@st.composite
def tables(draw):
    entities = draw(
        st.sets(st.one_of(CLIENTS, st.builds(Entity, ip=st.sampled_from(["10.0.0.1", DEFAULT]))), max_size=6)
    )
    drawn = {entity: draw(limits_of(entity)) for entity in entities}
    return {entity: limits for entity, limits in drawn.items() if limits}


def after(table, changes):
    """What is in force when they have been applied."""
    found = {entity: dict(limits) for entity, limits in table.items()}
    for change in changes:
        limits = found.setdefault(change.entity, {})
        assert limits.get(change.quota_type) == change.before
        limits.pop(change.quota_type, None)
        if change.after is not None:
            limits[change.quota_type] = change.after
    return {entity: limits for entity, limits in found.items() if limits}


@given(tables(), tables(), st.sampled_from([1.01, 1.5, 2.0, 10.0, math.inf]))
def test_one_run_stays_within_the_factor_of_what_binds(table, wanted, factor):
    for change in planned(table, wanted, Bounds(factor), prune=True).changes:
        base = change.before
        if base is None and change.inherited:
            base = change.inherited.limit
        if not base or change.after is None:
            continue
        unit = 1 if change.quota_type in BYTE_RATES | {CONNECTION} else 0
        assert min(base / factor, base - unit) * (1 - 1e-9) <= change.after
        assert change.after <= max(base * factor, base + unit) * (1 + 1e-9)


@given(tables(), tables(), st.sampled_from([1.5, 2.0, math.inf]), st.sampled_from([None, 1, 2]), st.booleans())
def test_runs_lead_to_what_is_wanted_and_then_there_is_nothing_to_do(table, wanted, factor, most, prune):
    kept = {} if prune else table
    goal = {entity: {**kept.get(entity, {}), **wanted.get(entity, {})} for entity in kept.keys() | wanted.keys()}
    for _ in range(600):
        found = planned(table, wanted, Bounds(factor, most), prune=prune)
        assert len({change.entity for change in found.changes}) <= (most or math.inf)
        if not found.changes:
            break
        table = after(table, found.changes)
    assert not found.waiting
    assert table.keys() == goal.keys()
    for entity, limits in goal.items():
        assert table[entity].keys() == limits.keys()
        assert all(same(table[entity][quota_type], limit) for quota_type, limit in limits.items())


@given(st.floats(1, 1e12), st.floats(1, 1e12), st.floats(1.01, 100))
def test_a_step_goes_towards_the_goal_and_not_beyond(base, goal, factor):
    reached = step(base, goal, REQUEST, factor)
    assert min(base, goal) <= reached <= max(base, goal)
    assert base == goal or reached != base


@pytest.mark.parametrize(
    ("base", "goal", "quota_type", "reached"),
    [
        (1000, 100, PRODUCE, 500),
        (1000, 5000, PRODUCE, 2000),
        (1000, 600, PRODUCE, 600),
        (5, 1, PRODUCE, 3),
        (2, 1, PRODUCE, 1),
        (1, 0, CONNECTION, 0),
        (3, 0, CONNECTION, 2),
        (0, 50, CONNECTION, 50),
        (12.5, 1, REQUEST, 6.25),
    ],
)
def test_a_factor_of_two(base, goal, quota_type, reached):
    assert step(base, goal, quota_type, 2.0) == reached


def test_a_factor_that_overflows_bounds_no_more_than_it_must():
    assert step(1000, 5e6, PRODUCE, 1e305) == 5e6
    assert step(1000, 1, PRODUCE, 1e308) == 1
    assert step(1e308, 1, REQUEST, 2.0) == 5e307


def test_a_first_quota_of_its_own_is_bounded_by_what_bound_it_before():
    table = {Entity(client_id=DEFAULT): {PRODUCE: 5e6}}
    [change] = planned(table, {Entity(client_id="noisy"): {PRODUCE: 1e6}}, Bounds(2.0)).changes
    assert (change.before, change.after, change.wanted) == (None, 2.5e6, 1e6)
    assert change.inherited == Inherited(5e6, Entity(client_id=DEFAULT))
    assert change.lowers


def test_where_nothing_binds_a_quota_is_set_in_full():
    [change] = planned({}, {Entity("alice"): {FETCH: 10.0}}, Bounds(2.0)).changes
    assert (change.before, change.after, change.why) == (None, 10.0, "")


def test_a_quota_is_removed_when_what_binds_then_is_near_enough():
    table = {Entity("alice"): {PRODUCE: 8e6}, Entity(DEFAULT): {PRODUCE: 1e6}}
    wanted = {Entity(DEFAULT): {PRODUCE: 1e6}}
    steps = []
    for _ in range(3):
        found = planned(table, wanted, Bounds(2.0), prune=True)
        [change] = found.changes
        assert found.as_wanted == 1
        steps.append(change.after)
        table = after(table, found.changes)
    assert steps == [4e6, 2e6, None]
    assert table == wanted


def test_what_the_file_does_not_name_stays_unless_pruned():
    table = {Entity("alice"): {PRODUCE: 10.0, FETCH: 20.0}, Entity("bob"): {FETCH: 30.0}}
    wanted = {Entity("alice"): {PRODUCE: 10.0}}
    assert planned(table, wanted, Bounds()).changes == ()
    gone = planned(table, wanted, Bounds(), prune=True).changes
    assert {(change.entity, change.quota_type, change.after) for change in gone} == {
        (Entity("alice"), FETCH, None),
        (Entity("bob"), FETCH, None),
    }


def test_who_gets_more_comes_first_and_others_wait():
    table = {Entity(name): {PRODUCE: 100.0} for name in "abc"}
    wanted = {Entity("a"): {PRODUCE: 90.0}, Entity("b"): {PRODUCE: 80.0}, Entity("c"): {PRODUCE: 110.0}}
    found = planned(table, wanted, Bounds(most_entities=2))
    assert [change.entity.user for change in found.changes] == ["c", "a"]
    [waiting] = found.waiting
    assert (waiting.entity.user, waiting.after, waiting.why) == ("b", 100.0, "2 entities a run: --most-entities")
    assert "1 limit will not be as wanted after this run: apply it, then plan again" in plan_page(found, "here")


def test_a_quota_that_binds_nobody_is_warned_of():
    table = QuotaTable({Entity(DEFAULT): {PRODUCE: 100.0}})
    found = planned(table, {Entity(client_id="etl"): {PRODUCE: 50.0}}, Bounds())
    [warning] = warnings_of(found, table)
    assert warning == "producer_byte_rate of client-id=etl: binds nobody, as user=<default> always comes before"


# ---------------------------------------------------------------------- files


MADE = Made("2026-11-22T13:00:00Z", "root@here", "127.0.0.1:9092", "q.yaml", {"most_change": 2.0})
PLAN = PlanFile(
    MADE,
    (
        Change(Entity("ü '=\n", DEFAULT), PRODUCE, None, 5.0, 5.0),
        Change(Entity(ip="10.0.0.1"), CONNECTION, 7.0, 4.0, 0.0, "a factor of 2 a run"),
        Change(Entity(client_id="x"), REQUEST, 12.5, None, None),
        Change(Entity("alice"), PRODUCE, 9.0, None, None, scope=Scope.CLUSTER),
    ),
)


def test_a_plan_is_read_as_it_was_written(tmp_path):
    write_plan(tmp_path / "plan.json", PLAN)
    assert read_plan(tmp_path / "plan.json") == PLAN


def test_a_plan_backwards_takes_it_back():
    back = PLAN.reversed("later", "me")
    assert [(change.before, change.after) for change in back.changes] == [
        (5.0, None),
        (4.0, 7.0),
        (None, 12.5),
        (None, 9.0),
    ]
    assert back.made.takes_back == PLAN.checksum
    assert parse_plan(back.text().encode()) == back


def test_a_limit_that_comes_back_brings_its_scope_along():
    table = QuotaTable({Entity("alice"): {PRODUCE: 9.0, MUTATION: 1.0}}, {Entity("alice")})
    found = planned(table, {}, Bounds(), prune=True).changes
    assert [one.scope for one in alterations_of(found)] == [None]
    back = PlanFile(MADE, found).reversed("later", "me").changes
    assert [one.scope for one in alterations_of(back)] == [Scope.CLUSTER]
    raised = planned(table, {Entity("alice"): {PRODUCE: 10.0}}, Bounds()).changes
    assert [one.scope for one in alterations_of(raised)] == [None]


def test_the_scopes_that_a_plan_does_not_change_are_known():
    alice, bob, carol = Entity("alice"), Entity("bob"), Entity("carol")
    in_force = QuotaTable({alice: {PRODUCE: 9.0}, bob: {PRODUCE: 9.0}}, {alice})
    wanted = QuotaTable({alice: {PRODUCE: 9.0}, bob: {MUTATION: 9.0}, carol: {FETCH: 1.0}}, {carol})
    assert set(other_scopes(in_force, wanted)) == {(alice, Scope.NODE), (carol, Scope.CLUSTER)}


def problems_of(text):
    with pytest.raises(Problems) as refused:
        parse_plan(text.encode())
    return str(refused.value)


def edited(change):
    raw = json.loads(PLAN.text())
    change(raw)
    return json.dumps(raw)


def test_a_plan_that_was_edited_is_refused():
    reported = problems_of(edited(lambda raw: raw["changes"][0].update(after=6.0)))
    assert reported.startswith("checksum: expected sha256:")
    assert reported.endswith("the file is not as it was written")


def test_everything_that_is_wrong_with_a_plan_is_told_with_its_place():
    def spoil(raw):
        raw["changes"][0]["entity"] = {"user": 5, "group": "x"}
        raw["changes"][1] |= {"quota": "speed", "after": "fast"}
        raw["changes"][2] |= {"before": -1, "when": 1}
        raw["made"].pop("by")
        raw["more"] = 1

    reported = problems_of(edited(spoil)).splitlines()
    places = [line.partition(": ")[0] for line in reported]
    assert places == [
        "made.by", "changes[0].entity.user", "changes[0].entity.group", "changes[1].quota", "changes[1].after",
        "changes[2].before", "changes[2].when", "more", "checksum",
    ]  # fmt: skip


@pytest.mark.parametrize("quota_type", [PRODUCE, REQUEST])
def test_a_limit_that_no_double_can_have_is_told(quota_type):
    text = PlanFile(MADE, (Change(Entity("a"), quota_type, None, 10**400, 5.0),)).text()
    assert problems_of(text).startswith("changes[0].after: expected a number from 0, or null for no quota, got 1000")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1, column 1: no JSON: Expecting value"),
        ("[]", "(file): expected a plan, as `usage plan --out` writes it, got something else"),
        ('{"a": 1, "a": 2}', "(file): no JSON: a key comes twice"),
        ('{"kafka_throttle_plan": 2}', "kafka_throttle_plan: expected 1, got 2"),
        (PLAN.text()[:-30], "no JSON"),
        ("[" * 100_000, "(file): no JSON"),
    ],
)
def test_what_is_no_plan_is_told(text, problem):
    assert problem in problems_of(text)


def test_a_quota_that_comes_twice_is_refused():
    doubled = PlanFile(MADE, (PLAN.changes[0], PLAN.changes[0]))
    assert problems_of(doubled.text()).startswith("changes[1]: expected each quota once")


@given(tables(), tables())
def test_every_plan_can_be_read_back(table, wanted):
    found = planned(table, wanted, Bounds(2.0, 2), prune=True)
    plan = PlanFile(MADE, tuple(plain(change) for change in found.changes), tuple(map(plain, found.waiting)))
    assert parse_plan(plan.text().encode()) == plan


def plain(change):
    """Without what only the page tells."""
    return replace(change, inherited=None)
