"""What Spark adds up, of records that are made up and few enough to add up by hand."""

import re
from dataclasses import replace
from fractions import Fraction

import pytest

from kafka_throttle.pipeline.jobs import report
from kafka_throttle.pipeline.report import figures, neighbours
from kafka_throttle.pipeline.report.figures import utilisation
from kafka_throttle.pipeline.report.findings import KilledProcess
from kafka_throttle.pipeline.report.missing import killed_of, missing_of
from kafka_throttle.pipeline.report.price_sheet import price_sheet
from kafka_throttle.pipeline.report.summary import held
from kafka_throttle.pipeline.report.views import named, tables_of
from kafka_throttle.pipeline.steps import Steps
from kafka_throttle.pipeline.table.accounts import Account, Writer
from kafka_throttle.pipeline.table.schemas import schema_of
from kafka_throttle.quotas.records.usage_record import UsageRecord
from tests.pipeline.spools import MONDAY_MS, Fleet, records

WINDOW_MS = 10_000
SHEET = {
    "currency": "EUR",
    "prices": {"gb_in": 1},
    "tenants": [{"name": "odd", "match": [{"user": "user-[x*"}, {"user": "user-?1"}, {"user": "<b>é\u202e"}]}],
}


def record(at, user, **values):
    plain = records(Fleet(), 1)[0]
    known = {
        "begin_ms": MONDAY_MS + at * WINDOW_MS, "end_ms": MONDAY_MS + (at + 1) * WINDOW_MS, "user": user,
        "client_id": "app", "quota_type": "produce", "virtual_cluster": "quiet", "node_id": 0, "used": 0.0, "peak": 0.0,
        "requests": 1, "in_bytes": 1_000, "out_bytes": 0, "throttles": 0, "throttled_ms": 0, "backlogged_ms": 0,
        "limit": None, "rule": "", "instance": "hand-made",
    }  # fmt: skip
    return replace(plain, **{**known, **values})


def by_hand():
    """One quota shared by two client-ids; shadows; and a neighbour who takes all for three windows."""
    shared = {"virtual_cluster": "shared", "limit": 10.0, "rule": "user=it"}
    for at in range(10):
        yield record(at, "it", client_id="a", used=4_000.0, peak=3_000.0, **shared)
        yield record(at, "it", client_id="b", used=1_000.0 * at, **shared)
    yield record(0, "dark", virtual_cluster="dark", shadow_rule="user=dark", shadow_limit=5.0, shadow_throttles=2,
                 shadow_throttled_ms=7_000)  # fmt: skip
    yield record(1, "dark", virtual_cluster="dark", shadow_rule="user=dark", shadow_limit=6.0)
    yield record(0, "calm", virtual_cluster="dark", shadow_rule="user=calm", shadow_limit=6.0)
    yield record(0, "<b>é\u202e", virtual_cluster="dark", in_bytes=2**60, quota_type="request", used=0.0004)
    for client_id in ("one", "two"):
        yield record(0, "", virtual_cluster="logins", client_id=client_id, quota_type="request", in_bytes=70)
    held = {"virtual_cluster": "held", "limit": 100.0, "rule": "user=held"}
    yield record(0, "held", throttles=5, throttled_ms=40_000, muted_ms=8_000, node_id=1, **held)
    yield record(1, "held", throttles=1, throttled_ms=4_000, muted_ms=4_000, requests=3, **{**held, "limit": 200.0})
    yield record(2, "held", **held)
    for at in range(60):
        noisy = at in (30, 31, 32)
        yield record(at, "noisy", in_bytes=9_000_000 if noisy else 1_000)
        yield record(at, "steady", in_bytes=50_000)
        yield record(at, "victim", in_bytes=100_000, muted_ms=5_000 if noisy else 0,
                     throttled_ms=5_000 if noisy else 0, throttles=3 if noisy else 0)  # fmt: skip


@pytest.fixture(scope="module")
def everything():
    return [*records(Fleet(entities=200), 2_000), *by_hand()]


@pytest.fixture(scope="module")
def found(spark, everything):
    names = schema_of(UsageRecord).names
    rows = [tuple(getattr(one, name) for name in names) for one in everything]
    usage = spark.createDataFrame(rows, schema_of(UsageRecord)).coalesce(1)
    return report.find(usage, Steps(7), table="t", top_n=5, sheet=price_sheet(SHEET))


