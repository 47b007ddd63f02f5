"""The use of each entity, as quotas measure it: every function takes and returns DataFrames.

A quota applies at each node separately, for all clients of the entity there together. So use is added up over clients
and proxies in slots of a window's length at each node, and percentiles are of slots at one node, not of the sum over
the cluster; use under a quota over all nodes is added up over these, too. Slots without use are left out: for a client
that works one hour a day, that hour counts.
"""

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from kafka_throttle.pipeline.recommend.subject import CLIENT_ID, PAIR, USER
from kafka_throttle.pipeline.simulate.simulation import as_charged
from kafka_throttle.pipeline.spark.day import DAY_MS, utc_day
from kafka_throttle.pipeline.spark.measured_node import measured_node
from kafka_throttle.pipeline.spark.rule import is_of_pair, is_of_user
from kafka_throttle.quotas.entities import DEFAULT
from kafka_throttle.quotas.precedence import LEVELS, OWN

SUBJECT = ["virtual_cluster", "quota_type", "user", "client_id", "ip"]
"""The columns that say on what a quota would be set; names that do not matter for the kind of entity are empty."""

RANK_ACCURACY = 10_000
"""A percentile's rank is off by at most 1 / this."""

MOST_SHARED = 10
"""The number of shared quotas of each subject that are named; the others are only counted."""

TREND_DAYS = 27
"""The number of whole days, the last ones, from which a trend is computed."""
_MAY_BE_MISSING_MS = 1_800_000


def used_by(usage: DataFrame, by: str, quota_types: Iterable[str]) -> DataFrame:
    """USAGE -> SUBJECT and the columns that are needed of each record. `value` is what the quota is charged; handler
    time is in percent of a thread. `elsewhere` is the part of `value` to which a quota applies that comes before one on
    SUBJECT.
    """
    of_address = F.col("quota_type") == "connection"
    value = as_charged(F.col("quota_type"), F.col("used"))
    return usage.where(F.col("quota_type").isin(*quota_types)).select(
        *_subject(by),
        measured_node().alias("node_id"),
        "begin_ms",
        "end_ms",
        value.alias("value"),
        F.when(~of_address & _beats(by), value).otherwise(0.0).alias("elsewhere"),
        "throttles",
        "throttled_ms",
        "limit",
        "rule",
        "scope",
    )


def _subject(by: str) -> list[Column]:
    """SUBJECT of a record."""
    of_address = F.col("quota_type") == "connection"
    return [
        F.col("virtual_cluster"),
        F.col("quota_type"),
        F.when(of_address | F.lit(by == CLIENT_ID), "").otherwise(F.col("user")).alias("user"),
        F.when(of_address | F.lit(by == USER), "").otherwise(F.col("client_id")).alias("client_id"),
        F.when(of_address, F.col("ip")).otherwise("").alias("ip"),
    ]


_LEVEL: Final = {PAIR: (OWN, OWN), USER: (OWN, None), CLIENT_ID: (None, OWN)}


def _beats(by: str) -> Column:
    """Whether the rule of a record comes before a quota of the kind `by`, in Kafka's order of precedence."""
    rule = F.col("rule")
    of_pair = is_of_pair(rule)
    of_default = rule.startswith("user=<default>,") | (rule == "user=<default>")
    of_user = {OWN: is_of_user(rule) & ~of_default, DEFAULT: of_default, None: ~is_of_user(rule)}
    stronger = dict.fromkeys((user, client_id is None) for user, client_id in LEVELS[: LEVELS.index(_LEVEL[by])])
    on_level = [of_user[user] & (~of_pair if alone else of_pair) for user, alone in stronger]
    return reduce(or_, on_level, F.lit(False))


