"""How limits come from evidence: rounding, fairness, stages, capacity files, doubts. No Spark."""

import io
import json
from dataclasses import replace
from datetime import date, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.common.problems import Problems
from kafka_throttle.common.yaml_file import parse_yaml, yaml_of
from kafka_throttle.pipeline.jobs.recommend import write
from kafka_throttle.pipeline.recommend.advice import Settings, advise, judged
from kafka_throttle.pipeline.recommend.capacity import Capacity, capacity_of
from kafka_throttle.pipeline.recommend.evidence import (
    AtNode,
    ConfidencePenalty,
    Evidence,
    LeftQuotas,
    SharedQuota,
    Simulated,
    confidence,
    penalties,
    too_thin,
)
from kafka_throttle.pipeline.recommend.fairness import fair_shares
from kafka_throttle.pipeline.recommend.limits import path_to, rounded_down, rounded_up, wanted
from kafka_throttle.pipeline.recommend.outcome import outcomes
from kafka_throttle.pipeline.recommend.page import print_advice
from kafka_throttle.pipeline.recommend.quota_file import document
from kafka_throttle.pipeline.recommend.rows import csv_table, plain
from kafka_throttle.pipeline.recommend.subject import Subject
from kafka_throttle.pipeline.report.tables import csv_of
from kafka_throttle.pipeline.simulate.candidate import candidate_of, load_candidate
from kafka_throttle.quotas.entities import Entity, QuotaType, Scope

MB = 1_000_000
MONDAY = date(2026, 10, 26)
PRODUCE, FETCH, REQUEST, CONNECTION = QuotaType.PRODUCE, QuotaType.FETCH, QuotaType.REQUEST, QuotaType.CONNECTION


def evidence(user="etl", quota_type=PRODUCE, demand=5.0 * MB, *, windows=10_000, **values):
    known = {
        "subject": Subject("main", quota_type, user), "node": AtNode(1, windows, demand, at_least=False), "thin": None,
        "peak": 2 * demand, "peak_node_id": 1, "nodes": 3, "windows": 3 * windows, "days": 28,
        "throttled_windows": 0, "throttled_ms": 0, "elsewhere_share": 0.0, "limit": None, "rule": "",
    }  # fmt: skip
    return Evidence(**{**known, **values})


# ---------------------------------------------------------------------- rounding


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [(1_234_567, 1_300_000, 1_230_000), (1_200_000, 1_200_000, 1_200_000), (99.01, 100, 99), (7, 7, 7), (0.4, 1, 0)],
)
def test_byte_rates_are_whole_numbers_with_two_digits_up_or_three_down(value, up, down):
    assert rounded_up(value, PRODUCE) == up
    assert rounded_down(value, PRODUCE) == down


def test_percent_of_a_thread_may_be_a_fraction():
    assert rounded_up(1.234, REQUEST) == 1.3
    assert rounded_down(0.012345, REQUEST) == 0.0123


@given(st.floats(1e-3, 1e17), st.sampled_from(list(QuotaType)))
def test_rounding_goes_the_way_it_says_and_not_far(value, quota_type):
    up, down = rounded_up(value, quota_type), rounded_down(value, quota_type)
    if quota_type is not CONNECTION or value < 2**31 - 1:
        assert value * (1 - 1e-11) <= up <= max(value * 1.1, value + 1) * (1 + 1e-12)
    assert min(value * 0.99, value - 1) - 1e-9 <= down <= value * (1 + 1e-12)


def test_a_limit_is_wanted_in_two_digits():
    assert wanted(0.001, 1.3, REQUEST) == 0.0013
    assert wanted(5 * MB, 1.3, PRODUCE) == 6.5 * MB


# ---------------------------------------------------------------------- fairness

AMOUNTS = st.floats(0.01, 1e12)


