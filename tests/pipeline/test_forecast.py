import re
from datetime import date, timedelta

import numpy as np
import pytest

from kafka_throttle.pipeline.report.forecast import forecast

FIRST = date(2026, 9, 7)


def days(values):
    return [(FIRST + timedelta(i), float(value)) for i, value in enumerate(values)]


def test_too_few_days_are_refused_and_told():
    assert forecast(days([1.0] * 13)).refusal == "a trend needs 14 whole days, the table has 13"
    found = forecast(days([100.0] * 20))
    assert found.trend is not None
    assert found.month is None
    assert found.refusal == "a forecast needs 28 whole days, four of each weekday; the table has 20"
    assert forecast(days([0.0] * 40)).refusal == "there was no use at all"


def test_what_is_always_the_same_stays_so():
    month = forecast(days([100.0] * 40)).month
    assert (month.month, month.expected, month.low, month.high) == ("2026-11", 3_000, 3_000, 3_000)


def test_growth_and_weekdays_go_on():
    weekly = [10, 10, 10, 10, 10, 4, 3]
    found = forecast(days([weekly[i % 7] * (100 + i) for i in range(56)]))
    ahead = [weekly[i % 7] * (100 + i) for i in range(56, 56 + 61)]
    begin = (date(2026, 12, 1) - FIRST).days - 56
    assert found.month.month == "2026-12"
    assert found.month.expected == pytest.approx(sum(ahead[begin : begin + 31]), rel=0.05)
    assert found.trend.growth_per_week == pytest.approx(0.055, abs=0.01)


def test_a_few_odd_days_do_not_bend_the_line():
    values = [1000.0 + 5 * i for i in range(49)]
    odd = list(values)
    odd[3], odd[20], odd[45] = 50_000.0, 0.0, 80_000.0
    assert forecast(days(odd)).trend.growth_per_week == pytest.approx(
        forecast(days(values)).trend.growth_per_week, rel=0.3
    )


WEEKLY = np.array([1, 1.1, 1.05, 1, 0.9, 0.5, 0.4])


def looked_back_at(values):
    found = forecast(days(values))
    return found.backtest, found.checked()


def test_of_steady_growth_the_forecast_is_better_than_a_repetition_of_the_last_week():
    test, text = looked_back_at(WEEKLY[np.arange(112) % 7] * (1000 + 10 * np.arange(112)))
    assert (test.origins, test.horizon_days) == (112 - 28 - 28 + 1, 28)
    assert test.of_sums < 0.02
    # A repeated week is 7 days of growth behind in its first week, 28 in the fourth: 17.5 on average.
    assert test.naive_of_sums == pytest.approx(10 * 17.5 / 1660, rel=0.03)
    assert test.of_days < test.naive_of_days
    assert test.is_better
    assert re.fullmatch(
        r"made on 57 earlier days, the forecast of the next 28 days was off by [\d.]+ % on average; "
        r"a repetition of the last week was off by 1\d %",
        text,
    )


def test_of_a_random_walk_the_report_says_that_the_forecast_is_no_better():
    walk = 1000 * np.exp(np.random.default_rng(3).normal(0, 0.1, 168).cumsum())
    test, text = looked_back_at(walk)
    assert test.of_sums > test.naive_of_sums
    assert not test.is_better
    assert text.endswith(", so the forecast is no better than that")


def test_of_what_never_changes_neither_forecast_is_ever_off():
    test, text = looked_back_at([100.0] * 42)
    assert (test.horizon_days, test.of_sums, test.of_days, test.naive_of_sums, test.naive_of_days) == (7, 0, 0, 0, 0)
    assert text.endswith("was off by 0 % on average; a repetition of the last week was off by 0 %, so the forecast is "
                         "no better than that")  # fmt: skip


def test_no_forecast_of_the_backtest_knows_the_days_that_it_is_compared_with():
    """Use grows by 1 a day, and by 10 from the 57th of 84 days on; no forecast is made later than on the 56th."""
    line = 100.0 + np.arange(84)
    beyond = 9.0 * np.maximum(np.arange(84) - 55, 0)
    test, _ = looked_back_at(line + beyond)
    ahead = [slice(origin, origin + 28) for origin in range(28, 57)]
    missed, used = sum(beyond[days].sum() for days in ahead), sum((line + beyond)[days].sum() for days in ahead)
    assert test.origins == len(ahead)
    assert test.of_sums == pytest.approx(missed / used)
    assert test.of_days == pytest.approx(missed / used)


@pytest.mark.parametrize(("count", "horizon"), [(41, None), (42, 7), (55, 7), (56, 14), (83, 14), (84, 28), (182, 28)])
def test_the_backtest_looks_ahead_as_far_as_days_are_known(count, horizon):
    test, text = looked_back_at(100 + WEEKLY[np.arange(count) % 7])
    assert (test and test.horizon_days) == horizon
    assert (text == "not compared with the past, for that needs 42 whole days with use") == (horizon is None)


def test_days_that_are_missing_are_compared_with_nothing():
    """Without Sundays, and without two weeks."""
    everything = days(WEEKLY[np.arange(100) % 7] * 1000)
    some = [(day, value) for i, (day, value) in enumerate(everything) if day.weekday() != 6 and not 50 <= i < 64]
    test = forecast(some).backtest
    assert (test.of_sums, test.of_days) == (pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-6))
    assert (test.naive_of_sums, test.naive_of_days) == (0, 0)


def test_without_a_forecast_nothing_is_said_of_its_errors():
    assert forecast(days([0.0] * 60)).checked() == forecast(days([5.0] * 20)).checked() == ""


@pytest.mark.nightly
def test_four_of_five_months_are_within_the_interval():
    chance = np.random.default_rng(5)
    weekly = np.array([1, 1.1, 1.05, 1, 0.9, 0.5, 0.4])
    within, tries = 0, 60
    for _ in range(tries):
        values = weekly[np.arange(120) % 7] * (1000 + 4 * np.arange(120)) * chance.lognormal(0, 0.15, 120)
        month = forecast(days(values[:54])).month
        begin = (date.fromisoformat(f"{month.month}-01") - FIRST).days
        within += month.low <= values[begin : begin + 30].sum() <= month.high
    # 0.8 of 60 is 48; a fair interval is below 36 or above 59 once in thousands of years of runs.
    assert 36 <= within <= 59, within
