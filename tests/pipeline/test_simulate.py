"""`usage simulate` on Spark: the answer from records."""

import pytest

from pipeline.jobs.simulate import answer_of
from pipeline.schemas import schema_of
from quotas.entities import DEFAULT, Entity, QuotaType
from quotas.quota_table import QuotaTable
from quotas.usage_record import UsageRecord, columns
from tests.pipeline.live_runs import Connection, candidate_with, greedy, live_run, steady

MB = 1_000_000
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
    return live_run(LIVE, LOAD, 300)


@pytest.fixture(scope="module")
def usage(spark, run):
    rows = [tuple(getattr(record, name) for name in columns(UsageRecord)) for record in run.records]
    return spark.createDataFrame(rows, schema_of(UsageRecord))


def clients_of(answer) -> dict[tuple[str, str], dict[str, object]]:
    return {(row["user"], row["client_id"]): row for row in answer["clients"]}


def test_the_quotas_in_force_give_what_was_recorded(usage, run):
    answer = answer_of(usage, candidate_with(LIVE))
    clients = clients_of(answer)
    assert set(clients) == {("greedy", "x")}
    live_ms = run.throttled_ms["greedy", "x"]
    assert clients["greedy", "x"]["throttled_ms"] == pytest.approx(live_ms, rel=0.02)
    assert clients["greedy", "x"]["live_throttled_ms"] == sum(r.throttled_ms for r in run.records)
    assert answer["records"] == len(run.records)