@given(st.lists(st.tuples(AMOUNTS, st.floats(0.01, 100)), min_size=1, max_size=30), st.floats(0.01, 1e13))
def test_shares_are_max_min_fair(wants, capacity):
    asked, weights = [one for one, _ in wants], [weight for _, weight in wants]
    shares = fair_shares(asked, weights, capacity)
    assert sum(shares) <= capacity * (1 + 1e-9)
    assert all(0 <= share <= one for share, one in zip(shares, asked, strict=True))
    assert sum(shares) >= min(sum(asked), capacity) * (1 - 1e-9)
    levels = [share / weight for share, weight in zip(shares, weights, strict=True)]
    for share, one, level in zip(shares, asked, levels, strict=True):
        if share < one * (1 - 1e-9):
            assert level >= max(levels) * (1 - 1e-6)


def test_who_wants_little_gets_it_and_the_rest_is_shared_by_weight():
    assert fair_shares([10, 100, 100], [1, 1, 2], 100) == [10, 30, 60]
    assert fair_shares([10, 20], [1, 1], 100) == [10, 20]
    assert fair_shares([], [], 5) == []


# ------------------------------------------------------------------------ stages


@given(
    st.floats(1, 1e12),
    st.none() | st.floats(1, 1e12),
    st.floats(0, 1e12),
    st.sampled_from([PRODUCE, REQUEST, CONNECTION]),
    st.integers(2, 10),
    st.floats(1.05, 10),
)
def test_a_roll_out_goes_down_in_steps_to_the_limit(wants, today, peak, quota_type, stages, factor):
    limit, peak = rounded_up(min(wants, 1e9), quota_type), min(peak, 1e9)
    today = None if today is None else rounded_up(min(today, 1e9), quota_type)
    path = path_to(limit, today, peak, quota_type, stages, factor)
    assert path[-1] == limit
    if today is not None and limit < today < peak:
        path = [today, *path]
    elif today is None or today > limit:
        assert path[0] >= peak * (1 - 1e-11)
    for before, after in pairwise(path):
        assert before >= after >= min(before / factor, before - 1) * (1 - 1e-11)


def test_who_has_no_quota_first_gets_room_for_the_most_that_was_seen():
    assert path_to(1 * MB, None, 4 * MB, PRODUCE, 3, 2.0) == [4 * MB, 2 * MB, 1 * MB]


def test_a_quota_that_is_tight_already_goes_down_from_where_it_is():
    assert path_to(1 * MB, 2 * MB, 4 * MB, PRODUCE, 3, 2.0) == [1.59 * MB, 1.27 * MB, 1 * MB]


def test_a_limit_above_todays_is_set_at_once():
    assert path_to(5 * MB, 2 * MB, 9 * MB, PRODUCE, 3, 2.0) == [5 * MB]


def test_a_long_way_down_takes_more_stages():
    path = path_to(1 * MB, None, 100 * MB, PRODUCE, 3, 2.0)
    assert path[0] == 100 * MB
    assert len(path) == 8
    assert path[-1] == 1 * MB


# ---------------------------------------------------------------------- capacity


WEIGHT = "expected a number from 0.000001 to 1000000"


def test_every_mistake_of_a_capacity_file_is_told_with_its_path():
    with pytest.raises(Problems) as raised:
        capacity_of(
            {
                "reserv": 0.1,
                "reserve": 1,
                "virtual_clusters": [
                    {"name": "a", "produce": {"total": 5}},
                    {"name": "", "produce": {"per_node": -1}, "fetch": {"per_nod": 1}, "nodes": "three"},
                    {"request": {"per_node": True}, "connection": {"total": 1, "per_node": 2}},
                    7,
                ],
                "weights": [{"user": "x"}, {"user": 7, "weight": 0}],
            }
        )
    assert sorted((problem.path, problem.problem) for problem in raised.value.problems) == [
        ("reserv", "unknown key, did you mean 'reserve'?"),
        ("reserve", "expected a number of at least 0 and below 1, got 1"),
        ("virtual_clusters[0]", "expected nodes, because a total is given (produce), got nothing"),
        ("virtual_clusters[1].fetch.per_nod", "unknown key, did you mean 'per_node'?"),
        ("virtual_clusters[1].name", "expected a name (numbers need quotes), got ''"),
        ("virtual_clusters[1].nodes", "expected a whole number from 1 to 100000, got 'three'"),
        ("virtual_clusters[1].produce.per_node", "expected a number above 0, got -1"),
        ("virtual_clusters[2].connection", "expected either total or per_node, got both"),
        ("virtual_clusters[2].name", "expected a name (numbers need quotes), got nothing"),
        ("virtual_clusters[2].request.per_node", "expected a number above 0, got true"),
        ("virtual_clusters[3]", "expected a mapping, got 7"),
        ("weights[0].weight", f"{WEIGHT}, got nothing"),
        ("weights[1].user", "expected text (numbers need quotes), got 7"),
        ("weights[1].weight", f"{WEIGHT}, got 0"),
    ]


