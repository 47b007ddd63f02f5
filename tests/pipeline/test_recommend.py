"""`usage recommend` on Spark: percentiles by node, censored windows, precedence, the replay, and the files."""

import json
from dataclasses import replace

import pytest

from kafka_throttle.pipeline.jobs.recommend import recommended, write
from kafka_throttle.pipeline.recommend.advice import Settings
from kafka_throttle.pipeline.recommend.capacity import capacity_of
from kafka_throttle.pipeline.report.findings import KilledProcess
from kafka_throttle.pipeline.simulate.candidate import load_candidate
from kafka_throttle.pipeline.steps import Steps
from kafka_throttle.pipeline.table.schemas import schema_of
from kafka_throttle.quotas.entities import Entity, QuotaType, Scope
from kafka_throttle.quotas.records.usage_record import UsageRecord
from tests.pipeline.spools import DAY_MS, MONDAY_MS, Fleet, records

MB = 1e6
DAYS, A_DAY = 8, 25
WINDOW_MS = 10_000
PRODUCE, REQUEST = QuotaType.PRODUCE, QuotaType.REQUEST
[PLAIN] = records(Fleet(), 1)


def window(number):
    """When it begins: A_DAY of them a day, a minute apart."""
    return MONDAY_MS + number // A_DAY * DAY_MS + number % A_DAY * 60_000


def record(number, user, rate, **values):
    known = {
        "begin_ms": window(number), "end_ms": window(number) + WINDOW_MS, "user": user, "client_id": "app",
        "quota_type": "produce", "virtual_cluster": "main", "node_id": 0, "used": rate * WINDOW_MS / 1000,
        "peak": rate, "requests": 10, "throttles": 0, "throttled_ms": 0, "backlogged_ms": 0, "limit": None, "rule": "",
    }  # fmt: skip
    return replace(PLAIN, **{**known, **values})


def by_hand():
    for number in range(DAYS * A_DAY):
        rate = (number + 1) * 10_000.0
        # Two clients share the user; the other node has half as much.
        yield record(number, "steady", 0.4 * rate)
        yield record(number, "steady", 0.6 * rate, client_id="other")
        yield record(number, "steady", 0.5 * rate, node_id=1)
        held = {"limit": 1.0 * MB, "rule": "user=greedy"}
        mute = {"throttles": 5, "throttled_ms": 9_000, "backlogged_ms": 9_000} if number % 10 == 5 else {}
        yield record(number, "greedy", 1.0 * MB, **held, **mute)
        # Throttled for once: whatever it had wanted, it is not the percentile.
        once = {"throttles": 1, "throttled_ms": 500} if number == 7 else {}
        yield record(number, "once", 100_000.0 * (5 if once else 1), limit=0.5 * MB, rule="user=<default>", **once)
        for node_id in (0, 1):
            whole = {"limit": 3.0 * MB, "rule": "user=whole", "scope": "cluster", "share": 0.5}
            yield record(number, "whole", MB / 2, node_id=node_id, instance=f"proxy-{node_id}", **whole)
        of_pair = {"limit": 9.0 * MB, "rule": "user=pairs, client-id=app"} if number % 10 else {}
        for proxy in ("proxy-1", "proxy-2"):
            yield record(number, "pairs", MB / 2, instance=proxy, **of_pair)
        yield record(number, "slow", 200.0, quota_type="request", peak=200.0)
        yield record(number, "", MB)
    for number in range(A_DAY):
        yield record(number, "new", MB)


def sharing():
    """Two users of one client-id with a quota, which a third one leaves for a pair's; and one under the default."""
    app = {"virtual_cluster": "shared", "client_id": "app, 'x'", "limit": 2.0 * MB}
    for number in range(DAYS * A_DAY):
        limit = {"limit": 3.0 * MB} if number > 50 else {}
        for user in ("first", "second"):
            yield record(number, user, MB / 2, **{**app, "rule": "client-id=\"app, 'x'\"", **limit})
        yield record(number, "third", MB / 2, **app, rule="user=third, client-id=\"app, 'x'\"")
        own = {"virtual_cluster": "shared", "limit": 1.0 * MB}
        yield record(number, "first", MB / 4, client_id="b", rule="client-id=<default>", **own)
        yield record(number, "third", MB / 4, client_id="c", rule="client-id=<default>", **own)
        yield record(number, "third", MB / 4, client_id="d", rule="client-id=<default>", **own)
        yield record(number, "fourth", MB / 4, client_id="b", rule="user=<default>", **own)
        yield record(number, "fourth", MB / 4, client_id="c", rule="user=fourth", **own)


