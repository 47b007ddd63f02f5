"""The tables of the report, made from the findings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Context, Decimal
from typing import Any

from kafka_throttle.pipeline.report import words
from kafka_throttle.pipeline.report.figures import CLIENT
from kafka_throttle.pipeline.report.findings import Findings, Row, whole_days
from kafka_throttle.pipeline.report.price_sheet import UNASSIGNED, UNITS
from kafka_throttle.pipeline.report.tables import Column, Table

TYPE_NAMES: Mapping[str, str] = {
    "produce": "produce",
    "fetch": "fetch",
    "request": "request time",
    "controller_mutation": "mutations",
    "connection": "connections",
}
LIMIT_UNITS: Mapping[str, str] = {
    "produce": "bytes/s",
    "fetch": "bytes/s",
    "request": "% of a thread",
    "controller_mutation": "partitions/s",
    "connection": "connections/s",
}
PRICED: Mapping[str, tuple[str, str]] = {
    "gb_in": ("sent", "GB"),
    "gb_out": ("got", "GB"),
    "million_requests": ("requests", "million"),
    "handler_hour": ("handler time", "h"),
    "thousand_mutations": ("mutations", "thousand"),
}
MEASURE_NAMES: Mapping[str, str] = {"bytes": "bytes", "requests": "requests", "handler_us": "handler time"}

CLUSTER = Column("virtual_cluster", "Virtual cluster", "text")
USER = Column("user", "User", "text")
CLIENT_ID = Column("client_id", "Client-id", "text")
ADDRESS = Column("ip", "Address", "text", in_files=True)
_CLIENT = (CLUSTER, USER, CLIENT_ID, ADDRESS)
_USE = (
    Column("bytes", "Bytes", "bytes"),
    Column("share", "Of all bytes", "share"),
    Column("in_bytes", "Sent", "bytes"),
    Column("out_bytes", "Got", "bytes"),
    Column("requests", "Requests"),
    Column("handler_us", "Handler time", "us"),
    Column("mutations", "Mutations", "number", "partitions"),
    Column("throttles", "Throttles"),
    Column("throttled_ms", "Throttled, added up", "ms", "over nodes, connections"),
)


def tables_of(findings: Findings) -> list[Table]:
    """Every table, in the order of the page; tables that need a price sheet only if there is one."""
    tables = [
        _totals(findings),
        _talkers("clients", "Clients", findings.clients, _CLIENT, findings, findings.client_count),
        _talkers("users", "Users", findings.users, (CLUSTER, USER), findings, findings.user_count),
        _talkers(
            "client_ids", "Client-ids", findings.client_ids, (CLUSTER, CLIENT_ID), findings, findings.client_id_count
        ),
        _utilisation(findings),
        _throttled(findings),
        _shared(findings),
        _shadows(findings),
        _episodes(findings),
        _timeline(findings),
        _days(findings),
        _forecast(findings),
        _missing(findings),
        _killed(findings),
    ]
    if findings.sheet is not None:
        tables[4:4] = [_tenants(findings), _bills(findings), _unassigned(findings)]
    return tables


def named(tables: Iterable[Table]) -> dict[str, Table]:
    """The tables by name."""
    return {table.name: table for table in tables}


def _use_of(row: Row, findings: Findings) -> dict[str, Any]:
    everything = findings.totals.get("bytes", 0)
    return {
        **row,
        "share": row["bytes"] / everything if everything else 0.0,
        "mutations": row["milli_mutations"] / 1_000,
    }


def _talkers(
    name: str, title: str, rows: Sequence[Row], keys: tuple[Column, ...], findings: Findings, count: int
) -> Table:
    """The largest clients by a measure; one last row has all others, so that the sums are of everything."""
    note = "First by bytes, requests, handler time or throttled time; what is left is in the last row."
    ordered = sorted(rows, key=lambda row: (-row["bytes"], *(row[key.name] for key in keys)))
    shown = [_use_of(row, findings) for row in ordered]
    sums = [column.name for column in _USE if column.name not in ("share", "mutations")] + ["milli_mutations"]
    rest = {name: findings.totals.get(name, 0) - sum(row[name] for row in rows) for name in sums}
    if any(rest.values()):
        shown.append(_use_of({**dict.fromkeys(key.name for key in keys), **rest, "rest": True}, findings))
    return Table(name, title, (*keys, *_USE), shown, note, count)


def _totals(findings: Findings) -> Table:
    columns = (
        Column("quota_type", "Quota type", "text"),
        Column("records", "Records"),
        Column("in_bytes", "Sent", "bytes"),
        Column("out_bytes", "Got", "bytes"),
        Column("unsent_bytes", "Of it lost", "bytes"),
        Column("requests", "Requests"),
        Column("handler_us", "Handler time", "us"),
        Column("mutations", "Mutations", "number", "partitions"),
        Column("throttles", "Throttles"),
        Column("throttled_ms", "Throttled, added up", "ms", "over nodes, connections"),
        Column("backlogged_ms", "Of it waiting", "ms"),
    )
    rows = [_use_of(row, findings) for row in findings.by_type]
    if findings.totals:
        rows.append({**_use_of(findings.totals, findings), "quota_type": "all", "rest": True})
    return Table("totals", "Everything, by quota type", columns, rows)


def _tenants(findings: Findings) -> Table:
    order = {bill.tenant: -bill.total for bill in findings.bills}
    rows = [_use_of(row, findings) for row in findings.tenants]
    rows.sort(key=lambda row: (row["tenant"] == UNASSIGNED, -row["bytes"], order.get(row["tenant"], 0)))
    return Table("tenants", "Tenants", (Column("tenant", "Tenant", "text"), *_USE), rows)


def _bills(findings: Findings) -> Table:
    """One row for each month and tenant; amounts are rounded, and the totals are sums of those."""
    sheet = findings.sheet
    assert sheet is not None
    columns = [Column("month", "Month", "text"), Column("tenant", "Tenant", "text")]
    for unit, (heading, _) in PRICED.items():
        columns.append(Column(f"amount_{unit}", f"{heading[:1].upper()}{heading[1:]}", "money", sheet.currency))
    columns.append(Column("total", "Total", "money", sheet.currency))
    for unit, (heading, of) in PRICED.items():
        columns.append(Column(f"used_{unit}", f"Used: {heading}", "exact", of))
        columns.append(Column(f"charged_{unit}", f"Charged: {heading}", "exact", of))
    rows: list[dict[str, Any]] = []
    for bill in findings.bills:
        row: dict[str, Any] = {"month": bill.month, "tenant": bill.tenant, "total": bill.total}
        for unit, (_, per) in UNITS.items():
            row[f"used_{unit}"] = _places(Decimal(bill.used[unit]) / per)
            row[f"charged_{unit}"] = _places(bill.charged[unit])
            row[f"amount_{unit}"] = bill.amounts.get(unit)
        rows.append(row)
    if rows:
        rows.append(_sum_of(rows))
    return Table("chargeback", "Chargeback", tuple(columns), rows)


def _places(value: Decimal) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-12), context=Context(prec=60))


def _sum_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {"month": "", "tenant": "total", "rest": True}
    for name in rows[0]:
        values = [row[name] for row in rows if isinstance(row[name], Decimal)]
        if values:
            total[name] = sum(values, Decimal(0))
    return total


def _unassigned(findings: Findings) -> Table:
    rows = [_use_of(row, findings) for row in findings.unassigned]
    rows.sort(key=lambda row: -row["bytes"])
    columns = (*_CLIENT, *_USE)
    return Table("unassigned", "Clients without a tenant", columns, rows, of=findings.unassigned_count)


def _utilisation(findings: Findings) -> Table:
    columns = (
        CLUSTER,
        Column("quota_type", "Quota type", "text"),
        Column("rule", "Quota of", "text"),
        *(replace(column, in_files=True) for column in (USER, CLIENT_ID)),
        ADDRESS,
        Column("limit", "Limit", "number", "by type, per s"),
        Column("windows", "Windows", in_files=True),
        Column("p50", "p50", "share", in_files=True),
        Column("p95", "p95", "share", in_files=True),
        Column("p99", "p99", "share"),
        Column("most", "Most", "share"),
        Column("most_node_id", "At node", "number"),
        Column("peak", "Peak second", "share"),
        Column("over", "Windows over it", "share"),
        Column("words", "In words", "text", in_files=True),
    )
    rows = [
        {**row, "over": row["windows_over"] / row["windows"], "words": utilisation_in_words(row, findings.window_ms)}
        for row in findings.utilisation
    ]
    note = "Those with the highest p99."
    return Table("utilisation", "Utilisation of quotas", columns, rows, note, findings.quotas_in_use)


SPARE_S = 10
"""The time whose quota can be used at once after a pause: Kafka measures over 11 samples of 1 s by default, the last of
them still open.
"""


def utilisation_in_words(row: Row, window_ms: int) -> str:
    """What the percentiles of a quota's utilisation mean, in windows of this length."""
    p99, most = row["p99"], row["most"]
    allowed = 1 + SPARE_S * 1_000 / max(window_ms, 1)
    length = words.duration(window_ms)
    if p99 > allowed:
        most_allowed = f"{words.share(allowed)} in {length}"
        return f"p99 {words.share(p99)}: more than bursts of ten seconds allow, which is {most_allowed}."
    if p99 > 1:
        return f"p99 {words.share(p99)}: bursts of ten seconds allow it, up to {words.share(allowed)} in {length}."
    if most > 1:
        return (
            f"Above the quota in {words.share(row['windows_over'] / row['windows'])} of its windows of {length} only."
        )
    return f"Never above the quota: at most {words.share(most)} of it."


