"""The figures of the report, as Spark sums them up: every function takes and returns DataFrames.

Sums are of integers, so they are exact and do not depend on the order of the rows: bytes, requests, ms. Quantities that
a quota counts in fractions (ms of handler time, partitions) are summed in thousandths, with each record rounded.
"""

from collections.abc import Mapping
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from kafka_throttle.pipeline.spark.day import utc_day
from kafka_throttle.pipeline.spark.measured_node import measured_node
from kafka_throttle.pipeline.spark.rule import is_of_client_id, is_of_user

CLIENT = ("virtual_cluster", "user", "client_id", "ip")
"""The columns that identify what the report calls a client; only an address has an `ip`, and it has neither name."""

SUMS = (
    "in_bytes",
    "out_bytes",
    "requests",
    "handler_us",
    "milli_mutations",
    "throttles",
    "throttled_ms",
    "backlogged_ms",
    "muted_ms",
    "shadow_throttles",
    "shadow_throttled_ms",
    "shadow_windows",
    "unsent_bytes",
    "window_ms",
    "throttled_window_ms",
    "records",
)
"""The columns of DAILY and of all tables that are summed up from it. `handler_us`: microseconds of handler time;
`milli_mutations`: thousandths of a partition; `window_ms`: length of the records' windows, each counted once for each
node and quota type; `throttled_window_ms`: length of those windows in which the quota throttled; `shadow_windows`: how
many records have a shadow throttle.
"""

PERCENTILES = (0.5, 0.95, 0.99)
RANK_ACCURACY = 1_000
"""A percentile's rank is off by at most 1 / this."""


def daily(usage: DataFrame) -> DataFrame:
    """USAGE -> CLIENT, quota_type, rule, shadow_rule, day (a date, UTC), SUMS, throttled_at, limit (of the last window
    that the quota throttled), shadow_limit (the last): most of the report is made from this one pass over the records.
    """
    thousandths = F.round(F.col("used") * 1_000).cast("long")
    length = F.col("end_ms") - F.col("begin_ms")
    sums = {
        "handler_us": _of_type("request", thousandths),
        "milli_mutations": _of_type("controller_mutation", thousandths),
        "window_ms": length,
        "throttled_window_ms": F.when(F.col("throttles") > 0, length).otherwise(0),
        "shadow_windows": (F.col("shadow_throttles") > 0).cast("long"),
        "records": F.lit(1),
    }
    throttled_at = F.when(F.col("throttles") > 0, F.col("begin_ms"))
    day = utc_day(F.col("begin_ms")).alias("day")
    return usage.groupBy(*CLIENT, "quota_type", "rule", "shadow_rule", day).agg(
        *(F.sum(sums.get(name, F.col(name))).alias(name) for name in SUMS),
        F.max(throttled_at).alias("throttled_at"),
        F.max_by("limit", throttled_at).alias("limit"),
        F.max_by("shadow_limit", "begin_ms").alias("shadow_limit"),
    )


def _of_type(quota_type: str, value: Column) -> Column:
    return F.when(F.col("quota_type") == quota_type, value).otherwise(F.lit(0).cast("long"))


def totals(days: DataFrame, *by: str) -> DataFrame:
    """DAILY -> `by`, SUMS, `bytes` (in and out together)."""
    sums = (F.coalesce(F.sum(name), F.lit(0).cast("long")).alias(name) for name in SUMS)
    return days.groupBy(*by).agg(*sums).withColumn("bytes", F.col("in_bytes") + F.col("out_bytes"))


def known_clients(rows: DataFrame) -> DataFrame:
    """Rows with CLIENT -> the same, where all client-ids without a user are one client: requests before a login."""
    return rows.withColumn("client_id", _known_client_id())


def _known_client_id() -> Column:
    return F.when(F.col("user") == "", "").otherwise(F.col("client_id"))


_KNOWN = ("virtual_cluster", "user", "known_client_id", "ip")
LEVELS: Mapping[str, tuple[str, ...]] = {
    "all": (),
    "by_type": ("quota_type",),
    "days": ("day",),
    "clients": _KNOWN,
    "users": ("virtual_cluster", "user"),
    "client_ids": ("virtual_cluster", "client_id"),
    "throttled": (*_KNOWN, "quota_type"),
}
"""The columns by which use is summed up. `known_client_id` is that of `known_clients`."""
MEASURES = ("bytes", "requests", "handler_us", "throttled_ms")
"""The sums by which clients are ranked."""
_RANKED = {
    "clients": MEASURES,
    "users": MEASURES,
    "client_ids": MEASURES,
    "throttled": ("throttled_ms",),
}