@pytest.fixture(scope="module")
def usage(spark):
    names = schema_of(UsageRecord).names
    rows = [tuple(getattr(one, name) for name in names) for one in by_hand()]
    return spark.createDataFrame(rows, schema_of(UsageRecord)).coalesce(1).persist()


SETTINGS = Settings(percentile=0.95, headroom=1.5, least_windows=50)


@pytest.fixture(scope="module")
def found(usage):
    declared = {"virtual_clusters": [{"name": "main", "nodes": 2, "produce": {"total": 6.0 * MB}}]}
    return recommended(
        usage, SETTINGS, capacity_of(declared), Steps(5), missing=3, lost=[KilledProcess("a", 1, 2, 10_000)]
    )


def by_user(advice):
    return {(one.evidence.subject.user, one.evidence.subject.quota_type): one for one in advice.recommendations}


def test_use_is_added_up_over_proxies(found):
    assert by_user(found[0])["pairs", PRODUCE].evidence.node.demand == pytest.approx(MB)


def test_use_under_a_quota_over_all_nodes_is_added_up_over_nodes_and_proxies(found):
    whole = by_user(found[0])["whole", PRODUCE]
    assert whole.evidence.node.demand == pytest.approx(MB)
    assert (whole.evidence.node.node_id, whole.evidence.scope) == (-2, Scope.CLUSTER)


def test_use_is_added_up_at_each_node_and_the_busiest_one_counts(found):
    one = by_user(found[0])["steady", PRODUCE].evidence
    assert (one.node.node_id, one.node.windows) == (0, DAYS * A_DAY)
    assert one.node.demand == pytest.approx(1.9 * MB)
    assert not one.node.at_least
    assert (one.peak, one.peak_node_id) == (pytest.approx(2 * MB), 0)
    assert (one.nodes, one.windows, one.days) == (2, 2 * DAYS * A_DAY, DAYS)


def test_what_was_throttled_often_is_only_known_to_want_at_least_that(found):
    one = by_user(found[0])["greedy", PRODUCE]
    assert one.evidence.node.at_least
    assert one.evidence.node.demand == pytest.approx(MB)
    assert one.evidence.throttled_share == 0.1
    assert one.evidence.today == MB
    assert any("at least this" in penalty.reason for penalty in one.penalties)


def test_what_was_throttled_for_once_is_known_all_the_same(found):
    one = by_user(found[0])["once", PRODUCE]
    assert not one.evidence.node.at_least
    assert one.evidence.node.demand == pytest.approx(100_000)
    assert one.evidence.throttled_windows == 1
    assert one.evidence.today == 0.5 * MB


def test_handler_time_is_in_percent_of_a_thread(found):
    one = by_user(found[0])["slow", REQUEST]
    assert one.evidence.node.demand == pytest.approx(20)
    assert one.limit == 30


def test_stronger_quotas_are_told(found):
    assert by_user(found[0])["pairs", PRODUCE].evidence.elsewhere_share == pytest.approx(0.9)
    assert by_user(found[0])["steady", PRODUCE].evidence.elsewhere_share == 0.0


def test_limits_fit_the_capacity_of_a_node(found):
    # steady asks for 2.9 MB, pairs and whole for 1.5 each, greedy for its limit of 1, once for 0.15: 7.05 of 3.
    limits = {user: one.limit for (user, quota_type), one in by_user(found[0]).items() if quota_type is PRODUCE}
    assert limits == {
        **dict.fromkeys(("steady", "greedy", "pairs", "whole"), 712_000.0),
        "once": 150_000,
    }


def test_who_is_not_known_well_enough_is_refused(found):
    refused = {one.evidence.subject.user: one.reason for one in found[0].refusals}
    assert set(refused) == {"", "new"}
    assert refused["new"] == "used on 1 day, and at least 7 are asked for"
    assert any("3 usage records are missing" in warning for warning in found[1]["warnings"])
    assert any("1 process of the proxy was killed" in warning for warning in found[1]["warnings"])


def test_the_replay_throttles_who_used_more_than_is_recommended(found):
    recommendations = by_user(found[0])
    assert recommendations["steady", PRODUCE].simulated.throttled_ms > 0
    assert recommendations["slow", REQUEST].simulated.throttles == 0
    # Half of its use is through each of two proxies, or at each of two nodes: less than its limit, and more in all.
    assert recommendations["pairs", PRODUCE].simulated.throttled_ms > 0
    assert recommendations["whole", PRODUCE].simulated.throttled_ms > 0


