"""The response to "what would these quotas have done", as rows to print, write or compare."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from kafka_throttle.pipeline.simulate.candidate import Candidate
from kafka_throttle.pipeline.simulate.simulation import (
    PLACE,
    in_runs,
    placed,
    replayed,
    rows_of,
    runs_of,
    sensor_id,
    summarised,
)
from kafka_throttle.pipeline.spark.kept import Kept

MOST_ROWS = 100_000
"""No more sensors, and no more clients, are told; those with most throttle time first."""

_SENSOR_COLUMNS = ["virtual_cluster", "node_id", "quota_type", *PLACE, "new_limit", "new_rule"]
_WHO = ["sensor_id", "user", "client_id", "ip"]
_SUMMED = ["recorded_used", "paced_used", "greedy_used"]
_SUMMED += ["throttles", "throttled_ms", "greedy_throttled_ms", "muted_ms", "windows"]
_MOST = ["longest_ms", "sharers"]
_REPLAYED = frozenset({*_SUMMED, *_MOST})
"""What is null of clients and sensors that no run has."""


def response_of(usage: DataFrame, candidate: Candidate) -> dict[str, Any]:
    """The response from usage records. ValueError if there are none."""
    with Kept() as kept:
        summary = kept.counted(placed(summarised(usage), candidate))
        total = summary.agg(
            F.sum("records").alias("records"), F.min("begin_ms").alias("begin"), F.max("end_ms").alias("end")
        ).collect()[0]
        if not total["records"]:
            raise ValueError("there are no usage records in this time")
        rows = rows_of(usage, summary)
        found = kept.counted(runs_of(rows, summary, candidate))
        outcome = kept.frame(replayed(in_runs(rows, found), candidate, total["end"]))
        # This action runs first and alone: the outcome is computed only with the first action.
        replayed_windows = outcome.where("of_sensor").agg(F.sum("windows")).collect()[0][0] or 0
        # To plan these on one core takes Spark longer than to compute them.
        with ThreadPoolExecutor() as threads:
            clients, sensors = threads.map(reported, (of_clients(summary, outcome), of_sensors(summary, outcome)))
    return {
        "begin_ms": total["begin"],
        "end_ms": total["end"],
        "records": total["records"],
        "replayed_windows": replayed_windows,
        "sensors": _shares(sensors, total["end"] - total["begin"]),
        "clients": _shares(clients, total["end"] - total["begin"]),
    }


def _shares(rows: list[dict[str, Any]], length_ms: int) -> list[dict[str, Any]]:
    # The last mutes may end after the last record.
    return [{**row, "muted_share": min(row["muted_ms"] / max(length_ms, 1), 1.0)} for row in rows]


def of_clients(summary: DataFrame, outcome: DataFrame) -> DataFrame:
    """Placed summary and REPLAYED -> for each client at a node, what was recorded and what would have been.

    What begins with `live_` is recorded. `paced_used` and `greedy_used` are what would have been let through: of
    a client that wants what was seen, and of one that always wants more while it is throttled, null where nothing would
    bound it. `shared_by` is how many share the sensor where it was replayed: of more than one, the share of each is
    held as recorded.
    """
    live = _recorded(_numbered(summary), [*_WHO, *_SENSOR_COLUMNS])
    news = _summed(outcome.where(~F.col("of_sensor")), _WHO)
    rows = _with_use(live.join(news, _WHO, "left")).withColumnRenamed("sharers", "shared_by")
    return _changed(rows.drop("sensor_id"))


def of_sensors(summary: DataFrame, outcome: DataFrame) -> DataFrame:
    """Placed summary and REPLAYED -> the same for each sensor of the candidate, all who share it together."""
    measured = _numbered(summary.where(F.col("new_limit").isNotNull()))
    live = _recorded(measured, ["sensor_id", *_SENSOR_COLUMNS], shared=True)
    news = _summed(outcome.where("of_sensor"), ["sensor_id"])
    return _with_use(live.join(news, "sensor_id", "left")).drop("sensor_id", "sharers")


def _numbered(summary: DataFrame) -> DataFrame:
    """With the number of the sensor, and as `node_id` the node at which it measures."""
    numbered = summary.select(sensor_id().alias("sensor_id"), "*")
    return numbered.withColumn("node_id", F.col("place_node_id")).drop("place_node_id")


def _recorded(rows: DataFrame, keys: list[str], shared: bool = False) -> DataFrame:
    sharers = [F.count_distinct("user", "client_id", "ip").alias("shared_by")] if shared else []
    return rows.groupBy(*keys).agg(
        F.sum("used").alias("live_used"),
        F.sum("requests").alias("live_requests"),
        F.sum("throttles").alias("live_throttles"),
        F.sum("throttled_ms").alias("live_throttled_ms"),
        *sharers,
    )


def _summed(outcome: DataFrame, keys: list[str]) -> DataFrame:
    return outcome.groupBy(*keys).agg(
        *(F.sum(name).alias(name) for name in _SUMMED), *(F.max(name).alias(name) for name in _MOST)
    )


def _with_use(rows: DataFrame) -> DataFrame:
    """Outside of runs everything goes through as recorded."""
    rows = rows.select(
        *(F.coalesce(name, F.lit(0)).alias(name) if name in _REPLAYED else name for name in rows.columns)
    )
    quiet = F.col("live_used") - F.col("recorded_used")
    bounded = F.col("new_limit").isNotNull() | (F.col("live_throttles") == 0)
    return (
        rows.withColumn("paced_used", quiet + F.col("paced_used"))
        .withColumn("greedy_used", F.when(bounded, quiet + F.col("greedy_used")))
        .drop("recorded_used")
    )


def _changed(rows: DataFrame) -> DataFrame:
    """With `change`: where what was recorded lies, before, in or after the interval; `freed` if the paced client is."""
    before, paced, greedy = (F.col(name) for name in ("live_throttled_ms", "throttled_ms", "greedy_throttled_ms"))
    change = (
        F.when((before > 0) & (paced == 0), "freed")
        .when(before > F.greatest(paced, greedy), "eased")
        .when(before >= F.least(paced, greedy), "same")
        .when(before == 0, "hurt")
        .otherwise("worse")
    )
    return rows.withColumn("change", change)


def reported(rows: DataFrame) -> list[dict[str, Any]]:
    """Rows that were throttled, or would be, or would be if greedy; most throttle time first, MOST_ROWS at most."""
    times = [F.col(name) for name in ("throttled_ms", "greedy_throttled_ms", "live_throttled_ms")]
    concerned = rows.where(F.greatest(*times) > 0)
    ordered = concerned.orderBy(F.greatest(*times).desc()).limit(MOST_ROWS)
    return [row.asDict() for row in ordered.collect()]
