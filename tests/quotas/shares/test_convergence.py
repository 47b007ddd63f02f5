"""Claims become max-min fair within a few publications, and then nothing more is published."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.quotas.shares.division import TOTAL
from tests.quotas.shares.traffic import KEY, TICK_MS, Traffic, greedy, moving, paced


def started(wanted, seed=1):
    """A fleet in which all members know each other, and clients that begin now."""
    traffic = Traffic(seed)
    clients = [traffic.join(lambda _: 0.0) for _ in wanted]
    traffic.run(8000)
    since_ms = traffic.passed_ms
    for client, rate in zip(clients, wanted, strict=True):
        client.wanted = lambda passed_ms, rate=rate: rate(passed_ms - since_ms)
    return traffic, clients


def shares(clients):
    return [client.instance.member.share_of(KEY) for client in clients]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_greedy_clients_have_equal_parts_after_5_s_and_then_nothing_is_published(count):
    traffic, clients = started([greedy()] * count)
    traffic.run(5000)
    published = len(traffic.published)
    assert shares(clients) == [pytest.approx(1 / count, rel=0.1)] * count
    traffic.run(60_000)
    assert len(traffic.published) == published
    assert traffic.highest <= 1 + 1e-9


def test_a_greedy_client_has_what_a_steady_noisy_one_leaves():
    traffic, (greedy_client, steady) = started([greedy(), paced(0.3, noise=0.2)])
    traffic.run(15_000)
    published = len(traffic.published)
    assert shares([greedy_client]) == [pytest.approx(TOTAL - 0.315, rel=0.1)]
    traffic.run(60_000)
    assert len(traffic.published) == published
    assert Traffic.sent(steady, traffic.passed_ms - 60_000, traffic.passed_ms) / 60 == pytest.approx(0.3, rel=0.03)


@pytest.mark.parametrize("seed", range(3))
def test_steady_noisy_clients_that_nearly_need_it_all_do_not_make_claims_oscillate(seed):
    wanted = [paced(0.5, 0.2, seed), paced(0.3, 0.2, seed + 10), paced(0.15, 0.2, seed + 20)]
    traffic, clients = started(wanted, seed)
    traffic.run(30_000)
    published = len(traffic.published)
    traffic.run(60_000)
    assert len(traffic.published) - published <= 12
    now_ms = traffic.passed_ms
    for client, rate in zip(clients, [0.5, 0.3, 0.15], strict=True):
        assert Traffic.sent(client, now_ms - 60_000, now_ms) / 60 == pytest.approx(rate, rel=0.1)


def test_a_greedy_client_that_joins_another_one_has_its_part_within_5_s():
    traffic, clients = started([greedy(), moving(20_000, 1, 2, greedy())])
    traffic.run(20_000)
    assert shares(clients)[0] > 0.95
    traffic.run(1500)
    assert shares(clients)[1] > 0.4
    traffic.run(3500)
    assert shares(clients) == [pytest.approx(0.5, rel=0.1)] * 2


def test_a_greedy_client_has_all_within_5_s_after_another_one_has_stopped():
    traffic, clients = started([greedy(), moving(20_000, 0, 2, greedy())])
    traffic.run(20_000)
    assert shares(clients) == [pytest.approx(0.5, rel=0.1)] * 2
    traffic.run(5000)
    assert shares(clients)[0] > 0.9


@pytest.mark.parametrize("seed", range(3))
def test_a_load_that_moves_every_20_s_gets_its_limit_and_no_bursts(seed):
    traffic, _ = started([moving(20_000, index, 2, greedy()) for index in range(2)], seed)
    traffic.run(20_000)
    begun_ms = traffic.passed_ms
    traffic.run(160_000)
    assert 0.88 <= traffic.total(begun_ms, traffic.passed_ms) / 160 <= 1.05
    for at_ms in range(begun_ms, traffic.passed_ms - 60_000, 20 * TICK_MS):
        assert traffic.total(at_ms, at_ms + 60_000) <= 62


def test_what_is_gained_is_what_was_lost():
    """But for what has become older than the window on its way."""
    traffic, clients = started([greedy(), moving(20_000, 1, 2, greedy())])
    traffic.run(25_000)
    (first, second) = (client.rows for client in clients)
    assert second.gained == pytest.approx(first.lost, rel=0.25)
    assert second.gained <= first.lost * 1.01
    assert first.lost == pytest.approx(5, abs=1)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_nothing_is_gained_that_was_not_lost(data):
    """However loads change: what is gained was lost by somebody before, within what a publication takes."""
    count = data.draw(st.integers(2, 4))
    rates = st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.6, 3.0]), min_size=8, max_size=8)
    steps = [data.draw(rates) for _ in range(count)]
    wanted = [lambda passed_ms, of_client=of_client: of_client[passed_ms // 7000 % 8] for of_client in steps]
    traffic, clients = started(wanted, data.draw(st.integers(0, 5)))
    for _ in range(12):
        traffic.run(5000)
        lost = sum(client.rows.lost for client in clients)
        assert sum(client.rows.gained for client in clients) <= 1.05 * lost + 0.1
    assert traffic.highest <= 1 + 1e-9