@pytest.mark.parametrize("nodes", [100_001, 10**400], ids=["one more", "400 digits"])
def test_nodes_are_so_many_that_there_may_be(nodes):
    with pytest.raises(Problems, match=r"virtual_clusters\[0\].nodes: expected a whole number from 1 to 100000, got 1"):
        capacity_of({"virtual_clusters": [{"name": "a", "nodes": nodes, "produce": {"total": 5}}]})


@pytest.mark.parametrize("weight", [1e308, 1e-7, float("nan"), 10**400], ids=["much", "little", "nan", "400 digits"])
def test_weights_are_such_that_shares_can_be_told_of_them(weight):
    with pytest.raises(Problems, match=r"weights\[0\].weight: expected a number"):
        capacity_of({"virtual_clusters": [{"name": "a"}], "weights": [{"user": "x", "weight": weight}]})


def test_a_virtual_cluster_is_declared_once():
    with pytest.raises(Problems, match=r"virtual_clusters\[1\].name: expected a unique name, got 'a', the name"):
        capacity_of({"virtual_clusters": [{"name": "a"}, {"name": "a"}]})


@pytest.mark.parametrize("data", [None, {}, [], "text", 7])
def test_what_is_no_capacity_file_is_refused(data):
    with pytest.raises(Problems):
        capacity_of(data)


def test_capacity_is_of_a_node_less_the_reserve():
    main = {"name": "main", "nodes": 3, "produce": {"total": 300}, "fetch": {"per_node": 50, "reserve": 0}}
    capacity = capacity_of({"reserve": 0.2, "virtual_clusters": [main]})
    assert capacity.per_node == {("main", PRODUCE): 80.0, ("main", FETCH): 50.0}


def test_the_first_weight_that_matches_counts():
    weights = [{"user": "pay-*", "weight": 3}, {"user": "pay-?", "virtual_cluster": "other", "weight": 9}]
    capacity = capacity_of({"virtual_clusters": [{"name": "main"}], "weights": weights})
    assert [capacity.weight(Subject("main", PRODUCE, user)) for user in ("pay-x", "paying", "pay-")] == [3, 1, 3]


# -------------------------------------------------------------------------- whom


def test_a_quota_of_ones_own_or_a_default_for_each_holds_alone():
    etl, pair = Subject("main", PRODUCE, "etl"), Subject("main", PRODUCE, "etl", "app")
    assert etl.holds_alone("user=etl")
    assert etl.holds_alone("user=<default>")
    assert not etl.holds_alone("user=etl, client-id=app")
    assert not etl.holds_alone("client-id=app")
    assert pair.holds_alone("user=<default>, client-id=<default>")
    assert not pair.holds_alone("user=etl")
    assert Subject("main", CONNECTION, ip="10.0.0.1").holds_alone("ip=<default>")


def test_a_shared_limit_is_not_where_a_roll_out_begins():
    assert evidence(limit=5.0, rule="client-id=app").today is None
    assert evidence(limit=5.0, rule="user=<default>").today == 5.0


# ------------------------------------------------------------------------- doubts


def test_a_quota_that_would_bind_nothing_is_refused_and_what_would_is_named():
    one = evidence(elsewhere_share=0.995, rule="user=etl, client-id=app")
    advice = advise([one, evidence("b", elsewhere_share=0.9)], Settings(), Capacity({("main", PRODUCE): 7.0 * MB}))
    assert [refusal.reason for refusal in advice.refusals] == [
        "100 % of its use is under quotas that come first, like user=etl, client-id=app: only a quota of user+client-id"
        " would hold it"
    ]
    [other] = advice.recommendations
    assert other.limit == 6.5 * MB  # all of the capacity is there for it


