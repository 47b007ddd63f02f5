"""The seconds of the past that people name."""

import pytest

from kafka_throttle.proxy.observe.past.moments import BadMoment, Held, NotHeld, second_of, second_text

DAY = 86_400
NOON = 1_764_072_000
"""2025-11-25T12:00:00Z"""
NOW = NOON + 0.5


HELD = Held(NOON - DAY, NOON - 1)


def named(text, held=HELD):
    return second_text(second_of(text, NOW, held))


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("03:12:07", "2025-11-25T03:12:07Z"),
        ("03:12", "2025-11-25T03:12:00Z"),
        ("03:12:07.999", "2025-11-25T03:12:07Z"),
        ("11:59:59", "2025-11-25T11:59:59Z"),
        ("12:00:01", "2025-11-24T12:00:01Z"),
        ("23:00:00", "2025-11-24T23:00:00Z"),
        ("03:12:07Z", "2025-11-25T03:12:07Z"),
        ("03:12:07+02:00", "2025-11-25T01:12:07Z"),
        ("01:30:00+14:00", "2025-11-25T11:30:00Z"),
        ("2025-11-25T03:12:07Z", "2025-11-25T03:12:07Z"),
        ("2025-11-25 03:12:07", "2025-11-25T03:12:07Z"),
        ("2025-11-25T05:12:07+02:00", "2025-11-25T03:12:07Z"),
        ("-15m", "2025-11-25T11:45:00Z"),
        ("-90s", "2025-11-25T11:58:30Z"),
        ("-2h", "2025-11-25T10:00:00Z"),
        ("-1d", "2025-11-24T12:00:00Z"),
    ],
)
def test_a_second_is_named_in_utc_or_with_an_offset_or_by_its_distance(text, second):
    assert named(text) == second


@pytest.mark.parametrize(
    "text", ["", "yesterday", "3:12:07", "2025-11-25", "25:00:00", "2025-02-30T00:00:00Z", "-15", "-m", "15m", "٠٣:١٢"]
)
def test_other_texts_are_refused_with_an_example(text):
    with pytest.raises(BadMoment, match=r"^at: expected a time like 03:12:07, 2026-11-25T03:12:07Z or -15m \(UTC"):
        named(text)


def test_a_time_of_day_that_is_held_twice_is_ambiguous():
    held = Held(NOON - 2 * DAY, NOON - 1)
    with pytest.raises(
        BadMoment, match=r"^at: 03:12:07 is ambiguous, expected 2025-11-25T03:12:07Z or 2025-11-24T03:12:07Z$"
    ):
        named("03:12:07", held)
    assert named("2025-11-24T03:12:07Z", held) == "2025-11-24T03:12:07Z"
    stopped = Held(NOON - 2 * DAY, NOON - DAY)
    assert named("03:12:07", stopped) == "2025-11-24T03:12:07Z", "the only one that is held"


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("2025-11-25T12:00:00Z", BadMoment, "2025-11-25T12:00:00Z is not over yet"),
        ("-0s", BadMoment, "2025-11-25T12:00:00Z is not over yet"),
        ("2025-11-25T12:00:01Z", BadMoment, "2025-11-25T12:00:01Z is in the future"),
        ("9999-01-01T00:00:00Z", BadMoment, "9999-01-01T00:00:00Z is in the future"),
        ("-2d", NotHeld, "the history has nothing of 2025-11-23T12:00:00Z"),
        ("-999999999d", NotHeld, "the history has nothing of -8639"),
    ],
)
def test_what_is_not_in_the_range_is_refused_with_the_range(text, error, reason):
    with pytest.raises(error) as refused:
        named(text)
    assert reason in str(refused.value)
    assert " has 2025-11-24T12:00:00Z to 2025-11-25T11:59:59Z" in str(refused.value)


def test_without_records_nothing_is_held():
    with pytest.raises(NotHeld, match="the history is still empty"):
        named("-1m", None)
