"""What a candidate would have done, over all usage records: on Spark, as transforms.

1. `summarised`: each client's use in buckets of two hours; the one pass over everything, by the JVM alone.
2. `placed`: by which sensor of the candidate each client would be measured.
3. `loud_stretches`: the buckets in which a sensor could have throttled, by the largest windows of all who share it, and
   what may have to do with them. All others are done: nothing is throttled there.
4. Of these, `loud_rows`, windows are summed up for each sensor, and `runs_of` says which must be replayed. Where those
   are few, `near` passes over most of the others.
5. `replayed`: the runs, which are read once more, each by itself and by the proxy's own arithmetic, on as many cores as
   there are.

A sensor is never cut but between runs, which do not depend on each other: see `backlog`. Only a run of more than
MOST_REQUESTS is, so that there is a bound for memory.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it
from pyspark.sql import types as T  # noqa: N812, as everybody calls it
from pyspark.sql.pandas.types import to_arrow_schema

from kafka_throttle.pipeline.simulate.backlog import COARSE_GRAIN_S, GRAIN_S, MAX_REQUESTS, Window
from kafka_throttle.pipeline.simulate.candidate import Candidate
from kafka_throttle.pipeline.simulate.loud_runs import COLUMNS, SHARER, runs_in
from kafka_throttle.pipeline.simulate.meter import PERCENT_SECONDS_PER_MS, MeasuredQuota, measured_quota
from kafka_throttle.pipeline.simulate.quiet import Most, allowed, memory_of, runs
from kafka_throttle.pipeline.spark.session import tasks_at_once
from kafka_throttle.quotas.client_quotas import WHOLE_CLUSTER
from kafka_throttle.quotas.entities import Scope

BUCKET_MS = 7_200_000
LATE_MS = 600_000
"""So long before its end a bucket is remembered in the next one; sensors that remember longer are always replayed."""

CLIENT = ["virtual_cluster", "node_id", "user", "client_id", "ip", "quota_type"]
PROCESS_CLIENT = ["instance", *CLIENT]
PLACE = ["place_user", "place_client_id", "place_ip"]
SENSOR = ["virtual_cluster", "place_node_id", "quota_type", *PLACE]
"""What one sensor of the candidate measures, through all instances together: a quota is one limit for all of them.
`place_node_id` is WHOLE_CLUSTER for a quota over all nodes."""

MOST_REQUESTS = 1_000_000
"""A run is cut after so many requests, as `backlog` has them, which are about 400 MB. What waits there is not sent any
more."""
_PARTS = 1 << 20
_PARTITIONS_PER_CORE = 8
_TOGETHER = 1_000

Group = Mapping[str, NDArray[Any]]
"""Columns of rows that have a key in common."""

_PLACED = T.StructType(
    [
        *(T.StructField(name, T.StringType()) for name in PLACE),
        T.StructField("new_limit", T.DoubleType()),
        T.StructField("new_rule", T.StringType()),
        T.StructField("span_s", T.DoubleType()),
        T.StructField("allowed", T.DoubleType()),
        T.StructField("memory_s", T.DoubleType()),
        T.StructField("touched", T.DoubleType()),
        T.StructField("touched_late", T.DoubleType()),
        T.StructField("late_share", T.DoubleType()),
        T.StructField("of_cluster", T.BooleanType()),
    ]
)
"""What `placed` adds; all null where nothing would throttle. `allowed`: as charged, within `span_s`. `memory_s`: for
how long a sensor remembers, debts included. Then follow `quiet.Memory.spans`. `of_cluster`: over all nodes."""
_NUMBERS = [field.name for field in _PLACED if field.dataType == T.DoubleType()]

STRETCHES = T.StructType([T.StructField(name, T.LongType()) for name in ("sensor_id", "bucket", "from_ms", "until_ms")])
"""Of a sensor's bucket: windows that ended after `from_ms` and began before `until_ms`. One row for each bucket."""
_EVER = (-(2**62), 2**62)

RUNS = T.StructType(
    [T.StructField(name, T.LongType()) for name in ("sensor_id", "bucket", "run", "first_ms", "last_ms")]
)
"""Which windows of a sensor's bucket a run has: those that began from `first_ms` to `last_ms`."""

