from kafka_throttle.common.backoff import Backoff


def test_each_failure_is_waited_for_twice_as_long_up_to_the_longest_wait():
    backoff = Backoff(first_s=0.5, longest_s=3.0)
    assert [backoff.failed() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_after_a_success_waits_are_short_again():
    backoff = Backoff(first_s=0.5, longest_s=3.0)
    backoff.failed()
    backoff.failed()
    backoff.succeeded()
    assert backoff.failed() == 0.5
