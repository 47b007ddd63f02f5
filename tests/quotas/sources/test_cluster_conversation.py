"""What the proxy says on a connection of its own, in which order, as scripts of frames."""

from struct import pack

import pytest

from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.protocol.messages.client_quotas import all_quotas_request
from kafka_throttle.protocol.messages.metadata import nodes_request
from kafka_throttle.quotas.sources.cluster_conversation import Conversation, SaslLogin
from kafka_throttle.quotas.sources.cluster_faults import NodeRefuses
from tests.support.sasl_frames import FIRST, NONCE, PROOF, VERIFIER

OFFERS = {3: (0, 12), 17: (0, 1), 18: (0, 4), 36: (0, 1)}
TAKEN = pack(">hi", 0, 0)


def offer(versions):
    return pack(">hi", 0, len(versions)) + b"".join(pack(">hhh", key, *range_) for key, range_ in versions.items())


def played(step, *bodies):
    """Play a step with these bodies of responses; the requests as (key, version, body), and what it returns."""
    sent = []
    try:
        frame, _ = next(step)
        for body in bodies:
            sent.append(said_in(frame))
            frame, _ = step.send(pack(">i", len(body) + 4) + frame[8:12] + body)
    except StopIteration as end:
        return sent, end.value
    raise AssertionError(f"one more request: {said_in(frame)}")


def said_in(frame):
    head = 14 + len("kafka-throttle")
    return int.from_bytes(frame[4:6], "big"), int.from_bytes(frame[6:8], "big"), frame[head:]


def introduced(login=None, *bodies, offers=OFFERS):
    """What was said until the proxy may ask, and the conversation."""
    conversation = Conversation()
    sent, _ = played(conversation.introduced(), offer(offers))
    if login is not None:
        sent += played(conversation.log_in(login), *bodies)[0]
    return conversation, sent


def token(text, error=0, message=None, lifetime_ms=0):
    words = pack(">h", -1) if message is None else pack(">h", len(message)) + message.encode()
    return pack(">h", error) + words + pack(">i", len(text)) + text.encode() + pack(">q", lifetime_ms)


def plain(password="sesame"):
    return SaslLogin("PLAIN", "proxy", password, NONCE)


def test_without_a_login_only_versions_are_asked_for():
    conversation, sent = introduced()
    assert sent == [(18, 0, b"")]
    assert not conversation.logged_in


def test_a_login_by_password():
    conversation, sent = introduced(plain(), TAKEN, token(""))
    assert [(key, version) for key, version, _ in sent] == [(18, 0), (17, 1), (36, 1)]
    assert sent[1][2] == pack(">h", 5) + b"PLAIN"
    assert sent[2][2] == pack(">i", 13) + b"\0proxy\0sesame"
    assert conversation.logged_in


def test_a_login_by_scram():
    login = SaslLogin("SCRAM-SHA-256", "user", "pencil", NONCE)
    conversation, sent = introduced(login, TAKEN, token(FIRST), token(VERIFIER))
    assert sent[2][2][4:] == f"n,,n=user,r={NONCE}".encode()
    assert sent[3][2].endswith(PROOF.encode())
    assert conversation.logged_in


BEARER = SaslLogin("OAUTHBEARER", "", "a.b.c", NONCE, (("logicalCluster", "lkc-1"), ("identityPoolId", "pool-1")))


def test_a_login_by_token():
    conversation, sent = introduced(BEARER, TAKEN, token("", lifetime_ms=90_000))
    assert sent[1][2] == pack(">h", 11) + b"OAUTHBEARER"
    assert sent[2][2][4:] == b"n,,\1auth=Bearer a.b.c\1logicalCluster=lkc-1\1identityPoolId=pool-1\1\1"
    assert (conversation.logged_in, conversation.lifetime_ms) == (True, 90_000)
    bare = SaslLogin("OAUTHBEARER", "", "a.b.c", NONCE)
    assert bare.bearer() == b"n,,\1auth=Bearer a.b.c\1\1"


@pytest.mark.parametrize(
    "answers",
    [
        (token('{"status":"invalid_token"}'), token("", 58, "Authentication failed")),
        (token('{"status":"invalid_token"}'), token("")),
        (token("", 58, "the token a.b.c is bad\n"),),
    ],
)
def test_a_token_that_is_refused_is_refused_in_any_order_of_words(answers):
    with pytest.raises(NodeRefuses) as refused:
        introduced(BEARER, TAKEN, *answers)
    assert refused.value.fault.reason == "authentication_failed"
    assert refused.value.fault.setting == "upstream.admin.token_file, upstream.admin.token_endpoint"
    assert str(refused.value).endswith(", before the proxy was authenticated with OAUTHBEARER")
    assert "a.b.c" not in str(refused.value)
    assert str(refused.value).isprintable()


def test_a_login_that_is_only_good_for_a_while_is_done_again_on_the_same_connection():
    conversation, _ = introduced(plain(), TAKEN, token("", lifetime_ms=3_000))
    assert conversation.lifetime_ms == 3_000
    sent, _ = played(conversation.log_in(plain("other")), TAKEN, token(""))
    assert [key for key, _, _ in sent] == [17, 36]
    assert sent[1][2].endswith(b"\0other")
    assert (conversation.logged_in, conversation.lifetime_ms) == (True, 0)


@pytest.mark.parametrize(
    ("bodies", "reason"),
    [
        ([pack(">hi", 33, 1) + pack(">h", 5) + b"PLAIN"], "mechanism_refused"),
        ([pack(">hi", 34, 0)], "authentication_unexpected"),
        ([TAKEN, token("", 58, "no")], "authentication_failed"),
        ([TAKEN, token("nonsense")], "authentication_failed"),
        ([TAKEN, token(FIRST), token("v=" + "A" * 43 + "=")], "authentication_failed"),
    ],
)
def test_a_login_that_fails_says_why(bodies, reason):
    with pytest.raises(NodeRefuses) as refused:
        introduced(SaslLogin("SCRAM-SHA-256", "user", "pencil", NONCE), *bodies)
    assert refused.value.fault.reason == reason
    assert "pencil" not in str(refused.value)


def test_a_node_without_an_api_is_not_asked():
    conversation, _ = introduced(offers={3: (0, 0)})
    for request in (nodes_request(), all_quotas_request()):
        with pytest.raises(NodeRefuses) as refused:
            played(conversation.response_to(request))
        assert refused.value.fault.reason == "api_missing"


def test_how_long_the_node_wants_no_request_is_known():
    conversation, _ = introduced()
    body = b"\0" + pack(">i", 700) + b"\1"
    [(key, version, _)], nodes = played(conversation.response_to(nodes_request()), body)
    assert (key, version, nodes.nodes, conversation.throttle_ms) == (3, 12, (), 700)


def test_a_response_to_another_request_ends_it():
    step = Conversation().introduced()
    frame, _ = next(step)
    with pytest.raises(ProtocolError):
        step.send(pack(">i", 10) + pack(">i", int.from_bytes(frame[8:12], "big") + 1) + offer({}))


def test_secrets_are_not_shown():
    assert "sesame" not in repr(plain())
    assert "a.b.c" not in repr(BEARER)
    assert NONCE not in repr(plain())
