"""What a candidate would have done, over all usage records: on Spark, as transforms.

1. `summarised`: what each client used, in one pass over everything by the JVM alone.
2. `placed`: by which sensor of the candidate each client would be measured.
3. `rows_of`: the records of those that a sensor would measure. Their windows are summed up for each sensor, and
   `runs_of` says which must be replayed: in all others nothing is throttled.
4. `replayed`: the runs, which are read once more, each by itself and by the proxy's own arithmetic, on as many cores as
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
from kafka_throttle.pipeline.simulate.quiet import Most, memory_of, runs
from kafka_throttle.pipeline.spark.session import tasks_at_once
from kafka_throttle.quotas.client_quotas import WHOLE_CLUSTER
from kafka_throttle.quotas.entities import Scope

BUCKET_MS = 7_200_000
"""Windows are joined with their runs by two hours: a sensor may have many of both."""

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
        T.StructField("of_cluster", T.BooleanType()),
    ]
)
"""What `placed` adds; all null where nothing would throttle. `of_cluster`: over all nodes."""

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
    """USAGE -> one row for each process and client, with sums."""
    return usage.groupBy(*PROCESS_CLIENT).agg(
        F.count("*").alias("records"),
        *(F.sum(name).alias(name) for name in ("used", "requests", "throttles", "throttled_ms")),
        F.min("begin_ms").alias("begin_ms"),
        F.max("end_ms").alias("end_ms"),
    )


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
    columns["new_limit"] = np.array(columns["new_limit"], dtype=np.float64)
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
    place = quota.place
    return place.user, place.client_id, place.ip, quota.limit, quota.rule, quota.scope is Scope.CLUSTER


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


def rows_of(usage: DataFrame, summary: DataFrame) -> DataFrame:
    """USAGE of all whom a sensor would measure, with `sensor_id`, `bucket` and `new_limit`."""
    # One number is found sooner than seven columns; it is made in the same way as that of a sensor.
    clients = summary.where(F.col("new_limit").isNotNull()).select(
        sensor_id().alias("sensor_id"), "new_limit", _number_of_client()
    )
    bucket = F.floor(F.col("begin_ms") / BUCKET_MS).alias("bucket")
    rows = usage.select(*PROCESS_CLIENT, *Window._fields, bucket, _number_of_client())
    return rows.join(clients, "of_client", "inner").drop("of_client")


def _number_of_client() -> Column:
    return F.xxhash64(*(F.col(name) for name in PROCESS_CLIENT)).alias("of_client")


def runs_of(rows: DataFrame, summary: DataFrame, candidate: Candidate) -> DataFrame:
    """`rows_of` -> RUNS: what has to be replayed, from the first to the last begin of a window."""
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
    windows = sums.join(kinds, "sensor_id", "inner")

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