REPLAYED = T.StructType(
    [
        T.StructField("sensor_id", T.LongType()),
        T.StructField("user", T.StringType()),
        T.StructField("client_id", T.StringType()),
        T.StructField("ip", T.StringType()),
        T.StructField("of_sensor", T.BooleanType()),
        T.StructField("recorded_used", T.DoubleType()),
        T.StructField("paced_used", T.DoubleType()),
        T.StructField("greedy_used", T.DoubleType()),
        T.StructField("throttles", T.LongType()),
        T.StructField("throttled_ms", T.LongType()),
        T.StructField("greedy_throttled_ms", T.LongType()),
        T.StructField("longest_ms", T.LongType()),
        T.StructField("muted_ms", T.LongType()),
        T.StructField("windows", T.LongType()),
        T.StructField("sharers", T.LongType()),
    ]
)
"""Of one run: for each client, and once for all who share the sensor (`of_sensor`). Use is as records count it;
`sharers` is how many clients at nodes the run has."""


def summarised(usage: DataFrame) -> DataFrame:
    """USAGE -> one row for each process, client and bucket: sums, and what its windows had at the most.

    What is called `late` is of windows that a sensor may remember in the next bucket.
    """
    late = F.col("end_ms") % BUCKET_MS >= BUCKET_MS - LATE_MS
    return usage.groupBy(*PROCESS_CLIENT, _bucket().alias("bucket")).agg(
        F.count("*").alias("records"),
        F.sum("used").alias("used"),
        F.sum("requests").alias("requests"),
        F.sum("throttles").alias("throttles"),
        F.sum("throttled_ms").alias("throttled_ms"),
        F.max("used").alias("most_used"),
        F.max("peak").alias("most_peak"),
        F.max(F.when(late, F.col("used"))).alias("late_used"),
        F.max(F.when(late, F.col("peak"))).alias("late_peak"),
        F.max(F.when(late, F.col("throttled_ms")).otherwise(0)).alias("late_throttled_ms"),
        F.max(_is_uneven()).alias("uneven"),
        F.min(F.col("end_ms") - F.col("begin_ms")).alias("shortest_ms"),
        F.min("begin_ms").alias("begin_ms"),
        F.max("end_ms").alias("end_ms"),
    )


def _bucket() -> Column:
    at_ms = F.col("begin_ms")
    return ((at_ms - F.pmod(at_ms, F.lit(BUCKET_MS))) / BUCKET_MS).cast("long")