def by_levels(days: DataFrame) -> DataFrame:
    """DAILY -> level (a key of LEVELS), its columns, SUMS, bytes, rule and limit (of the last throttle): all sums of
    the report in one pass.
    """
    known = days.withColumn("known_client_id", _known_client_id())
    names = sorted({name for level in LEVELS.values() for name in level})
    sets = [[F.col(name) for name in level] for level in LEVELS.values()]
    sums = (F.coalesce(F.sum(name), F.lit(0).cast("long")).alias(name) for name in SUMS)
    # A grouping id has a bit for each column, the highest bit for the first one. The bit is set where the level is not
    # grouped by that column.
    ids = {
        level: sum(1 << (len(names) - 1 - i) for i, name in enumerate(names) if name not in columns)
        for level, columns in LEVELS.items()
    }
    level: Column = F.lit(None).cast("string")
    for name, number in ids.items():
        level = F.when(F.grouping_id() == number, name).otherwise(level)
    return (
        known.groupingSets(sets, *(F.col(name) for name in names))
        .agg(
            level.alias("level"),
            *sums,
            F.max_by("rule", "throttled_at").alias("rule"),
            F.max_by("limit", "throttled_at").alias("limit"),
        )
        .withColumn("client_id", F.coalesce("client_id", "known_client_id"))
        .withColumn("bytes", F.col("in_bytes") + F.col("out_bytes"))
        .drop("known_client_id")
    )


def ranked(levels: DataFrame, rows: int) -> DataFrame:
    """`by_levels` -> the same columns. In levels that grow with the number of clients only the rows that are among the
    first `rows` by one of the measures, each as often as it is.

    Spark limits the rows in every task before it brings the first ones of a level together (WindowGroupLimit), so no
    task has a whole level.
    """
    level, grows = F.col("level"), F.col("level").isin(*_RANKED)
    values = F.array(*(F.struct(F.lit(name).alias("measure"), F.col(name).alias("value")) for name in MEASURES))
    wanted = reduce(or_, ((level == name) & F.col("measure").isin(*of) for name, of in _RANKED.items()))
    order = (F.col("value").desc(), *CLIENT, "quota_type")
    first = F.row_number().over(Window.partitionBy("level", "measure").orderBy(*order))
    chosen = (
        levels.where(grows)
        .select("*", F.inline(values))
        .where(wanted & (F.col("value") > 0))
        .withColumn("first", first)
        .where(F.col("first") <= rows)
        .drop("measure", "value", "first")
    )
    return levels.where(~grows).union(chosen)


def counted(levels: DataFrame) -> DataFrame:
    """`by_levels` -> level, rows, throttled_rows (those with throttled time), addresses and throttled_addresses (the
    same of the rows of addresses).
    """
    is_throttled, is_address = F.col("throttled_ms") > 0, F.coalesce(F.col("ip"), F.lit("")) != ""
    return levels.groupBy("level").agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(is_throttled).alias("throttled_rows"),
        F.count_if(is_address).alias("addresses"),
        F.count_if(is_throttled & is_address).alias("throttled_addresses"),
    )


_COURSE = ("in_bytes", "out_bytes", "throttled_ms", "backlogged_ms", "muted_ms")


def windows(usage: DataFrame) -> DataFrame:
    """USAGE -> virtual_cluster, node_id, begin_ms, end_ms, records, in_bytes, out_bytes, throttled_ms, backlogged_ms,
    muted_ms, unlimited_bytes (bytes of Produce and Fetch to which no quota of their type applied), throttled_clients,
    largest (the client with most bytes: bytes, user, client_id, muted_ms): one row for each window of a node. `span`,
    `timeline` and the noisy neighbours are made from these.
    """
    size = F.col("in_bytes") + F.col("out_bytes")
    unlimited = F.col("limit").isNull() & F.col("quota_type").isin("produce", "fetch")
    sums = (*_COURSE, "records", "unlimited_bytes")
    at = ("virtual_cluster", "node_id", "begin_ms")
    of_clients = (
        usage.withColumn("records", F.lit(1))
        .withColumn("unlimited_bytes", F.when(unlimited, size).otherwise(0))
        .groupBy(*at, "user", "client_id")
        .agg(F.max("end_ms").alias("end_ms"), *(F.sum(name).alias(name) for name in sums))
    )
    return of_clients.groupBy(*at).agg(
        F.max("end_ms").alias("end_ms"),
        *(F.sum(name).alias(name) for name in sums),
        F.sum((F.col("muted_ms") > 0).cast("long")).alias("throttled_clients"),
        F.max(F.struct(size.alias("bytes"), "user", "client_id", "muted_ms")).alias("largest"),
    )


