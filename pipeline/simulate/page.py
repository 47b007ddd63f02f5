"""The response of a simulation as tables for people."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

SHOWN = 20

CSV_COLUMNS = [
    "virtual_cluster",
    "node_id",
    "quota_type",
    "user",
    "client_id",
    "ip",
    "new_rule",
    "new_limit",
    "change",
    "live_used",
    "live_requests",
    "live_throttles",
    "live_throttled_ms",
    "throttles",
    "throttled_ms",
    "greedy_throttled_ms",
    "longest_ms",
    "muted_share",
    "paced_used",
    "greedy_used",
]

SAME = "same"
"""The tag of a quota or client for which nothing changes."""
_STYLES = {SAME: "dim", "hurt": "red", "worse": "red", "freed": "green", "eased": "green"}
_WIDTH = 160


def print_response(response: Mapping[str, Any], to: IO[str]) -> None:
    """What these quotas would have done: sensors, then clients, those with most throttle time first."""
    console = Console(file=to, width=None if to.isatty() else _WIDTH, highlight=False)
    period = f"{_time(response['begin_ms'])} to {_time(response['end_ms'])}"
    console.print(f"{response['records']:,} usage records, {period}")
    clients = response["clients"]
    counts = {change: sum(row["change"] == change for row in clients) for change in ("hurt", "worse", "eased", "freed")}
    reported = ", ".join(f"{number:,} {change}" for change, number in counts.items())
    console.print(f"Clients at nodes, that were throttled or would be: {len(clients):,} ({reported})\n")
    if response["sensors"]:
        same = sum(map(changes_nothing, response["sensors"]))
        console.print(f"Quotas at nodes, that throttled or would: {len(response['sensors']):,} ({same:,} {SAME})\n")
        console.print(_sensors(response["sensors"]))
    if clients:
        console.print(_clients(clients))
        if any(row["shared_by"] > 1 for row in clients):
            console.print("A client that shares its sensor: with the share of it that was recorded.")
    else:
        console.print("Nobody was throttled, and nobody would have been.")


def _sensors(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(f"What is measured together{_of(rows)}")
    for name in ("", "node", "quota", "rule", "limit/s", "clients", "recorded", "would be", "of the time", "longest"):
        table.add_column(name, justify="left" if name in ("", "quota", "rule") else "right", overflow="fold")
    table.add_column("let through", justify="right")
    for row in rows[:SHOWN]:
        table.add_row(
            Text(SAME if changes_nothing(row) else "", style="dim"),
            str(row["node_id"]),
            row["quota_type"],
            Text(row["new_rule"]),
            _amount(row["new_limit"]),
            str(row["shared_by"]),
            _seconds(row["live_throttled_ms"]),
            _interval_s(row["throttled_ms"], row["greedy_throttled_ms"]),
            f"{row['muted_share']:.1%}",
            _seconds(row["longest_ms"]),
            _interval(row["paced_used"], row["greedy_used"]),
        )
    return table


def changes_nothing(row: Mapping[str, Any]) -> bool:
    """Whether a quota of the candidate throttles as was recorded: the recorded time is in its interval."""
    low, high = sorted((row["throttled_ms"], row["greedy_throttled_ms"]))
    return bool(low <= row["live_throttled_ms"] <= high)


def _clients(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(f"Who would feel it{_of(rows)}")
    for name in ("", "node", "quota", "user", "client-id", "ip", "recorded", "would be", "throttles", "let through"):
        table.add_column(name, justify="left" if name in ("", "quota", "user", "client-id") else "right")
    table.add_column("of recorded", justify="right")
    for row in rows[:SHOWN]:
        share = row["paced_used"] / row["live_used"] if row["live_used"] else 1.0
        table.add_row(
            Text(row["change"], style=_STYLES.get(row["change"], "")),
            str(row["node_id"]),
            row["quota_type"],
            Text(row["user"]),
            Text(row["client_id"]),
            Text(row["ip"]),
            _seconds(row["live_throttled_ms"]),
            _interval_s(row["throttled_ms"], row["greedy_throttled_ms"]),
            f"{row['throttles']:,}",
            _interval(row["paced_used"], row["greedy_used"]),
            f"{share:.0%}",
        )
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)


def _of(rows: Sequence[Any]) -> str:
    return f" ({SHOWN} of {len(rows):,})" if len(rows) > SHOWN else ""


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _seconds(ms: float) -> str:
    return f"{ms / 1000:,.1f} s"


def _interval_s(low_ms: float, high_ms: float) -> str:
    low_ms, high_ms = sorted((low_ms, high_ms))
    if _seconds(low_ms) == _seconds(high_ms):
        return _seconds(low_ms)
    return f"{low_ms / 1000:,.1f}..{_seconds(high_ms)}"


def _interval(low: float, high: float | None) -> str:
    if high is None:
        return f"{_amount(low)} or more"
    return _amount(low) if _amount(low) == _amount(high) else f"{_amount(low)}..{_amount(high)}"


def _amount(value: float) -> str:
    for step, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= step:
            return f"{value / step:.3g} {unit}"
    return f"{value:.3g}"
