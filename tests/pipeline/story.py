"""Nine weeks of a cluster in which something happens: what the report's screenshots and its long test are made from."""

from datetime import date
from typing import Any

import numpy as np
import pandas as pd

from kafka_throttle.pipeline.table.schemas import schema_of
from kafka_throttle.quotas.records.usage_record import UsageRecord
from tests.pipeline.spools import MONDAY_MS

DAYS = 63
WINDOW_MS = 600_000
PRICES: dict[str, Any] = {
    "currency": "EUR",
    "prices": {"gb_in": 0.020, "gb_out": 0.012, "million_requests": 0.08, "handler_hour": 0.35},
    "free_tier": {"gb_out": 250},
    "tenants": [
        {"name": "Payments", "match": [{"user": "payments-*"}, {"user": "ledger"}]},
        {"name": "Shop", "match": [{"user": "orders"}, {"user": "search-*"}, {"user": "mobile-gateway"}]},
        {"name": "Data", "match": [{"user": "clickstream"}, {"user": "ml-*"}, {"user": "etl"}], "free_tier": {}},
    ],
}
"""user, client-id, bytes/s sent and got, shape of the day, growth a week, limit sent, limit got."""
CLIENTS = (
    ("clickstream", "web-collector", 2.6e6, 0.0, "office", 0.035, 4.0e6, None),
    ("orders", "order-events", 7.0e5, 2.0e5, "office", 0.01, 2.0e6, 2.0e6),
    ("payments-api", "authorizer-7f9c", 4.2e5, 4.0e5, "office", 0.01, 1.5e6, 1.5e6),
    ("payments-fraud", "scorer", 0.0, 1.1e6, "office", 0.02, None, 1.9e6),
    ("etl", "nightly-export", 0.0, 1.9e6, "night", 0.0, None, 7.0e6),
    ("ml-features", "feature-builder", 3.0e5, 1.5e6, "flat", 0.05, None, None),
    ("search-indexer", "indexer-eu-1", 0.0, 9.0e5, "flat", 0.0, None, 2.4e6),
    ("mobile-gateway", "push", 3.6e5, 1.2e5, "evening", 0.015, 9.0e5, None),
    ("ledger", "ledger-writer", 1.8e5, 0.9e5, "office", 0.0, 5.0e5, None),
    ("legacy-batch", "batch<script>alert(1)</script>", 1.4e5, 0.5e5, "flat", 0.0, 6.0e6, None),
    ("audit", "audit-log", 1.1e5, 0.0, "flat", 0.0, 2.5e5, None),
    ("sandbox-tom", "console-\u202eremusnoc", 2.0e4, 6.0e4, "office", 0.0, None, None),
)
BURSTS = ((8, 13.5, 15), (23, 10.0, 9), (36, 15.0, 21))
"""Day, hour and windows in which legacy-batch writes out all it has, to node 2."""
LOST_DAY, LOST_HOURS = 30, (2, 5)


