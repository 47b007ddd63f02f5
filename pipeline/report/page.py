"""The page: one file that loads nothing else, and is safe whatever names clients give themselves."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from kafka_throttle.pipeline.report import charts, words
from kafka_throttle.pipeline.report.figures import CLIENT
from kafka_throttle.pipeline.report.findings import MOST_BARS, Findings, Row, largest
from kafka_throttle.pipeline.report.next_commands import anchor_of, next_commands
from kafka_throttle.pipeline.report.price_sheet import UNASSIGNED
from kafka_throttle.pipeline.report.summary import held, killed, named_default, summary
from kafka_throttle.pipeline.report.tables import Column, Table
from kafka_throttle.pipeline.report.views import (
    MEASURE_NAMES,
    TYPE_NAMES,
    limit_in_words,
    muted_share,
    named,
    utilisation_in_words,
)
from kafka_throttle.pipeline.spark.rule import kind_of

MOST_SILENCES = 20
MOST_UNBROKEN = 24
"""Longer names may be broken into several lines where there is little room."""
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Bar:
    """A client by one measure: its bar in percent of the full width."""

    who: Markup
    percent: float
    value: str


@dataclass(frozen=True, slots=True)
class Talkers:
    """The largest clients by one measure."""

    heading: str
    bars: tuple[Bar, ...]


def page_of(findings: Findings, tables: Sequence[Table], now_ms: int) -> str:
    """The report as HTML. `now_ms` is the time at which it was made, since 1970."""
    by_name = named(tables)
    script = (_HERE / "page.js").read_text()
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(cell=cell, words=words)
    return environment.get_template("page.html.j2").render(
        found=findings,
        tables=by_name,
        remarks=summary(findings),
        killed=killed(findings.killed) if findings.killed else "",
        now=words.moment(now_ms // 60_000 * 60_000),
        talkers=_talkers(findings),
        course=charts.course(findings),
        outlook=_outlook(findings),
        bills=_shares_of_the_bill(findings),
        figures=_figures(findings),
        held=held(findings),
        strips=_strips(findings),
        links=[_NEXT.format(anchor_of(kind_of(row.get("rule") or ""))) for row in by_name["throttled"].rows],
        next_commands=next_commands(findings, by_name["throttled"].rows),
        most_silences=MOST_SILENCES,
        most_bars=MOST_BARS,
        style=Markup((_HERE / "page.css").read_text()),
        script=Markup(script),
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
    )


def _figures(findings: Findings) -> list[tuple[str, str]]:
    totals = findings.totals
    if not totals:
        return []
    figures = [
        (words.size(totals["in_bytes"]), "sent by clients"),
        (words.size(totals["out_bytes"]), "got by clients"),
        (words.about(totals["requests"]), "requests"),
        (words.duration(totals["handler_us"] / 1_000), "handler time"),
        (f"{words.count(findings.throttled_clients)} of {words.count(findings.client_count)}", "clients throttled"),
    ]
    if findings.sheet is not None:
        figures.append((words.money(findings.owed, findings.sheet.currency), "charged"))
    return figures


def name_of(text: str) -> Markup:
    """A client's name as markup, so that neither its writing direction nor its characters affect the text around it."""
    if not text:
        return Markup('<span class="none">no name</span>')
    short = words.name(text)
    full = words.visible(text)
    if len(short) <= MOST_UNBROKEN:
        return Markup("<bdi>{}</bdi>").format(short)
    return Markup('<bdi class="long" title="{}">{}</bdi>').format(full[: words.MOST_TITLE], short)


def _client(row: Row) -> Markup:
    if row.get("ip"):
        return _ADDRESS.format(name_of(row["ip"]))
    if not row["user"]:
        return _LOGINS
    if row["client_id"]:
        return Markup("{} <span class=by>{}</span>").format(name_of(row["user"]), name_of(row["client_id"]))
    return name_of(row["user"])


_LOGINS = Markup('<span class="none">logins</span>')
_ADDRESS = Markup('<span><span class="by">address</span> {}</span>')
_NAMED = Markup('<span>{}<span class="by">{}</span></span>')
_UNASSIGNED = Markup('<span class="none">unassigned</span>')


def _talkers(findings: Findings) -> list[Talkers]:
    texts: Mapping[str, tuple[str, Callable[[float], str]]] = {
        "bytes": ("By bytes", words.size),
        "requests": ("By requests", words.about),
        "handler_us": ("By handler time", lambda us: words.duration(us / 1_000)),
    }
    found = []
    for measure, (heading, text) in texts.items():
        rows = largest(findings.clients, measure)
        bars = (Bar(_client(row), 100 * row[measure] / rows[0][measure], text(row[measure])) for row in rows)
        found.append(Talkers(heading, tuple(bars)))
    return [*found, Talkers(_BY_THROTTLED, tuple(_throttled_bars(findings)))]


_BY_THROTTLED = "Throttled, as a share of its time"


