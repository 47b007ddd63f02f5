"""DescribeUserScramCredentials on a relay: responses pass, but users who may describe quotas get no refusal."""

from struct import pack

import pytest

from kafka_throttle.protocol.api_key import DESCRIBE_USER_SCRAM_CREDENTIALS as SCRAM
from kafka_throttle.protocol.messages.api_versions import versions_request
from kafka_throttle.protocol.primitives import compact_string
from kafka_throttle.proxy.relay.actions import OWN_REQUEST_ID
from kafka_throttle.proxy.side import Side
from tests.relay.frames import heartbeat, heartbeaten
from tests.relay.script import Script, quota_manager_with

REFUSED = 31
OFFER_ASKED = versions_request(OWN_REQUEST_ID)
ALL, ALICE, BOTH = None, ("alice",), ("alice", "bob")


def framed(message):
    return pack(">i", len(message)) + message


def request(corr, users=ALL):
    body = b"\0" if users is None else bytes([len(users) + 1])
    body += b"".join(compact_string(user.encode()) + b"\0" for user in users or ())
    return framed(pack(">hhih", SCRAM, 0, corr, 3) + b"etl\0" + body + b"\0")


def response(corr, error=0, throttle_ms=0):
    """A response of a node: one user, or an error with its message."""
    reported = (
        b"\1"
        if error
        else b"\2" + compact_string(b"alice") + pack(">hb", 0, 0) + b"\2" + pack(">biB", 1, 4096, 0) + b"\0"
    )
    message = compact_string(b"not allowed") if error else b"\0"
    return framed(pack(">ibih", corr, 0, throttle_ms, error) + message + reported + b"\0")


def no_users(corr, throttle_ms=0):
    return framed(pack(">ibih", corr, 0, throttle_ms, 0) + b"\0\1\0")


def offer(*api_keys):
    return framed(
        pack(">ihi", OWN_REQUEST_ID, 0, len(api_keys)) + b"".join(pack(">hhh", key, 0, 0) for key in api_keys)
    )


@pytest.fixture
def script(make_relay):
    return Script(make_relay, quota_manager_with()).connected()


def asked(script, frame):
    """The node gets the proxy's own ApiVersions and nothing else."""
    assert script.client(frame) == OFFER_ASKED


@pytest.mark.parametrize("may_describe", [True, False])
def test_there_are_no_users_where_the_node_has_no_such_api(script, may_describe):
    script.facts.may_describe = may_describe
    asked(script, request(7) + heartbeat(8))
    assert script.node(offer(3, 18)) == no_users(7)
    assert script.sent[Side.NODE] == OFFER_ASKED + heartbeat(8)
    assert script.node(heartbeaten(8)) == heartbeaten(8)


def test_the_response_of_a_node_passes_as_it_is(script):
    script.facts.may_describe = True
    asked(script, request(7))
    script.node(offer(18, SCRAM))
    assert script.sent[Side.NODE] == OFFER_ASKED + request(7)
    assert script.node(response(7, throttle_ms=5)) == response(7, throttle_ms=5)


@pytest.mark.parametrize(
    ("user", "may_describe", "users", "hidden"),
    [
        ("admin", True, ALL, True),
        ("admin", True, ALICE, True),
        ("alice", False, ALICE, True),
        ("alice", False, ALL, False),
        ("alice", False, BOTH, False),
        ("bob", False, ALICE, False),
    ],
)
@pytest.mark.parametrize("cut", [1, 10_000])
def test_a_user_who_may_describe_quotas_gets_no_users_instead_of_a_refusal(
    script, user, may_describe, users, hidden, cut
):
    script.facts.user, script.facts.may_describe = user, may_describe
    asked(script, request(7, users) + heartbeat(8))
    script.node(offer(18, SCRAM))
    assert script.sent[Side.NODE] == OFFER_ASKED + request(7, users) + heartbeat(8)
    refusal = response(7, REFUSED, throttle_ms=9)
    for at in range(0, len(refusal), cut):
        script.node(refusal[at : at + cut])
    assert script.sent[Side.CLIENT] == (no_users(7, throttle_ms=9) if hidden else refusal)


def test_a_request_goes_on_to_a_node_that_does_not_say_what_it_offers(script):
    asked(script, request(7))
    script.node(framed(pack(">ihi", OWN_REQUEST_ID, 34, 0)))
    assert script.sent[Side.NODE] == OFFER_ASKED + request(7)
