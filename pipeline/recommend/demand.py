"""What everybody uses, as quotas measure it: every function takes and returns DataFrames.

A quota holds at each node by itself, for all clients of the entity there together. So use is added up over clients and
proxies in slots of a window's length at each node, and percentiles are of slots at one node, never of the cluster's
sum. Slots without use are not among them: of a client that works one hour a day it is that hour that counts.
"""

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from pipeline.recommend.subject import CLIENT_ID, PAIR, USER
from pipeline.report.figures import USER_AND_CLIENT_ID
from pipeline.simulate.simulation import as_charged
from pipeline.spark.day import DAY_MS
from quotas.entities import DEFAULT
from quotas.precedence import LEVELS, OWN

SUBJECT = ["virtual_cluster", "quota_type", "user", "client_id", "ip"]
"""Whom a quota would be set on; those names are empty that do not count for the kind of entity."""

RANK_ACCURACY = 10_000
"""A percentile's rank is off by at most 1 / this."""

TREND_DAYS = 27
"""So many whole days, the last ones, are handed on for a trend."""
_MAY_BE_MISSING_MS = 1_800_000


def used_by(usage: DataFrame, by: str, quota_types: Iterable[str]) -> DataFrame:
    """USAGE -> WHOM and what is needed of each record; `value` is what the quota is charged, percent of a thread for
    handler time. `elsewhere`: as much of it as is bound by a quota that would beat one of WHOM.
    """
    of_address = F.col("quota_type") == "connection"
    value = as_charged(F.col("quota_type"), F.col("used"))
    return usage.where(F.col("quota_type").isin(*quota_types)).select(
        "virtual_cluster",
        "quota_type",
        F.when(of_address | F.lit(by == CLIENT_ID), "").otherwise(F.col("user")).alias("user"),
        F.when(of_address | F.lit(by == USER), "").otherwise(F.col("client_id")).alias("client_id"),
        F.when(of_address, F.col("ip")).otherwise("").alias("ip"),
        "node_id",
        "begin_ms",
        "end_ms",
        value.alias("value"),
        F.when(~of_address & _beats(by), value).otherwise(0.0).alias("elsewhere"),
        "throttles",
        "throttled_ms",
        "limit",
        "rule",
    )


_LEVEL: Final = {PAIR: (OWN, OWN), USER: (OWN, None), CLIENT_ID: (None, OWN)}


def _beats(by: str) -> Column:
    """Whether the rule of a record is stronger than a quota of the kind `by`, in Kafka's order of precedence."""
    rule = F.col("rule")
    of_pair = rule.rlike(USER_AND_CLIENT_ID)
    of_default = rule.startswith("user=<default>,") | (rule == "user=<default>")
    of_user = {OWN: rule.startswith("user=") & ~of_default, DEFAULT: of_default, None: ~rule.startswith("user=")}
    stronger = dict.fromkeys((user, client_id is None) for user, client_id in LEVELS[: LEVELS.index(_LEVEL[by])])
    on_level = [of_user[user] & (~of_pair if alone else of_pair) for user, alone in stronger]
    return reduce(or_, on_level, F.lit(False))


def slots(used: DataFrame, slot_ms: int) -> DataFrame:
    """What `used_by` gives -> WHOM, node_id, slot, rate (units/s of the quota), and sums of the slot.

    A record that is longer than a slot has its own mean rate; shorter ones, as at a restart, add up.
    """
    slot = F.floor(F.col("begin_ms") / slot_ms).alias("slot")
    seconds = F.greatest(F.col("end_ms") - F.col("begin_ms"), F.lit(slot_ms)) / 1_000
    return used.groupBy(*SUBJECT, "node_id", slot).agg(
        F.sum(F.col("value") / seconds).alias("rate"),
        F.sum("value").alias("value"),
        F.sum("elsewhere").alias("elsewhere"),
        F.max(F.col("throttles") > 0).alias("throttled"),
        F.sum("throttled_ms").alias("throttled_ms"),
        F.min("begin_ms").alias("begin_ms"),
        F.max_by(F.struct("limit", "rule"), "begin_ms").alias("latest"),
    )