def test_what_is_too_thin_is_refused_with_its_reason():
    def thin(one, by="user"):
        return too_thin(one, by, 7, 100)

    assert thin(evidence()) == ""
    assert thin(evidence(days=2)) == "used on 2 days, and at least 7 are asked for"
    few = AtNode(1, 99, 5.0, at_least=False)
    assert thin(evidence(node=None, thin=few)) == "used in at most 99 windows at a node, and at least 100 are asked for"
    assert "authenticated" in thin(evidence(user=""))
    assert "too many" in thin(evidence(user="<overflow>"))
    assert "no client-id" in thin(evidence(), by="user+client-id")
    assert thin(evidence(peak=0.0)) == "used nothing"
    assert thin(evidence(limit=0.0, rule="user=etl")) == "it is banned: its limit of today is 0"


def test_without_doubts_the_confidence_is_high():
    assert penalties(evidence(), 1.3, Simulated(), []) == []
    assert confidence([]) == "high"
    assert confidence([ConfidencePenalty(1, "")]) == "medium"
    assert confidence([ConfidencePenalty(2, ""), ConfidencePenalty(1, "")]) == "low"


def test_each_doubt_says_why():
    growing = tuple((MONDAY + timedelta(i), 1_000.0 * 1.02**i) for i in range(21))
    one = evidence(
        days=10,
        node=AtNode(1, 100, 10.0, at_least=True),
        thin=AtNode(5, 3, 25.0, at_least=False),
        throttled_windows=15_000,
        elsewhere_share=0.6,
        by_day=growing,
    )
    found = [penalty.reason for penalty in penalties(one, 1.3, Simulated(muted_share=0.2), [5, 6])]
    assert found == [
        "used on 10 days only",
        "no records of a Saturday, Sunday",
        "grows by 14 % a week, so the headroom is used up in 2 weeks",
        "throttled in 50 % of its windows: it wants at least this, perhaps more",
        "2.5 times as much at node 5, in 3 windows only",
        "60 % of it is bound by stronger quotas",
        "would have been throttled 20 % of the time",
    ]


# -------------------------------------------------------------------------- advice


def test_a_limit_is_percentile_times_headroom():
    [one] = advise([evidence()], Settings(), Capacity()).recommendations
    assert (one.asked, one.limit, one.cut) == (6.5 * MB, 6.5 * MB, 0)
    assert one.path == (10 * MB, 8.07 * MB, 6.5 * MB)


def test_limits_fit_the_capacity_and_who_is_cut_is_told():
    capacity = capacity_of(
        {
            "virtual_clusters": [{"name": "main", "produce": {"per_node": 10 * MB}}],
            "weights": [{"user": "b", "weight": 2}],
        }
    )
    some = [evidence("a", demand=1 * MB), evidence("b"), evidence("c"), evidence("c", FETCH)]
    advice = advise(some, Settings(), capacity)
    assert [one.limit for one in advice.recommendations] == [1.3 * MB, 5.8 * MB, 2.9 * MB, 6.5 * MB]
    assert [one.cut > 0 for one in advice.recommendations] == [False, True, True, False]
    [fit] = advice.fits
    assert (fit.capacity, fit.asked, fit.given, fit.cut) == (10 * MB, 14.3 * MB, 10 * MB, 2)


def test_small_clients_get_the_floor_out_of_what_is_left_and_take_nothing_from_a_large_one():
    users = [evidence(f"user-{i}", demand=1_000.0) for i in range(300)]
    capacity = Capacity({("main", PRODUCE): 20.0 * MB})
    shop, *others = advise([evidence("shop"), *users], Settings(), capacity).recommendations
    assert (shop.limit, shop.cut) == (6.5 * MB, 0)
    assert all(44_900 <= one.limit <= 45_000 for one in others)  # 13.11 MB/s are left for 300
    assert not any(one.cut for one in others)
    assert sum(one.limit for one in (shop, *others)) <= 20 * MB
    [alone] = advise([evidence("a", demand=1_000.0)], Settings(), Capacity()).recommendations
    assert alone.limit == 100_000


def throttled(user, demand, today, **values):
    return evidence(
        user, demand=demand, limit=today, rule=f"user={user}", node=AtNode(1, 10_000, demand, at_least=True),
        throttled_windows=3_000, **values,
    )  # fmt: skip