def total(everything, column):
    return sum(getattr(one, column) for one in everything)


def test_sums_are_those_of_the_records(found, everything):
    columns = ("in_bytes", "out_bytes", "requests", "throttles", "throttled_ms", "backlogged_ms", "unsent_bytes")
    for column in columns:
        assert found.totals[column] == total(everything, column), column
        assert sum(row[column] for row in found.by_type) == found.totals[column], column
        assert sum(row[column] for row in found.days) == found.totals[column], column
        assert sum(row[column] for row in found.tenants) == found.totals[column], column
    for column in ("in_bytes", "out_bytes", "throttled_ms"):
        assert sum(row[column] for row in found.timeline) == found.totals[column], column
    assert sum(bill.used["gb_in"] for bill in found.bills) == found.totals["in_bytes"]
    exact = sum((Fraction(str(one.used)) * 1000 for one in everything if one.quota_type == "request"), Fraction(0))
    assert abs(found.totals["handler_us"] - exact) < 1
    assert found.records == len(everything)
    clients = {(one.virtual_cluster, one.user, one.client_id if one.user else "") for one in everything}
    assert found.client_count == len(clients)


def test_the_first_by_each_measure_are_there(found, everything):
    for measure, of in (("bytes", lambda one: one.in_bytes + one.out_bytes), ("requests", lambda one: one.requests)):
        sums = {}
        for one in everything:
            key = (one.virtual_cluster, one.user)
            sums[key] = sums.get(key, 0) + of(one)
        best = sorted(sums.values(), reverse=True)[:5]
        assert sorted((row[measure] for row in found.users), reverse=True)[:5] == best


def test_clients_without_a_user_are_logins_in_one_row(spark, found, everything):
    assert found.client_id_count == len({(one.virtual_cluster, one.client_id) for one in everything})
    names = schema_of(UsageRecord).names
    rows = [tuple(getattr(one, name) for name in names) for one in everything if one.virtual_cluster == "logins"]
    alone = report.find(
        spark.createDataFrame(rows, schema_of(UsageRecord)), Steps(7), table="t", top_n=5,
        sheet=price_sheet(SHEET),
    )  # fmt: skip
    assert [(row["user"], row["client_id"], row["in_bytes"]) for row in alone.clients] == [("", "", 140)]
    assert [row["in_bytes"] for row in alone.unassigned] == [140]
    assert [row["client_id"] for row in alone.client_ids] == ["one", "two"], "these are of client-ids"


def test_every_cut_list_has_the_number_of_all(found, everything):
    clients = {(one.virtual_cluster, one.user, one.client_id) for one in everything if one.throttled_ms}
    types = {(one.virtual_cluster, one.user, one.client_id, one.quota_type) for one in everything if one.throttled_ms}
    assert (found.throttled_clients, found.throttled_count) == (len(clients), len(types))
    assert len(found.throttled) == 5
    assert found.user_count == len({(one.virtual_cluster, one.user) for one in everything})
    assert (found.shadow_rows, len(found.unassigned)) == (1, 5)
    assert found.unassigned_count > 5


def test_a_throttled_client_has_the_quota_that_throttled_last(spark, everything):
    names = schema_of(UsageRecord).names
    rows = [tuple(getattr(one, name) for name in names) for one in everything if one.virtual_cluster == "held"]
    held = report.find(spark.createDataFrame(rows, schema_of(UsageRecord)), Steps(7), table="t", top_n=5)
    [row] = named(tables_of(held))["throttled"].rows
    assert (row["rule"], row["limit"]) == ("user=held", 200.0)
    assert row["muted_share"] == pytest.approx(12 / 30)
    assert row["throttles_per_request"] == pytest.approx(6 / 5)


def test_the_table_is_read_three_times(spark, everything):
    schema, read = schema_of(UsageRecord), spark.sparkContext.accumulator(0)

    def counted(batches):
        for batch in batches:
            read.add(batch.num_rows)
            yield batch

    rows = [tuple(getattr(one, name) for name in schema.names) for one in everything[-200:]]
    usage = spark.createDataFrame(rows, schema).mapInArrow(counted, schema)
    made = report.find(usage, report.Steps(7), table="t", top_n=5, sheet=price_sheet(SHEET))
    assert made.records == len(rows)
    assert read.value == 3 * len(rows)


