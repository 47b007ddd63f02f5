from kafka_throttle.common.at_most_every import AtMostEvery


def test_it_is_due_at_first_and_again_an_interval_after_it_was_done():
    limiter = AtMostEvery(60)
    assert [now for now in (5, 6, 64, 65, 66, 124, 200) if limiter.is_due(now)] == [5, 65, 200]


def test_what_came_while_it_was_not_due_is_counted():
    limiter = AtMostEvery(60)
    assert [limiter.times(now) for now in (5, 6, 64, 65, 66, 200)] == [1, 0, 0, 3, 0, 2]
