"""`usage report`: from the usage table to one page of HTML, and every table in it as CSV and Parquet."""

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from kafka_throttle.common.places import made_of
from kafka_throttle.common.remote_path import AnyPath, put, writable_folder
from kafka_throttle.pipeline.report import figures, neighbours
from kafka_throttle.pipeline.report.chargeback import bills, by_tenant, tenant_of
from kafka_throttle.pipeline.report.findings import (
    Findings,
    Row,
    silences,
    whole_days,
    width_for,
)
from kafka_throttle.pipeline.report.forecast import forecast
from kafka_throttle.pipeline.report.missing import killed_of, missing_of
from kafka_throttle.pipeline.report.page import page_of
from kafka_throttle.pipeline.report.price_sheet import UNASSIGNED, PriceSheet, price_sheet
from kafka_throttle.pipeline.report.tables import Table, arrow_of, csv_of
from kafka_throttle.pipeline.report.views import tables_of
from kafka_throttle.pipeline.spark.day import now_ms
from kafka_throttle.pipeline.spark.kept import Kept
from kafka_throttle.pipeline.spark.session import spark_session
from kafka_throttle.pipeline.steps import EMPTY, Steps, say
from kafka_throttle.pipeline.table.accounts import read_accounts
from kafka_throttle.pipeline.table.table import read_quarantine, read_usage, version_at


def main(
    table: str,
    out: str,
    since_ms: int | None = None,
    until_ms: int | None = None,
    prices: AnyPath | None = None,
    top_n: int = 20,
    as_of_ms: int | None = None,
    master: str | None = None,
    memory: str = "2g",
    settings: dict[str, str] | None = None,
) -> int:
    """Make the report in the directory `out`; 0, or EMPTY. `prices` is the file of a price sheet.

    With `as_of_ms`, ms since 1970, the records that the table had at that time.

    Raises ValueError (BadTable, Problems) for what cannot be used, OSError if `tables` cannot be made.
    """
    sheet = None if prices is None else made_of(prices, price_sheet)
    folder = writable_folder(out)
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    steps = Steps(7)
    steps.next("starting Spark")
    spark = spark_session(master, memory, "kafka-throttle report", settings)
    version = None if as_of_ms is None else version_at(spark, table, as_of_ms)
    usage = read_usage(spark, table, since_ms, until_ms, version)
    accounts = read_accounts(spark, table)
    findings = find(usage, steps, table=table, top_n=top_n, since_ms=since_ms, until_ms=until_ms, sheet=sheet,
                    missing=missing_of(accounts), killed=killed_of(accounts),
                    quarantined=read_quarantine(spark, table).where("text is not null").count())  # fmt: skip
    if findings.end_ms > now_ms():
        findings = replace(findings, clocks_ahead=_rows(figures.clocks_ahead(usage, now_ms())))
    steps.next("writing")
    write(findings, folder)
    say(f"{folder / 'report.html'}: {findings.records:,} records, {steps.seconds:.0f} s")
    if not findings.records:
        say("there are no usage records in this time")
        return EMPTY
    return 0


def find(usage: DataFrame, steps: Steps, **known: Any) -> Findings:
    """The findings from these records; `known` are the findings that the records themselves do not give."""
    steps.next("how much there is")
    with Kept() as kept:
        days, windows = kept.frame(figures.daily(usage)), kept.frame(figures.windows(usage))
        [span] = _rows(figures.span(windows))
        if not span["records"]:
            return Findings(**known)
        parts: tuple[Callable[[], dict[str, Any]], ...] = (
            lambda: _sums(days, windows, span, steps, **known),
            lambda: _quotas(usage, known["top_n"], steps),
            lambda: _noise(windows, known["top_n"], steps),
        )
        # Of a short time Spark needs longer to plan these on one core than to compute them.
        with ThreadPoolExecutor(AT_ONCE) as threads:
            found = [part.result() for part in [threads.submit(part) for part in parts]]
        return Findings(**known, **span, **{name: value for part in found for name, value in part.items()})


AT_ONCE = 2
"""The number of parts of the report that are computed at the same time."""


def _sums(days: DataFrame, windows: DataFrame, span: Row, steps: Steps, **known: Any) -> dict[str, Any]:
    steps.next("adding up by client and day")
    use = _use(days, known["top_n"])
    return {
        **use,
        **_costs(days, known.get("sheet"), known["top_n"]),
        **_course(windows, use["days"], span, steps),
        **_shadows(days, known["top_n"]),
        "shared": _shared(days, known["top_n"]),
    }


def _use(days: DataFrame, top_n: int) -> dict[str, Any]:
    with Kept() as kept:
        levels = kept.frame(figures.by_levels(days))
        counts = {row["level"]: row for row in _rows(figures.counted(levels))}
        rows = _rows(figures.ranked(levels, top_n))
    # A row comes once for each measure by which it is one of the first.
    distinct = {(row["level"], *(row[name] for name in (*figures.CLIENT, "quota_type", "day"))): row for row in rows}
    found: dict[str, list[dict[str, Any]]] = {level: [] for level in figures.LEVELS}
    for row in distinct.values():
        found[row.pop("level")].append(row)
    nothing = {"rows": 0, "throttled_rows": 0, "addresses": 0, "throttled_addresses": 0}
    clients, users, client_ids, throttled = (
        counts.get(level, nothing) for level in ("clients", "users", "client_ids", "throttled")
    )
    return {
        "totals": found["all"][0],
        "by_type": sorted(found["by_type"], key=lambda row: row["quota_type"]),
        "days": sorted(found["days"], key=lambda row: row["day"]),
        "client_count": clients["rows"] - clients["addresses"],
        "user_count": users["rows"],
        "client_id_count": client_ids["rows"],
        "throttled_count": throttled["throttled_rows"],
        "throttled_clients": clients["throttled_rows"] - clients["throttled_addresses"],
        "throttled_addresses": clients["throttled_addresses"],
        **{level: found[level] for level in ("clients", "users", "client_ids", "throttled")},
    }