def test_no_step_of_the_sums_has_all_rows_in_one_task(spark, everything):
    names = schema_of(UsageRecord).names
    rows = [tuple(getattr(one, name) for name in names) for one in everything[-200:]]
    usage = spark.createDataFrame(rows, schema_of(UsageRecord))
    levels = figures.by_levels(figures.daily(usage))
    plans = [
        frame._jdf.queryExecution().executedPlan().toString()
        for frame in (figures.ranked(levels, 5), figures.counted(levels), figures.utilisation(usage),
                      figures.hurt_by_shadows(figures.daily(usage)))
    ]  # fmt: skip
    assert plans[0].count("WindowGroupLimit") == 2
    assert re.search(r"row_number\(\), 5, Partial", plans[0]), "each task limits its rows before they are shuffled"
    assert not [plan for plan in plans[1:] if "Window" in plan or "SinglePartition" in plan]


def test_a_shared_quota_is_used_by_all_who_share_it(found):
    [row] = [row for row in found.utilisation if row["rule"] == "user=it"]
    assert (row["user"], row["client_id"], row["windows"], row["limit"]) == ("it", "", 10, 10.0)
    assert row["p50"] == pytest.approx(80)
    assert row["most"] == pytest.approx(130)
    assert row["peak"] == pytest.approx(300)
    assert row["windows_over"] == 10


def test_who_held_whom_and_that_addresses_are_no_logins(spark):
    """Alice and bob share the quota of a client-id; carol has the same rule with another client-id for herself."""

    def made():
        shared = {"virtual_cluster": "main", "limit": 100_000.0, "rule": "client-id=<default>"}
        for at in range(10):
            yield record(at, "alice", in_bytes=1_040_000, muted_ms=500, throttled_ms=500, throttles=1, **shared)
            yield record(at, "bob", in_bytes=100_000, muted_ms=5_600, throttled_ms=5_600, throttles=1, **shared)
            yield record(at, "carol", client_id="own", in_bytes=900_000, muted_ms=9_000, throttled_ms=9_000, **shared)
        yield record(0, "", virtual_cluster="main", client_id="", in_bytes=70, quota_type="request")
        yield record(0, "", virtual_cluster="main", client_id="", in_bytes=0, requests=0, quota_type="connection",
                     node_id=-2, ip="10.0.0.9", limit=5.0, rule="ip=<default>", used=60.0, throttles=2,
                     throttled_ms=900, muted_ms=900)  # fmt: skip

    names = schema_of(UsageRecord).names
    rows = [tuple(getattr(one, name) for name in names) for one in made()]
    usage = spark.createDataFrame(rows, schema_of(UsageRecord))
    mixed = report.find(usage, report.Steps(7), table="t", top_n=5)
    assert [(row["by_user"], row["client_id"], row["sharers"]) for row in mixed.shared] == [
        ("bob", "app", 2), ("alice", "app", 2),
    ]  # fmt: skip
    bob, alice = mixed.shared
    assert (bob["rate"], bob["muted_share"], alice["rate"]) == (10_000, 0.56, 104_000)
    assert (bob["use_share"], bob["wait_share"]) == (pytest.approx(10 / 114), pytest.approx(56 / 61))
    assert held(mixed) == [
        "“bob” (app) at 10.0 kB/s was held 56 % of its time by “alice” (app) at 104 kB/s: "
        "2 clients share the produce quota of client-id=<default> (app)."
    ]
    assert (mixed.client_count, mixed.throttled_clients, mixed.throttled_addresses) == (4, 3, 1)
    [address] = [row for row in mixed.throttled if row["ip"]]
    assert (address["ip"], address["user"], address["rule"]) == ("10.0.0.9", "", "ip=<default>")
    made_at = MONDAY_MS + 100_000 - 90_000
    assert [row.asDict() for row in figures.clocks_ahead(usage, made_at).collect()] == [
        {"instance": "hand-made", "ahead_ms": 90_000}
    ]


def test_whom_shadows_would_hurt(found):
    [row] = found.shadows
    assert (row["user"], row["shadow_limit"], row["shadow_windows"], row["windows"]) == ("dark", 6.0, 1, 2)
    assert (found.shadow_hurt, found.shadow_seen) == (1, 2)


