"""A storm of refusals is a few lines of the log."""

from proxy.acceptor.refusals import Refusals


def test_an_address_that_is_refused_is_told_of_when_it_begins_and_when_it_is_over():
    refusals = Refusals()
    assert refusals.note("main", "10.0.0.1", "ip_rate_exceeded", 0)
    assert not refusals.note("main", "10.0.0.1", "ip_rate_exceeded", 9_000)
    assert not refusals.note("main", "10.0.0.1", "too_many_held", 18_000)
    assert refusals.note("main", "10.0.0.2", "ip_rate_exceeded", 18_001)
    assert list(refusals.over(27_999)) == []
    [episode] = refusals.over(28_000)
    assert (episode.origin, episode.began_ms, episode.last_ms) == ("10.0.0.1", 0, 18_000)
    assert episode.reasons == {"ip_rate_exceeded": 2, "too_many_held": 1}
    assert [episode.origin for episode in refusals.over(28_001)] == ["10.0.0.2"]
    assert refusals.note("main", "10.0.0.1", "ip_rate_exceeded", 28_002)


def test_of_very_many_addresses_those_with_the_oldest_refusal_end_early():
    refusals = Refusals()
    for i in range(1_500):
        assert refusals.note("main", str(i), "ip_rate_exceeded", i)
    assert [episode.origin for episode in refusals.over(1_500)] == [str(i) for i in range(500)]
    for i in range(10_000):
        refusals.note("main", str(i), "ip_rate_exceeded", 2_000)
    assert len(list(refusals.over(2_000))) == 1_000
    assert len(list(refusals.over(100_000))) == 1_000
