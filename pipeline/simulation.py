"""What a candidate would have done, over all usage records: on Spark, as transforms.

1. `summarised`: each client's use in buckets of two hours; the one pass over everything, by the JVM alone.
2. `placed`: by which sensor of the candidate each client would be measured.
3. Sensors that are *quiet* all the time, by the largest windows of all who share them, are done: nothing is throttled.
4. Of the others, `loud_rows`, windows are summed up for each sensor, and `runs_of` says which must be replayed.
5. `replayed`: the runs, each by itself and by the proxy's own arithmetic, on as many cores as there are.

A sensor is never cut but between runs, which do not depend on each other: see `record_replay`.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import pairwise
from re import match
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it
from pyspark.sql import types as T  # noqa: N812, as everybody calls it

from pipeline.candidate import Candidate, Rules
from pipeline.meter import PERCENT_SECONDS_PER_MS, Standing, standing_of
from pipeline.record_replay import Explained, Replayed, allowed, explained, memory_of, replay_run, runs
from pipeline.recorded import Window
from pipeline.replay import Throttling

BUCKET_MS = 7_200_000
LATE_MS = 600_000
"""So long before its end a bucket is remembered in the next one; sensors that remember longer are always replayed."""

CLIENT = ["virtual_cluster", "node_id", "user", "client_id", "ip", "quota_type"]
PROCESS_CLIENT = ["instance", *CLIENT]
PLACE = ["place_user", "place_client_id", "place_ip"]
SENSOR = ["instance", "virtual_cluster", "node_id", "quota_type", *PLACE]

_PLACED = T.StructType(
    [
        *(T.StructField(name, T.StringType()) for name in PLACE),
        T.StructField("new_limit", T.DoubleType()),
        T.StructField("new_rule", T.StringType()),
        T.StructField("span_s", T.DoubleType()),
        T.StructField("allowed", T.DoubleType()),
    ]
)
"""What `placed` adds; all null where nothing would throttle. `allowed`: as charged, within `span_s`."""

_RUNS = T.StructType(
    [
        T.StructField("sensor_id", T.LongType()),
        T.StructField("begin_ms", T.LongType()),
        T.StructField("run", T.LongType()),
    ]
)

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
        T.StructField("fit_recorded_ms", T.DoubleType()),
        T.StructField("fit_model_ms", T.DoubleType()),
        T.StructField("windows", T.LongType()),
    ]
)
"""Of one run: for each client, and once for all who share the sensor (`of_sensor`). Use is as records count it."""


def summarised(usage: DataFrame) -> DataFrame:
    """USAGE -> one row for each process, client and bucket: sums, and what its windows had at the most.

    What is called `late` is of windows that a sensor may remember in the next bucket.
    """
    late = F.col("end_ms") % BUCKET_MS >= BUCKET_MS - LATE_MS
    return usage.groupBy(*PROCESS_CLIENT, F.floor(F.col("begin_ms") / BUCKET_MS).alias("bucket")).agg(
        F.count("*").alias("records"),
        F.sum("used").alias("used"),
        F.sum("requests").alias("requests"),
        F.sum("throttles").alias("throttles"),
        F.sum("throttled_ms").alias("throttled_ms"),
        F.max("used").alias("most_used"),
        F.max("peak").alias("most_peak"),
        F.max(F.when(late, F.col("used"))).alias("late_used"),
        F.max(F.when(late, F.col("peak"))).alias("late_peak"),
        F.min(F.col("end_ms") - F.col("begin_ms")).alias("shortest_ms"),
        F.min("begin_ms").alias("begin_ms"),
        F.max("end_ms").alias("end_ms"),
    )


def placed(rows: DataFrame, candidate: Candidate) -> DataFrame:
    """Rows with PROCESS_CLIENT -> the same, and where the candidate would measure each: PLACE, limit, rule."""

    def place(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for batch in batches:
            yield _placed_batch(batch, candidate, known)

    return rows.mapInPandas(place, T.StructType([*rows.schema.fields, *_PLACED.fields]))


_WHO = ["virtual_cluster", "quota_type", "user", "client_id", "ip"]


def _placed_batch(batch: pd.DataFrame, candidate: Candidate, known: dict[tuple[Any, ...], Any]) -> pd.DataFrame:
    clients = list(zip(*(batch[name] for name in _WHO), strict=True))
    for client in set(clients):
        if client not in known:
            known[client] = _place_of(client, candidate)
    found = [known[client] for client in clients]
    columns: dict[str, Any] = {name: [row[i] for row in found] for i, name in enumerate(_PLACED.names)}
    for name in ("new_limit", "span_s", "allowed"):
        columns[name] = np.array(columns[name], dtype=np.float64)
    added = pd.DataFrame(columns, index=batch.index)
    return pd.concat([batch, added], axis=1)


def _place_of(client: tuple[Any, ...], candidate: Candidate) -> tuple[Any, ...]:
    virtual_cluster, quota_type, user, client_id, ip = client
    rules = candidate.rules(virtual_cluster)
    standing: Standing | None = None
    if rules is not None:
        standing = standing_of(rules, quota_type, user, client_id, ip)
    if rules is None or standing is None:
        return (None,) * len(_PLACED.names)
    memory = memory_of(rules, quota_type)
    place = standing.place
    within = allowed(standing.limit, memory)
    return (place.user, place.client_id, place.ip, standing.limit, standing.rule, memory.span_s, within)


def most_in_span(used: Column, peak: Column, length_ms: Column, span_s: Column) -> Column:
    """`record_replay.most_in_span` as an expression, in the unit of `used`."""
    length_s = F.greatest(length_ms / 1000.0, F.lit(1e-3))
    peaks = F.ceil(span_s / length_s) + 1
    peak = F.least(F.greatest(peak, used / length_s), used)
    others = (used - peak) / F.greatest(length_s - 1, F.lit(1e-3))
    spread = F.least(peaks * peak + F.greatest(span_s - peaks, F.lit(0.0)) * others, peaks * used)
    return F.when(length_s <= 1, used * peaks).otherwise(spread)


def as_charged(quota_type: Column, used: Column) -> Column:
    """What a sensor is charged for what a record tells: percent of a thread for ms."""
    return F.when(quota_type == "request", used * PERCENT_SECONDS_PER_MS).otherwise(used)


def sensor_id() -> Column:
    """A number for SENSOR."""
    return F.xxhash64(*(F.col(name) for name in SENSOR))


def loud_sensors(summary: DataFrame) -> DataFrame:
    """Placed summary -> the ids of sensors that could have throttled anybody, or did."""
    measured = summary.where(F.col("new_limit").isNotNull()).select(sensor_id().alias("sensor_id"), "*")

    def windows(which: str, later: int) -> DataFrame:
        most = most_in_span(
            as_charged(F.col("quota_type"), F.col(f"{which}_used")),
            as_charged(F.col("quota_type"), F.col(f"{which}_peak")),
            F.col("shortest_ms").cast("double"),
            F.col("span_s"),
        )
        unknown = (F.col("throttled_ms") > 0) | (F.col("span_s") * 2000 >= LATE_MS)
        return measured.select(
            "sensor_id",
            "user",
            "client_id",
            "ip",
            (F.col("bucket") + later).alias("bucket"),
            F.when(unknown, F.lit(float("inf"))).otherwise(F.coalesce(most, F.lit(0.0))).alias("most"),
            "allowed",
        )

    of_clients = (
        windows("most", 0)
        .unionByName(windows("late", 1))
        .groupBy("sensor_id", "user", "client_id", "ip", "bucket")
        .agg(F.max("most").alias("most"), F.max("allowed").alias("allowed"))
    )
    of_sensors = of_clients.groupBy("sensor_id", "bucket").agg(
        F.sum("most").alias("most"), F.max("allowed").alias("allowed")
    )
    return of_sensors.where(F.col("most") > F.col("allowed")).select("sensor_id").distinct()


def loud_rows(usage: DataFrame, summary: DataFrame, loud: DataFrame) -> DataFrame:
    """USAGE of who is measured by loud sensors, with `sensor_id` and where the candidate measures them."""
    clients = (
        summary.where(F.col("new_limit").isNotNull())
        .select(sensor_id().alias("sensor_id"), *PROCESS_CLIENT, "new_limit", "span_s", "allowed")
        .distinct()
        .join(loud, "sensor_id", "left_semi")
    )
    return usage.select(*PROCESS_CLIENT, *Window._fields, "limit", "rule").join(
        F.broadcast(clients), PROCESS_CLIENT, "inner"
    )


def runs_of(rows: DataFrame, candidate: Candidate) -> DataFrame:
    """Loud rows -> (sensor_id, begin_ms, run) of every window that has to be replayed."""
    used = as_charged(F.col("quota_type"), F.col("used"))
    most = most_in_span(
        used,
        as_charged(F.col("quota_type"), F.col("peak")),
        (F.col("end_ms") - F.col("begin_ms")).cast("double"),
        F.col("span_s"),
    )
    windows = rows.groupBy("sensor_id", "virtual_cluster", "quota_type", "new_limit", "begin_ms").agg(
        F.max("end_ms").alias("end_ms"),
        F.sum(F.when(F.col("throttled_ms") > 0, F.lit(float("inf"))).otherwise(most)).alias("most"),
        F.sum(used).alias("used"),
    )

    def find(windows: pd.DataFrame) -> pd.DataFrame:
        windows = windows.sort_values("begin_ms")
        first = windows.iloc[0]
        rules = candidate.rules(first["virtual_cluster"])
        assert rules is not None
        numbers = runs(
            windows["begin_ms"].to_numpy(),
            windows["end_ms"].to_numpy(),
            windows["most"].to_numpy(),
            windows["used"].to_numpy(),
            float(first["new_limit"]),
            memory_of(rules, first["quota_type"]),
        )
        found = pd.DataFrame({"sensor_id": windows["sensor_id"], "begin_ms": windows["begin_ms"], "run": numbers})
        return found[found["run"] >= 0]

    return _by_groups(windows, ["sensor_id"], find, _RUNS)


def replayed(rows: DataFrame, found: DataFrame, candidate: Candidate, end_ms: int) -> DataFrame:
    """Loud rows and their runs -> REPLAYED. What is held is sent until `end_ms`, where the records end."""
    in_runs = rows.join(found, ["sensor_id", "begin_ms"], "inner")
    return _by_groups(in_runs, ["sensor_id", "run"], _replayer(candidate, end_ms), REPLAYED)


def _by_groups(
    rows: DataFrame, keys: list[str], function: Callable[[pd.DataFrame], pd.DataFrame], schema: T.StructType
) -> DataFrame:
    """As `groupBy(keys).applyInPandas`, which costs each small group as much as the largest one before it."""

    def apply(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        group: list[pd.DataFrame] = []
        for batch in batches:
            begins = np.flatnonzero((batch[keys] != batch[keys].shift()).any(axis=1)).tolist()
            goes_on = bool(group) and bool((batch[keys].iloc[0] == group[-1][keys].iloc[0]).all())
            for begin, end in pairwise([*begins, len(batch)]):
                if group and not goes_on:
                    yield function(pd.concat(group))
                    group = []
                group.append(batch.iloc[begin:end])
                goes_on = False
        if group:
            yield function(pd.concat(group))

    return rows.repartition(*keys).sortWithinPartitions(*keys, "begin_ms").mapInPandas(apply, schema)


def _replayer(candidate: Candidate, end_ms: int) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def replay(rows: pd.DataFrame) -> pd.DataFrame:
        first = rows.iloc[0]
        rules = candidate.rules(first["virtual_cluster"])
        assert rules is not None
        quota_type, limit = str(first["quota_type"]), float(first["new_limit"])
        rows = rows.sort_values(["begin_ms", "user", "client_id", "ip"], kind="stable")
        clients = _windows_of(rows)
        groups = _explained_groups(rows, clients, rules, quota_type, limit)
        outcome = replay_run(groups, rules, quota_type, limit, end_ms)
        fit = (float(sum(group.recorded_ms for group in groups)), float(sum(group.model_ms for group in groups)))
        factor = 1 / PERCENT_SECONDS_PER_MS if quota_type == "request" else 1.0
        return _as_frame(int(first["sensor_id"]), clients, outcome, factor, fit)

    return replay


def _windows_of(rows: pd.DataFrame) -> dict[Hashable, list[Window]]:
    clients: dict[Hashable, list[Window]] = {}
    who = zip(rows["user"], rows["client_id"], rows["ip"], strict=True)
    names = Window._fields
    for client, values in zip(who, zip(*(rows[name].tolist() for name in names), strict=True), strict=True):
        windows = clients.setdefault(client, [])
        window = Window(*values)
        # A window that was cut in two, as at a restart of the proxy, is told in two records.
        if windows and windows[-1].begin_ms == window.begin_ms:
            windows[-1] = _together(windows[-1], window)
        else:
            windows.append(window)
    return clients


def _together(one: Window, other: Window) -> Window:
    return Window(
        one.begin_ms,
        max(one.end_ms, other.end_ms),
        one.used + other.used,
        max(one.peak, other.peak),
        one.requests + other.requests,
        one.throttles + other.throttles,
        one.throttled_ms + other.throttled_ms,
        one.muted_ms + other.muted_ms,
        f"{one.profile} {other.profile}" if one.profile and other.profile else "",
    )


def _explained_groups(
    rows: pd.DataFrame, clients: Mapping[Hashable, list[Window]], rules: Rules, quota_type: str, limit: float
) -> list[Explained]:
    """How the use came about of each group that shared a sensor that was throttled live, and of all others."""
    others = dict(clients)
    groups = []
    for live_limit, members in _live_groups(rows):
        shared = {client: others.pop(client) for client in members}
        groups.append(explained(shared, rules, quota_type, live_limit, limit))
    if others:
        groups.append(explained(others, rules, quota_type, None, limit))
    return groups


def _live_groups(rows: pd.DataFrame) -> Iterator[tuple[float, list[Hashable]]]:
    """The limit in force, and the clients, of each sensor that was throttled live."""
    groups: dict[tuple[str, str], list[Hashable]] = {}
    limits: dict[tuple[str, str], float] = {}
    throttled: set[tuple[str, str]] = set()
    last = rows.drop_duplicates(["user", "client_id", "ip"], keep="last")
    of_client = {}
    for user, client_id, ip, limit, rule in zip(
        last["user"], last["client_id"], last["ip"], last["limit"], last["rule"], strict=True
    ):
        key = live_tags(rule, user, client_id)
        groups.setdefault(key, []).append((user, client_id, ip))
        of_client[user, client_id, ip] = key
        if limit is not None and limit == limit and limit > 0:
            limits[key] = float(limit)
    hurt = rows[rows["throttled_ms"] > 0]
    for client in set(zip(hurt["user"], hurt["client_id"], hurt["ip"], strict=True)):
        throttled.add(of_client[client])
    for key, members in groups.items():
        if key in throttled and key in limits:
            yield limits[key], members


def live_tags(rule: str, user: str, client_id: str) -> tuple[str, str]:
    """Under which user and client-id a client was measured, by the entity whose quota it had."""
    part = r"(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^,]*)"
    found = match(rf"(user={part})?(?:, )?(client-id={part})?$", rule or "")
    if found is None:
        return user, client_id
    return user if found[1] else "", client_id if found[2] else ""


def _as_frame(
    sensor: int,
    clients: Mapping[Hashable, list[Window]],
    outcome: Replayed,
    factor: float,
    fit: tuple[float, float],
) -> pd.DataFrame:
    none = Throttling()
    rows: list[tuple[Any, ...]] = []
    total = 0.0
    for client, windows in clients.items():
        recorded = sum(window.used for window in windows)
        total += recorded
        paced, greedy = outcome.paced.get(client, none), outcome.greedy.get(client, none)
        rows.append(_row(sensor, client, False, recorded, paced, greedy, factor, (0.0, 0.0), len(windows)))
    all_windows = len({window.begin_ms for windows in clients.values() for window in windows})
    everybody: Hashable = ("", "", "")
    rows.append(_row(sensor, everybody, True, total, outcome.sensor, outcome.greedy_sensor, factor, fit, all_windows))
    return pd.DataFrame(rows, columns=REPLAYED.names)


def _row(
    sensor: int,
    client: Any,
    of_sensor: bool,
    recorded: float,
    paced: Throttling,
    greedy: Throttling,
    factor: float,
    fit: tuple[float, float],
    windows: int,
) -> tuple[Any, ...]:
    used = (recorded, paced.used * factor, greedy.used * factor)
    times = (paced.throttles, paced.throttled_ms, greedy.throttled_ms, paced.longest_ms, paced.muted_ms)
    return (sensor, *client, of_sensor, *used, *times, *fit, windows)
