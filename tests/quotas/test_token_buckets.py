"""Buckets do Kafka's arithmetic; strict spending refuses in debt, permissive spending tells how long to wait."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.sensors.token_buckets import TokenBuckets, remaining_ms
from kafka_throttle.quotas.sensors.windowed_rate import MAX_THROTTLE_MS, SensorsFull, StaleSensor
from tests.quotas.windowed_rate import nearest

EPOCH_MS = 1_700_000_000_000

LIMITS = st.one_of(st.integers(1, 100).map(float), st.floats(1e-3, 1e6), st.sampled_from([0.1, UNLIMITED]))
VALUES = st.one_of(st.integers(0, 500).map(float), st.floats(0, 1e6))
STEPS = st.one_of(st.just(0), st.integers(0, 30), st.integers(0, 5000), st.just(10**7))
EVENTS = st.lists(
    st.tuples(st.sampled_from(["strict", "permissive", "give_back", "limit", "read"]), STEPS, VALUES, LIMITS),
    max_size=60,
)


class KafkaBucket:
    """As Kafka describes it: no tokens at the epoch, refilled at every look."""

    def __init__(self, limit: float, samples: int, window_s: float) -> None:
        self.limit, self.samples, self.window_s = limit, samples, window_s
        self.tokens, self.last_ms = 0.0, 0

    @property
    def burst(self) -> float:
        return self.samples * self.window_s * self.limit

    def look(self, now_ms: int) -> float:
        self.tokens = min(self.burst, self.tokens + self.limit * ((now_ms - self.last_ms) / 1000.0))
        self.last_ms = now_ms
        return self.tokens

    def record(self, value: float, now_ms: int) -> None:
        self.look(now_ms)
        self.tokens = min(self.burst, self.tokens - value)

    def delay_ms(self) -> int:
        return min(nearest(-self.tokens / self.limit * 1000), MAX_THROTTLE_MS)


@pytest.mark.rule("bucket")
@settings(max_examples=400, deadline=None)
@given(st.sampled_from([1, 2, 11]), st.sampled_from([10, 1000]), LIMITS, EVENTS)
def test_every_decision_and_every_token_equals_kafkas(samples, window_ms, limit, events):
    buckets = TokenBuckets(4, samples, window_ms, MAX_THROTTLE_MS)
    now, model = EPOCH_MS, KafkaBucket(limit, samples, window_ms / 1000.0)
    handle = buckets.open(limit, now)
    for kind, step, value, new_limit in events:
        now += step
        if kind == "strict":
            refused_ms = None if model.look(now) >= 0 else model.delay_ms()
            if refused_ms is None:
                model.record(value, now)
            assert buckets.spend_strictly(handle, value, now) == refused_ms
        elif kind == "permissive":
            model.record(value, now)
            reported_ms = model.delay_ms() if model.look(now) < 0 else None
            assert buckets.spend_permissively(handle, value, now) == reported_ms
        elif kind == "give_back":
            model.record(-value, now)
            buckets.give_back(handle, value, now)
        elif kind == "limit":
            model.limit = new_limit
            buckets.set_limit(handle, new_limit, now)
        else:
            buckets.reading(handle, now)
            buckets.throttle_ms(handle, now)
        if kind in ("strict", "permissive", "give_back"):
            assert buckets.tokens(handle, now) == model.tokens
            assert buckets.throttle_ms(handle, now) == (model.delay_ms() if model.tokens < 0 else 0)


def kafka_like(limit=5.0, **caps):
    buckets = TokenBuckets(2, **caps)
    return buckets, buckets.open(limit, 7)


@pytest.mark.rule("burst")
def test_a_fresh_bucket_holds_n_windows_of_its_limit_at_its_first_use():
    buckets, handle = kafka_like()
    assert (buckets.tokens(handle, 7), buckets.burst(5.0)) == (55, 55)
    buckets.set_limit(handle, 10.0, 7)
    assert buckets.tokens(handle, 7) == 110


@pytest.mark.rule("bucket")
def test_what_overdraws_the_bucket_is_accepted_and_the_next_one_is_not():
    buckets, handle = kafka_like()
    assert [buckets.spend_strictly(handle, value, 7) for value in (115, 1, 1)] == [None, 12_000, 12_000]
    assert buckets.spend_strictly(handle, 1, 12_006) == 1
    assert buckets.spend_strictly(handle, 1, 12_007) is None


def test_no_tokens_are_enough():
    buckets, handle = kafka_like()
    assert [buckets.spend_strictly(handle, value, 7) for value in (55, 1000)] == [None, None]


def test_older_versions_are_charged_and_get_a_throttle_time():
    buckets, handle = kafka_like()
    assert [buckets.spend_permissively(handle, value, 7) for value in (55, 5, 5)] == [None, 1000, 2000]


def test_what_is_given_back_is_there_again_but_never_more_than_the_bucket_holds():
    buckets, handle = kafka_like()
    buckets.spend_strictly(handle, 60, 7)
    buckets.give_back(handle, 20, 7)
    assert buckets.tokens(handle, 7) == 15
    buckets.give_back(handle, 1000, 7)
    assert buckets.tokens(handle, 7) == 55


def test_a_debt_survives_its_quota_if_no_client_spends_meanwhile():
    buckets, handle = kafka_like()
    buckets.spend_strictly(handle, 65, 7)
    buckets.set_limit(handle, UNLIMITED, 7)
    buckets.set_limit(handle, 5.0, 7)
    assert buckets.spend_strictly(handle, 1, 8) == 1999
    buckets.set_limit(handle, UNLIMITED, 8)
    assert buckets.spend_strictly(handle, 1, 9) is None
    buckets.set_limit(handle, 5.0, 9)
    assert buckets.tokens(handle, 9) == 55


def test_a_refusal_without_a_time_to_wait_is_a_refusal():
    buckets, handle = kafka_like()
    buckets.spend_strictly(handle, 65, 7)
    buckets.set_limit(handle, UNLIMITED, 7)
    assert buckets.spend_strictly(handle, 1, 7) == 0


def test_a_cap_shortens_the_throttle_time_and_the_debt_stays():
    buckets, handle = kafka_like(max_throttle_ms=1500)
    assert [buckets.spend_permissively(handle, value, 7) for value in (60, 50)] == [1000, 1500]
    assert (buckets.spend_strictly(handle, 1, 1507), buckets.throttle_ms(handle, 1507)) == (1500, 1500)
    reading = buckets.reading(handle, 1507)
    assert (reading.tokens, reading.capped, buckets.capped) == (-47.5, 2, 2)


def test_a_delay_beyond_int32_is_cut():
    buckets, handle = kafka_like(max_throttle_ms=MAX_THROTTLE_MS)
    assert buckets.spend_permissively(handle, 1e12, 7) == MAX_THROTTLE_MS


def test_a_reading_counts_spending_refusals_and_throttles():
    buckets, handle = kafka_like()
    buckets.spend_strictly(handle, 60, 10)
    buckets.spend_strictly(handle, 60, 510)
    buckets.spend_permissively(handle, 10, 510)
    buckets.give_back(handle, 4, 600)
    reading = buckets.reading(handle, 1100)
    assert (reading.charges, reading.refusals, reading.throttles, reading.throttled_ms) == (2, 1, 2, 3000)
    assert (reading.total, reading.limit, reading.burst, reading.used_ms) == (66, 5, 55, 600)
    assert math.isclose(reading.tokens, -5.55)


def test_a_refusal_is_no_use_of_the_row():
    buckets, handle = kafka_like()
    buckets.spend_strictly(handle, 60, 10)
    buckets.spend_strictly(handle, 60, 100)
    assert buckets.idle_since_ms(handle) == 10


def test_a_closed_row_is_stale_for_its_old_handle_and_full_for_its_next():
    buckets = TokenBuckets(1)
    first = buckets.open(5.0, 0)
    buckets.spend_strictly(first, 1000, 0)
    with pytest.raises(SensorsFull):
        buckets.open(1.0, 0)
    buckets.close(first)
    second = buckets.open(5.0, 0)
    for use in (buckets.close, buckets.limit, buckets.idle_since_ms, lambda handle: buckets.tokens(handle, 0)):
        with pytest.raises(StaleSensor):
            use(first)
    assert (buckets.used, buckets.tokens(second, 0), buckets.reading(second, 0).charges) == (1, 55, 0)


@pytest.mark.parametrize(
    ("limit", "spent", "value", "most"),
    [
        (5.0, 0, 355, 355),
        (5.0, 0, 356, 355),
        (5.0, 0, 2_000_000_000, 355),
        (5.0, 55, 2_000_000_000, 300),
        (5.0, 100, 2_000_000_000, 255),
        (5.0, 1000, 1, 0),
        (0.001, 0, 3, 1),
        (0.001, 1, 3, 0),
        (UNLIMITED, 0, 1e15, 1e15),
    ],
)
def test_unconfirmed_spending_overdraws_by_no_more_than_the_longest_debt(limit, spent, value, most):
    buckets = TokenBuckets(1)
    handle = buckets.open(limit, 0)
    buckets.spend_permissively(handle, spent, 0)
    before = buckets.reading(handle, 0)
    unconfirmed = buckets.unconfirmed(handle, value, 0)
    assert (unconfirmed, type(unconfirmed)) == (most, float)
    assert buckets.reading(handle, 0) == before


def test_a_cap_longer_than_the_longest_debt_counts_instead():
    buckets = TokenBuckets(1, max_throttle_ms=MAX_THROTTLE_MS)
    assert buckets.unconfirmed(buckets.open(5.0, 0), 1_000_000, 0) == 1_000_000


@pytest.mark.parametrize("cap", [0, MAX_THROTTLE_MS + 1])
def test_a_cap_that_no_response_can_carry_is_refused(cap):
    with pytest.raises(ValueError, match="expected a cap"):
        TokenBuckets(1, max_throttle_ms=cap)


def test_the_throttle_time_of_a_request_shrinks_while_it_waits_for_its_response():
    assert [remaining_ms(1000, 50, now) for now in (50, 300, 1050, 9999)] == [1000, 750, 0, 0]