def _throttled_bars(findings: Findings) -> Iterator[Bar]:
    """The clients with most throttled time, each by the quota type of which it has most."""
    largest_of: dict[tuple[str, ...], Row] = {}
    for row in sorted(findings.throttled, key=lambda row: -row["throttled_ms"]):
        largest_of.setdefault(tuple(row[name] for name in CLIENT), row)
    for row in sorted(list(largest_of.values())[:MOST_BARS], key=lambda row: -(muted_share(row) or 0)):
        share = muted_share(row)
        value = words.duration(row["throttled_ms"]) if share is None else words.share(share)
        who = Markup("{} <span class=by>{}</span>").format(_client(row), _quota_name(row["quota_type"]))
        yield Bar(who, 100 * (share or 0), value)


_NEXT = Markup('<a href="#{}">other limits</a>')
_IN_WORDS = Markup("{}<small>{}</small>")


def _strips(findings: Findings) -> list[Markup]:
    end = charts.strip_end(findings.utilisation)
    return [
        _IN_WORDS.format(strip, utilisation_in_words(row, findings.window_ms)) if row["p99"] > 1 else strip
        for row, strip in ((row, charts.strip(row, end)) for row in findings.utilisation)
    ]


def _outlook(findings: Findings) -> list[tuple[str, str, str, str]]:
    """For each measure: its name, the forecast of the next month, its growth, and how good such forecasts were."""
    texts: Mapping[str, Callable[[float], str]] = {
        "bytes": words.size,
        "requests": words.about,
        "handler_us": lambda us: words.duration(us / 1_000),
    }
    reported = []
    for measure, found in findings.forecasts.items():
        text = texts[measure]
        growth = f"{100 * found.trend.growth_per_week:+.1f} % a week" if found.trend else ""
        if found.month:
            month = f"{text(found.month.expected)} ({text(found.month.low)} to {text(found.month.high)})"
            checked = found.month.checked()
        else:
            month, checked = f"no forecast: {found.refusal}", ""
        reported.append((MEASURE_NAMES[measure], month, growth, checked))
    return reported


def _shares_of_the_bill(findings: Findings) -> list[tuple[str, float, str, bool]]:
    """Each tenant's part of the sum owed: name, percent of all, amount, and whether it is UNASSIGNED."""
    if findings.sheet is None:
        return []
    sums: dict[str, Decimal] = {}
    for bill in findings.bills:
        sums[bill.tenant] = sums.get(bill.tenant, Decimal(0)) + bill.total
    owed, currency = findings.owed, findings.sheet.currency
    return [
        (name, float(100 * amount / owed) if owed else 0.0, words.money(amount, currency), name == UNASSIGNED)
        for name, amount in sorted(sums.items(), key=lambda one: (one[0] == UNASSIGNED, -one[1]))
    ]  # fmt: skip


def _quota_name(quota_type: str) -> str:
    return TYPE_NAMES.get(quota_type, quota_type)


def cell(column: Column, row: Row) -> Markup:
    """A value in a cell of a table."""
    value = row.get(column.name)
    if column.kind == "text":
        return _text(column, value, row)
    if value is None:
        return Markup('<span class="none">-</span>')
    if column.name.endswith("limit") or column.name == "rate":
        value = float(f"{value:.3g}") if column.name == "rate" else value
        return escape(limit_in_words(value, row.get("quota_type", "")))
    return escape(_NUMBERS[column.kind](value))


def _text(column: Column, value: Any, row: Row) -> Markup:
    if value is None:
        return Markup('<span class="none">all others</span>') if row.get("rest") else Markup("")
    if column.name == "quota_type":
        return escape(_quota_name(value))
    if value == "" and column.name not in _NAMES:
        return Markup("")
    if column.name == "tenant" and value == UNASSIGNED:
        return _UNASSIGNED
    if column.name == "rule" and ("windows_over" in row or "sharers" in row):
        named = named_default(row)
        return _NAMED.format(name_of(value), named) if named else name_of(value)
    user = row.get(_NAMES.get(column.name, ""))
    if user == "" and column.name.endswith("client_id"):
        return Markup("")
    if user == "":
        return _NO_USER if row.get("client_id") is None else _client({**row, "user": user})
    return name_of(value)


_NAMES = {"user": "user", "client_id": "user", "by_user": "by_user", "by_client_id": "by_user"}
"""The columns with names of clients, and where the user of the client is."""
_NO_USER = Markup('<span class="none">no user</span>')


def _exact(value: Decimal) -> str:
    return f"{value:,.3f}" if value == 0 or abs(value) >= Decimal("0.001") else "<0.001"


_NUMBERS: Mapping[str, Callable[[Any], str]] = {
    "bytes": words.size,
    "count": words.count,
    "ms": words.duration,
    "us": lambda us: words.duration(us / 1_000),
    "number": lambda value: f"{value:,.10g}",
    "share": words.share,
    "ratio": words.ratio,
    "day": words.day,
    "moment": words.moment,
    "exact": _exact,
    "money": lambda value: f"{value:,f}",
}