def records(days: int = DAYS) -> pd.DataFrame:
    """UsageRecords, one row each."""
    chance = np.random.default_rng(11)
    windows = np.arange(days * 86_400_000 // WINDOW_MS)
    lost = (windows // 144 == LOST_DAY) & (windows % 144 // 6 >= LOST_HOURS[0]) & (windows % 144 // 6 < LOST_HOURS[1])
    windows = windows[~lost]
    bursts = _bursts(windows)
    frames = [
        _of_client(client, node, kind, windows, bursts, chance)
        for client in CLIENTS
        for node in range(3)
        for kind in ("produce", "fetch", "request")
    ]
    reported = [one.dropna(axis="columns", how="all") for one in frames if one is not None]
    frame = pd.concat(reported, ignore_index=True)
    frame = frame.sort_values(["begin_ms", "user", "node_id", "quota_type"], ignore_index=True)
    frame["sequence"] = np.arange(1, len(frame) + 1)
    return frame[schema_of(UsageRecord).names]


def _bursts(windows: np.ndarray) -> np.ndarray:
    found = np.zeros(len(windows), dtype=bool)
    for day, hour, length in BURSTS:
        first = day * 144 + int(hour * 6)
        found |= (windows >= first) & (windows < first + length)
    return found


def _busy(shape: str, windows: np.ndarray) -> np.ndarray:
    hour = windows % 144 / 6
    weekend = windows // 144 % 7 >= 5
    if shape == "night":
        return np.where((hour >= 1) & (hour < 4), 6.0, 0.0)
    if shape == "flat":
        return np.ones(len(windows))
    middle = 20.0 if shape == "evening" else 13.0
    wave = np.exp(-(((hour - middle + 12) % 24 - 12) ** 2) / (18 if shape == "evening" else 26))
    return (0.25 + 1.5 * wave) * np.where(weekend & (shape == "office"), 0.45, 1.0)


def _of_client(client: Any, node: int, kind: str, windows: Any, bursts: Any, chance: Any) -> pd.DataFrame | None:
    user, client_id, sent, got, shape, growth, limit_in, limit_out = client
    rate = {"produce": sent, "fetch": got, "request": (sent + got) * 2e-6}[kind] / 3
    if not rate:
        return None
    load = (
        rate * _busy(shape, windows) * (1 + growth) ** (windows / 144 / 7) * chance.lognormal(-0.03, 0.25, len(windows))
    )
    batch = user == "legacy-batch" and node == 2
    if batch:
        load = np.where(bursts, load * 130, load)
    limit = {"produce": limit_in, "fetch": limit_out, "request": 60.0}[kind]
    # A quota holds at each node; these are of the whole user there.
    limit = limit / 3 if limit and kind != "request" else limit
    hurt = bursts & (node == 2) & (user != "legacy-batch")
    load = np.where(hurt, load * 0.4, load)
    over = np.maximum(load / limit - 1, 0) if limit and kind != "request" else np.zeros(len(windows))
    used = load / (1 + 0.97 * over) * WINDOW_MS / 1000
    used = np.round(used, 3) if kind == "request" else np.floor(used)
    throttled = (over * WINDOW_MS * 0.6 + np.where(hurt & (kind == "produce"), 90_000, 0)).astype(np.int64)
    requests = np.maximum(1, used / (5 if kind == "request" else 24_000)).astype(np.int64)
    shadow = 0.62e6 if (user, kind) == ("ml-features", "fetch") else None
    shadow_over = np.maximum(load / shadow - 1, 0) if shadow else np.zeros(len(windows))
    frame = pd.DataFrame(
        {
            "begin_ms": MONDAY_MS + windows * WINDOW_MS,
            "used": used.astype(float),
            "peak": load * 1.6 * (1000 if kind == "request" else 1) / (1000 if kind == "request" else 1),
            "requests": requests,
            "in_bytes": (used * (kind == "produce")).astype(np.int64) + 70 * requests,
            "out_bytes": (used * (kind == "fetch")).astype(np.int64) + 60 * requests,
            "throttles": throttled // 900,
            "throttled_ms": throttled,
            "muted_ms": throttled,
            "backlogged_ms": (throttled * (0.85 if shape == "office" else 0.2)).astype(np.int64),
            "shadow_throttles": (shadow_over * 120).astype(np.int64),
            "shadow_throttled_ms": (shadow_over * 120_000).astype(np.int64),
        }
    )
    frame = frame[frame["used"] > 0].assign(
        instance="proxy-1",
        epoch=MONDAY_MS - 5_000,
        virtual_cluster="main",
        node_id=node,
        user=user,
        client_id=client_id,
        ip="",
        quota_type=kind,
        limit=limit,
        scope="node",
        share=1.0,
        rule="" if not limit else "user=<default>" if kind == "request" else f"user={user}",
        shadow_limit=shadow,
        shadow_rule="" if shadow is None else f"user={user}",
        unsent_bytes=0,
        profile="",  # windows are too long to have one
    )
    return frame.assign(end_ms=frame["begin_ms"] + WINDOW_MS)


FIRST_DAY = date(2026, 10, 26)
