"""The output of the demo: steps with their time, a live table of the clients, the summary."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo.clients import LIBRARIES
from demo.load import ClientReports, Load, Seen

MB = 1_000_000
WINDOW_S = 11
"""Kafka measures a rate over eleven samples of a second."""

_BARS = " ▁▂▃▄▅▆▇█"
_LIVE_S = 0.5
_PLAIN_S = 4.0
_PLAIN_WIDTH = 100
_WIDE = 100


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the load: its title, its length (`inf`: until it is interrupted), and quotas by client."""

    title: str
    duration_s: float
    quotas: Mapping[str, float]


class Screen:
    """Writes to the terminal, or plain lines if there is none; with `json_output` everything goes to standard error."""

    def __init__(self, json_output: bool) -> None:
        self.console = Console(stderr=json_output, highlight=False)
        if not self.console.is_terminal:
            self.console.width = _PLAIN_WIDTH
        self._live = self.console.is_terminal and not json_output

    def say(self, line: RenderableType = "") -> None:
        """Print a line, or anything else that rich can print."""
        self.console.print(line)

    def say_whole(self, line: RenderableType) -> None:
        """Print a line that is not broken, whatever the width."""
        self.console.print(line, soft_wrap=True)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Print what is being done and, when it is done, how long it took."""
        began = time.monotonic()
        if self._live:
            with self.console.status(what):
                yield
        else:
            self.console.print(f"  {what} ...")
            yield
        self.console.print(Text.assemble(("  ok ", "green"), f"{what} ({time.monotonic() - began:.1f} s)"))

    def watch(self, load: Load, phase: Phase, news: Callable[[], Iterable[str]] = tuple) -> None:
        """Show the clients at work until the phase is over, and each time what `news` returns."""
        if self._live:
            with Live(console=self.console, auto_refresh=False, transient=True) as live:
                for _ in _ticks(load, phase, _LIVE_S):
                    self._tell(news)
                    live.update(live_view(load, phase, self.console.width), refresh=True)
        else:
            for _ in _ticks(load, phase, _PLAIN_S):
                self._tell(news)
                self.say_whole(plain_line(load, phase))

    def _tell(self, news: Callable[[], Iterable[str]]) -> None:
        for line in news():
            self.say_whole(Text(f"  {line}", style="bold"))


def _ticks(load: Load, phase: Phase, every_s: float) -> Iterator[None]:
    """One item for each moment at which the display changes, the last when the phase is over."""
    due_s = min(every_s, phase.duration_s)
    while True:
        while (ahead_s := due_s - load.elapsed_s) > 0:
            time.sleep(min(ahead_s, 0.25))
            load.read()
        yield
        if due_s >= phase.duration_s:
            return
        due_s = min(due_s + every_s, phase.duration_s)


def _recent(load: Load, reports: ClientReports, span_s: float) -> Seen:
    now_s = time.monotonic()
    return reports.seen(max(now_s - span_s, load.began_s), now_s)


def live_view(load: Load, phase: Phase, width: int) -> RenderableType:
    """The clients of a running phase."""
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1))
    table.add_column("client", no_wrap=True)
    for head in ("now\nMB/s", f"mean {WINDOW_S} s\nMB/s", "quota\nMB/s", "throttle\ntime ms", "p50\nms", "p99\nms"):
        table.add_column(head, justify="right", no_wrap=True)
    bars = width >= _WIDE
    if bars:
        table.add_column("MB each second", no_wrap=True)
    for name, reports in load.clients.items():
        now, mean = _recent(load, reports, 1), _recent(load, reports, WINDOW_S)
        quota = phase.quotas.get(name)
        over = quota is not None and mean.bytes_per_second > 1.15 * quota
        row: list[RenderableType] = [
            Text(name, style="green" if name.startswith("good") else "magenta"),
            _mb(now.bytes_per_second),
            Text(_mb(mean.bytes_per_second), style="yellow" if over else "bold"),
            _mb(quota),
            Text(str(mean.max_throttle_ms or "-"), style="red" if mean.max_throttle_ms else ""),
            _ms(mean.p50_ms),
            _ms(mean.p99_ms),
        ]
        table.add_row(*row, *([_bars(load, reports, width - 72)] if bars else []))
    progress = _progress(min(load.elapsed_s, phase.duration_s), phase.duration_s, min(width - 14, 60))
    note = f"latencies and the longest throttle time that a client got: last {WINDOW_S} s"
    return Group(Text(phase.title, style="bold"), progress, table, Text(note, style="dim"))


def _progress(elapsed_s: float, duration_s: float, width: int) -> RenderableType:
    if duration_s == inf:
        return f"{elapsed_s:.0f} s"
    progress = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=duration_s, completed=elapsed_s, width=width)
    progress.add_row(bar, f"{elapsed_s:.0f} of {duration_s:.0f} s")
    return progress


def plain_line(load: Load, phase: Phase) -> str:
    """The clients of a running phase in one line, over the last seconds."""
    parts = []
    for name, reports in load.clients.items():
        seen = _recent(load, reports, _PLAIN_S)
        quota = f" of {_mb(phase.quotas[name])}" if name in phase.quotas else ""
        reported = f", throttle {seen.max_throttle_ms} ms" if seen.throttles else ""
        late = f", p99 {_ms(seen.p99_ms)} ms" if name.startswith("good") else ""
        parts.append(f"{name} {_mb(seen.bytes_per_second)}{quota} MB/s{late}{reported}")
    return f"  {load.elapsed_s:3.0f} s  " + " | ".join(parts)


def _bars(load: Load, reports: ClientReports, width: int) -> str:
    """The bytes of each of the last seconds as bars, the newest at the right."""
    seconds = min(int(load.elapsed_s), max(width, 1))
    now_s = time.monotonic()
    rates = [reports.seen(now_s - ago - 1, now_s - ago).bytes_per_second for ago in reversed(range(seconds))]
    top = max(rates, default=0.0)
    return "".join(_BARS[-int(-rate / top * (len(_BARS) - 1) // 1)] if top else _BARS[0] for rate in rates)


def summary_table(
    direct: Mapping[str, Seen], proxied: Mapping[str, Seen], quotas: Mapping[str, int], width: int
) -> Table:
    """Both phases side by side, in 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1 if width >= _WIDE else 0))
    table.add_column("client", no_wrap=True)
    heads = ("MB/s\ndirect", "MB/s\nproxy", "quota\nMB/s", "of\nquota", "throttle\navg/max s")
    for head in (*heads, "p50 ms\ndirect", "p50 ms\nproxy", "p99 ms\ndirect", "p99 ms\nproxy"):
        table.add_column(head, justify="right", no_wrap=True)
    for name, before in direct.items():
        after = proxied[name]
        table.add_row(
            Text(name, style="green" if name.startswith("good") else "magenta"),
            _mb(before.bytes_per_second),
            Text(_mb(after.bytes_per_second), style="bold"),
            _mb(quotas[name]),
            f"{after.bytes_per_second / quotas[name]:.0%}",
            f"{after.mean_throttle_ms / 1000:.1f}/{after.max_throttle_ms / 1000:.1f}" if after.throttles else "-",
            _ms(before.p50_ms),
            _ms(after.p50_ms),
            _ms(before.p99_ms),
            Text(_ms(after.p99_ms), style="bold"),
        )
    return table


def libraries() -> str:
    """The library of each client."""
    return ", ".join(f"{name} is {library}" for name, library in LIBRARIES.items())


def _mb(bytes_per_second: float | None) -> str:
    if bytes_per_second is None:
        return "-"
    return f"{bytes_per_second / MB:.0f}" if bytes_per_second >= 100 * MB else f"{bytes_per_second / MB:.2f}"


def _ms(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    return f"{milliseconds:.1f}" if milliseconds < 100 else f"{milliseconds:,.0f}"