def test_a_noisy_neighbour_is_found_and_nobody_else(found):
    [row] = [row for row in found.episodes if row["virtual_cluster"] == "quiet"]
    assert (row["user"], row["begin_ms"], row["end_ms"]) == (
        "noisy",
        MONDAY_MS + 30 * WINDOW_MS,
        MONDAY_MS + 33 * WINDOW_MS,
    )
    assert (row["others_throttled"], row["others_throttled_ms"], row["bytes"]) == (1, 15_000, 27_000_000)
    assert row["share"] == pytest.approx(9_000 / 9_150)


def test_a_neighbour_is_noisy_only_with_most_of_the_node_and_while_others_are_throttled(spark):
    def node(number, large, others_ms, own_ms=0):
        yield record(0, "large", node_id=number, in_bytes=large, muted_ms=own_ms, throttled_ms=own_ms)
        yield record(0, "large", node_id=number, in_bytes=large, quota_type="fetch", instance="other")
        yield record(0, "small", node_id=number, in_bytes=1_000, muted_ms=others_ms)

    cases = [(501, 1_000, 0), (500, 1_000, 0), (501, 999, 0), (501, 0, 5_000), (501, 4_000, 9_000)]
    names = schema_of(UsageRecord).names
    everything = [one for number, case in enumerate(cases) for one in node(number, *case)]
    rows = [tuple(getattr(one, name) for name in names) for one in everything]
    usage = spark.createDataFrame(rows, schema_of(UsageRecord))
    episodes = neighbours.episodes(figures.windows(usage)).collect()
    assert sorted((row["node_id"], row["others_throttled"], row["others_throttled_ms"]) for row in episodes) == [
        (0, 1, 1_000), (4, 1, 4_000),
    ]  # fmt: skip


def test_tenants_match_as_the_sheet_says(found):
    users = {bill.tenant: bill.used["gb_in"] for bill in found.bills}
    assert users["odd"] >= 2**60
    assert found.unassigned[0]["user"] != "<b>é\u202e"


def test_the_files_are_written(found, tmp_path):
    (tmp_path / "tables").mkdir()
    report.write(found, tmp_path)
    assert "noisy" in (tmp_path / "report.html").read_text()
    names = {path.stem for path in (tmp_path / "tables").iterdir()}
    assert {"clients", "utilisation", "chargeback", "noisy_neighbours", "days", "missing"} <= names
    assert {path.suffix for path in (tmp_path / "tables").iterdir()} == {".csv", ".parquet"}


def test_gaps_come_from_the_log_of_the_table():
    accounts = {
        Writer("usage", "a", 7): Account(present=((1, 99), (121, 200)), dropped=((110, 112),), reported=200),
        Writer("trace", "a", 7): Account(present=((5, 6),), reported=9),
    }
    missing = missing_of(accounts)
    assert killed_of(accounts) == [], "the latest epoch may be running"
    accounts[Writer("usage", "a", 9)] = Account(alone=True)
    assert killed_of(accounts) == [KilledProcess("a", 7, 9, 0)]
    assert [(one.first, one.last, one.dropped) for one in missing] == [
        (100, 109, False),
        (113, 120, False),
        (110, 112, True),
    ]


def test_the_use_of_a_quota_is_added_up_over_instances_and_with_the_scope_cluster_over_nodes(spark):
    def used(node_id, instance, **values):
        shared = {"rule": "user=it", "limit": 10.0, "used": 50.0, "peak": 10.0, "share": 0.5}
        return record(0, "it", node_id=node_id, instance=instance, **{**shared, **values})

    of_nodes = [used(node_id, instance) for node_id in (1, 2) for instance in ("one", "two")]
    of_cluster = [replace(one, virtual_cluster="whole", scope="cluster") for one in of_nodes]
    names = schema_of(UsageRecord).names
    rows = [tuple(getattr(one, name) for name in names) for one in [*of_nodes, *of_cluster]]
    found = {
        row["virtual_cluster"]: row
        for row in utilisation(spark.createDataFrame(rows, schema_of(UsageRecord))).collect()
    }
    assert (found["quiet"]["windows"], found["quiet"]["most"]) == (2, 1.0)
    assert (found["whole"]["windows"], found["whole"]["most"], found["whole"]["most_node_id"]) == (1, 2.0, -2)
