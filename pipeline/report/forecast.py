"""The trend of daily sums, and a forecast of the next calendar month, with an interval.

Method. Days are compared without the effect of weekdays: each is divided by its weekday's factor. The factor is the
median of that weekday divided by the median of all days, of days less their trend; it is 1 with less than 4 weeks. The
trend is the line through the median of all slopes between two days (Theil-Sen), on which a few odd days have no effect.
The next month is the line times the factors.

The interval of 80 % comes from 1,000 simulated histories. Each is line and factors plus the residuals, drawn again in
blocks of a week so that weeks stay together; each gets a line of its own, and residuals are added to its future, too.

The backtest makes the same forecast from each earlier day that has 28 whole days before it, and compares it with what
came in the next weeks. Beside it stands the seasonal-naive forecast, the plainest that knows of weekdays: each day to
come is as the last known day of its weekday.

There is no forecast where the data is not enough: fewer than 14 whole days for a trend; for the month fewer than 28, or
a month whose end is further away than twice the length of the data.
"""

import calendar
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
import numpy.typing as npt

from kafka_throttle.pipeline.report import words

TREND_DAYS = 14
MONTH_DAYS = 28
MOST_DAYS = 182
"""Older days are not used: quotas, teams and workloads change."""
INTERVAL = (0.1, 0.9)
HORIZONS = (28, 14, 7)
"""Days that the backtest looks ahead: the most for which there are twice as many days, after the first MONTH_DAYS."""
_HISTORIES = 1_000
_BLOCK = 7

_Days = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Trend:
    """The trend of daily sums. `growth_per_week` is a fraction of the level in the middle of the days."""

    days: int
    growth_per_week: float
    line: tuple[float, ...]
    """The line through the days, without weekdays."""


@dataclass(frozen=True, slots=True)
class Month:
    """The forecast of a calendar month if the trend goes on; four times out of five the sum is between `low` and
    `high`.
    """

    month: str
    expected: float
    low: float
    high: float
    daily: tuple[tuple[date, float, float, float], ...]
    """Each day of the forecast from the first one on: expected, low, high."""


