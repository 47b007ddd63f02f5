"""The lines of the history: what is written is read, and what is damaged is noticed."""

import json
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.proxy.observe.last_throttles import PastThrottle
from kafka_throttle.proxy.observe.past.records import (
    Damaged,
    Kinds,
    Others,
    PastLine,
    QuotasOf,
    Seconds,
    ThrottledIn,
    Version,
    _plain,
    line_of,
    read_head,
)
from kafka_throttle.proxy.observe.throttled_line import Bucket, ThrottledLine
from kafka_throttle.quotas.changes import Limit
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType, Scope, SensorTags

PRODUCE = QuotaKey(QuotaType.PRODUCE)

texts = st.text(max_size=20)
names = st.text(min_size=1, max_size=20) | st.just(DEFAULT)
counts = st.integers(0, 2**53)
numbers = st.none() | st.floats(allow_nan=False)
entities = st.builds(Entity, names, names) | st.builds(Entity, user=names) | st.builds(Entity, client_id=names)
throttles = st.builds(
    PastThrottle,
    at_epoch_ms=counts,
    throttle_time_ms=counts,
    user=texts,
    client_id=texts,
    ip=texts,
    node_id=st.integers(-2, 2**31),
    quota_type=st.none() | st.sampled_from(QuotaType),
    tags=st.none() | st.builds(SensorTags, texts, texts),
    sensor=st.none(),
    entity=st.none() | entities,
    rate=st.none(),
    limit=numbers,
    tokens=st.none(),
    throttles=counts,
)
lines = throttles.flatmap(
    lambda first: st.builds(
        PastLine,
        st.builds(
            ThrottledLine,
            st.just(first),
            numbers,
            st.none() | st.builds(Bucket, st.floats(allow_nan=False), st.floats(allow_nan=False)),
            left_ms=counts,
            throttles=st.just(first.throttles),
            throttled_ms=counts,
            connections=counts,
        ),
        counts,
        numbers,
    )
)
seconds = st.builds(
    Seconds,
    counts,
    counts,
    st.dictionaries(
        texts,
        st.builds(ThrottledIn, st.lists(lines, max_size=5), st.builds(Others, counts, counts, counts, counts)),
        max_size=2,
    ),
)
limits = st.sampled_from(Scope).flatmap(
    lambda scope: st.dictionaries(
        st.builds(QuotaKey, st.sampled_from([QuotaType.PRODUCE, QuotaType.FETCH]), st.booleans()),
        st.builds(Limit, st.integers(1, 2**40).map(float), texts, st.just(scope)),
        min_size=1,
    )
)
versions = st.builds(Version, st.none() | limits, st.none() | counts, st.none() | limits)
kinds = st.dictionaries(st.sampled_from([quota_type.value for quota_type in QuotaType]), st.integers(1, 7))
quotas = st.builds(
    QuotasOf,
    counts,
    texts,
    texts,
    st.booleans(),
    st.builds(Kinds, kinds, kinds),
    st.dictionaries(entities, versions, max_size=4),
    st.booleans(),
    st.booleans(),
)


@given(seconds | quotas)
def test_what_is_written_is_read(record):
    line = line_of(record)
    assert line.count(b"\n") == 1
    assert read_head(line).record() == record


@given(seconds | quotas, st.data())
def test_any_flipped_bit_and_any_missing_end_is_noticed(record, data):
    line = line_of(record)
    bit = data.draw(st.integers(0, 8 * len(line) - 1))
    flipped = bytearray(line)
    flipped[bit // 8] ^= 1 << bit % 8
    for damaged in (bytes(flipped), line[: data.draw(st.integers(0, len(line) - 1))]):
        for each in damaged.splitlines(keepends=True):
            if each != line:
                with pytest.raises(Damaged):
                    read_head(each)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(seconds | quotas, st.data())
def test_content_that_was_not_written_by_us_is_damage_whatever_it_is(record, data):
    """With a right checksum: another version may have written it."""
    head = read_head(line_of(record))
    form = json.loads(_plain(head.content))
    places = [form]
    while (place := data.draw(st.sampled_from(places))) and isinstance(place, dict | list):
        key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
        if not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(values)
            break
        places = [place[key]]
    try:
        head._replace(content=json.dumps(form).encode()).record()
    except Damaged:
        pass


@given(st.binary())
def test_nothing_else_is_taken_for_a_record(data):
    with pytest.raises(Damaged):
        read_head(data)


def test_only_wanted_entities_are_read_of_many():
    limit = MappingProxyType({PRODUCE: Limit(1000.0, "proxy.yaml")})
    all_of_them = {Entity(f"user-{number}"): Version(limit) for number in range(1_200)}
    record = QuotasOf(1, "main", "file", True, Kinds({PRODUCE.text: 2}, {}), all_of_them, begins=True)
    parts = list(record.parts())
    assert [(len(part.versions), part.begins) for part in parts] == [(500, True), (500, False), (200, False)]
    written = [line_of(part) for part in parts]
    assert max(map(len, written)) < 12_000, "compressed"
    found = [read_head(line).record(lambda form: form["entity"]["user"] == "user-700").versions for line in written]
    assert found == [{}, {Entity("user-700"): Version(limit)}, {}]
    [empty] = QuotasOf(1, "main", "file", True, Kinds({}, {}), {}, begins=True).parts()
    assert empty.begins