def test_a_throttled_entity_is_not_raised_without_being_asked():
    some = [
        throttled("a", 2.0 * MB, 2.0 * MB),
        throttled("b", 4.0 * MB, 4.0 * MB),
        evidence("c", limit=3.0 * MB, rule="user=c"),
    ]
    kept = judged(advise(some, Settings(), Capacity()), [None] * 3, 1.3, []).recommendations
    assert [one.limit for one in kept] == [2 * MB, 4 * MB, 6.5 * MB]
    assert [one.path for one in kept[:2]] == [(2 * MB,), (4 * MB,)]
    assert kept[0].penalties[-1].reason == "asks for 77 % of what it wants, as it is throttled: --raise-throttled"
    assert kept[2].penalties == ()


@pytest.mark.parametrize("today", [0.1, 0.7, 3.3, 17.9])
def test_a_limit_that_stays_is_the_same_number(today):
    one = throttled("a", 100.0, today, quota_type=REQUEST)
    assert [each.limit for each in advise([one], Settings(), Capacity()).recommendations] == [today]


def test_limits_of_byte_rates_are_whole_where_todays_are_fractions():
    third = 1 * MB / 3
    some = [throttled("a", 1.0 * MB, third), evidence("b", demand=1_000.0, limit=third, rule="client-id=x"),
            evidence("c", demand=1_000.0, limit=third, rule="user=c")]  # fmt: skip
    advice = advise(some, Settings(), Capacity())
    assert all(limit == int(limit) for one in advice.recommendations for limit in one.path)
    candidate_of(document(limits(advice)))


def test_throttled_entities_are_raised_together_by_no_more_than_was_asked_for():
    some = [throttled("a", 2.0 * MB, 2.0 * MB), throttled("b", 4.0 * MB, 4.0 * MB)]
    some.append(evidence("c", demand=1.0 * MB, limit=4.0 * MB, rule="user=c"))
    raised = advise(some, Settings(raise_throttled=0.1), Capacity()).recommendations
    assert [one.limit for one in raised] == [2.5 * MB, 4.5 * MB, 1.3 * MB]
    fully = advise(some, Settings(raise_throttled=1), Capacity()).recommendations
    assert [one.limit for one in fully] == [2.6 * MB, 5.2 * MB, 1.3 * MB]


def test_a_client_that_always_wants_more_has_the_same_limit_after_thirty_nights():
    limit, used = 1.0 * MB, 1.0 * MB
    for _ in range(30):
        [one] = advise([throttled("greedy", 1.01 * used, limit)], Settings(), Capacity()).recommendations
        limit = used = one.path[0]
    assert limit == 1 * MB


def test_a_first_quota_begins_where_the_shared_one_held_its_entity_and_not_at_its_peak():
    """alice and bob were held to 120 kB/s together."""
    held = {"limit": 120_000.0, "rule": "client-id=app", "throttled_windows": 500, "peak": 500_000.0}
    some = [evidence("alice", demand=107_000.0, **held), evidence("bob", demand=61_000.0, **held)]
    assert [one.path for one in advise(some, Settings(), Capacity()).recommendations] == [(140_000,), (80_000,)]
    small = Capacity({("main", PRODUCE): 220_000.0})
    assert [one.path for one in advise(some, Settings(), small).recommendations] == [(140_000,), (80_000,)]
    [free] = advise([replace(some[1], throttled_windows=0, limit=300_000.0)], Settings(), Capacity()).recommendations
    assert free.path[0] == 300_000


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=20), st.floats(1, 1e10))
def test_what_is_given_fits_whatever_is_rounded(demands, per_node):
    capacity = Capacity({("main", PRODUCE): per_node})
    advice = advise((evidence(f"u{i}", demand=one) for i, one in enumerate(demands)), Settings(), capacity)
    assert sum(one.limit for one in advice.recommendations) <= per_node * (1 + 1e-9)
    assert len(advice.recommendations) + len(advice.refusals) == len(demands)
    candidate_of(document(limits(advice)) if advice.recommendations else [])


