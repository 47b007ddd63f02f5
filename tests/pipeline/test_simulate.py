"""`usage simulate` on Spark: the response from usage records."""

import io
import json

import pytest
from pyspark.sql import functions as F

from kafka_throttle.pipeline.jobs.simulate import write
from kafka_throttle.pipeline.simulate.candidate import Candidate, Rules
from kafka_throttle.pipeline.simulate.response import response_of
from kafka_throttle.pipeline.table.schemas import schema_of
from kafka_throttle.quotas.client_quotas import WHOLE_CLUSTER
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.records.usage_record import UsageRecord, columns
from tests.pipeline.live_runs import Connection, candidate_with, greedy, live_run, steady

MB = 1_000_000
SECONDS = 120
LIVE = QuotaTable(
    {
        Entity(user=DEFAULT): {QuotaType.PRODUCE: MB},
        Entity(user="big"): {QuotaType.PRODUCE: 2 * MB},
    }
)
LOAD = [
    *(Connection("big", f"app-{i}", steady(0.4 * MB, 20_000)) for i in range(4)),
    Connection("greedy", "x", greedy(100_000)),
    Connection("calm", "x", steady(0.2 * MB, 20_000)),
]


@pytest.fixture(scope="module")
def run():
    return live_run(LIVE, LOAD, SECONDS)


@pytest.fixture(scope="module")
def usage(spark, run):
    rows = [tuple(getattr(record, name) for name in columns(UsageRecord)) for record in run.records]
    return spark.createDataFrame(rows, schema_of(UsageRecord))


def clients_of(response) -> dict[tuple[str, str], dict[str, object]]:
    return {(row["user"], row["client_id"]): row for row in response["clients"]}


@pytest.fixture(scope="module")
def unchanged(usage):
    return response_of(usage, candidate_with(LIVE))


@pytest.fixture(scope="module")
def changed(usage):
    lower, wide = {QuotaType.PRODUCE: MB}, {QuotaType.PRODUCE: 9 * MB}
    quotas = {Entity(user="big"): lower, Entity(user="calm"): wide}
    return response_of(usage, candidate_with(QuotaTable(quotas)))


def test_the_quotas_in_force_give_an_interval_that_has_what_was_recorded(unchanged, run):
    clients = clients_of(unchanged)
    assert set(clients) == {("greedy", "x")}
    live_ms = run.throttled_ms["greedy", "x"]
    one = clients["greedy", "x"]
    assert one["throttled_ms"] - 1000 <= live_ms <= one["greedy_throttled_ms"] + 1000
    assert (one["throttled_ms"] + one["greedy_throttled_ms"]) / 2 == pytest.approx(live_ms, rel=0.05)
    assert (one["change"], one["shared_by"]) == ("same", 1)
    assert clients["greedy", "x"]["live_throttled_ms"] == sum(r.throttled_ms for r in run.records)
    assert unchanged["records"] == len(run.records)


def test_a_quota_that_is_shared_hurts_and_without_one_nobody_is_throttled_or_bounded(changed):
    clients = clients_of(changed)
    assert {name: row["change"] for name, row in clients.items()} == {
        **{("big", f"app-{i}"): "hurt" for i in range(4)},
        ("greedy", "x"): "freed",
    }
    assert clients["greedy", "x"]["greedy_used"] is None
    assert clients["greedy", "x"]["paced_used"] == clients["greedy", "x"]["live_used"]
    [big] = changed["sensors"]
    assert (big["place_user"], big["new_rule"], big["shared_by"]) == ("big", "user=big", 4)
    assert big["paced_used"] == pytest.approx(SECONDS * MB, rel=0.1)


def test_what_is_quiet_is_not_replayed(changed, run):
    windows = {record.begin_ms for record in run.records if record.user == "big"}
    assert changed["replayed_windows"] == len(windows)


def test_what_was_asked_before_in_a_session_is_not_compiled_anew(spark, usage):
    compiled = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    counts = []
    for _ in range(2):
        response_of(usage, candidate_with(LIVE))
        counts.append(compiled.getCount())
    assert counts[1] - counts[0] < 20, "classes; an answer has more than 150"


@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_the_response_can_be_read(unchanged, output):
    to = io.StringIO()
    write(unchanged, output, to)
    assert "greedy" in to.getvalue()
    if output == "json":
        assert json.loads(to.getvalue())["clients"][0]["user"] == "greedy"


def test_a_candidate_over_all_nodes_measures_all_instances_and_nodes_by_one_sensor(usage):
    """The same use at two nodes, half of it through another instance: at each node it is allowed, in all it is not."""
    calm = usage.where("user = 'calm'")
    twice = calm.unionByName(calm.withColumn("node_id", F.lit(9).cast("long")).withColumn("instance", F.lit("other")))
    quotas = {Entity("calm"): {QuotaType.PRODUCE: 0.3 * MB}}

    def throttled_at(use, of_cluster=()):
        return [row["node_id"] for row in response_of(use, candidate_with(QuotaTable(quotas, of_cluster)))["sensors"]]

    assert throttled_at(twice) == []
    assert throttled_at(twice, {Entity("calm")}) == [WHOLE_CLUSTER]
    at_one_node = twice.withColumn("node_id", F.lit(9).cast("long"))
    assert throttled_at(at_one_node) == [9]


def test_paced_fetches_and_requests_are_simulated_with_the_quotas_that_they_would_have(spark):
    """As `throttle.fetch: paced` has it, the default."""
    limit = {QuotaType.FETCH: MB, QuotaType.REQUEST: 5.0}
    candidate = Candidate(all_others=Rules(QuotaTable({Entity(user=DEFAULT): limit}), paces_fetches=True))
    names = columns(UsageRecord)
    for quota_type, rate, size in (("fetch", 4.0 * MB, 20_000), ("request", 20.0, 1)):
        load = [Connection("busy", "x", steady(rate, size)), Connection("calm", "x", steady(rate / 20, size))]
        run = live_run(QuotaTable({}), load, 20, quota_type=quota_type)
        rows = [tuple(getattr(record, name) for name in names) for record in run.records]
        response = response_of(spark.createDataFrame(rows, schema_of(UsageRecord)), candidate)
        assert {name: row["change"] for name, row in clients_of(response).items()} == {("busy", "x"): "hurt"}
