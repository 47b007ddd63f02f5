"""The samples of the last hour: rates between two of them, and never more than an hour."""

import pytest

from kafka_throttle.proxy.observe.metrics import RelayTotals
from kafka_throttle.proxy.observe.page.history import EVERY_S, SAMPLES
from kafka_throttle.proxy.observe.page.sections import Page


def test_a_sample_has_rates_since_the_one_before(shown, clock):
    history = Page(shown.process()).history
    shown.totals = [
        RelayTotals(
            "main",
            "plain",
            2,
            requests={"Produce": 60},
            request_bytes=600,
            response_bytes=5,
            throttled_ms={"produce": 2500},
        ),
        RelayTotals("main", "plain", 3, requests={"Fetch": 5}),
    ]
    clock.advance(5_000)
    history.sample()
    [sample] = history.latest()
    assert sample.at_s == pytest.approx(clock.epoch_ms() / 1000, abs=0.1)
    assert (sample.requests_per_s, sample.in_bytes_per_s, sample.out_bytes_per_s) == (11, 100, 1)
    assert (sample.throttled_s_per_s, sample.connections, sample.loop_lag_s) == (0.5, 4, 0.004)


def test_throttled_clients_are_those_of_the_moment(shown, clock):
    history, cluster = Page(shown.process()).history, shown.clusters[0]
    episodes = [cluster.throttle("alice", name) for name in ("etl", "web")]
    clock.advance(5_000)
    history.sample()
    for episode in episodes:
        cluster.throttled.remove(episode, clock.now_ms())
    clock.advance(5_000)
    history.sample()
    assert [sample.throttled_clients for sample in history.latest()] == [2, 0]


def test_the_ring_has_an_hour_and_no_more(shown, clock):
    history = Page(shown.process()).history
    for _ in range(SAMPLES + 10):
        clock.advance(1000 * EVERY_S)
        history.sample()
    samples = history.latest()
    assert len(samples) == SAMPLES
    assert samples[-1].at_s - samples[0].at_s == pytest.approx(3600 - EVERY_S)
    assert history.latest(3) == samples[-3:]


def test_without_time_between_them_there_is_no_second_sample(shown, clock):
    history = Page(shown.process()).history
    history.sample()
    assert history.latest() == []