def test_all_have_as_many_stages_as_the_longest_roll_out():
    advice = advise([evidence("a", peak=500.0 * MB), evidence("b", peak=1.0)], Settings(), Capacity())
    assert advice.stages == 8
    assert [len(one.path) for one in advice.recommendations] == [8, 8]
    assert set(advice.recommendations[1].path) == {6.5 * MB}


def limits(advice, stage=-1):
    for one in advice.recommendations:
        subject = one.evidence.subject
        yield subject.virtual_cluster, subject.entity, subject.quota_type, one.path[stage], one.evidence.scope, ""


# ----------------------------------------------------------------------- what is written

HOSTILE = [
    "'",
    '"',
    "123",
    "true",
    "a: b",
    "- x",
    "# no",
    "\u202e",
    "a\x85b",
    "a\u2028b\x00",
    "tab\tx\ny",
    "null",
    "é\U0001f600",
    " ",
    "<default>",
]


def test_the_quotas_of_an_entity_are_over_all_nodes_if_all_of_them_were():
    alice = [("main", Entity("alice"), quota_type, 5.0, Scope.CLUSTER, "") for quota_type in (PRODUCE, FETCH)]
    [entry] = document(alice)["virtual_clusters"][0]["quotas"]["entries"]
    assert entry == {"user": "alice", "producer_byte_rate": 5, "consumer_byte_rate": 5, "scope": "cluster"}
    [entry] = document([alice[0], (*alice[1][:4], Scope.NODE, "")])["virtual_clusters"][0]["quotas"]["entries"]
    assert "scope" not in entry


def test_quota_files_are_read_back_as_they_were_meant():
    given_limits = [("main", Entity(name), PRODUCE, 1000.0 + i, Scope.NODE, "x: 5") for i, name in enumerate(HOSTILE)]
    given_limits += [
        ("main", Entity("a", "b"), REQUEST, 1.5, Scope.CLUSTER, "# a"),
        ("other", Entity(ip="10.0.0.1"), CONNECTION, 7.0, Scope.NODE, ""),
    ]
    candidate = candidate_of(parse_yaml(yaml_of(document(given_limits), ["a comment"]), "a.yaml"))
    for cluster, entity, quota_type, limit, scope, _ in given_limits:
        table = candidate.clusters[cluster].table
        assert (table[entity][quota_type], entity in table.of_cluster) == (limit, scope is Scope.CLUSTER)
    assert sum(len(rules.table) for rules in candidate.clusters.values()) == len(given_limits)


def test_outcomes_are_found_by_rule_and_added_up_over_nodes():
    advice = advise([evidence("a, b"), evidence("c")], Settings(), Capacity())
    row = {"virtual_cluster": "main", "quota_type": "produce", "new_rule": "user='a, b'", "throttles": 2,
           "throttled_ms": 500, "greedy_throttled_ms": 900, "longest_ms": 300, "muted_share": 0.1}  # fmt: skip
    rows = [{**row, "node_id": 1}, {**row, "node_id": 2, "muted_share": 0.3}]
    assert outcomes(rows, advice.recommendations) == [Simulated(4, 1_000, 1_800, 300, 0.3), Simulated()]


SHARED = SharedQuota("client-id=app", "app", 2.0 * MB, 1, 0.75)


def full_advice():
    capacity = Capacity({("main", PRODUCE): 9.0 * MB})
    some = [evidence(name or "x", demand=(i + 1) * MB, limit=2e6, rule="client-id=a") for i, name in enumerate(HOSTILE)]
    of_default = replace(SHARED, rule="client-id=<default>", name="b", others=0)
    some[1] = replace(some[1], leaves=LeftQuotas((SHARED, of_default), 5))
    few = evidence("=few", days=1)
    advice = advise([*some, few], Settings(), capacity)
    return judged(advice, [Simulated(3, 40_000, 50_000, 9_000, 0.1)] * len(advice.recommendations), 1.3, [6])


KNOWN = {
    "table": "t",
    "begin_ms": 0,
    "end_ms": 10_000,
    "records": 7,
    "window_ms": 10_000,
    "warnings": ["3 are missing"],
}