def _costs(days: DataFrame, sheet: PriceSheet | None, top_n: int) -> dict[str, Any]:
    if sheet is None:
        return {}
    months = _rows(by_tenant(days, sheet))
    of_nobody = days.where((tenant_of(sheet) == UNASSIGNED) & (F.col("ip") == ""))
    nobodys = figures.totals(figures.known_clients(of_nobody), *figures.CLIENT)
    most = (F.col("bytes").desc(), *figures.CLIENT)
    with Kept() as kept:
        unassigned, [count] = _first(kept.frame(nobodys), most, top_n, F.count(F.lit(1)))
    return {
        "bills": bills(sheet, months),
        "tenants": _without_months(months),
        "unassigned": unassigned,
        "unassigned_count": count,
    }


def _without_months(months: list[dict[str, Any]]) -> list[dict[str, Any]]:
    sums: dict[str, dict[str, Any]] = {}
    for row in months:
        tenant = sums.setdefault(row["tenant"], {"tenant": row["tenant"]})
        for name in (*figures.SUMS, "bytes"):
            tenant[name] = tenant.get(name, 0) + row[name]
    return list(sums.values())


def _course(windows: DataFrame, days: list[Row], span: Row, steps: Steps) -> dict[str, Any]:
    steps.next("the course of time")
    width_ms = width_for(span["begin_ms"], span["end_ms"])
    timeline = _rows(figures.timeline(windows, width_ms))
    whole = whole_days(days, span["begin_ms"], span["end_ms"])
    return {
        "width_ms": width_ms,
        "timeline": timeline,
        "silences": silences(timeline, width_ms),
        "forecasts": {
            measure: forecast([(row["day"], float(row[measure])) for row in whole])
            for measure in ("bytes", "requests", "handler_us")
        },
    }


def _quotas(usage: DataFrame, top_n: int, steps: Steps) -> dict[str, Any]:
    steps.next("use of quotas, window by window")
    p99 = (F.col("p99").desc(), F.col("most").desc(), "rule", "user", "client_id")
    over = F.count_if(F.col("windows_over") > 0)
    with Kept() as kept:
        used, [in_use, exceeded] = _first(kept.frame(figures.utilisation(usage)), p99, top_n, F.count(F.lit(1)), over)
    return {"utilisation": used, "quotas_in_use": in_use, "quotas_exceeded": exceeded}


def _shared(days: DataFrame, top_n: int) -> list[dict[str, Any]]:
    most = (F.col("wait_ms").desc(), *figures.SENSOR, "place")
    return _rows(figures.shared(days).orderBy(*most).limit(top_n))


def _shadows(days: DataFrame, top_n: int) -> dict[str, Any]:
    most = (F.col("shadow_windows").desc(), F.col("shadow_throttled_ms").desc(), *figures.CLIENT)
    hurt = F.col("shadow_throttles") > 0
    clients = F.count_distinct(F.when(hurt, F.struct(*figures.CLIENT)))
    with Kept() as kept:
        first, [covered, rows, hurt_clients] = _first(
            kept.frame(figures.hurt_by_shadows(days)), most, top_n, F.count(F.lit(1)), F.count_if(hurt), clients
        )
    return {
        "shadows": [row for row in first if row["shadow_throttles"]],
        "shadow_seen": covered,
        "shadow_rows": rows,
        "shadow_hurt": hurt_clients,
    }


def _noise(windows: DataFrame, top_n: int, steps: Steps) -> dict[str, Any]:
    steps.next("noisy neighbours")
    worst = (F.col("others_throttled_ms").desc(), F.col("share").desc(), "begin_ms")
    with Kept() as kept:
        found, [count] = _first(kept.frame(neighbours.episodes(windows)), worst, top_n, F.count(F.lit(1)))
    return {"episodes": found, "episode_count": count}


def _first(frame: DataFrame, order: Any, rows: int, *sums: Column) -> tuple[list[dict[str, Any]], list[int]]:
    """The first rows of a cached frame in an order, and aggregates of all its rows."""
    [counts] = frame.agg(*(one.alias(f"sum_{i}") for i, one in enumerate(sums))).collect()
    return _rows(frame.orderBy(*order).limit(rows)) if counts[0] else [], list(counts)


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def write(findings: Findings, folder: AnyPath) -> None:
    """Write `report.html`, and `tables/<name>.csv` and `.parquet`. Each file appears when it is whole."""
    tables = tables_of(findings)
    for table in tables:
        put(folder / "tables" / f"{table.name}.csv", csv_of(table).encode())
        put(folder / "tables" / f"{table.name}.parquet", _parquet_of(table))
    put(folder / "report.html", page_of(findings, tables, now_ms()).encode())


def _parquet_of(table: Table) -> bytes:
    data = io.BytesIO()
    pq.write_table(arrow_of(table), data)
    return data.getvalue()
