"""What a member keeps of the documents of the others."""

from kafka_throttle.quotas.shares.document import Document, Entry
from kafka_throttle.quotas.shares.history import Windows
from kafka_throttle.quotas.shares.view import OtherMembers

ONE, OTHER = ("client", "one"), ("client", "other")
HALF = Entry(0.5, 1.0)


def document(seq, *keys):
    return Document("a", seq, 0, {}, dict.fromkeys(keys, HALF))


def test_a_document_that_says_something_else_under_its_old_number_is_taken_as_it_is():
    others = OtherMembers(Windows(11, 1000))
    others.update({"a": document(1, ONE)}, 0)
    changes = others.update({"a": document(1, ONE, OTHER)}, 100)
    assert (changes.found, changes.lost) == ({OTHER}, set())
    assert others.claimed(OTHER) == 0.5
    assert others.update({"a": document(1, OTHER)}, 200).lost == {ONE}
    assert others.update({}, 300).lost == {OTHER}
    assert not list(others.keys)