def _throttled(findings: Findings) -> Table:
    columns = (
        *_CLIENT,
        Column("quota_type", "Quota type", "text"),
        Column("rule", "Quota of", "text"),
        Column("limit", "Limit", "number", "by type, per s"),
        Column("muted_share", "Throttled, of its time", "share"),
        Column("backlogged_share", "Of it waiting", "share"),
        Column("throttles_per_request", "Throttles per request", "ratio"),
        Column("time_share", "Of its windows", "share", in_files=True),
        Column("throttles", "Throttles", in_files=True),
        Column("throttled_ms", "Throttled, added up", "ms", "over nodes, connections", in_files=True),
    )
    requests = _requests_of(findings)
    rows = [
        {
            **row,
            "muted_share": muted_share(row),
            "backlogged_share": _part(row["backlogged_ms"], row["throttled_ms"]),
            "time_share": _part(row["throttled_window_ms"], row["window_ms"]),
            "throttles_per_request": _part(row["throttles"], requests.get(_client(row), 0)),
        }
        for row in sorted(findings.throttled, key=lambda row: -row["throttled_ms"])
    ]
    return Table("throttled", "Throttled clients", columns, rows, of=findings.throttled_count)


def muted_share(row: Row) -> float | None:
    """The part of its time in which a client was throttled; None if it had none.

    Its time are the windows in which it used anything of this type, at each node. The last mute may end after them.
    """
    return min(row["muted_ms"] / row["window_ms"], 1.0) if row["window_ms"] else None


