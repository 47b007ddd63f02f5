"""The positions of a chart's marks, as shares of its width and height. The template draws them in the page's colours.

Charts are stretched to the width of the window, so text is beside them and never in them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from kafka_throttle.pipeline.report import words
from kafka_throttle.pipeline.report.findings import Findings, Row
from kafka_throttle.pipeline.spark.day import DAY_MS

WIDTH, HEIGHT = 1_000, 100


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis, `at` percent of the axis from its zero."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle, in WIDTH and HEIGHT from the upper left; `text` is shown when the pointer is over it."""

    x: float
    y: float
    width: float
    height: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class Course:
    """The timeline: bytes sent over time, with bytes received above them; below, how many clients were throttled."""

    sent: str
    got: str
    throttled: tuple[Bar, ...]
    hover: tuple[Bar, ...]
    rows: tuple[Tick, ...]
    times: tuple[Tick, ...]
    most_throttled: str


def nice_top(value: float, steps: int = 4) -> float:
    """The end of an axis that starts at 0 and reaches `value` in `steps` round steps."""
    if value <= 0:
        return float(steps)
    raw = value / steps
    scale: float = 10.0 ** math.floor(math.log10(raw))
    return steps * next(scale * nice for nice in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if scale * nice >= raw * 0.999)


def _rows(top: float, text: Callable[[float], str], steps: int = 4) -> tuple[Tick, ...]:
    return tuple(Tick(100 * i / steps, text(top * i / steps)) for i in range(steps + 1))


def _points(values: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.2f}" for x, y in values)


def course(findings: Findings) -> Course | None:
    """The chart of the timeline; a step without records is 0. None if there are fewer than two steps."""
    steps = _steps(findings)
    if len(steps) < 2:
        return None
    width = WIDTH / len(steps)
    tops = [row.get("in_bytes", 0) + row.get("out_bytes", 0) for _, row in steps]
    sent = [row.get("in_bytes", 0) for _, row in steps]
    throttled = [row.get("muted_ms", 0) / findings.width_ms for _, row in steps]
    seconds = findings.width_ms / 1_000
    top = nice_top(max(tops) / seconds) * seconds
    most = max(throttled) or 1
    return Course(
        _area(sent, [0] * len(sent), top),
        _area(tops, sent, top),
        tuple(
            Bar(i * width, HEIGHT * (1 - value / most), max(width - 0.6, 0.6), HEIGHT * value / most)
            for i, value in enumerate(throttled)
            if value
        ),
        tuple(Bar(i * width, 0, width, HEIGHT, _reported(at, row, seconds)) for i, (at, row) in enumerate(steps)),
        _rows(top / seconds, lambda value: f"{words.size(value)}/s"),
        _times(steps[0][0], steps[-1][0] + findings.width_ms),
        words.ratio(max(throttled)),
    )


def _steps(findings: Findings) -> list[tuple[int, Row]]:
    known: Mapping[int, Row] = {row["at_ms"]: row for row in findings.timeline}
    if not known:
        return []
    return [(at, known.get(at, {})) for at in range(min(known), max(known) + 1, findings.width_ms)]


def _reported(at_ms: int, row: Row, seconds: float) -> str:
    if not row:
        return f"{words.moment(at_ms)}: no records"
    return (
        f"{words.moment(at_ms)}: sent {words.size(row['in_bytes'] / seconds)}/s, "
        f"got {words.size(row['out_bytes'] / seconds)}/s, "
        f"{words.ratio(row['muted_ms'] / 1_000 / seconds)} clients throttled at a time"
    )


def _area(values: Sequence[float], below: Sequence[float], top: float) -> str:
    """A polygon with edges like stairs, between the middles of the steps."""
    width = WIDTH / len(values)

    def edge(of: Sequence[float]) -> list[tuple[float, float]]:
        return [((i + 0.5) * width, HEIGHT * (1 - value / top)) for i, value in enumerate(of)]

    return _points([*edge(values), *reversed(edge(below))])


_STRIDES_MS = (
    60_000,
    2 * 60_000,
    5 * 60_000,
    10 * 60_000,
    15 * 60_000,
    30 * 60_000,
    3_600_000,
    2 * 3_600_000,
    3 * 3_600_000,
    6 * 3_600_000,
    12 * 3_600_000,
    DAY_MS,
    2 * DAY_MS,
    7 * DAY_MS,
    14 * DAY_MS,
    28 * DAY_MS,
    91 * DAY_MS,
    364 * DAY_MS,
)


def _times(begin_ms: int, end_ms: int) -> tuple[Tick, ...]:
    length = max(end_ms - begin_ms, 1)
    stride = next((stride for stride in _STRIDES_MS if length / stride <= 7), length)
    # Weeks begin on Mondays; 1 January 1970 was a Thursday.
    offset = 4 * DAY_MS if stride % (7 * DAY_MS) == 0 else 0
    first = -(-(begin_ms - offset) // stride) * stride + offset
    return tuple(
        Tick(100 * (at - begin_ms) / length, _time_text(at, stride))
        for at in range(first, end_ms, stride)
        if at - begin_ms <= 0.96 * length
    )


def _time_text(at_ms: int, stride: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1_000, UTC)
    if stride >= DAY_MS:
        return words.day(at.date())
    return words.day(at.date()) if at_ms % DAY_MS == 0 else f"{at:%H:%M}"


MOST_STRIP = 2.0


def strip_end(rows: Sequence[Row]) -> float:
    """The utilisation at the right end of all strips: at least 125 %, at most MOST_STRIP."""
    return min(max([1.25, *(float(row["most"]) * 1.05 for row in rows)]), MOST_STRIP)


_STRIP = Markup(
    '<span class="strip" role="img" aria-label="p50 {}, p95 {}, p99 {}, most {}">'
    '<i class="upto" style="width:{:.1f}%"></i><i class="p95" style="left:{:.1f}%;width:{:.1f}%"></i>'
    '<i class="p99" style="left:{:.1f}%;width:{:.1f}%"></i><i class="full" style="left:{:.1f}%"></i>'
    '<i class="most" style="left:calc({:.1f}% - 1px)"></i></span>'
)


def strip(row: Row, end: float) -> Markup:
    """Utilisation of one quota, from the numbers of its row."""
    shares = [row[name] for name in ("p50", "p95", "p99", "most")]
    p50, p95, p99, most = (100 * min(share / end, 1.0) for share in shares)
    places = (p50, p50, max(p95 - p50, 0), p95, max(p99 - p95, 0), 100 / end, most)
    return _STRIP.format(*map(words.share, shares), *places)
