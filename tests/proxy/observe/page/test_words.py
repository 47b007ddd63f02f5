import pytest

from kafka_throttle.proxy.observe.page import words
from kafka_throttle.quotas.entities import DEFAULT, Entity
from kafka_throttle.quotas.limits import UNLIMITED


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1.00 kB"), (12_345, "12.3 kB"), (999_600, "1.00 MB"), (250e6, "250 MB")],
)
def test_sizes_have_three_digits(value, text):
    assert words.size(value) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999.4, "999 ms"),
        (1_234, "1.2 s"),
        (60_000, "1 min"),
        (61_000, "1 min 1 s"),
        (3_725_000, "1 h 2 min"),
        (200_000_000, "2 d 7 h"),
        (float("inf"), "for ever"),
    ],
)
def test_durations_have_their_two_largest_units(ms, text):
    assert words.duration(ms) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "bytes/s", "no limit"),
        (UNLIMITED, "bytes/s", "no limit"),
        (1_500_000, "bytes/s", "1.50 MB/s"),
        (12.5, "percent of a thread", "12.5 % of a thread"),
        (3, "partitions/s", "3 partitions/s"),
        (0.25, None, "0.25"),
    ],
)
def test_amounts_have_the_unit_of_the_quota(value, unit, text):
    assert words.amount(value, unit) == text


@pytest.mark.parametrize(("share", "text"), [(0, "0 %"), (0.0001, "<0.1 %"), (0.05, "5.0 %"), (1.5, "150 %")])
def test_a_small_share_is_not_shown_as_nothing(share, text):
    assert words.percent(share) == text


def test_entities_are_printed_as_quotas_are():
    assert words.entity(Entity("alice", DEFAULT)) == "user=alice, client-id=<default>"
    assert words.entity({"user": "alice", "client-id": None}) == "user=alice, client-id=<default>"


def test_times_are_those_of_utc():
    assert words.clock_time(1_700_000_000_123) == "22:13:20 UTC"
    assert words.time_of_day("2023-11-14T22:13:20.123Z") == "22:13:20 UTC"


def test_a_key_is_one_line():
    assert "\n" not in words.key(("a\nb", None, 2))