def _requests_of(findings: Findings) -> dict[tuple[str, ...], int]:
    """The requests of each client that is shown, of all types."""
    return {_client(row): row["requests"] for row in findings.clients}


def _client(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in CLIENT)


def _part(some: float, everything: float) -> float | None:
    return some / everything if everything else None


def _shared(findings: Findings) -> Table:
    columns = (
        CLUSTER,
        Column("quota_type", "Quota type", "text"),
        Column("rule", "Quota of", "text"),
        Column("limit", "Limit", "number", "by type, per s"),
        *(replace(column, name=f"by_{column.name}") for column in (USER, CLIENT_ID)),
        Column("rate", "Its rate", "number", "by type, per s"),
        Column("use_share", "Of the use", "share"),
        Column("wait_share", "Of the wait", "share"),
        Column("muted_share", "Throttled, of its time", "share"),
        Column("sharers", "Clients", in_files=True),
        *(replace(column, in_files=True) for column in (USER, CLIENT_ID)),
        ADDRESS,
    )
    return Table("shared_quotas", "Shared quotas: each client's part", columns, findings.shared)


def limit_in_words(value: float, quota_type: str) -> str:
    """A limit, or use in its unit."""
    if quota_type in ("produce", "fetch"):
        return f"{words.size(value)}/s"
    return f"{value:,.10g} {LIMIT_UNITS.get(quota_type, '')}".rstrip()


def _shadows(findings: Findings) -> Table:
    columns = (
        *_CLIENT,
        Column("quota_type", "Quota type", "text"),
        Column("shadow_rule", "Shadow quota of", "text"),
        Column("shadow_limit", "Its limit", "number", "by type, per s"),
        Column("window_share", "Throttled, of its windows", "share"),
        Column("windows", "Windows"),
        Column("shadow_throttles", "Throttles"),
        Column("shadow_throttled_ms", "Throttle times, added up", "ms", in_files=True),
    )
    rows = [{**row, "window_share": _part(row["shadow_windows"], row["windows"])} for row in findings.shadows]
    return Table("shadows", "Clients that shadow quotas would throttle", columns, rows, of=findings.shadow_rows)


