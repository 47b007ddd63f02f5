"""Traces replayed under a candidate, on Spark: each process and quota type by itself."""

from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812, as everybody calls it

from kafka_throttle.pipeline.simulate.candidate import Candidate
from kafka_throttle.pipeline.simulate.replay import Throttling
from kafka_throttle.pipeline.simulate.simulated_trace import TracedSensor, simulate_trace
from kafka_throttle.pipeline.simulate.traced import Client
from kafka_throttle.quotas.records.usage_record import TraceEvent, columns

_TEXTS = ["instance", "virtual_cluster", "user", "client_id", "ip", "quota_type"]
_PLACE = ["place_user", "place_client_id", "place_ip"]
_WHOLE = ["live_requests", "live_throttles", "live_throttled_ms", "throttles", "throttled_ms", "greedy_throttled_ms"]
_WHOLE += ["longest_ms", "muted_ms", "shared_by", "differing"]

SIMULATED = T.StructType(
    [
        *(T.StructField(name, T.StringType()) for name in [*_TEXTS, *_PLACE, "new_rule", "change"]),
        T.StructField("node_id", T.LongType()),
        T.StructField("epoch", T.LongType()),
        T.StructField("of_sensor", T.BooleanType()),
        T.StructField("new_limit", T.DoubleType()),
        *(T.StructField(name, T.DoubleType()) for name in ("live_used", "paced_used", "greedy_used")),
        *(T.StructField(name, T.LongType()) for name in _WHOLE),
    ]
)
"""A row for each client at each sensor, and one for each sensor. `differing`: events with another throttle time than
live; the sum over a sensor."""


def simulated_traces(trace: DataFrame, candidate: Candidate) -> DataFrame:
    """TRACE -> SIMULATED."""
    names = list(columns(TraceEvent))

    def simulate(events: pd.DataFrame) -> pd.DataFrame:
        rows = []
        values = events[names].astype(object).where(events[names].notna(), None)
        traced = [TraceEvent(**dict(zip(names, row, strict=True))) for row in values.itertuples(index=False)]
        for sensor in simulate_trace(traced, candidate):
            rows += _rows(sensor, traced)
        return pd.DataFrame(rows, columns=SIMULATED.names)

    return (
        trace.select(*names)
        .groupBy("instance", "epoch", "virtual_cluster", "quota_type")
        .applyInPandas(simulate, SIMULATED)
    )


def _rows(sensor: TracedSensor, events: list[TraceEvent]) -> list[dict[str, Any]]:
    key, none = sensor.key, Throttling()
    reported = sensor.reported
    differing = sum(reported[event.sequence] != event.throttle_ms for event in events if event.sequence in reported)
    same: dict[str, Any] = {
        "instance": key.instance,
        "epoch": key.epoch,
        "virtual_cluster": key.virtual_cluster,
        "node_id": key.node_id,
        "quota_type": key.place.quota_type,
        "place_user": key.place.user,
        "place_client_id": key.place.client_id,
        "place_ip": key.place.ip,
        "new_limit": sensor.limit,
        "new_rule": sensor.rule,
        "shared_by": len(sensor.live),
    }
    paced, greedy = sensor.replayed[Client.PACED], sensor.replayed[Client.GREEDY]
    everybody = Throttling()
    for live in sensor.live.values():
        everybody.used += live.used
        everybody.requests += live.requests
        everybody.throttles += live.throttles
        everybody.throttled_ms += live.throttled_ms
    rows = [{**same, **_numbers(everybody, paced.all, greedy.all), "of_sensor": True, "differing": differing}]
    for client, live in sensor.live.items():
        news = _numbers(live, paced.clients.get(client, none), greedy.clients.get(client, none))
        rows.append({**same, **client._asdict(), **news, "of_sensor": False})
    return [{"user": "", "client_id": "", "ip": "", "differing": 0, **row} for row in rows]


def _numbers(live: Throttling, paced: Throttling, greedy: Throttling) -> dict[str, Any]:
    return {
        "live_used": live.used,
        "live_requests": live.requests,
        "live_throttles": live.throttles,
        "live_throttled_ms": live.throttled_ms,
        "paced_used": paced.used,
        "greedy_used": greedy.used,
        "throttles": paced.throttles,
        "throttled_ms": paced.throttled_ms,
        "greedy_throttled_ms": greedy.throttled_ms,
        "longest_ms": paced.longest_ms,
        "muted_ms": paced.muted_ms,
        "change": _change(live.throttled_ms, paced.throttled_ms),
    }


def _change(before_ms: int, after_ms: int) -> str:
    if not before_ms and after_ms:
        return "hurt"
    if before_ms and not after_ms:
        return "freed"
    return "same" if before_ms == after_ms else "worse" if after_ms > before_ms else "eased"
