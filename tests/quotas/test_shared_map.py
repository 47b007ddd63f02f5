"""Mappings of which a changed copy shares nearly everything with what it was made from."""

from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.quotas.shared_map import SharedMap

KEYS = st.one_of(st.integers(0, 4000), st.text(max_size=2))
CHANGES = st.dictionaries(KEYS, st.one_of(st.none(), st.integers()))


@given(st.lists(CHANGES, max_size=5))
def test_it_is_what_a_dict_with_the_same_changes_would_be(steps):
    plain, shared = {}, SharedMap()
    for step in steps:
        before, plain_before = shared, plain
        plain = {key: value for key, value in {**plain, **step}.items() if value is not None}
        shared = shared.changed(step)
        assert shared == plain == dict(shared.items())
        assert before == plain_before
        assert (len(shared), set(shared), sorted(shared.values())) == (len(plain), set(plain), sorted(plain.values()))
        assert all(shared.get(key) == plain.get(key) and (key in shared) is (key in plain) for key in step)
        assert shared.changes_since(before) == {k: plain.get(k) for k in step if plain.get(k) != plain_before.get(k)}
        assert before.changed(shared.changes_since(before)) == shared
        assert SharedMap(plain) == shared


def test_a_changed_copy_shares_what_is_not_changed():
    before = SharedMap({i: i for i in range(100_000)})
    after = before.changed({5: -5, 7: None})
    apart = sum(new is not old for new, old in zip(after._buckets, before._buckets, strict=True))
    assert apart == 2
    assert after.changes_since(before) == {5: -5, 7: None}