def at_nodes(slots: DataFrame, percentile: float) -> DataFrame:
    """SLOTS -> WHOM, node_id, windows, demand, at_least, and sums.

    In a slot that was throttled more may have been wanted, nobody knows how much more. So it counts as larger than
    all others: if the percentile is still one of the others, it is that of what was wanted, however much that was. If
    it is not, `at_least` is true, and the demand is that of what was let through.
    """
    most: Column = F.lit(float("inf"))
    wanted = F.percentile_approx(F.when(F.col("throttled"), most).otherwise(F.col("rate")), percentile, RANK_ACCURACY)
    return (
        slots.groupBy(*SUBJECT, "node_id")
        .agg(
            F.count(F.lit(1)).alias("windows"),
            F.sum(F.col("throttled").cast("long")).alias("throttled_windows"),
            wanted.alias("wanted"),
            F.percentile_approx("rate", percentile, RANK_ACCURACY).alias("let_through"),
            F.max("rate").alias("most"),
            F.sum("value").alias("value"),
            F.sum("elsewhere").alias("elsewhere"),
            F.sum("throttled_ms").alias("throttled_ms"),
            F.max_by("latest", "begin_ms").alias("latest"),
            F.max("begin_ms").alias("last_ms"),
            F.collect_set(_day(F.col("begin_ms"))).alias("days"),
        )
        .withColumn("at_least", F.col("wanted") == most)
        .withColumn("demand", F.when(F.col("at_least"), F.col("let_through")).otherwise(F.col("wanted")))
        .drop("wanted", "let_through")
    )


def _day(ms: Column) -> Column:
    return F.timestamp_millis(ms).cast("date")


def demand(nodes: DataFrame, least_windows: int) -> DataFrame:
    """What `at_nodes` gives -> a row for each of WHOM.

    node: the one with most demand of those with at least so many windows, null if there is none; peak: the largest
    slot; thin: the node with most demand of those with fewer windows; days: on which there was use.
    """
    enough = F.col("windows") >= least_windows
    at_node = F.struct("node_id", "windows", "demand", "at_least")
    return nodes.groupBy(*SUBJECT).agg(
        F.max_by(at_node, F.when(enough, F.col("demand"))).alias("node"),
        F.max_by(at_node, F.when(~enough, F.col("demand"))).alias("thin"),
        F.max_by(F.struct("node_id", F.col("most").alias("rate")), "most").alias("peak"),
        F.count(F.lit(1)).alias("nodes"),
        F.sum("windows").alias("windows"),
        F.sum("throttled_windows").alias("throttled_windows"),
        F.sum("throttled_ms").alias("throttled_ms"),
        F.sum("value").alias("value"),
        F.sum("elsewhere").alias("elsewhere"),
        F.max_by("latest", "last_ms").alias("latest"),
        F.size(F.array_distinct(F.flatten(F.collect_list("days")))).alias("days"),
    )


def whole_days(used: DataFrame, begin_ms: int, end_ms: int) -> DataFrame:
    """What `used_by` gives -> WHOM, by_day: (day, value) of the last TREND_DAYS days that the records from `begin_ms`
    to `end_ms` cover, but for half an hour.
    """
    first = -(-(begin_ms - _MAY_BE_MISSING_MS) // DAY_MS)
    after = (end_ms + _MAY_BE_MISSING_MS) // DAY_MS
    first = max(first, after - TREND_DAYS)
    within = (F.col("begin_ms") >= first * DAY_MS) & (F.col("begin_ms") < after * DAY_MS)
    by_day = (
        used.where(within).groupBy(*SUBJECT, _day(F.col("begin_ms")).alias("day")).agg(F.sum("value").alias("value"))
    )
    return by_day.groupBy(*SUBJECT).agg(F.sort_array(F.collect_list(F.struct("day", "value"))).alias("by_day"))


def largest(demands: DataFrame, days: DataFrame, rows: int) -> DataFrame:
    """DEMAND and what `whole_days` gives -> both, of the `rows` with most use of each quota type, and `of`: how many
    there were.
    """
    types = Window.partitionBy("quota_type")
    order = types.orderBy(F.col("value").desc(), *SUBJECT)
    ranked = demands.withColumn("rank", F.row_number().over(order)).withColumn("of", F.count(F.lit(1)).over(types))
    return ranked.where(F.col("rank") <= rows).drop("rank").join(days, SUBJECT, "left")


def extent(usage: DataFrame) -> DataFrame:
    """USAGE -> one row: records, begin_ms, end_ms, window_ms (the usual length), weekdays (of which there are records;
    Monday is 0).
    """
    return usage.agg(
        F.count(F.lit(1)).alias("records"),
        F.min("begin_ms").alias("begin_ms"),
        F.max("end_ms").alias("end_ms"),
        F.percentile_approx(F.col("end_ms") - F.col("begin_ms"), 0.5).alias("window_ms"),
        F.collect_set(F.weekday(_day(F.col("begin_ms")))).alias("weekdays"),
    )
