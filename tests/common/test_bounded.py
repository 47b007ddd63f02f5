from kafka_throttle.common.bounded import Bounded


def test_what_was_set_the_longest_ago_makes_room():
    latest = Bounded(most=2)
    for key in "abac":
        latest[key] = key.upper()
    assert list(latest.items()) == [("a", "A"), ("c", "C")]


def test_what_is_only_looked_at_does_not_stay_longer():
    latest = Bounded(most=1)
    latest["a"] = 1
    assert latest["a"] == 1
    latest["b"] = 2
    assert "a" not in latest
