"""A large table as `usage ingest` leaves it, made by Spark itself: who uses what, the same each time.

A thousand users, and one that has half of all records, under a hundred client-ids. 600 records in each window of 10 s,
of three quota types at three nodes. Ordinary users are active for one hour of ten, mostly far below their quotas; one
of 2,000 stretches of 40 s is a burst: twice the quota with one user of three, and with the others, whose quota was in
force, a client that is throttled all the time, as simulated live. It uses nothing for 20 s before and behind that: else
what is recorded of it could not have come about. The big one is at half its quota, and for an hour a day close to it.
"""

import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from kafka_throttle.pipeline.simulate.candidate import Candidate, Rules
from kafka_throttle.pipeline.simulate.meter import Meter
from kafka_throttle.pipeline.table.accounts import Account, Writer, rows_of
from kafka_throttle.pipeline.table.schemas import NUMBERS, ROWS, schema_of
from kafka_throttle.pipeline.table.table import make_tables, root_of
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.records.trace import Operation
from kafka_throttle.quotas.records.usage_record import USAGE, UsageRecord
from tests.pipeline.live_runs import REPORTED, LiveWindow
from tests.pipeline.spools import MONDAY_MS, Fleet, records

INSTANCE = "proxy-1"
PER_WINDOW = 600
WINDOW_MS = 10_000
TYPES = ("produce", "fetch", "request")
LIMITS = {"produce": 1_000_000.0, "fetch": 2_000_000.0, "request": 50.0}
BIG_LIMITS = {"produce": 40_000_000.0, "fetch": 80_000_000.0, "request": 800.0}
"""Of each quota type; bytes/s, and percent of a thread."""
_BURST = 4
"""So many windows, from one that has a number divisible by it."""
_BEGINS_MS = 1_730
"""When in its first window one begins that is throttled. A sensor's samples begin with its use, not with a second."""
PER_LIMIT = {"produce": 1.0, "fetch": 1.0, "request": 10.0}
"""Use as records tell it, for one unit of the limit: ms for percent of a second."""

CANDIDATES = {"roomy": (2.0, 2.0), "in force": (1.0, 1.0), "tight": (1.0, 0.8)}
"""By name, by what the quotas in force of ordinary users, and those of the big one, are multiplied: with `roomy` only
what was throttled is replayed; with `tight` the big one is over its limit for an hour a day."""


def candidate_of(name: str) -> Candidate:
    """The candidate of that name."""
    ordinary, big = CANDIDATES[name]
    everybody = {QuotaType[kind.upper()]: ordinary * LIMITS[kind] for kind in TYPES}
    of_big = {QuotaType[kind.upper()]: big * BIG_LIMITS[kind] for kind in TYPES}
    return Candidate(all_others=Rules(QuotaTable({Entity(user=DEFAULT): everybody, Entity(user="big"): of_big})))


def until_ms(rows: int) -> int:
    """When the windows begin that are behind so many records."""
    return MONDAY_MS + rows // PER_WINDOW * WINDOW_MS