def _episodes(findings: Findings) -> Table:
    columns = (
        Column("begin_ms", "Began", "moment"),
        Column("length_ms", "Lasted", "ms"),
        CLUSTER,
        Column("node_id", "Node", "number"),
        USER,
        CLIENT_ID,
        Column("share", "Share of the node", "share"),
        Column("bytes", "Bytes", "bytes"),
        Column("others_throttled", "Others throttled", "count", "at most"),
        Column("others_throttled_ms", "For, added up", "ms", "over clients"),
    )
    rows = [{**row, "length_ms": row["end_ms"] - row["begin_ms"]} for row in findings.episodes]
    return Table("noisy_neighbours", "Noisy neighbours", columns, rows, of=findings.episode_count)


def _timeline(findings: Findings) -> Table:
    columns = (
        Column("at_ms", "From", "moment"),
        Column("in_bytes", "Sent", "bytes"),
        Column("out_bytes", "Got", "bytes"),
        Column("throttled_ms", "Throttled, added up", "ms", "over nodes, connections"),
        Column("backlogged_ms", "Of it waiting", "ms"),
        Column("muted_at_once", "Clients throttled at a time", "ratio"),
    )
    rows = [{**row, "muted_at_once": row["muted_ms"] / findings.width_ms} for row in findings.timeline]
    return Table("timeline", "The course of time", columns, rows)


def _days(findings: Findings) -> Table:
    columns = (
        Column("day", "Day", "day"),
        Column("in_bytes", "Sent", "bytes"),
        Column("out_bytes", "Got", "bytes"),
        Column("bytes", "Bytes", "bytes"),
        Column("requests", "Requests"),
        Column("handler_us", "Handler time", "us"),
        Column("throttled_ms", "Throttled, added up", "ms", "over nodes, connections"),
        Column("whole", "Whole day", "text"),
    )
    whole = {row["day"] for row in whole_days(findings.days, findings.begin_ms, findings.end_ms)}
    rows = [{**row, "whole": "yes" if row["day"] in whole else "no"} for row in findings.days]
    return Table("days", "Day by day", columns, rows)


def _forecast(findings: Findings) -> Table:
    columns = (
        Column("measure", "Of", "text"),
        Column("unit", "Unit", "text"),
        Column("days", "Whole days"),
        Column("growth_per_week", "Growth per week", "share"),
        Column("month", "Month", "text"),
        Column("expected", "Expected", "number", "by row"),
        Column("low", "At least (90 %)", "number", "by row"),
        Column("high", "At most (90 %)", "number", "by row"),
        Column("origins", "Earlier forecasts"),
        Column("error", "Their error", "share"),
        Column("refusal", "Why not more", "text"),
    )
    rows = []
    for measure, found in findings.forecasts.items():
        row: dict[str, Any] = {"measure": MEASURE_NAMES[measure], "refusal": found.refusal}
        row["unit"] = {"bytes": "bytes", "requests": "requests", "handler_us": "µs"}[measure]
        if found.trend:
            row |= {"days": found.trend.days, "growth_per_week": found.trend.growth_per_week}
        if found.month:
            month = found.month
            row |= {"month": month.month, "expected": month.expected, "low": month.low, "high": month.high}
            row |= {"origins": month.origins, "error": month.error}
        rows.append(row)
    return Table("forecast", "Trend and next month", columns, rows)


def _missing(findings: Findings) -> Table:
    columns = (
        Column("instance", "Instance", "text"),
        Column("epoch", "Its process began", "moment"),
        Column("first", "First record"),
        Column("last", "Last record"),
        Column("records", "Records"),
        Column("why", "Why", "text"),
    )
    rows = [
        {
            "instance": one.instance,
            "epoch": one.epoch,
            "first": one.first,
            "last": one.last,
            "records": one.records,
            "why": "dropped by the proxy" if one.dropped else "not known",
        }
        for one in findings.missing
    ]
    return Table("missing", "Missing records", columns, rows)


def _killed(findings: Findings) -> Table:
    columns = (
        Column("instance", "Instance", "text"),
        Column("epoch", "Its process began", "moment"),
        Column("before_ms", "Killed before", "moment"),
        Column("flush_ms", "Use without records, at most", "ms"),
    )
    rows = [
        {
            "instance": one.instance,
            "epoch": one.epoch,
            "before_ms": one.before_ms,
            "flush_ms": one.flush_ms or None,
        }
        for one in findings.killed
    ]
    return Table("killed", "Killed processes", columns, rows)
