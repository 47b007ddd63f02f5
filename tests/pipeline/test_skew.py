"""One client with half of all records: its work is cut, and no task has it all."""

import pytest
from pyspark.sql import functions as F

from kafka_throttle.pipeline.simulate.response import response_of
from kafka_throttle.pipeline.simulate.simulation import in_runs, placed, rows_of, runs_of, summarised
from kafka_throttle.pipeline.table.schemas import schema_of
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.records.usage_record import UsageRecord, columns
from tests.pipeline.live_runs import candidate_with
from tests.pipeline.spools import MONDAY_MS, Fleet, records

WINDOWS, SHARERS, LIMIT = 2_400, 4, 1_000_000.0
LOUD_EVERY, LOUD = 100, 10
CANDIDATE = candidate_with(
    QuotaTable({Entity(user=DEFAULT): {QuotaType.PRODUCE: LIMIT}, Entity(user="hot"): {QuotaType.PRODUCE: LIMIT}})
)


def rows():
    """A hot user at one node, loud for 100 s of each 1,000, and as many records of forty others."""
    plain = records(Fleet(), 1)[0]
    known = {name: getattr(plain, name) for name in columns(UsageRecord)}
    known |= {"node_id": 0, "quota_type": "produce", "throttles": 0, "throttled_ms": 0, "limit": None, "rule": ""}
    for window in range(WINDOWS):
        begin_ms = MONDAY_MS + window * 10_000
        for i in range(2 * SHARERS):
            hot = i < SHARERS
            loud = window % LOUD_EVERY < LOUD
            user = "hot" if hot else f"user-{(window // 4) % 10 * SHARERS + i - SHARERS}"
            load = (1.5 if loud else 0.4) / SHARERS if hot else 0.3
            used = load * LIMIT * 10
            mine = {"user": user, "client_id": f"app-{i}", "begin_ms": begin_ms, "end_ms": begin_ms + 10_000,
                    "used": used, "peak": used / 10, "requests": 20}  # fmt: skip
            yield tuple((known | mine)[name] for name in columns(UsageRecord))


@pytest.fixture(scope="module")
def usage(spark):
    return spark.createDataFrame(list(rows()), schema_of(UsageRecord)).repartition(4).cache()


@pytest.fixture(scope="module")
def replay_input(usage):
    summary = placed(summarised(usage), CANDIDATE)
    rows = rows_of(usage, summary)
    return in_runs(rows, runs_of(rows, summary, CANDIDATE)).cache()


def test_runs_of_the_one_that_has_half_of_all_records_are_spread_over_many_tasks(usage, replay_input):
    share = usage.where("user = 'hot'").count() / usage.count()
    assert share == 0.5
    hot = replay_input.where("user = 'hot'")
    tasks = [row["count"] for row in hot.groupBy(F.spark_partition_id()).count().collect()]
    assert replay_input.rdd.getNumPartitions() == 16, "eight for each core"
    assert len(tasks) >= 8
    assert max(tasks) <= sum(tasks) / 4
    assert hot.select("run").distinct().count() == WINDOWS // LOUD_EVERY


def test_only_what_may_be_throttled_is_sent_to_be_replayed(usage, replay_input):
    assert {row["user"] for row in replay_input.select("user").distinct().collect()} == {"hot"}
    assert replay_input.count() < 0.4 * usage.where("user = 'hot'").count()


def test_no_task_of_the_first_pass_sends_more_rows_than_there_are_clients(usage):
    """Sums are made before anything is sent: whatever a client uses, it is one row for each task."""
    assert summarised(usage).where("user = 'hot'").count() == SHARERS


def test_the_response_says_how_much_was_replayed(usage):
    response = response_of(usage, CANDIDATE)
    assert response["records"] == 2 * SHARERS * WINDOWS
    assert {row["user"] for row in response["clients"]} == {"hot"}
    assert response["replayed_windows"] < WINDOWS / 2