def table_at(spark: SparkSession, folder: Path, rows: int) -> str:
    """The URI of a table with so many records at least, in whole windows; what is there already is taken."""
    whole = -(-rows // PER_WINDOW) * PER_WINDOW
    table = folder / f"table-{whole}"
    if not table.exists():
        aside = folder / "table.part"
        shutil.rmtree(aside, ignore_errors=True)
        frame = spark.range(0, whole, 1, max(2, whole // 1_000_000)).select(
            *(column.alias(name) for name, column in _columns().items())
        )
        make_tables(spark, root_of(str(aside)))
        frame.withColumn("day", F.timestamp_millis(F.col("begin_ms")).cast("date")).write.format("delta").mode(
            "append"
        ).save(f"{root_of(str(aside))}/{USAGE}")
        numbers = {Writer(USAGE, INSTANCE, MONDAY_MS): Account(present=((1, whole),), reported=whole)}
        taken = spark.createDataFrame(rows_of(numbers), NUMBERS)
        taken.write.format("delta").mode("append").save(f"{root_of(str(aside))}/numbers")
        aside.rename(table)
    return root_of(str(table))


def throttled_records() -> list[UsageRecord]:
    """Of each quota type, what the windows of a client tell that is throttled from the beginning to the end."""
    return [*_throttled("produce", 0.1), *_throttled("fetch", 0.1), *_throttled("request", 0.02)]


def _throttled(kind: str, size_s: float) -> list[UsageRecord]:
    """One connection that always wants more, in requests of so many seconds of its quota."""
    rules = Rules(QuotaTable({}))
    meter, size = Meter(rules, kind, LIMITS[kind], 0), size_s * LIMITS[kind]
    windows: dict[int, LiveWindow] = defaultdict(LiveWindow)
    operation = Operation.CHARGE_IF_WITHIN if kind == "fetch" else Operation.CHARGE
    now_ms = _BEGINS_MS
    while now_ms < _BURST * WINDOW_MS:
        throttle_ms = meter.use(operation, size, now_ms)
        used = 0.0 if throttle_ms and kind == "fetch" else size
        windows[now_ms // WINDOW_MS].add(now_ms, used * PER_LIMIT[kind], throttle_ms, 1, kind in REPORTED)
        now_ms += throttle_ms + 4
    return [_record(kind, windows[number]) for number in range(_BURST)]


def _record(kind: str, window: LiveWindow) -> UsageRecord:
    return replace(
        next(iter(records(Fleet(), 1))),
        quota_type=kind,
        used=sum(window.seconds.values()),
        peak=max(window.seconds.values()),
        requests=window.requests,
        throttles=window.throttles,
        throttled_ms=window.throttled_ms,
        backlogged_ms=window.throttled_ms,
        muted_ms=window.throttled_ms,
        profile=window.profile(),
    )


def _columns() -> dict[str, Column]:
    number = F.col("id")

    def chance(of: Column, what: int) -> Column:
        return F.pmod(F.xxhash64(of, F.lit(what)), F.lit(1_000_000)) / 1e6

    def by_type(values: dict[str, float]) -> Column:
        return F.element_at(F.array(*(F.lit(values[kind]) for kind in TYPES)), (slot % 3 + 1).cast("int"))

    window, slot = (number / PER_WINDOW).cast("long"), number % PER_WINDOW
    big = slot < PER_WINDOW / 2
    client = (F.pmod(slot, F.lit(PER_WINDOW // 2)) / 3).cast("long")
    user = client + 100 * ((window / 360).cast("long") % 10)
    limit = F.when(big, by_type(BIG_LIMITS)).otherwise(by_type(LIMITS))
    at_peak = (window % 8_640).between(4_000, 4_359)

    def is_burst(stretch: Column) -> Column:
        return ~big & (chance(F.struct(user, stretch, slot % 3), 1) < 1 / 2_000)

    stretch = (window / _BURST).cast("long")
    bursts, in_first_half = is_burst(stretch), window % _BURST < _BURST / 2
    beside_one = F.when(in_first_half, is_burst(stretch - 1)).otherwise(is_burst(stretch + 1))
    limited = big | (user % 3 != 0)
    load = (
        F.when(big, F.when(at_peak, 0.92).otherwise(0.55) / 33 * (0.5 + chance(number, 2)))
        .when(bursts, 2.0)
        .when(beside_one, 0.0)
        .otherwise(0.6 * chance(number, 3))
    )
    throttled = bursts & limited
    live = throttled_records()

    def as_live(name: str, otherwise: Column) -> Column:
        values = F.array(*(F.lit(getattr(record, name)) for record in live))
        at = (slot % 3 * _BURST + window % _BURST + 1).cast("int")
        return F.when(throttled, F.element_at(values, at)).otherwise(otherwise)

    used = as_live("used", F.floor(load * limit * by_type(PER_LIMIT) * (WINDOW_MS / 1000)).cast("double"))
    kind = F.element_at(F.array(*map(F.lit, TYPES)), (slot % 3 + 1).cast("int"))
    moved = F.when(kind == "request", 0).otherwise(used).cast("long")
    counted = F.greatest(F.lit(1), (F.when(kind == "request", used / 2).otherwise(used / 20_000)).cast("long"))
    requests = as_live("requests", counted)
    begin = F.lit(MONDAY_MS) + window * WINDOW_MS
    known = {
        "instance": F.lit(INSTANCE),
        "epoch": F.lit(MONDAY_MS),
        "sequence": number + 1,
        "begin_ms": begin,
        "end_ms": begin + WINDOW_MS,
        "virtual_cluster": F.lit("main"),
        "node_id": client % 3,
        "user": F.when(big, F.lit("big")).otherwise(F.concat(F.lit("user-"), user.cast("string"))),
        "client_id": F.concat(F.lit("app-"), F.when(big, client).otherwise(user % 7).cast("string")),
        "quota_type": kind,
        "used": used,
        "peak": as_live("peak", used / (WINDOW_MS / 1000) * (1 + 0.3 * chance(number, 4))),
        "requests": requests,
        "in_bytes": F.when(kind == "produce", moved).otherwise(0) + 80 * requests,
        "out_bytes": F.when(kind == "fetch", moved).otherwise(0) + 60 * requests,
        **{name: as_live(name, F.lit(0)) for name in ("throttles", "throttled_ms", "backlogged_ms", "muted_ms")},
        "profile": as_live("profile", F.lit("")),
        "limit": F.when(limited, limit),
        "rule": F.when(big, "user=big").when(limited, "user=<default>").otherwise(""),
    }
    schema = schema_of(ROWS[USAGE])
    empty = {field.name: "" if field.dataType.simpleString() == "string" else None for field in schema}
    empty |= {"shadow_throttles": 0, "shadow_throttled_ms": 0, "unsent_bytes": 0, "scope": "node", "share": 1.0}
    return {field.name: known.get(field.name, F.lit(empty[field.name])).cast(field.dataType) for field in schema.fields}