def _step(at_ms: str, width_ms: int) -> Column:
    return F.col(at_ms) - F.pmod(F.col(at_ms), F.lit(width_ms))


def span(windows: DataFrame) -> DataFrame:
    """`windows` -> one row: records, begin_ms, end_ms, window_ms (the usual length of a window), unlimited_bytes."""
    length = F.percentile(F.col("end_ms") - F.col("begin_ms"), F.lit(0.5), F.col("records")).cast("long")
    return windows.agg(
        F.coalesce(F.sum("records"), F.lit(0)).alias("records"),
        F.min("begin_ms").alias("begin_ms"),
        F.max("end_ms").alias("end_ms"),
        length.alias("window_ms"),
        F.coalesce(F.sum("unlimited_bytes"), F.lit(0)).alias("unlimited_bytes"),
    )


def timeline(windows: DataFrame, width_ms: int) -> DataFrame:
    """`windows` -> at_ms (a multiple of `width_ms`), in_bytes, out_bytes, throttled_ms, backlogged_ms, muted_ms, in the
    order of at_ms.
    """
    at = _step("begin_ms", width_ms).alias("at_ms")
    return windows.groupBy(at).agg(*(F.sum(name).alias(name) for name in _COURSE)).orderBy("at_ms")


SENSOR = ("virtual_cluster", "quota_type", "rule", "user", "client_id", "ip")
"""The columns that identify what a quota measures together: an empty column does not matter."""


def utilisation(usage: DataFrame) -> DataFrame:
    """USAGE -> SENSOR, limit (the last), windows, p50, p95, p99, most, most_node_id,
    peak, windows_over: utilisation as a fraction.

    The utilisation of a window at a node is the use of all clients that share the quota, through all instances of the
    proxy, divided by what the quota allows in that time. A quota over all nodes has one utilisation for all of them,
    and `most_node_id` is WHOLE_CLUSTER then. `peak` is of the one second in which one client used most. Windows without
    any use are left out.
    """
    p50, p95, p99 = (F.col("percentiles")[i].alias(name) for i, name in enumerate(("p50", "p95", "p99")))
    return (
        _used_windows(usage)
        .groupBy(*SENSOR)
        .agg(
            F.max_by("limit", "begin_ms").alias("limit"),
            F.count(F.lit(1)).alias("windows"),
            F.percentile_approx("utilisation", list(PERCENTILES), RANK_ACCURACY).alias("percentiles"),
            F.max("utilisation").alias("most"),
            F.max_by("node_id", "utilisation").alias("most_node_id"),
            F.max("peak").alias("peak"),
            F.sum((F.col("utilisation") > 1).cast("long")).alias("windows_over"),
        )
        .select(*SENSOR, "limit", "windows", p50, p95, p99, "most", "most_node_id", "peak", "windows_over")
    )


def _used_windows(usage: DataFrame) -> DataFrame:
    """USAGE -> SENSOR, node_id, begin_ms, utilisation, peak, limit."""
    limited = usage.where((F.col("limit") > 0) & (F.col("used") > 0)).select(
        "virtual_cluster",
        measured_node().alias("node_id"),
        "begin_ms",
        "end_ms",
        "quota_type",
        "rule",
        *_measured(),
        _allowed_unit(F.col("used")).alias("used"),
        _allowed_unit(F.col("peak")).alias("peak"),
        "limit",
    )
    seconds = (F.max("end_ms") - F.col("begin_ms")) / 1_000
    return limited.groupBy(*SENSOR, "node_id", "begin_ms").agg(
        (F.sum("used") / F.greatest(seconds, F.lit(0.001)) / F.max("limit")).alias("utilisation"),
        F.max(F.col("peak") / F.col("limit")).alias("peak"),
        F.max("limit").alias("limit"),
    )


