"""Whatever bytes arrive, parsing returns a document or says why not."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.quotas.shares.document import (
    MAX_BYTES,
    Document,
    Documents,
    Entry,
    RefusedDocument,
    parse,
    rounded_down,
)

KEY = ("client", "vc", "1", "produce", "alice", "", (("user", "alice"), ("client-id", None)))
GOOD = Document("a#1", 7, 5, {"b#2": 3}, {KEY: Entry(0.5, 0.25, 0.1, (0.5, 0.25)), ("k", True): Entry(0.0, 1.0)})


def changed(**fields):
    return json.dumps({**json.loads(GOOD.encoded()), **fields}).encode()


def test_a_document_is_read_as_it_was_written():
    assert parse(GOOD.encoded(), "a#1") == GOOD


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (GOOD.encoded()[:-20], "expected JSON"),
        (GOOD.encoded() * 2, "expected JSON"),
        (b"\xff\xfe", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b" " * (MAX_BYTES + 1), "expected at most 921600 bytes, got 921601"),
        (b"[]", "expected an object, got []"),
        (b"{}", "expected format 1, got None"),
        (changed(format=2), "expected format 1, got 2"),
        (changed(format=0), "expected format 1, got 0"),
        (changed(more=1), "expected the fields"),
        (changed(member="b"), "expected a document of 'a#1', got one of 'b'"),
        (changed(seq=-1), "seq: expected a count, got -1"),
        (changed(seq=True), "seq: expected a count, got True"),
        (changed(asks=0.5), "asks: expected a count, got 0.5"),
        (changed(seen=[]), "seen: expected an object, got []"),
        (changed(seen={"b": 2**63}), "seen of 'b': expected a count"),
        (changed(keys={}), "keys: expected a list, got {}"),
        (changed(keys=[[["k"], 1]]), "keys[0]: expected key, claim, demand, freed share and freed"),
        (changed(keys=[["k", 0, 0, 0, []]]), "keys[0]: expected a key, got 'k'"),
        (changed(keys=[[[], 0, 0, 0, []]]), "keys[0]: expected a key, got []"),
        (changed(keys=[[["k", {}], 0, 0, 0, []]]), "keys[0]: expected a key of plain values"),
        (changed(keys=[[["k"], 0, 0, 0, []]] * 2), "keys[1]: ['k'] is there twice"),
        (changed(keys=[[["k"], 1.5, 0, 0, []]]), "keys[0]: expected a number from 0 to 1, got 1.5"),
        (changed(keys=[[["k"], -0.5, 0, 0, []]]), "keys[0]: expected a number from 0 to 1, got -0.5"),
        (changed(keys=[[["k"], True, 0, 0, []]]), "keys[0]: expected a number from 0 to 1, got True"),
        (changed(keys=[[["k"], 10**400, 0, 0, []]]), "keys[0]: expected a number from 0 to 1"),
        (changed(keys=[[["k"], float("nan"), 0, 0, []]]), "NaN is no number"),
        (changed(keys=[[["k"], 0, 0, 0, [float("inf")]]]), "Infinity is no number"),
        (changed(keys=[[["k"], 0, 0, 0, [-1]]]), "keys[0]: expected a number from 0 to 1e+09, got -1"),
        (changed(keys=[[["k"], 0, 0, 0, 5]]), "keys[0]: expected a list of at most 4096 amounts, got 5"),
    ],
)
def test_other_bytes_are_refused_with_the_reason(content, reason):
    with pytest.raises(RefusedDocument) as refused:
        parse(content, "a#1")
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 400


@given(st.binary(max_size=100))
def test_random_bytes_raise_nothing_else(content):
    with pytest.raises(RefusedDocument):
        parse(content, "a#1")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["member", "seq", "asks", "seen", "keys"]), JSON))
def test_random_fields_are_refused_or_read(fields):
    with contextlib.suppress(RefusedDocument):
        assert parse(changed(**fields), "a#1").member == "a#1"


def test_the_last_good_document_stays_and_each_bad_one_is_counted_once():
    documents = Documents()
    assert documents.read({"a#1": GOOD.encoded(), "b": b"x"}) == {"a#1": GOOD, "b": None}
    assert documents.read({"a#1": b"y", "b": b"x"}) == {"a#1": GOOD, "b": None}
    assert documents.refused == 2
    assert [member for member, _ in documents.take_problems()] == ["b", "a#1"]
    assert documents.take_problems() == []
    assert documents.read({"b": b"x"}) == {"b": None}
    assert documents.read({"a#1": b"y"}) == {"a#1": None}


@given(st.floats(0, 1))
def test_shares_are_rounded_down_and_stay_as_they_are_in_json(share):
    rounded = rounded_down(share)
    assert share - 2e-6 < rounded <= share
    assert json.loads(json.dumps(rounded)) == rounded
