"""A storm of refusals is a few lines of the log."""

from kafka_throttle.proxy.gate.refusals import Refusals


def test_refusals_of_an_address_are_logged_when_they_begin_and_when_they_are_over():
    refusals = Refusals()
    assert refusals.note("main", "10.0.0.1", "ip_rate_exceeded", 0)
    assert not refusals.note("main", "10.0.0.1", "ip_rate_exceeded", 9_000)
    assert refusals.note("main", "10.0.0.1", "too_many_held", 18_000)
    assert refusals.note("main", "10.0.0.2", "ip_rate_exceeded", 18_001)
    assert list(refusals.over(27_999)) == []
    [episode] = refusals.over(28_000)
    assert (episode.origin, episode.began_ms, episode.last_ms) == ("10.0.0.1", 0, 18_000)
    assert episode.reasons == {"ip_rate_exceeded": 2, "too_many_held": 1}
    assert [episode.origin for episode in refusals.over(28_001)] == ["10.0.0.2"]
    assert refusals.note("main", "10.0.0.1", "ip_rate_exceeded", 28_002)


def test_very_many_addresses_are_no_more_lines_than_a_log_can_take():
    refusals = Refusals()
    begun = [refusals.note("main", str(i), "ip_rate_exceeded", i) for i in range(5_000)]
    assert begun == [True] * 1_001 + [False] * 3_999
    assert not refusals.note("main", "7", "ip_rate_exceeded", 5_000)
    ended = list(refusals.over(14_998))
    assert len(ended) == 999
    others, seventh = refusals.over(15_000)
    assert (others.origin, others.reasons) == ("others", {"ip_rate_exceeded": 4_000})
    assert (seventh.origin, seventh.reasons) == ("7", {"ip_rate_exceeded": 2})
    assert refusals.note("main", "4999", "ip_rate_exceeded", 15_001)


def test_each_mistake_of_an_address_is_logged_once_before_each_sum():
    faults = Refusals(60_000)
    assert faults.note("main", "10.0.0.1", "tls_expected", 0)
    assert not faults.note("main", "10.0.0.1", "tls_expected", 59_000)
    assert faults.note("main", "10.0.0.1", "tls_failed", 118_000)
    assert not faults.note("main", "10.0.0.1", "tls_expected", 118_000)
    assert list(faults.over(177_999)) == []
    [episode] = faults.over(178_000)
    assert episode.reasons == {"tls_expected": 3, "tls_failed": 1}
    assert faults.note("main", "10.0.0.1", "tls_expected", 178_001)


def test_some_of_what_need_be_no_mistake_are_logged_before_each_sum():
    ends = Refusals(60_000)
    for begin_ms in (0, 60_000):
        logged = [ends.note("main", "10.0.0.1", "client_closed", begin_ms + i, lines=10) for i in range(50)]
        assert logged == [True] * 10 + [False] * 40
        [episode] = ends.going_on(begin_ms + 60_000)
        assert episode.reasons == {"client_closed": 50}


def test_an_address_with_a_new_mistake_each_time_is_logged_a_few_times():
    faults = Refusals(60_000)
    assert [faults.note("main", "10.0.0.1", f"user {i}", i) for i in range(500)] == [True] * 16 + [False] * 484
    [episode] = faults.over(100_000)
    assert len(episode.reasons) == 17
    assert episode.reasons["others"] == 484


def test_refusals_that_go_on_are_summed_up_once_a_minute():
    faults = Refusals(60_000)
    for second in range(150):
        assert faults.note("main", "10.0.0.1", "tls_expected", 1000 * second) == (second in (0, 61, 121))
        assert not list(faults.over(1000 * second))
        for episode in faults.going_on(1000 * second):
            assert second in (60, 120)
            assert (episode.reasons.total(), episode.last_ms - episode.began_ms) == (
                (61, 60_000) if second == 60 else (60, 60_000)
            )
    [episode] = faults.over(209_000)
    assert episode.reasons == {"tls_expected": 29}


def test_one_refusal_is_not_summed_up_while_its_episode_goes_on():
    faults = Refusals(60_000)
    assert faults.note("main", "10.0.0.1", "tls_expected", 0)
    assert faults.note("main", "10.0.0.1", "tls_failed", 59_000)
    assert list(faults.going_on(118_000)) == []
    assert not faults.note("main", "10.0.0.1", "tls_failed", 118_000)
    [episode] = faults.going_on(118_001)
    assert episode.reasons == {"tls_expected": 1, "tls_failed": 2}
    assert list(faults.over(178_000)) == []
    assert faults.note("main", "10.0.0.1", "tls_failed", 178_001)
