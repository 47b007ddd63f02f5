"""The response to "what would these quotas have done", as rows to print, write or compare."""

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from pipeline.simulate.simulation import CLIENT, PLACE, sensor_id

MOST_ROWS = 100_000
"""No more sensors, and no more clients, are told; those with most throttle time first."""

_SENSOR_COLUMNS = ["virtual_cluster", "node_id", "quota_type", *PLACE, "new_limit", "new_rule"]
_WHO = ["sensor_id", "user", "client_id", "ip"]
_NUMBERS = ["throttles", "throttled_ms", "greedy_throttled_ms", "longest_ms", "muted_ms"]


def of_clients(summary: DataFrame, replayed: DataFrame) -> DataFrame:
    """Placed summary and REPLAYED -> for each client at a node, what was recorded and what would have been.

    What begins with `live_` is recorded. `paced_used` and `greedy_used` are what would have been let through: of
    a client that wants what was seen, and of one that always wants more while it is throttled, null where nothing would
    bound it.
    """
    live = _recorded(summary.select(sensor_id().alias("sensor_id"), "*"), [*_WHO, *_SENSOR_COLUMNS])
    news = _summed(replayed.where(~F.col("of_sensor")), _WHO)
    joined = live.join(news, _WHO, "left")
    # The same client at the same node, through several proxies.
    return _changed(_with_use(_over_instances(joined, [*CLIENT, *PLACE, "new_limit", "new_rule"])))


def of_sensors(summary: DataFrame, replayed: DataFrame) -> DataFrame:
    """Placed summary and REPLAYED -> the same for each sensor of the candidate, all who share it together."""
    measured = summary.where(F.col("new_limit").isNotNull()).select(sensor_id().alias("sensor_id"), "*")
    live = _recorded(measured, ["sensor_id", *_SENSOR_COLUMNS], shared=True)
    news = _summed(replayed.where("of_sensor"), ["sensor_id"])
    joined = live.join(news, "sensor_id", "left")
    return _with_use(_over_instances(joined, _SENSOR_COLUMNS, shared=True))


def _recorded(rows: DataFrame, keys: list[str], shared: bool = False) -> DataFrame:
    sharers = [F.count_distinct("user", "client_id", "ip").alias("shared_by")] if shared else []
    return rows.groupBy(*keys).agg(
        F.sum("used").alias("live_used"),
        F.sum("requests").alias("live_requests"),
        F.sum("throttles").alias("live_throttles"),
        F.sum("throttled_ms").alias("live_throttled_ms"),
        *sharers,
    )


def _summed(replayed: DataFrame, keys: list[str]) -> DataFrame:
    sums = ["recorded_used", "paced_used", "greedy_used", "fit_recorded_ms", "fit_model_ms"]
    return replayed.groupBy(*keys).agg(
        *(F.sum(name).alias(name) for name in [*sums, "throttles", "throttled_ms", "greedy_throttled_ms", "muted_ms"]),
        F.max("longest_ms").alias("longest_ms"),
        F.sum("windows").alias("windows"),
    )


def _over_instances(rows: DataFrame, keys: list[str], shared: bool = False) -> DataFrame:
    sums = ["live_used", "live_requests", "live_throttles", "live_throttled_ms", "recorded_used", "paced_used"]
    more = ["greedy_used", "fit_recorded_ms", "fit_model_ms", "throttles", "throttled_ms", "greedy_throttled_ms"]
    sharers = [F.max("shared_by").alias("shared_by")] if shared else []
    return rows.groupBy(*keys).agg(
        *(F.sum(F.coalesce(name, F.lit(0))).alias(name) for name in [*sums, *more, "windows"]),
        F.max(F.coalesce("longest_ms", F.lit(0))).alias("longest_ms"),
        F.max(F.coalesce("muted_ms", F.lit(0))).alias("muted_ms"),
        *sharers,
    )


def _with_use(rows: DataFrame) -> DataFrame:
    """Outside of runs everything goes through as recorded."""
    quiet = F.col("live_used") - F.col("recorded_used")
    fit = F.col("fit_recorded_ms")
    bounded = F.col("new_limit").isNotNull() | (F.col("live_throttles") == 0)
    return (
        rows.withColumn("paced_used", quiet + F.col("paced_used"))
        .withColumn("greedy_used", F.when(bounded, quiet + F.col("greedy_used")))
        .withColumn("model_share", F.when(fit > 0, F.col("fit_model_ms") / fit))
        .drop("recorded_used", "fit_recorded_ms", "fit_model_ms")
    )


def _changed(rows: DataFrame) -> DataFrame:
    before, after = F.col("live_throttled_ms"), F.col("throttled_ms")
    change = (
        F.when((before == 0) & (after > 0), "hurt")
        .when((before > 0) & (after == 0), "freed")
        .when(after > before, "worse")
        .when(after < before, "eased")
        .otherwise("same")
    )
    return rows.withColumn("change", change)


def reported(rows: DataFrame) -> list[dict[str, Any]]:
    """Rows that were throttled, or would be; most throttle time first, MOST_ROWS at most."""
    concerned = rows.where((F.col("throttled_ms") > 0) | (F.col("live_throttled_ms") > 0))
    ordered = concerned.orderBy(F.greatest("throttled_ms", "live_throttled_ms").desc()).limit(MOST_ROWS)
    return [row.asDict() for row in ordered.collect()]