def placed(rows: DataFrame, candidate: Candidate) -> DataFrame:
    """Rows with PROCESS_CLIENT -> the same, and where the candidate would measure each: SENSOR, limit, rule."""

    def place(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for batch in batches:
            yield _placed_batch(batch, candidate, known)

    found = rows.mapInPandas(place, T.StructType([*rows.schema.fields, *_PLACED.fields]))
    node_id = F.when(F.col("of_cluster"), WHOLE_CLUSTER).otherwise(F.col("node_id"))
    return found.withColumn("place_node_id", node_id.cast("long")).drop("of_cluster")


_WHO = ["virtual_cluster", "quota_type", "user", "client_id", "ip"]


def _placed_batch(batch: pd.DataFrame, candidate: Candidate, known: dict[tuple[Any, ...], Any]) -> pd.DataFrame:
    clients = list(zip(*(batch[name] for name in _WHO), strict=True))
    for client in set(clients):
        if client not in known:
            known[client] = _place_of(client, candidate)
    found = [known[client] for client in clients]
    columns: dict[str, Any] = {name: [row[i] for row in found] for i, name in enumerate(_PLACED.names)}
    for name in _NUMBERS:
        columns[name] = np.array(columns[name], dtype=np.float64)
    added = pd.DataFrame(columns, index=batch.index)
    return pd.concat([batch, added], axis=1)


def _place_of(client: tuple[Any, ...], candidate: Candidate) -> tuple[Any, ...]:
    virtual_cluster, quota_type, user, client_id, ip = client
    rules = candidate.rules(virtual_cluster)
    quota: MeasuredQuota | None = None
    if rules is not None:
        quota = measured_quota(rules, quota_type, user, client_id, ip)
    if rules is None or quota is None:
        return (None,) * len(_PLACED.names)
    memory = memory_of(rules, quota_type)
    place = quota.place
    within = allowed(quota.limit, memory)
    remembered_s = memory.span_s + memory.debt_s
    (touched, divided_s), (touched_late, divided_late_s) = memory.spans[0], memory.spans[-1]
    spans = (float(touched), float(touched_late), divided_s / divided_late_s)
    known = (quota.limit, quota.rule, memory.span_s, within, remembered_s)
    return (place.user, place.client_id, place.ip, *known, *spans, quota.scope is Scope.CLUSTER)


def most_in_span(used: Column, peak: Column, length_ms: Column, uneven: Column) -> Column:
    """`quiet.most_in_span` as an expression over what `placed` adds, in the unit of `used`."""
    short = _most_in(used, peak, length_ms, uneven, F.col("touched"))
    return F.greatest(short, _most_in(used, peak, length_ms, uneven, F.col("touched_late")) * F.col("late_share"))


def _most_in(used: Column, peak: Column, length_ms: Column, uneven: Column, touched: Column) -> Column:
    seconds = _seconds(length_ms)
    peak = F.least(F.greatest(peak, used / seconds), used)
    windows = F.ceil((touched - 1) / seconds) + 1
    even = windows * peak + (touched - windows) * (used - peak) / F.greatest(seconds - 1, F.lit(1))
    spread = F.when(uneven, F.least((touched + windows - 1) * peak, windows * used)).otherwise(even)
    in_short_ones = used * (F.ceil(touched * 1000 / F.greatest(length_ms, F.lit(1))) + 1)
    return F.when(length_ms < 1000, in_short_ones).otherwise(spread)


def _seconds(length_ms: Column) -> Column:
    return F.greatest(F.floor(length_ms / 1000), F.lit(1))


def _is_uneven() -> Column:
    """Of a record: whether its seconds are told, or do not begin with those of the clock."""
    return (F.col("profile") != "") | (F.col("begin_ms") % 1000 != 0)


def as_charged(quota_type: Column, used: Column) -> Column:
    """What a sensor is charged for what a record tells: percent of a thread for ms."""
    return F.when(quota_type == "request", used * PERCENT_SECONDS_PER_MS).otherwise(used)


def sensor_id() -> Column:
    """A number for SENSOR."""
    return F.xxhash64(*(F.col(name) for name in SENSOR))


def loud_stretches(summary: DataFrame, end_ms: int) -> DataFrame:
    """Placed summary -> STRETCHES: of sensors that could have throttled anybody, or did, the buckets to look at.

    Those are buckets in which that could have been, what a sensor remembers before them, and behind them the time that
    debts and what was held may have taken at the longest; the last one ended at `end_ms`.
    """
    of_sensor = [F.max(name).alias(name) for name in ("end_ms", "allowed", "new_limit", "memory_s", "span_s")]
    of_clients = (
        _most_of_buckets(summary, late=False)
        .unionByName(_most_of_buckets(summary, late=True))
        .groupBy("sensor_id", "instance", "node_id", "user", "client_id", "ip", "bucket")
        .agg(
            *(F.max(name).alias(name) for name in ("most_used", "most_peak", "uneven", "unknown", *_SPANS)),
            F.min("shortest_ms").alias("shortest_ms"),
            F.sum("used").alias("used"),
            *of_sensor,
        )
        .withColumn("most", _most_of_bucket())
    )
    of_sensors = of_clients.groupBy("sensor_id", "bucket").agg(
        F.sum("most").alias("most"), F.sum("used").alias("used"), *of_sensor
    )
    loud = of_sensors.where(F.col("most") > F.col("allowed")).drop("most", "allowed")

    def find(buckets: Group) -> list[tuple[Any, ...]]:
        return _stretches_of(buckets, end_ms // BUCKET_MS)

    return _by_groups(loud, "sensor_id", "bucket", find, STRETCHES)


_SPANS = ("touched", "touched_late", "late_share")


def _most_of_buckets(summary: DataFrame, late: bool) -> DataFrame:
    """What the windows of a client's bucket had at the most; of late ones, told of the bucket behind.

    A span may have windows of both, so it is the most of both that counts: `_most_of_bucket`.
    """
    which = "late" if late else "most"
    throttled_ms = F.col("late_throttled_ms" if late else "throttled_ms")
    return summary.where(F.col("new_limit").isNotNull()).select(
        sensor_id().alias("sensor_id"),
        "instance",
        "node_id",
        "user",
        "client_id",
        "ip",
        (F.col("bucket") + int(late)).alias("bucket"),
        as_charged(F.col("quota_type"), F.coalesce(f"{which}_used", F.lit(0.0))).alias("most_used"),
        as_charged(F.col("quota_type"), F.coalesce(f"{which}_peak", F.lit(0.0))).alias("most_peak"),
        ((throttled_ms > 0) | (F.col("span_s") * 2000 >= LATE_MS)).alias("unknown"),
        (F.lit(0.0) if late else as_charged(F.col("quota_type"), F.col("used"))).alias("used"),
        *("shortest_ms", "uneven", "end_ms", "allowed", "new_limit", "memory_s", "span_s", *_SPANS),
    )


def _most_of_bucket() -> Column:
    most = most_in_span(F.col("most_used"), F.col("most_peak"), F.col("shortest_ms"), F.col("uneven"))
    return F.when(F.col("unknown"), F.lit(float("inf"))).otherwise(most)


def _stretches_of(buckets: Group, last: int) -> list[tuple[Any, ...]]:
    """The loud buckets of one sensor, in their order -> STRETCHES, up to the bucket `last`."""
    sensor, limit, span_s, memory_s = (
        buckets[name][0].item() for name in ("sensor_id", "new_limit", "span_s", "memory_s")
    )
    limit, span_ms, memory_ms, whole_s = max(limit, 1e-9), int(span_s * 1000), int(memory_s * 1000), BUCKET_MS / 1000
    numbers = buckets["bucket"].tolist()
    rows: list[tuple[int, ...]] = []
    held_s, before, reached_ms = 0.0, numbers[0], _EVER[0]
    for bucket, following, used, end_ms in zip(
        numbers, [*numbers[1:], last + 1], buckets["used"].tolist(), buckets["end_ms"].tolist(), strict=True
    ):
        lead_ms = bucket * BUCKET_MS - span_ms
        if rows and rows[-1][1] == bucket - 1:
            rows[-1] = (sensor, bucket - 1, *_EVER)
        else:
            rows.append((sensor, bucket - 1, lead_ms, _EVER[1]))
        rows.append((sensor, bucket, *_EVER))
        # All that loud windows used may have been held, but for what the limit has let through since.
        held_s = max(0.0, held_s - max(0, bucket - before - 1) * whole_s)
        reached_ms = max(reached_ms, end_ms + memory_ms + int(1000 * min(held_s + used / limit, 2**40)))
        held_s, before = max(0.0, held_s - whole_s) + used / limit, bucket
        for later in range(bucket + 1, min(reached_ms // BUCKET_MS + 1, following)):
            rows.append((sensor, later, _EVER[0], reached_ms))
    return rows


def rows_of(usage: DataFrame, summary: DataFrame, sensors: DataFrame) -> DataFrame:
    """USAGE of all who share these sensors, with `sensor_id`, `bucket` and the limit that the candidate has there."""
    clients = (
        summary.where(F.col("new_limit").isNotNull())
        .select(sensor_id().alias("sensor_id"), *PROCESS_CLIENT, "new_limit")
        .distinct()
        .join(F.broadcast(sensors.select("sensor_id").distinct()), "sensor_id", "left_semi")
        # One number is found sooner than seven columns; it is made in the same way as that of a sensor.
        .select("sensor_id", "new_limit", _number_of_client())
    )
    rows = usage.select(*PROCESS_CLIENT, *Window._fields, _number_of_client())
    return rows.join(F.broadcast(clients), "of_client", "inner").drop("of_client").withColumn("bucket", _bucket())


def _number_of_client() -> Column:
    return F.xxhash64(*(F.col(name) for name in PROCESS_CLIENT)).alias("of_client")


def loud_rows(usage: DataFrame, summary: DataFrame, stretches: DataFrame) -> DataFrame:
    """USAGE in STRETCHES, as `rows_of` has it."""
    within = (F.col("end_ms") > F.col("from_ms")) & (F.col("begin_ms") < F.col("until_ms"))
    rows = rows_of(usage, summary, stretches)
    return rows.join(stretches, ["sensor_id", "bucket"], "inner").where(within).drop("from_ms", "until_ms")


def near(usage: DataFrame, summary: DataFrame, stretches: DataFrame) -> DataFrame:
    """USAGE that may be in STRETCHES, by user and bucket: of most other rows no other value is looked at."""
    place = F.xxhash64("user", "bucket").alias("place")
    places = _in_stretches(summary, stretches).select(place).distinct()
    rows = usage.withColumn("bucket", _bucket()).withColumn("place", place)
    return rows.join(F.broadcast(places), "place", "left_semi").drop("bucket", "place")


def much_in(summary: DataFrame, stretches: DataFrame) -> DataFrame:
    """How many `records` the buckets of STRETCHES have, so many rows are loud at the most, and of how many `clients`.

    A client counts once for each bucket.
    """
    return _in_stretches(summary, stretches).agg(F.sum("records").alias("records"), F.count("*").alias("clients"))


def _in_stretches(summary: DataFrame, stretches: DataFrame) -> DataFrame:
    numbered = summary.select(sensor_id().alias("sensor_id"), "user", "bucket", "records")
    return numbered.join(stretches, ["sensor_id", "bucket"], "left_semi")


def runs_of(rows: DataFrame, summary: DataFrame, candidate: Candidate) -> DataFrame:
    """Loud rows -> RUNS: what has to be replayed, from the first to the last begin of a window."""
    used = as_charged(F.col("quota_type"), F.col("used"))
    base, slope = _line_of(used, as_charged(F.col("quota_type"), F.col("peak")))
    never = F.lit(float("inf"))
    sums = rows.groupBy("sensor_id", "begin_ms").agg(
        F.max("new_limit").alias("new_limit"),
        F.max("end_ms").alias("end_ms"),
        F.sum(F.when(F.col("throttled_ms") > 0, never).otherwise(used)).alias("most"),
        F.sum(F.when(F.col("throttled_ms") > 0, never).otherwise(base)).alias("base"),
        F.sum(slope).alias("slope"),
        F.sum(used).alias("used"),
        F.sum(_requests_at_most(used)).alias("requests"),
    )
    kinds = summary.select(sensor_id().alias("sensor_id"), "virtual_cluster", "quota_type").distinct()
    windows = sums.join(F.broadcast(kinds), "sensor_id", "inner")

    def find(windows: Group) -> list[tuple[Any, ...]]:
        rules = candidate.rules(windows["virtual_cluster"][0])
        assert rules is not None
        numbers = runs(
            windows["begin_ms"],
            windows["end_ms"],
            Most(windows["most"], windows["base"], windows["slope"]),
            windows["used"],
            float(windows["new_limit"][0]),
            memory_of(rules, windows["quota_type"][0]),
        )
        if not (numbers >= 0).any():
            return []
        replayed = {name: windows[name][numbers >= 0] for name in ("sensor_id", "begin_ms", "requests")}
        return _as_runs(replayed, numbers[numbers >= 0])

    return _by_groups(windows, "sensor_id", "begin_ms", find, RUNS)


def _line_of(used: Column, peak: Column) -> tuple[Column, Column]:
    """`quiet.line_of` as expressions."""
    seconds = _seconds(F.col("end_ms") - F.col("begin_ms"))
    peak = F.least(F.greatest(peak, used / seconds), used)
    others = (used - peak) / F.greatest(seconds - 1, F.lit(1))
    base = F.when(seconds == 1, used).when(_is_uneven(), F.lit(0.0)).otherwise(peak - others)
    slope = F.when(seconds == 1, F.lit(0.0)).when(_is_uneven(), peak).otherwise(others)
    return base, slope


def _requests_at_most(used: Column) -> Column:
    """As how many requests `backlog` has a record, at most."""
    seconds = _seconds(F.col("end_ms") - F.col("begin_ms"))
    grain_s = F.when((F.col("throttles") > 0) | (F.col("throttled_ms") > 0), GRAIN_S).otherwise(COARSE_GRAIN_S)
    grains = used / F.greatest(F.col("new_limit") * grain_s, F.lit(1e-9))
    return F.ceil(F.least(grains, MAX_REQUESTS * seconds.cast("double"))) + seconds


def _as_runs(windows: Group, numbers: NDArray[np.int64]) -> list[tuple[Any, ...]]:
    """Windows and the run of each -> RUNS: cut behind MOST_REQUESTS, and told once for each bucket."""
    begin_ms, bucket = windows["begin_ms"], windows["begin_ms"] // BUCKET_MS
    before = np.cumsum(windows["requests"]) - windows["requests"]
    _, firsts, which = np.unique(numbers, return_index=True, return_inverse=True)
    run = numbers * _PARTS + (before - before[firsts][which]) // MOST_REQUESTS
    changes = np.flatnonzero((bucket[1:] != bucket[:-1]) | (run[1:] != run[:-1])) + 1
    begins = np.concatenate([[0], changes])
    lasts = np.concatenate([changes, [len(run)]]) - 1
    columns = (windows["sensor_id"][begins], bucket[begins], run[begins], begin_ms[begins], begin_ms[lasts])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def in_runs(rows: DataFrame, found: DataFrame) -> DataFrame:
    """Rows of RUNS with their `run`, each run in one partition and in the order of time.

    There are several partitions for each core, so that those of long runs do not make the others wait.
    """
    keys = ["sensor_id", "run"]
    partitions = _PARTITIONS_PER_CORE * tasks_at_once(rows.sparkSession)
    within = F.col("begin_ms").between(F.col("first_ms"), F.col("last_ms"))
    return (
        rows.join(found, ["sensor_id", "bucket"], "inner")
        .where(within)
        .select(*COLUMNS)
        .repartition(partitions, *keys)
        .sortWithinPartitions(*keys, "begin_ms", *SHARER)
    )


def replayed(rows: DataFrame, candidate: Candidate, end_ms: int) -> DataFrame:
    """Rows `in_runs` -> REPLAYED. What is held is sent until `end_ms`, where the records end."""

    def replay(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: list[tuple[Any, ...]] = []
        for run in runs_in(batches):
            rows += run.replayed(candidate, end_ms)
            if len(rows) >= _TOGETHER:
                yield _batch_of(rows, REPLAYED)
                rows = []
        yield _batch_of(rows, REPLAYED)

    return rows.mapInArrow(replay, REPLAYED)


def _by_groups(
    rows: DataFrame, key: str, order: str, function: Callable[[Group], list[tuple[Any, ...]]], schema: T.StructType
) -> DataFrame:
    """As `groupBy(key).applyInArrow`, in order within a group, and without a batch of its own for each."""

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept: list[Group] = []
        for batch in batches:
            found: list[tuple[Any, ...]] = []
            for part in _parts_of(batch, key):
                if kept and kept[0][key][0] != part[key][0]:
                    found += function(_whole(kept))
                    kept = []
                kept.append(part)
            yield _batch_of(found, schema)
        if kept:
            yield _batch_of(function(_whole(kept)), schema)

    return rows.repartition(key).sortWithinPartitions(key, order).mapInArrow(apply, schema)


def _parts_of(batch: pa.RecordBatch, key: str) -> Iterator[Group]:
    """Rows one behind the other that have the same key."""
    if not batch.num_rows:
        return
    columns = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in batch.schema.names}
    keys = columns[key]
    changes = (np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist()
    for begin, end in pairwise([0, *changes, len(keys)]):
        yield {name: column[begin:end] for name, column in columns.items()}


def _whole(parts: list[Group]) -> Group:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _batch_of(rows: list[tuple[Any, ...]], schema: T.StructType) -> pa.RecordBatch:
    fields = to_arrow_schema(schema)
    columns = zip(*rows, strict=True) if rows else [()] * len(fields)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)], schema=fields
    )
