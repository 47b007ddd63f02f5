from datetime import date, timedelta

import numpy as np
import pytest

from kafka_throttle.pipeline.report.forecast import forecast

FIRST = date(2026, 9, 7)
WEEKLY = np.array([1, 1.1, 1.05, 1, 0.9, 0.5, 0.4])


def days(values):
    return [(FIRST + timedelta(i), float(value)) for i, value in enumerate(values)]


def next_month(known):
    """Of days from FIRST on, those of the month after the last of `known` days."""
    last = FIRST + timedelta(known - 1)
    begin = (last.replace(day=1) + timedelta(32)).replace(day=1)
    end = (begin + timedelta(32)).replace(day=1)
    return slice((begin - FIRST).days, (end - FIRST).days)


def test_with_too_few_days_there_is_a_reason_and_no_number():
    assert forecast(days([1.0] * 13)).refusal == "a trend needs 14 whole days, and this time has 13"
    assert forecast(days([1.0] * 13)).trend is None
    found = forecast(days([100.0] * 55))
    assert found.trend is not None
    assert found.month is None
    assert found.refusal == "a forecast needs 56 whole days, and this time has 55"
    assert forecast(days([0.0] * 60)).refusal == "there was no use at all"


def test_a_constant_series_stays_constant_and_the_interval_is_a_point():
    month = forecast(days([100.0] * 56)).month
    assert (month.month, month.expected, month.low, month.high) == ("2026-12", 3_100, 3_100, 3_100)
    assert month.checked() == "made on 36 earlier days, this forecast was off by 0 % on average"


def test_a_weekly_pattern_goes_on():
    found = forecast(days(1000 * WEEKLY[np.arange(60) % 7]))
    ahead = 1000 * WEEKLY[np.arange(120) % 7]
    assert found.trend.growth_per_week == 0
    assert found.month.expected == pytest.approx(ahead[next_month(60)].sum())


def test_linear_growth_goes_on_with_its_weekdays():
    values = WEEKLY[np.arange(120) % 7] * (1000 + 10 * np.arange(120))
    found = forecast(days(values[:56]))
    assert found.month.expected == pytest.approx(values[next_month(56)].sum(), rel=0.02)
    assert found.trend.growth_per_week == pytest.approx(70 / 1275, rel=0.05)


def test_one_outlier_day_changes_neither_the_trend_nor_the_month():
    values = WEEKLY[np.arange(56) % 7] * (1000 + 10 * np.arange(56))
    odd = values.copy()
    odd[40] = 80_000.0
    with_it, without = forecast(days(odd)), forecast(days(values))
    assert with_it.trend.growth_per_week == pytest.approx(without.trend.growth_per_week, rel=0.1)
    assert with_it.month.expected == pytest.approx(without.month.expected, rel=0.03)
    assert with_it.month.high > 2 * without.month.high, "the interval knows that such a day can come"


def test_days_that_are_missing_are_not_days_without_use():
    """Without Sundays, and without two weeks."""
    everything = days(WEEKLY[np.arange(100) % 7] * 1000)
    some = [(day, value) for i, (day, value) in enumerate(everything) if day.weekday() != 6 and not 50 <= i < 64]
    assert forecast(some).month.error == pytest.approx(0, abs=1e-9)


def test_no_earlier_forecast_knows_the_days_that_it_is_compared_with():
    """Use is ten times as high from the 50th of 56 days on: no forecast from the days before can be nearer."""
    month = forecast(days([100.0] * 49 + [1_000.0] * 7)).month
    assert month.origins == 56 - 14 - 7 + 1
    last = 9.0
    assert month.error == pytest.approx(
        np.mean([last * 7 / min(56 - origin, 54) for origin in range(14, 50)]), rel=0.01
    )


def test_use_that_ends_does_not_become_negative():
    month = forecast(days(np.maximum(4000.0 - 80 * np.arange(56), 0))).month
    assert 0 <= month.low <= month.expected <= month.high


@pytest.mark.parametrize("noise", [0.05, 0.15, 0.3])
def test_the_interval_has_what_came_in_nine_of_ten_histories(noise):
    chance = np.random.default_rng(5)
    within, tries = 0, 100
    for _ in range(tries):
        values = WEEKLY[np.arange(130) % 7] * (1000 + 4 * np.arange(130)) * chance.lognormal(0, noise, 130)
        known = int(chance.integers(56, 70))
        month = forecast(days(values[:known])).month
        within += month.low <= values[next_month(known)].sum() <= month.high
    assert within >= 0.9 * tries, within