def test_the_page_tells_limits_doubts_cuts_and_refusals():
    to = io.StringIO()
    print_advice(full_advice(), Settings(), KNOWN, to)
    text = to.getvalue()
    for expected in ("warning: 3 are missing", "p99 of the windows at the busiest node x 1.3", "40 s to 50 s",
                     "Cut by the capacity", "Nothing is recommended for", "used on 1 day, and at least 7",
                     "no records of a Sunday", "2.00 MB/s shared"):  # fmt: skip
        assert expected in text
    assert "\u202e" not in text
    assert (
        ", producer_byte_rate: client-id=app of 2.00 MB/s, shared with 1 other user, 75 % of its use; "
        "client-id=<default> (b) of 2.00 MB/s, shared with no other user so far, 75 % of its use; and 3 more "
    ) in " ".join(text.split()).split("Taken out of quotas that hold for others, too: ")[1]


def test_json_and_csv_have_everything():
    advice = full_advice()
    reported = json.loads(json.dumps(plain(advice, Settings(), KNOWN)))
    assert len(reported["recommendations"]) == len(advice.recommendations)
    assert reported["refused"][0]["reason"].startswith("used on 1 day")
    assert reported["stages"] == [f"stage-{i + 1}.yaml" for i in range(advice.stages)]
    one = reported["recommendations"][0]
    assert one["evidence"]["percentile_value"] == 1 * MB
    assert one["simulated"]["muted_share"] == 0.1
    left = reported["recommendations"][1]
    shared = {"rule": "client-id=app", "name": "app", "limit": 2.0 * MB, "others": 1, "use_share": 0.75}
    assert (left["leaves"][0], left["leaves_count"]) == (shared, 5)
    assert (one["leaves"], one["leaves_count"]) == ([], 0)
    table = csv_of(csv_table(advice))
    assert "client-id=app of 2.00 MB/s, shared with 1 other user" in table
    assert "refused" in table
    assert "'=few" in table


def test_the_files_are_what_plan_and_simulate_take(tmp_path):
    (tmp_path / "stage-99.yaml").write_text("of an earlier run")
    advice = full_advice()
    write(tmp_path, advice, Settings(), KNOWN)
    stages = [f"stage-{i + 1}.yaml" for i in range(advice.stages)]
    others = ["quotas.yaml", "recommendation.csv", "recommendation.json", "recommendation.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(stages + others)
    for stage, name in [*enumerate(stages), (-1, "quotas.yaml")]:
        table = load_candidate(tmp_path / name).clusters["main"].table
        assert {(e, t): v for e, own in table.items() for t, v in own.items()} == {
            (entity, quota_type): limit for _, entity, quota_type, limit, *_ in limits(advice, stage)
        }


def test_each_limit_of_a_file_has_todays_limit_its_goal_and_its_doubts_beside_it(tmp_path):
    some = [
        evidence("a\x1b[2J", peak=20.0 * MB, limit=30.0 * MB, rule=str(Entity("a\x1b[2J"))),
        throttled("b", 2.0 * MB, 2.0 * MB),
    ]
    advice = judged(advise(some, Settings(), Capacity()), [None, None], 1.3, [6])
    write(tmp_path, advice, Settings(), KNOWN)
    first, last = (tmp_path / "stage-1.yaml").read_text(), (tmp_path / "quotas.yaml").read_text()
    assert "\x1b" not in first
    assert "producer_byte_rate: 20000000 # goal 6.50 MB/s; today 30.0 MB/s by " in first
    assert (
        "producer_byte_rate: 2000000 # today 2.00 MB/s by user=b; no records of a Sunday; throttled in 10 % of" in last
    )
    assert "wants, as it is throttled: --raise-throttled\n" in last


def test_where_nothing_is_recommended_there_are_no_quotas_of_an_earlier_run(tmp_path):
    write(tmp_path, full_advice(), Settings(), KNOWN)
    write(tmp_path, advise([evidence(days=1)], Settings(), Capacity()), Settings(), KNOWN)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["recommendation.csv", "recommendation.json", "recommendation.txt"]


def test_what_was_not_replayed_is_told_so():
    advice = judged(advise([evidence()], Settings(), Capacity()), [None], 1.3, [])
    to = io.StringIO()
    print_advice(advice, Settings(), KNOWN, to)
    assert "not asked" in to.getvalue()