def _measured() -> tuple[Column, Column, Column]:
    """The user, client_id and ip of SENSOR, from those of a record and its rule."""
    rule = F.col("rule")
    by = {"user": is_of_user(rule), "client_id": is_of_client_id(rule), "ip": rule.startswith("ip=")}
    user, client_id, ip = (F.when(is_by, F.col(name)).otherwise("").alias(name) for name, is_by in by.items())
    return user, client_id, ip


MOST_PARTS = 5


def shared(days: DataFrame) -> DataFrame:
    """DAILY -> SENSOR, by_user, by_client_id, rate, use_share, muted_share, wait_share, limit, sharers, wait_ms: the
    quotas that several clients share and that made one of them wait, with the parts that each client has of the use
    and of the wait. Of each quota the MOST_PARTS clients with the largest part of either.

    `rate` is use in the unit of the limit, while the client used anything at a node; `wait_ms` is of all `sharers`.
    """
    per_ms = (
        F.when(F.col("quota_type") == "produce", F.col("in_bytes") * 1_000.0)
        .when(F.col("quota_type") == "fetch", F.col("out_bytes") * 1_000.0)
        .when(F.col("quota_type") == "request", F.col("handler_us") / 10)
        .otherwise(F.col("milli_mutations").cast("double"))
    )
    parts = (
        days.where(F.col("rule") != "")
        .select("virtual_cluster", "quota_type", "rule", *_measured(), F.col("user").alias("by_user"),
                _known_client_id().alias("by_client_id"), per_ms.alias("used"), "muted_ms", "window_ms", "limit",
                "throttled_at")
        .groupBy(*SENSOR, "by_user", "by_client_id")
        .agg(*(F.sum(name).alias(name) for name in ("used", "muted_ms", "window_ms")),
             F.max_by("limit", "throttled_at").alias("limit"))
    )  # fmt: skip
    of_quota = Window.partitionBy(*SENSOR)
    largest = F.greatest("use_share", "wait_share").desc()
    return (
        parts.withColumn("sharers", F.count(F.lit(1)).over(of_quota))
        .withColumn("wait_ms", F.sum("muted_ms").over(of_quota))
        .where((F.col("sharers") > 1) & (F.col("wait_ms") > 0))
        .withColumn("limit", F.max("limit").over(of_quota))
        .withColumn("use_share", F.try_divide("used", F.sum("used").over(of_quota)))
        .withColumn("wait_share", F.col("muted_ms") / F.col("wait_ms"))
        .withColumn("muted_share", F.least(F.try_divide("muted_ms", "window_ms"), F.lit(1.0)))
        .withColumn("rate", F.try_divide("used", "window_ms"))
        .withColumn("place", F.row_number().over(of_quota.orderBy(largest, "by_user", "by_client_id")))
        .where(F.col("place") <= MOST_PARTS)
        .drop("used", "muted_ms", "window_ms")
    )


def clocks_ahead(usage: DataFrame, now_ms: int) -> DataFrame:
    """USAGE -> instance, ahead_ms: the proxies whose records end after `now_ms`, and by how much at most."""
    ahead = (F.max("end_ms") - F.lit(now_ms)).alias("ahead_ms")
    return usage.where(F.col("end_ms") > now_ms).groupBy("instance").agg(ahead).orderBy("instance")


def _allowed_unit(value: Column) -> Column:
    """Use in the unit of the limit: handler time is recorded in ms, its quota is in percent of a second."""
    return F.when(F.col("quota_type") == "request", value / 10).otherwise(value)


def hurt_by_shadows(days: DataFrame) -> DataFrame:
    """DAILY -> CLIENT, quota_type, shadow_rule, shadow_limit (the last), shadow_throttles, shadow_throttled_ms,
    shadow_windows (windows that it would have throttled), windows: the clients that shadow quotas would have throttled.
    """
    sums = ("shadow_throttles", "shadow_throttled_ms", "shadow_windows")
    return (
        days.where(F.col("shadow_rule") != "")
        .groupBy(*CLIENT, "quota_type", "shadow_rule")
        .agg(
            F.max_by("shadow_limit", "day").alias("shadow_limit"),
            *(F.sum(name).alias(name) for name in sums),
            F.sum("records").alias("windows"),
        )
    )