def shared_quotas(usage: DataFrame, by: str, quota_types: Iterable[str]) -> DataFrame:
    """USAGE -> SUBJECT, leaves, leaves_count: the quotas in force that a quota on SUBJECT would take it out of, and
    that hold for other subjects, too.

    `leaves` has the MOST_SHARED of them with most use, as structs of rank, value (the subject's use), rule, name (that
    the quota measures), limit (the last one), and others (the number of other subjects that used it). A quota is shared
    if it lacks a name that SUBJECT has: those for a client-id, if by user or pair; those for a user, if by pair.
    """
    rule = F.col("rule")
    shared = {USER: ~is_of_user(rule), PAIR: ~is_of_pair(rule), CLIENT_ID: F.lit(False)}[by] & (rule != "")
    concerned = F.col("quota_type").isin(*quota_types) & (F.col("quota_type") != "connection")
    names = (F.col("user"), F.col("client_id"))
    used = usage.where(concerned & shared & F.col("limit").isNotNull()).select(
        *_subject(by),
        "rule",
        F.when(is_of_user(rule), names[0]).otherwise(names[1]).alias("name"),
        as_charged(F.col("quota_type"), F.col("used")).alias("value"),
        "limit",
        "begin_ms",
    )
    quota = Window.partitionBy("virtual_cluster", "quota_type", "rule", "name")
    largest_first = Window.partitionBy(*SUBJECT).orderBy(F.col("value").desc(), "rule", "name")
    in_quotas = (
        used.groupBy(*SUBJECT, "rule", "name")
        .agg(F.sum("value").alias("value"), F.max_by("limit", "begin_ms").alias("limit"))
        .withColumn("others", F.count(F.lit(1)).over(quota) - 1)
        .withColumn("rank", F.row_number().over(largest_first))
    )
    left = F.when(F.col("rank") <= MOST_SHARED, F.struct("rank", "value", "rule", "name", "limit", "others"))
    return in_quotas.groupBy(*SUBJECT).agg(
        F.sort_array(F.collect_list(left)).alias("leaves"), F.count(F.lit(1)).alias("leaves_count")
    )


def slots(used: DataFrame, slot_ms: int) -> DataFrame:
    """`used_by` -> SUBJECT, node_id, slot, rate (units/s of the quota), and sums of the slot.

    A record that is longer than a slot gives its mean rate; shorter records, as at a restart, are added up.
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
        F.max_by(F.struct("limit", "rule", "scope"), "begin_ms").alias("latest"),
    )


def at_nodes(slots: DataFrame, percentile: float) -> DataFrame:
    """`slots` -> SUBJECT, node_id, windows, demand, at_least, and sums.

    In a slot that was throttled clients may have wanted more, and how much more is not known. So it counts as larger
    than all others. If the percentile is one of the unthrottled slots, it is the percentile of what was wanted. If not,
    `at_least` is true, and the demand is the percentile of what was let through.
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
            F.collect_set(utc_day(F.col("begin_ms"))).alias("days"),
        )
        .withColumn("at_least", F.col("wanted") == most)
        .withColumn("demand", F.when(F.col("at_least"), F.col("let_through")).otherwise(F.col("wanted")))
        .drop("wanted", "let_through")
    )


def demand(nodes: DataFrame, least_windows: int) -> DataFrame:
    """`at_nodes` -> one row for each SUBJECT.

    node: the node with most demand among those with at least `least_windows` windows, null if there is none; peak: the
    largest slot; thin: the node with most demand among those with fewer windows; days: the number of days with use.
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
    """`used_by` -> SUBJECT, by_day: (day, value) of the last TREND_DAYS days that the records from `begin_ms` to
    `end_ms` cover, except for half an hour.
    """
    first = -(-(begin_ms - _MAY_BE_MISSING_MS) // DAY_MS)
    after = (end_ms + _MAY_BE_MISSING_MS) // DAY_MS
    first = max(first, after - TREND_DAYS)
    within = (F.col("begin_ms") >= first * DAY_MS) & (F.col("begin_ms") < after * DAY_MS)
    by_day = (
        used.where(within).groupBy(*SUBJECT, utc_day(F.col("begin_ms")).alias("day")).agg(F.sum("value").alias("value"))
    )
    return by_day.groupBy(*SUBJECT).agg(F.sort_array(F.collect_list(F.struct("day", "value"))).alias("by_day"))


def largest(demands: DataFrame, days: DataFrame, rows: int) -> DataFrame:
    """DEMAND and `whole_days` -> both, for the `rows` subjects with most use of each quota type, and `of`: the number
    of all subjects of the type.
    """
    types = Window.partitionBy("quota_type")
    order = types.orderBy(F.col("value").desc(), *SUBJECT)
    ranked = demands.withColumn("rank", F.row_number().over(order)).withColumn("of", F.count(F.lit(1)).over(types))
    return ranked.where(F.col("rank") <= rows).drop("rank").join(days, SUBJECT, "left")


def extent(usage: DataFrame) -> DataFrame:
    """USAGE -> one row: records, begin_ms, end_ms, window_ms (the usual length), weekdays (the weekdays that have
    records; Monday is 0).
    """
    return usage.agg(
        F.count(F.lit(1)).alias("records"),
        F.min("begin_ms").alias("begin_ms"),
        F.max("end_ms").alias("end_ms"),
        F.percentile_approx(F.col("end_ms") - F.col("begin_ms"), 0.5).alias("window_ms"),
        F.collect_set(F.weekday(utc_day(F.col("begin_ms")))).alias("weekdays"),
    )
