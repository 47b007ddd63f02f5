"""Numbers are found by keys that are not stored."""

from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.protocol.numbers_by_key import NO_NUMBER, NumbersByKey

keys = st.lists(st.binary(max_size=1) | st.integers(0, 300).map(b"%d".__mod__))


@given(keys)
def test_the_first_number_with_a_key_is_found_again(given_keys):
    numbers, first = NumbersByKey(len(set(given_keys)), given_keys.__getitem__), {}
    for number, key in enumerate(given_keys):
        assert numbers.first(key, number) == first.setdefault(key, number)
    assert [numbers.get(key) for key in given_keys] == [first[key] for key in given_keys]


@given(keys)
def test_the_latest_number_that_was_put_is_found(given_keys):
    numbers, latest = NumbersByKey(len(set(given_keys)), given_keys.__getitem__), {}
    for number, key in enumerate(given_keys):
        assert numbers.get(key) == latest.get(key, NO_NUMBER)
        numbers.put(key, number)
        latest[key] = number
    assert {key: numbers.get(key) for key in given_keys} == latest


def test_where_nothing_was_put_nothing_is_found():
    assert NumbersByKey(0, [].__getitem__).get(b"") == NO_NUMBER
