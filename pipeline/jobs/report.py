"""`usage report`: from the usage table to one page of HTML, and every table in it as CSV and Parquet."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from common.places import made_of
from pipeline.report import figures, neighbours
from pipeline.report.chargeback import bills, by_tenant, tenant_of
from pipeline.report.findings import Findings, KilledProcess, Missing, Row, silences, whole_days, width_for
from pipeline.report.forecast import forecast
from pipeline.report.page import page_of
from pipeline.report.price_sheet import UNASSIGNED, PriceSheet, price_sheet
from pipeline.report.tables import Table, arrow_of, csv_of
from pipeline.report.views import tables_of
from pipeline.spark.kept import Kept
from pipeline.spark.session import LOCAL, spark_session
from pipeline.table.accounts import Accounts, lost_ends
from pipeline.table.table import read_usage, state_of

EMPTY = 3
"""The exit status if there are no records: the page is written all the same and says so."""


def main(
    table: str,
    out: str,
    since_ms: int | None = None,
    until_ms: int | None = None,
    prices: Path | None = None,
    top_n: int = 20,
    master: str = LOCAL,
    memory: str = "2g",
    settings: dict[str, str] | None = None,
) -> int:
    """Make the report in the directory `out`; 0, or EMPTY. `prices` is the file of a price sheet.

    Raises ValueError (BadTable, Problems) for what cannot be used.
    """
    sheet = None if prices is None else made_of(prices, price_sheet)
    folder = Path(out)
    try:
        (folder / "tables").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{out}: expected a directory to write to: {error.strerror}") from error
    steps = Steps(7)
    steps.next("starting Spark")
    spark = spark_session(master, memory, "kafka-throttle report", settings)
    state = state_of(spark, table)
    usage = read_usage(spark, table, since_ms, until_ms)
    findings = find(usage, steps, table=table, top_n=top_n, since_ms=since_ms, until_ms=until_ms, sheet=sheet,
                    missing=missing_of(state.accounts), killed=killed_of(state.accounts),
                    quarantined=_quarantined(state.counts))  # fmt: skip
    steps.next("writing")
    write(findings, folder)
    _say(f"{folder / 'report.html'}: {findings.records:,} records, {steps.seconds:.0f} s")
    if not findings.records:
        _say("there are no usage records in this time")
        return EMPTY
    return 0


def find(usage: DataFrame, steps: "Steps", **known: Any) -> Findings:
    """The findings from these records; `known` are the findings that the records themselves do not give."""
    steps.next("how much there is")
    with Kept() as kept:
        days, course = kept.frame(figures.daily(usage)), kept.frame(figures.course(usage))
        [span] = _rows(figures.span(course))
        if not span["records"]:
            return Findings(**known)
        steps.next("adding up by client and day")
        use = _use(days, known["top_n"])
        return Findings(
            **known,
            **span,
            **use,
            **_costs(days, known.get("sheet"), known["top_n"]),
            **_course(course, use["days"], span, steps),
            **_quotas(usage, known["top_n"], steps),
            **_noise(usage, known["top_n"], max(span["window_ms"], 1_000), steps),
        )


def _use(days: DataFrame, top_n: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {level: [] for level in figures.LEVELS}
    for row in _rows(figures.ranked(days, top_n)):
        found[row.pop("level")].append(row)
    counts = found["clients"][0] if found["clients"] else {"level_rows": 0, "level_throttled": 0}
    return {
        "totals": found["all"][0],
        "by_type": sorted(found["by_type"], key=lambda row: row["quota_type"]),
        "days": sorted(found["days"], key=lambda row: row["day"]),
        "client_count": counts["level_rows"],
        "throttled_clients": counts["level_throttled"],
        **{level: found[level] for level in ("clients", "users", "client_ids", "throttled")},
    }


def _costs(days: DataFrame, sheet: PriceSheet | None, top_n: int) -> dict[str, Any]:
    if sheet is None:
        return {}
    months = _rows(by_tenant(days, sheet))
    nobodys = figures.totals(days.where(tenant_of(sheet) == UNASSIGNED), *figures.CLIENT)
    return {
        "bills": bills(sheet, months),
        "tenants": _without_months(months),
        "unassigned": _rows(nobodys.orderBy(F.col("bytes").desc(), *figures.CLIENT).limit(top_n)),
    }


def _without_months(months: list[dict[str, Any]]) -> list[dict[str, Any]]:
    sums: dict[str, dict[str, Any]] = {}
    for row in months:
        tenant = sums.setdefault(row["tenant"], {"tenant": row["tenant"]})
        for name in (*figures.SUMS, "bytes"):
            tenant[name] = tenant.get(name, 0) + row[name]
    return list(sums.values())


def _course(course: DataFrame, days: list[Row], span: Row, steps: "Steps") -> dict[str, Any]:
    steps.next("the course of time")
    width_ms = width_for(span["begin_ms"], span["end_ms"])
    timeline = _rows(figures.timeline(course, width_ms))
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


def _quotas(usage: DataFrame, top_n: int, steps: "Steps") -> dict[str, Any]:
    steps.next("use of quotas, window by window")
    p99 = (F.col("p99").desc(), F.col("most").desc(), "rule", "user", "client_id")
    used, [in_use, exceeded] = _first(figures.utilisation(usage), p99, top_n, F.lit(True), F.col("windows_over") > 0)
    hurt = F.col("shadow_throttles") > 0
    one_of_client = F.row_number().over(Window.partitionBy(*figures.CLIENT).orderBy(F.col("shadow_throttles").desc()))
    seen = figures.hurt_by_shadows(usage).withColumn("of_client", one_of_client)
    most = (F.col("shadow_throttled_ms").desc(), *figures.CLIENT)
    shadows, [covered, clients] = _first(seen, most, top_n, F.lit(True), hurt & (F.col("of_client") == 1))
    return {
        "utilisation": used,
        "quotas_in_use": in_use,
        "quotas_exceeded": exceeded,
        "shadows": [row for row in shadows if row["shadow_throttles"]],
        "shadow_seen": covered,
        "shadow_hurt": clients,
    }


def _noise(usage: DataFrame, top_n: int, slice_ms: int, steps: "Steps") -> dict[str, Any]:
    steps.next("noisy neighbours")
    worst = (F.col("others_throttled_ms").desc(), F.col("share").desc(), "begin_ms")
    with Kept() as kept:
        use = kept.frame(neighbours.use_by_slices(usage, slice_ms))
        slices = kept.counted(neighbours.slices_of(use))
        found, [count] = _first(neighbours.episodes(use, slices, slice_ms), worst, top_n, F.lit(True))
        [nodes] = _rows(neighbours.judged(slices))
    return {"episodes": found, "episode_count": count, **nodes}


def _first(frame: DataFrame, order: Any, rows: int, *counts: Column) -> tuple[list[dict[str, Any]], list[int]]:
    """The first rows in an order, and, for each condition, for how many rows it is true: in one query."""
    everything = Window.partitionBy(F.lit(0))
    counted = frame
    for i, condition in enumerate(counts):
        counted = counted.withColumn(f"count_{i}", F.sum(condition.cast("long")).over(everything))
    found = _rows(counted.orderBy(*order).limit(rows))
    return found, [found[0][f"count_{i}"] if found else 0 for i in range(len(counts))]


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def missing_of(accounts: Accounts) -> list[Missing]:
    """The usage records that are missing according to the table's log, by writer."""
    return [
        Missing(writer.instance, writer.epoch, first, last, dropped)
        for writer, account in sorted(accounts.items())
        if writer.stream == "usage"
        for dropped, intervals in ((False, account.gaps), (True, account.dropped))
        for first, last in intervals
    ]


