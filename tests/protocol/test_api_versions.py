"""The APIs that the proxy responds to by itself are offered, whatever the node offers."""

from struct import pack

import pytest

from kafka_throttle.protocol.messages.api_versions import ANSWERED, carried, intersect
from kafka_throttle.protocol.splices import splice_frame

TAG = b"\x01\x05\x02hi"
LAST = 4
VERSIONS = range(LAST + 1)


def response(version, entries, error=0, throttle=77):
    """An ApiVersions response with entries (api key, lowest, highest, tags)."""
    compact = version >= 3
    count = bytes([len(entries) + 1]) if compact else pack(">i", len(entries))
    listed = b"".join(pack(">hhh", *entry[:3]) + (entry[3] if compact else b"") for entry in entries)
    body = pack(">ih", 9, error) + count + listed + (pack(">i", throttle) if version else b"")
    message = body + (TAG if compact else b"")
    return pack(">i", len(message)) + message


def offered(version, entries, error=0, **how):
    """The response that a client gets; its throttle time has to be where the proxy says."""
    frame = response(version, entries, error)
    intersected = intersect(frame, version, **how)
    spliced = b"".join(splice_frame(frame, len(frame) - 4, intersected.splices))
    if version:
        grown = len(spliced) - len(frame)
        assert spliced[intersected.throttle_at + grown :][:4] == pack(">i", 77)
    return spliced


PRODUCE = (0, 0, 9, TAG)
METADATA = (3, 0, 12, b"\0")
OFFSET_DELETE = (47, 0, 0, TAG)
UPDATE_FEATURES = (57, 0, 1, b"\0")
DESCRIBE, ALTER, SCRAM = (48, 0, 1, b"\0"), (49, 0, 1, b"\0"), (50, 0, 0, b"\0")


@pytest.mark.parametrize("version", VERSIONS)
def test_quota_apis_that_the_node_does_not_offer_stand_in_their_place(version):
    around = [PRODUCE, METADATA, OFFSET_DELETE, UPDATE_FEATURES]
    expected = [(0, 0, 9, TAG), METADATA, OFFSET_DELETE, DESCRIBE, ALTER, SCRAM, UPDATE_FEATURES]
    assert offered(version, around) == response(version, expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_quota_apis_come_last_where_nothing_is_above_them(version):
    assert offered(version, [PRODUCE]) == response(version, [PRODUCE, DESCRIBE, ALTER, SCRAM])
    assert offered(version, []) == response(version, [DESCRIBE, ALTER, SCRAM])


@pytest.mark.parametrize("version", VERSIONS)
def test_only_what_is_missing_is_added_and_the_order_of_the_node_stays(version):
    entries = [UPDATE_FEATURES, (49, 0, 1, TAG), PRODUCE]
    assert offered(version, entries) == response(version, [DESCRIBE, SCRAM, *entries])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("theirs", [(0, 0), (1, 1), (0, 7), (5, 7)])
def test_of_apis_that_the_proxy_responds_to_it_offers_its_own_versions(version, theirs):
    entries = [PRODUCE, (48, *theirs, TAG), (49, *theirs, TAG)]
    assert offered(version, entries) == response(version, [PRODUCE, (48, 0, 1, TAG), (49, 0, 1, TAG), SCRAM])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_that_need_not_change_does_not(version):
    frame = response(version, [PRODUCE, DESCRIBE, ALTER, SCRAM])
    assert intersect(frame, version).splices == ()


@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_offers_nothing_of_ours(version):
    assert offered(version, [], error=31) == response(version, [], error=31)
    refused = response(0, [(18, 0, 4, b"")], error=35)
    assert intersect(refused, version).splices == ()


@pytest.mark.parametrize("version", VERSIONS)
def test_without_responses_of_its_own_the_proxy_only_takes_away(version):
    assert offered(version, [PRODUCE, (4, 0, 9, TAG)], answered=()) == response(version, [PRODUCE])
    assert carried(4) is None


def test_apis_that_the_proxy_responds_to_are_listed_by_ascending_key():
    assert sorted(ANSWERED) == list(ANSWERED) == [(48, (0, 1)), (49, (0, 1)), (50, (0, 0))]