@dataclass(frozen=True, slots=True)
class Backtest:
    """The errors of forecasts from `origins` earlier days, each of the next `horizon_days` days.

    An error is the mean absolute error as a fraction of the mean use: `of_sums` of the sum of these days, `of_days` of
    each day. `naive` is seasonal-naive.
    """

    origins: int
    horizon_days: int
    of_sums: float
    of_days: float
    naive_of_sums: float
    naive_of_days: float

    @property
    def is_better(self) -> bool:
        """Whether the forecast of the sum is nearer than the seasonal-naive one."""
        return self.of_sums < self.naive_of_sums


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast, or the reason why there is none or only a trend. `backtest` is of a forecast that there is; None if
    there are not enough days to look back.
    """

    trend: Trend | None
    month: Month | None
    refusal: str = ""
    backtest: Backtest | None = None

    def checked(self) -> str:
        """What the backtest says, in words; "" without a forecast."""
        if self.month is None:
            return ""
        if (test := self.backtest) is None:
            return f"not compared with the past, for that needs {MONTH_DAYS + 2 * HORIZONS[-1]} whole days with use"
        text = (
            f"made on {test.origins} earlier days, the forecast of the next {test.horizon_days} days was off by "
            f"{words.share(test.of_sums)} on average; a repetition of the last week was off by "
            f"{words.share(test.naive_of_sums)}"
        )
        return text if test.is_better else f"{text}, so the forecast is no better than that"


def forecast(days: Sequence[tuple[date, float]], seed: int = 7) -> Forecast:
    """The forecast from whole days and their sums, in order; a missing day does not count as a day without use."""
    days = list(days)[-MOST_DAYS:]
    if len(days) < TREND_DAYS:
        return Forecast(None, None, f"a trend needs {TREND_DAYS} whole days, the table has {len(days)}")
    at = np.array([(day - days[0][0]).days for day, _ in days], dtype=np.float64)
    values = np.array([value for _, value in days], dtype=np.float64)
    weekdays = np.array([day.weekday() for day, _ in days])
    model = _fit(at, values, weekdays)
    line = model.line(at)
    middle = float(np.median(line))
    trend = Trend(len(days), 7 * model.slope / middle if middle > 0 else 0.0, tuple(line.tolist()))
    if refusal := _too_thin(days):
        return Forecast(trend, None, refusal)
    return Forecast(trend, _month(days, at, values, weekdays, model, seed), "", _backtest(at, values, weekdays))


def _backtest(at: _Days, values: _Days, weekdays: npt.NDArray[np.int_]) -> Backtest | None:
    known = int(at[-1]) + 1
    horizon = next((horizon for horizon in HORIZONS if known >= MONTH_DAYS + 2 * horizon), None)
    if horizon is None:
        return None
    rows = []
    for origin in range(MONTH_DAYS, len(at)):
        if at[origin - 1] + horizon > at[-1]:
            break
        ahead = (at >= at[origin]) & (at <= at[origin - 1] + horizon)
        if ahead.any():
            expected = _fit(at[:origin], values[:origin], weekdays[:origin]).values(at[ahead], weekdays[ahead])
            naive = _seasonal_naive(values[:origin], weekdays[:origin], weekdays[ahead])
            actual = values[ahead]
            rows.append((float(actual.sum()), *_errors(expected, actual), *_errors(naive, actual)))
    used, sums, each, naive_sums, naive_each = np.sum(rows, axis=0).tolist() if rows else [0.0] * 5
    if not used:
        return None
    return Backtest(len(rows), horizon, sums / used, each / used, naive_sums / used, naive_each / used)


def _errors(expected: _Days, actual: _Days) -> tuple[float, float]:
    """The absolute error of the sum, and the sum of those of the days."""
    return abs(float(expected.sum() - actual.sum())), float(np.abs(expected - actual).sum())


def _seasonal_naive(values: _Days, weekdays: npt.NDArray[np.int_], ahead_weekdays: npt.NDArray[np.int_]) -> _Days:
    """Each day ahead as the last known day of its weekday; a weekday that is not known as the last day."""
    last = np.full(7, values[-1])
    last[weekdays] = values  # of equal indices the last one counts
    return last[ahead_weekdays]


def _too_thin(days: Sequence[tuple[date, float]]) -> str:
    if len(days) < MONTH_DAYS:
        return f"a forecast needs {MONTH_DAYS} whole days, four of each weekday; the table has {len(days)}"
    reach, known = (_next_month(days[-1][0])[1] - days[-1][0]).days, (days[-1][0] - days[0][0]).days + 1
    if reach > 2 * known:
        return f"the end of the next month is {reach} days away, and only {known} days are known"
    if not any(value > 0 for _, value in days):
        return "there was no use at all"
    return ""


@dataclass(frozen=True, slots=True)
class _Model:
    slope: float
    level: float
    factors: _Days

    def line(self, at: _Days) -> _Days:
        return np.maximum(self.level + self.slope * at, 0.0)

    def values(self, at: _Days, weekdays: npt.NDArray[np.int_]) -> _Days:
        return self.line(at) * self.factors[weekdays]


def _fit(at: _Days, values: _Days, weekdays: npt.NDArray[np.int_]) -> _Model:
    slope, level = _theil_sen(at, values)
    if len(values) < MONTH_DAYS:
        return _Model(slope, level, np.ones(7))
    flat = values - slope * (at - at.mean())
    middle = float(np.median(flat))
    factors = np.array([_factor(flat[weekdays == weekday], middle) for weekday in range(7)])
    slope, level = _theil_sen(at, values / factors[weekdays])
    return _Model(slope, level, factors)


def _factor(of_weekday: _Days, middle: float) -> float:
    if not len(of_weekday) or middle <= 0:
        return 1.0
    return max(float(np.median(of_weekday)) / middle, 0.01)


def _theil_sen(at: _Days, values: _Days) -> tuple[float, float]:
    first, second = np.triu_indices(len(at), 1)
    slope = float(np.median((values[second] - values[first]) / (at[second] - at[first])))
    return slope, float(np.median(values - slope * at))


def _month(
    days: Sequence[tuple[date, float]],
    at: _Days,
    values: _Days,
    weekdays: npt.NDArray[np.int_],
    model: _Model,
    seed: int,
) -> Month:
    begin, end = _next_month(days[-1][0])
    ahead = [days[-1][0] + timedelta(i + 1) for i in range((end - days[-1][0]).days)]
    ahead_at = np.array([(day - days[0][0]).days for day in ahead], dtype=np.float64)
    ahead_weekdays = np.array([day.weekday() for day in ahead])
    in_month = np.array([day >= begin for day in ahead])
    expected = model.values(ahead_at, ahead_weekdays)
    futures = _futures(at, values, weekdays, model, ahead_at, ahead_weekdays, np.random.default_rng(seed))
    low, high = np.quantile(futures, INTERVAL, axis=0)
    sums = futures[:, in_month].sum(axis=1)
    likely = float(expected[in_month].sum())
    sum_low, sum_high = (float(bound) for bound in np.quantile(sums, INTERVAL))
    daily = tuple(zip(ahead, expected.tolist(), low.tolist(), high.tolist(), strict=True))
    return Month(f"{begin:%Y-%m}", likely, min(sum_low, likely), max(sum_high, likely), daily)


def _futures(
    at: _Days,
    values: _Days,
    weekdays: npt.NDArray[np.int_],
    model: _Model,
    ahead_at: _Days,
    ahead_weekdays: npt.NDArray[np.int_],
    random: np.random.Generator,
) -> _Days:
    fitted = model.values(at, weekdays)
    # The line has taken two degrees of freedom, the factors six: the residuals are too small by that much.
    left = (values - fitted) * np.sqrt(len(values) / max(len(values) - 8, 1))
    left = left - left.mean()
    futures = np.empty((_HISTORIES, len(ahead_at)))
    for i in range(_HISTORIES):
        past = np.maximum(fitted + _blocks(left, len(at), random), 0.0)
        other = _fit(at, past, weekdays)
        futures[i] = np.maximum(other.values(ahead_at, ahead_weekdays) + _blocks(left, len(ahead_at), random), 0.0)
    return futures


def _blocks(left: _Days, length: int, random: np.random.Generator) -> _Days:
    """As many residuals as `length`, in blocks of a week that begin anywhere."""
    count = -(-length // _BLOCK)
    starts = random.integers(0, len(left), count)
    drawn: _Days = left[(starts[:, None] + np.arange(_BLOCK)).ravel() % len(left)][:length]
    return drawn


def _next_month(day: date) -> tuple[date, date]:
    """The first and the last day of the calendar month after that of `day`."""
    begin = (day.replace(day=1) + timedelta(32)).replace(day=1)
    return begin, begin.replace(day=calendar.monthrange(begin.year, begin.month)[1])