def killed_of(accounts: Accounts) -> list[KilledProcess]:
    """The processes whose last usage records are missing."""
    return [
        KilledProcess(lost.writer.instance, lost.writer.epoch, lost.before_ms, lost.flush_ms)
        for lost in lost_ends(accounts)
        if lost.writer.stream == "usage"
    ]


def _quarantined(counts: Mapping[str, int]) -> int:
    """The number of lines that ingest did not accept; it counts them by reason."""
    return sum(count for name, count in counts.items() if name.startswith("rejected: "))


def write(findings: Findings, folder: Path) -> None:
    """Write `report.html`, and `tables/<name>.csv` and `.parquet`. Each file appears when it is whole."""
    tables = tables_of(findings)
    for table in tables:
        _put(folder / "tables" / f"{table.name}.csv", csv_of(table).encode())
        _put_parquet(folder / "tables" / f"{table.name}.parquet", table)
    _put(folder / "report.html", page_of(findings, tables, time.time_ns() // 1_000_000).encode())


def _put(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(data)
    aside.replace(path)


def _put_parquet(path: Path, table: Table) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    pq.write_table(arrow_of(table), aside)
    aside.replace(path)


class Steps:
    """Prints on standard error which step of the work has begun."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._number = 0
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """The time since the first step."""
        return time.monotonic() - self._began

    def next(self, name: str) -> None:
        """Begin the next step."""
        self._number += 1
        _say(f"[{self._number}/{self._count}] {self.seconds:5.1f} s  {name}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