def test_the_files_are_what_plan_and_simulate_take(found, tmp_path):
    (tmp_path / "stage-9.yaml").write_text("of an earlier run")
    advice, known = found
    write(tmp_path, advice, SETTINGS, {"table": "t", **known})
    stages = [f"stage-{i + 1}.yaml" for i in range(advice.stages)]
    others = ["quotas.yaml", "recommendation.csv", "recommendation.json", "recommendation.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(stages + others)
    final = load_candidate(tmp_path / "quotas.yaml").clusters["main"].table
    assert final[Entity(user="steady")] == {PRODUCE: 712_000.0}
    assert set(final.of_cluster) == {Entity(user="whole")}
    assert load_candidate(tmp_path / stages[0]).clusters["main"].table[Entity(user="steady")] == {PRODUCE: 2.0 * MB}
    assert load_candidate(tmp_path / stages[-1]).clusters["main"].table == final
    reported = json.loads((tmp_path / "recommendation.json").read_text())
    assert reported["records"] == 11 * DAYS * A_DAY + A_DAY
    assert reported["stages"] == stages


def test_client_ids_are_recommended_for_over_all_users(usage):
    advice, _ = recommended(usage, replace(SETTINGS, by="client-id"), capacity_of(CLUSTER), Steps(5), simulate=False)
    found = {(one.evidence.subject.client_id, one.evidence.subject.quota_type): one for one in advice.recommendations}
    assert {name for name, _ in found} == {"app", "other"}
    assert 0 < found["app", PRODUCE].evidence.elsewhere_share < 1
    assert found["app", PRODUCE].evidence.today is None
    assert found["app", PRODUCE].simulated is None


CLUSTER = {"virtual_clusters": [{"name": "main"}]}


@pytest.fixture(scope="module")
def use_of_shared_quotas(spark):
    names = schema_of(UsageRecord).names
    rows = [tuple(getattr(one, name) for name in names) for one in sharing()]
    return spark.createDataFrame(rows, schema_of(UsageRecord)).coalesce(1).persist()


def shared_by(usage, by):
    asked = replace(SETTINGS, by=by)
    advice, known = recommended(usage, asked, capacity_of(CLUSTER), Steps(5), simulate=False)
    return {
        (one.evidence.subject.user, one.evidence.subject.client_id): [
            (quota.rule, quota.name, quota.limit, quota.others, round(quota.use_share, 3))
            for quota in one.evidence.leaves.named
        ]
        for one in advice.recommendations
    }, known["warnings"]


def test_quotas_that_users_share_and_would_leave_are_told(use_of_shared_quotas):
    leaves, warnings = shared_by(use_of_shared_quotas, "user")
    app = "client-id=\"app, 'x'\""
    assert leaves == {
        ("first", ""): [(app, "app, 'x'", 3.0 * MB, 1, 0.667), ("client-id=<default>", "b", 1.0 * MB, 0, 0.333)],
        ("second", ""): [(app, "app, 'x'", 3.0 * MB, 1, 1.0)],
        ("third", ""): [
            ("client-id=<default>", "c", 1.0 * MB, 0, 0.25),
            ("client-id=<default>", "d", 1.0 * MB, 0, 0.25),
        ],
        ("fourth", ""): [],
    }
    assert warnings == [
        "3 limits take entities out of quotas that hold for others, too: these quotas no longer count their use"
    ]


def test_pairs_leave_the_quotas_of_their_users_and_of_their_client_ids(use_of_shared_quotas):
    leaves, _ = shared_by(use_of_shared_quotas, "user+client-id")
    assert leaves["first", "b"] == [("client-id=<default>", "b", 1.0 * MB, 0, 1.0)]
    assert leaves["fourth", "c"] == [("user=fourth", "fourth", 1.0 * MB, 0, 1.0)]
    assert leaves["fourth", "b"] == [("user=<default>", "fourth", 1.0 * MB, 0, 1.0)]
    assert leaves["first", "app, 'x'"][0][3] == 1
    assert leaves["third", "app, 'x'"] == []


def test_client_ids_leave_no_quota_that_they_share(use_of_shared_quotas):
    leaves, warnings = shared_by(use_of_shared_quotas, "client-id")
    assert set(map(len, leaves.values())) == {0}
    assert warnings == []


def test_no_records_are_an_error_that_says_so(usage):
    with pytest.raises(ValueError, match="there are no usage records in this time"):
        recommended(usage.where("begin_ms < 0"), SETTINGS, capacity_of(CLUSTER), Steps(5))
