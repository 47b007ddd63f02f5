"""SASL on a relay: every frame passes as it is, and a name counts once the node has accepted it, never before."""

from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.protocol.api_key import API_VERSIONS
from kafka_throttle.protocol.frames import MAX_ASKED_BYTES, MAX_SASL_BYTES
from kafka_throttle.protocol.identity.sasl_names import Claim
from kafka_throttle.protocol.messages.api_versions import versions_request
from kafka_throttle.proxy.decisions.sasl import SaslRules
from kafka_throttle.proxy.relay.actions import OWN_REQUEST_ID, CloseReason, RelayLimits
from kafka_throttle.proxy.relay.relay import Relay
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from tests.relay.frames import fetch, fetched, frame, heartbeat, heartbeaten, produce, produced, request
from tests.relay.script import NOW_MS, Script, manager_of
from tests.support.quota_frames import describe_request, described
from tests.support.sasl_frames import (
    authenticate,
    authenticated,
    handshake,
    handshaken,
    jwt,
    msk_token,
    oauthbearer,
    plain,
    scram_first,
)

ALICE = plain(b"alice")
SHA_256 = "SCRAM-SHA-256"
SERVER_FIRST, PROOF, SERVER_FINAL = b"r=nonce,s=c2FsdA==,i=4096", b"c=biws,r=nonce,p=cHJvb2Y=", b"v=c2ln"
PROOF_ASKED = versions_request(OWN_REQUEST_ID)
DEMANDED = RelayLimits(authenticates=True)
END_MS = NOW_MS + 5000


def bare(token):
    """A token as it is sent behind a handshake of version 0."""
    return frame(token)


def versions(corr=1):
    return request(API_VERSIONS, 0, corr=corr)


def offered(corr=1):
    return frame(pack(">ihi", corr, 0, 0))


def quota_manager_of(*users, client_id=None):
    """A byte rate of 100 for producers that are one of these users."""
    return manager_of({Entity(user=user, client_id=client_id): {QuotaType.PRODUCE: 100.0} for user in users})


def client_of(make_relay, *users, limits=DEMANDED, rules=None, quota_manager=None):
    """A connected relay in front of a node that demands SASL."""
    script = Script(make_relay, quota_manager or quota_manager_of(*users), limits).connected()
    script.facts.user = "" if limits.authenticates else "ANONYMOUS"
    script.facts.listener.answered = ()
    script.met = []
    script.facts.listener.sasl = rules or SaslRules()
    script.facts.note_identity = script.met.append
    return script


def passes(script, *pairs, now_ms=NOW_MS):
    """Each frame of the client goes to the node as it is, and the response to it to the client."""
    for ask, response in pairs:
        assert script.client(ask, now_ms) == ask, script.closed
        assert script.node(response, now_ms) == response, script.closed


def logs_in(script, user=b"alice", version=1, now_ms=NOW_MS):
    passes(
        script,
        (handshake("PLAIN"), handshaken()),
        (authenticate(plain(user), version), authenticated(version=version)),
        now_ms=now_ms,
    )


def throttled_user(script):
    """Who is throttled for a Produce of 1500 bytes, at 100 a second."""
    before = len(script.throttles)
    script.client(produce(9, size=1500))
    return script.facts.user if len(script.throttles) > before else None


# ---------------------------------------------------------------- success


@pytest.mark.parametrize("version", [0, 1, 2])
def test_plain(make_relay, version):
    script = client_of(make_relay, "alice")
    logs_in(script, version=version)
    assert throttled_user(script) == "alice"
    assert script.met[0].visible
    assert script.facts.login.mechanism == "PLAIN"
    assert script.counters.authentications == 1


@pytest.mark.parametrize("mechanism", [SHA_256, "SCRAM-SHA-512"])
def test_scram_takes_two_rounds(make_relay, mechanism):
    script = client_of(make_relay, "a,b=c")
    passes(
        script,
        (versions(), offered()),
        (handshake(mechanism), handshaken()),
        (authenticate(scram_first("a=2Cb=3Dc")), authenticated(SERVER_FIRST)),
    )
    assert script.facts.user == ""
    passes(script, (authenticate(PROOF), authenticated(SERVER_FINAL, session_ms=60_000)))
    assert throttled_user(script) == "a,b=c"


def test_oauthbearer(make_relay):
    script = client_of(make_relay, "alice")
    passes(
        script,
        (handshake("OAUTHBEARER"), handshaken()),
        (authenticate(oauthbearer(jwt({"sub": "alice"}))), authenticated()),
    )
    assert throttled_user(script) == "alice"


@pytest.mark.parametrize(
    ("token", "user", "visible"),
    [
        (plain(b"$accessToken", jwt({"sub": "alice"}).encode()), "alice", True),
        (plain(b"$accessToken", b"opaque"), "$accessToken", False),
        (plain(b"$ConnectionString", b"Endpoint=sb://a.test"), "$ConnectionString", False),
        (plain(b"$ConnectionString", b"Endpoint=sb://a.test;SharedAccessKeyName=send;SharedAccessKey=a"), "send", True),
        (ALICE, "alice", True),
    ],
)
def test_by_plain_some_names_are_shared_by_all_clients(make_relay, token, user, visible):
    script = client_of(make_relay, user)
    passes(script, (handshake("PLAIN"), handshaken()), (authenticate(token), authenticated()))
    assert throttled_user(script) == user
    assert [(identity.user, identity.visible) for identity in script.met] == [(user, visible)]


ACCESS_KEY = "AKIAIOSFODNN7EXAMPLE"
CREDENTIAL = f"{ACCESS_KEY}/20261128/eu-west-1/kafka-cluster/aws4_request"
MSK = oauthbearer(msk_token(f"https://kafka.eu-west-1.amazonaws.com/?X-Amz-Credential={CREDENTIAL}&User-Agent=a"))
MSK_JSON = b'{"x-amz-credential":"%s","x-amz-signature":"secret"}' % CREDENTIAL.encode()


def test_the_access_key_in_a_signed_url_is_the_user_once_the_node_has_accepted_it(make_relay):
    script = client_of(make_relay, ACCESS_KEY)
    passes(script, (handshake("OAUTHBEARER"), handshaken()))
    assert script.client(authenticate(MSK)) == authenticate(MSK)
    assert script.facts.user == ""
    script.node(authenticated())
    assert throttled_user(script) == ACCESS_KEY
    assert script.met[0].visible


def test_a_signed_url_that_the_node_rejects_names_nobody(make_relay):
    script = client_of(make_relay, ACCESS_KEY)
    passes(script, (handshake("OAUTHBEARER"), handshaken()))
    script.client(authenticate(MSK))
    script.node(authenticated(b'{"status":"invalid_token"}'))
    script.client(authenticate(b"\1"))
    script.node(authenticated(error=58))
    assert (script.facts.user, script.met) == ("", [])


def test_the_access_key_in_the_json_of_javas_own_mechanism_is_the_user(make_relay):
    script = client_of(make_relay, ACCESS_KEY)
    passes(
        script,
        (handshake("AWS_MSK_IAM"), handshaken()),
        (authenticate(MSK_JSON), authenticated(b'{"version":"2020_10_22","request-id":"1"}')),
    )
    assert script.client(produce(3)) == PROOF_ASKED
    assert script.met == []
    assert proves(script) == produce(3)
    assert [(identity.user, identity.visible) for identity in script.met] == [(ACCESS_KEY, True)]


CONNECTION_STRING = plain(b"$ConnectionString", b"Endpoint=sb://a.test;SharedAccessKeyName=send;SharedAccessKey=a")


@pytest.mark.parametrize(
    ("mechanism", "token", "user_names", "user"),
    [
        ("PLAIN", ALICE, {"alice": "team-a"}, "team-a"),
        ("PLAIN", ALICE, {"bob": "team-a"}, "alice"),
        ("PLAIN", ALICE, {"alice": "bob", "bob": "team-a"}, "bob"),
        ("OAUTHBEARER", oauthbearer(jwt({"sub": "4711"})), {"4711": "team-a", "?OAUTHBEARER": "others"}, "team-a"),
        ("OAUTHBEARER", oauthbearer(jwt({"sub": "4711"})), {"?OAUTHBEARER": "others"}, "4711"),
        ("OAUTHBEARER", oauthbearer("opaque"), {"?OAUTHBEARER": "others"}, "others"),
        ("OAUTHBEARER", MSK, {ACCESS_KEY: "team-a", "?OAUTHBEARER": "others"}, "team-a"),
        ("OAUTHBEARER", MSK, {"?OAUTHBEARER": "others"}, "others"),
        ("PLAIN", CONNECTION_STRING, {"send": "team-a", "$ConnectionString": "others"}, "team-a"),
        ("PLAIN", CONNECTION_STRING, {"$ConnectionString": "others"}, "others"),
        ("PLAIN", plain(b"$ConnectionString", b"a"), {"$ConnectionString": "others"}, "others"),
        ("PLAIN", plain(b"$accessToken", b"opaque"), {"$accessToken": "others"}, "others"),
    ],
)
def test_an_operator_may_set_a_user_for_the_name_that_a_login_shows(make_relay, mechanism, token, user_names, user):
    script = client_of(make_relay, user, rules=SaslRules(user_names))
    passes(script, (handshake(mechanism), handshaken()), (authenticate(token), authenticated()))
    assert throttled_user(script) == user
    assert [(identity.user, identity.visible) for identity in script.met] == [(user, True)]


def test_a_user_that_is_set_has_its_own_rights_and_the_user_that_the_login_shows_has_none_here(make_relay):
    script = client_of(make_relay, "team-a", rules=SaslRules({"alice": "team-a"}))
    script.facts.listener.rights_of = lambda user: (user == "alice", user == "team-a")
    logs_in(script)
    assert (script.facts.may_alter, script.facts.may_describe) == (False, True)


def test_another_claim_names_the_user(make_relay):
    script = client_of(make_relay, "alice", rules=SaslRules(claims=(Claim("email"),)))
    passes(
        script,
        (handshake("OAUTHBEARER"), handshaken()),
        (authenticate(oauthbearer(jwt({"sub": "4711", "email": "alice"}))), authenticated()),
    )
    assert throttled_user(script) == "alice"


@pytest.mark.parametrize(
    ("mechanism", "rounds"),
    [
        ("PLAIN", [(ALICE, b"")]),
        (SHA_256, [(scram_first("alice"), SERVER_FIRST), (PROOF, SERVER_FINAL)]),
        ("OAUTHBEARER", [(oauthbearer(jwt({"sub": "alice"})), b"")]),
    ],
)
@pytest.mark.parametrize("cut", [1, 3, 10_000])
def test_bare_tokens_behind_a_handshake_of_version_0(make_relay, mechanism, rounds, cut):
    script = client_of(make_relay, "alice")
    passes(script, (handshake(mechanism, version=0), handshaken()))
    for token, response in rounds:
        assert script.facts.user == ""
        for side, data in ((Side.CLIENT, bare(token)), (Side.NODE, bare(response))):
            other = Side.NODE if side is Side.CLIENT else Side.CLIENT
            before = len(script.sent[other])
            for at in range(0, len(data), cut):
                script.do(script.relay.on_bytes(side, data[at : at + cut], 1000 * NOW_MS))
            assert script.sent[other][before:] == data
    assert throttled_user(script) == "alice"
    script.node(produced(9))
    assert script.relay.idle


@pytest.mark.rule("levels")
def test_all_eight_levels_hold_for_the_user_that_has_logged_in(make_relay):
    levels = [
        Entity(user="alice", client_id="etl"),
        Entity(user="alice", client_id=DEFAULT),
        Entity(user="alice"),
        Entity(user=DEFAULT, client_id="etl"),
        Entity(user=DEFAULT, client_id=DEFAULT),
        Entity(user=DEFAULT),
        Entity(client_id="etl"),
        Entity(client_id=DEFAULT),
    ]
    for level in levels:
        others = [Entity(user="bob"), Entity(user="ANONYMOUS"), Entity(user="bob", client_id="etl")]
        table = QuotaTable({level: {QuotaType.PRODUCE: 100.0}} | {o: {QuotaType.PRODUCE: 1.0} for o in others})
        script = client_of(make_relay, quota_manager=manager_of(table))
        logs_in(script)
        assert throttled_user(script) == "alice", level
        assert script.throttles[0].throttle_time_ms == 5000, level


def test_rights_are_those_of_the_user(make_relay):
    for user, answered in ((b"admin", 0), (b"alice", 31)):
        script = client_of(make_relay)
        script.facts.listener.rights_of = lambda user: (user == "admin", user == "admin")
        logs_in(script, user)
        script.client(describe_request([("user", 0, "bob")], corr=9))
        assert described(bytes(script.sent[Side.CLIENT][-_last_frame_bytes(script) :]), 1).error_code == answered


def _last_frame_bytes(script):
    """How long the response to the last of three requests is, behind those to a login by PLAIN."""
    return len(script.sent[Side.CLIENT]) - len(handshaken()) - len(authenticated())


# ---------------------------------------------------------------- failure


FAILURES = {
    "mechanism not enabled": [(handshake("PLAIN"), handshaken(error=33))],
    "wrong password": [(handshake(), handshaken()), (authenticate(ALICE), authenticated(error=58, text=b"no"))],
    "wrong state": [(authenticate(ALICE), authenticated(error=34))],
    "wrong proof": [
        (handshake(SHA_256), handshaken()),
        (authenticate(scram_first("alice")), authenticated(SERVER_FIRST)),
        (authenticate(PROOF), authenticated(error=58)),
    ],
    "unknown to scram": [
        (handshake(SHA_256), handshaken()),
        (authenticate(scram_first("alice")), authenticated(error=58)),
    ],
    "rejected bearer": [
        (handshake("OAUTHBEARER"), handshaken()),
        (authenticate(oauthbearer(jwt({"sub": "alice"}))), authenticated(b'{"status":"invalid_token"}')),
        (authenticate(b"\1"), authenticated(error=58)),
    ],
    "scram says e=": [
        (handshake(SHA_256, version=0), handshaken()),
        (bare(scram_first("alice")), bare(SERVER_FIRST)),
        (bare(PROOF), bare(b"e=invalid-proof")),
    ],
}


@pytest.mark.parametrize("exchange", FAILURES.values(), ids=FAILURES.keys())
@pytest.mark.parametrize("first", ["node", "client"])
def test_a_failed_authentication_gives_no_user(make_relay, exchange, first):
    script = client_of(make_relay, "alice", DEFAULT)
    passes(script, *exchange)
    assert (script.facts.user, script.met, script.throttles) == ("", [], [])
    script.do(script.relay.on_eof(Side.NODE if first == "node" else Side.CLIENT, 1000 * NOW_MS))
    assert script.close_reason is CloseReason.AUTHENTICATION_FAILED
    assert script.counters.authentications == 0
    assert script.counters.authentications_failed == 1


@pytest.mark.parametrize("exchange", FAILURES.values(), ids=FAILURES.keys())
def test_a_client_that_fails_and_goes_on_is_charged_nothing(make_relay, exchange):
    script = client_of(make_relay, "alice", DEFAULT)
    passes(script, *exchange)
    sent = bytes(script.sent[Side.NODE])
    script.client(produce(9, size=1500))
    assert script.throttles == []
    if script.closed:
        assert script.close_reason is CloseReason.NOT_AUTHENTICATED
        assert script.sent[Side.NODE] == sent
    assert list(script.quota_manager.readings(NOW_MS)) == []


@pytest.mark.parametrize("ends", [0, 1])
def test_a_node_that_only_closes_has_accepted_no_user(make_relay, ends):
    script = client_of(make_relay, "alice")
    exchange = [(handshake(version=ends), handshaken()), ((authenticate if ends else bare)(ALICE), b"")]
    passes(script, *exchange)
    script.do(script.relay.on_eof(Side.NODE, 1000 * NOW_MS))
    assert script.facts.user == ""
    assert script.close_reason is (CloseReason.NODE_CLOSED if ends else CloseReason.AUTHENTICATION_FAILED)


def test_what_is_sent_behind_a_login_waits_for_its_outcome(make_relay):
    script = client_of(make_relay, "alice")
    frames = [handshake(), authenticate(ALICE), produce(3, size=1500), heartbeat(4)]
    assert script.client(b"".join(frames)) == frames[0]
    assert script.node(handshaken()) == handshaken()
    assert script.sent[Side.NODE] == b"".join(frames[:2])
    assert script.facts.user == ""
    script.node(authenticated())
    assert script.sent[Side.NODE] == b"".join(frames[:3])
    assert [t.throttle_time_ms for t in script.throttles] == [5000]
    assert script.time(END_MS) == frames[3]


def test_what_is_sent_behind_a_login_that_fails_never_reaches_the_node(make_relay):
    script = client_of(make_relay, "alice")
    script.client(handshake() + authenticate(ALICE) + produce(3, size=1500))
    script.node(handshaken())
    script.node(authenticated(error=58))
    assert script.sent[Side.NODE] == handshake() + authenticate(ALICE)
    assert script.close_reason is CloseReason.NOT_AUTHENTICATED
    assert script.throttles == []


@pytest.mark.rule("sasl")
def test_a_client_that_shows_the_token_of_another_user_first_is_not_that_user(make_relay):
    """A node lets a client try again whose bearer token it has rejected."""
    script = client_of(make_relay, "victim")
    passes(
        script,
        (handshake("OAUTHBEARER"), handshaken()),
        (authenticate(oauthbearer(jwt({"sub": "victim"}))), authenticated(b'{"status":"invalid_token"}')),
        (authenticate(oauthbearer(jwt({"sub": "mallory"}))), authenticated()),
    )
    assert throttled_user(script) is None
    assert script.facts.user == "mallory"


def test_the_proof_of_scram_names_no_other_user(make_relay):
    script = client_of(make_relay, "victim")
    passes(
        script,
        (handshake(SHA_256), handshaken()),
        (authenticate(scram_first("mallory")), authenticated(SERVER_FIRST)),
        (authenticate(scram_first("victim")), authenticated(SERVER_FINAL)),
    )
    assert script.facts.user == "mallory"


def test_a_name_of_an_earlier_exchange_is_forgotten(make_relay):
    script = client_of(make_relay, "victim", rules=SaslRules({"?GSSAPI": "kerberos"}))
    passes(
        script,
        (handshake("PLAIN"), handshaken()),
        (handshake("GSSAPI"), handshaken()),
        (authenticate(b"\x60token"), authenticated(b"\x60more")),
        (authenticate(b""), authenticated(b"layer")),
        (authenticate(b"layer"), authenticated(b"")),
    )
    assert script.facts.user == "kerberos"


@pytest.mark.parametrize("early", [heartbeat(1), produce(1, size=1500), fetch(1)])
def test_nothing_else_passes_before(make_relay, early):
    script = client_of(make_relay, "alice", DEFAULT)
    assert script.client(early) == b""
    assert script.close_reason is CloseReason.NOT_AUTHENTICATED
    assert list(script.quota_manager.readings(NOW_MS)) == []


def test_api_versions_before_an_authentication_is_not_charged_and_behind_it_is(make_relay):
    table = QuotaTable({Entity(user=DEFAULT): {QuotaType.REQUEST: 0.001}})
    script = client_of(make_relay, quota_manager=manager_of(table))
    for corr in range(5):
        passes(script, (versions(corr), offered(corr)))
    logs_in(script)
    assert list(script.quota_manager.readings(NOW_MS)) == []
    passes(script, (versions(9), offered(9)))
    [(key, reading)] = script.quota_manager.readings(NOW_MS)
    assert key.tags.user == "alice"
    assert reading.charges == 1


def test_an_unknown_version_of_api_versions_gets_a_response_before_a_login(make_relay):
    script = client_of(make_relay, "alice")
    script.client(request(API_VERSIONS, 99, b"\1\1\0", corr=2, tags=True))
    assert script.sent[Side.CLIENT][4:].startswith(pack(">ih", 2, 35))
    logs_in(script)
    assert throttled_user(script) == "alice"


# ------------------------------------------------------------- not demanded


def test_where_sasl_is_not_demanded_the_client_keeps_its_user_until_then(make_relay):
    script = client_of(make_relay, "alice", "ANONYMOUS", limits=RelayLimits())
    script.client(produce(1, size=100))
    assert script.node(produced(1)) == produced(1)
    logs_in(script)
    assert script.facts.user == "alice"
    assert throttled_user(script) == "alice"


def test_a_node_without_sasl_says_so_and_all_goes_on(make_relay):
    script = client_of(make_relay, "alice", limits=RelayLimits())
    passes(script, (handshake(), handshaken(error=34)), (heartbeat(2), heartbeaten(2)))
    assert script.facts.user == "ANONYMOUS"
    script.do(script.relay.on_eof(Side.CLIENT, 1000 * NOW_MS))
    assert script.close_reason is CloseReason.CLIENT_CLOSED


# ------------------------------------------------------- re-authentication


def test_the_old_user_stays_until_the_new_exchange_succeeds(make_relay):
    script = client_of(make_relay, "alice")
    logs_in(script)
    script.client(heartbeat(5))
    again = handshake(corr=2_147_483_647)
    assert script.client(again) == again
    script.node(heartbeaten(5) + handshaken(2_147_483_647))
    assert script.client(authenticate(ALICE)) == authenticate(ALICE)
    assert script.facts.user == "alice"
    script.node(authenticated(error=58))
    assert script.facts.user == "alice"
    script.do(script.relay.on_eof(Side.NODE, 1000 * NOW_MS))
    assert script.close_reason is CloseReason.AUTHENTICATION_FAILED
    assert script.facts.user == "alice"


def test_re_authentication_as_another_is_for_the_node_to_refuse(make_relay):
    script = client_of(make_relay, "bob")
    logs_in(script)
    passes(script, (handshake(), handshaken()), (authenticate(plain(b"bob")), authenticated(error=58)))
    assert script.facts.user == "alice"
    assert throttled_user(script) is None


def test_requests_in_flight_are_charged_to_the_user_that_sent_them(make_relay):
    table = QuotaTable({Entity(user="alice"): {QuotaType.FETCH: 1000.0}, Entity(user="bob"): {QuotaType.FETCH: 1000.0}})
    script = client_of(make_relay, quota_manager=manager_of(table))
    logs_in(script)
    small = fetch(1, max_bytes=1000)
    script.client(small + handshake(corr=2))
    assert script.sent[Side.NODE].endswith(small), "a node has one request of a connection at a time"
    script.node(fetched(1, size=500))
    assert script.sent[Side.NODE].endswith(handshake(corr=2))
    script.node(handshaken(2))
    passes(script, (authenticate(plain(b"bob")), authenticated()))
    readings = {key.tags.user: reading.rate for key, reading in script.quota_manager.readings(NOW_MS)}
    assert readings["alice"] > 0
    assert not readings.get("bob")


@pytest.mark.parametrize("version", [0, 1])
def test_a_throttled_client_still_authenticates_anew(make_relay, version):
    script = client_of(make_relay, "alice")
    logs_in(script)
    script.client(produce(3, size=1500))
    script.node(produced(3))
    assert script.wake_at == END_MS
    sasl = [(handshake(version=version), handshaken())]
    sasl += [(authenticate(ALICE), authenticated())] if version else [(bare(ALICE), bare(b""))]
    passes(script, *sasl, now_ms=NOW_MS + 100)
    assert script.facts.user == "alice"
    assert script.counters.authentications == 2
    assert script.client(heartbeat(4), NOW_MS + 200) == b""
    assert script.time(END_MS) == heartbeat(4)


def test_a_sasl_frame_that_comes_in_pieces_passes_a_mute_too(make_relay):
    script = client_of(make_relay, "alice")
    logs_in(script)
    script.client(produce(3, size=1500))
    script.node(produced(3))
    passes(script, (handshake(SHA_256), handshaken()))
    long = authenticate(b"x" * 20_000)
    for at in range(0, len(long), 500):
        assert script.reads[Side.CLIENT]
        script.client(long[at : at + 500])
    assert script.sent[Side.NODE].endswith(long)


def test_sasl_out_of_place_is_no_way_around_a_mute(make_relay):
    """A node whose sessions do not end responds to a late handshake like to any request, as often as it comes."""
    script = client_of(make_relay, "alice")
    logs_in(script)
    passes(script, (handshake(), handshaken(error=34)))
    script.client(produce(3, size=1500))
    script.node(produced(3))
    assert script.client(handshake()) == b""
    assert script.time(END_MS) == handshake()
    assert script.node(handshaken(error=34), END_MS) == handshaken(error=34)
    assert script.counters.authentications_failed == 0


def quota_manager_of_time(*users):
    """All request time is too much for these users."""
    return manager_of({Entity(user=user): {QuotaType.REQUEST: 1e-4} for user in users})


OUT_OF_PLACE = {
    "handshake": (handshake(), handshaken(error=34)),
    "handshake of version 0": (handshake(version=0), handshaken(error=34)),
    "token": (authenticate(ALICE), authenticated(error=34)),
}


@pytest.mark.parametrize("demanded", [True, False])
@pytest.mark.parametrize("exchange", OUT_OF_PLACE.values(), ids=OUT_OF_PLACE.keys())
def test_sasl_that_a_node_calls_out_of_place_is_charged_like_any_request(make_relay, exchange, demanded):
    user = "alice" if demanded else "ANONYMOUS"
    script = client_of(
        make_relay, quota_manager=quota_manager_of_time(user), limits=RelayLimits(authenticates=demanded)
    )
    if demanded:
        logs_in(script)
    assert list(script.quota_manager.readings(NOW_MS)) == []
    ask, response = exchange
    script.client(ask)
    script.node(response, NOW_MS + 1)
    [(key, reading)] = script.quota_manager.readings(NOW_MS + 1)
    assert (key.tags.user, reading.charges) == (user, 1)
    assert [throttled.quota_type for throttled in script.throttles] == [QuotaType.REQUEST]
    for ask, _ in OUT_OF_PLACE.values():
        assert script.client(ask, NOW_MS + 2) == b""


def test_where_no_client_can_log_in_sasl_waits_for_a_mute_like_any_request(make_relay):
    script = client_of(make_relay, "ANONYMOUS", limits=RelayLimits())
    script.client(produce(3, size=1500))
    script.node(produced(3))
    assert script.client(handshake()) == b""
    assert script.time(END_MS) == handshake()


def test_an_exchange_that_goes_on_and_a_new_one_are_not_charged(make_relay):
    script = client_of(make_relay, quota_manager=quota_manager_of_time("alice"))
    logs_in(script)
    logs_in(script)
    challenged(script)
    passes(script, (handshake("PLAIN"), handshaken(error=33)))
    assert [reading.charges for _, reading in script.quota_manager.readings(NOW_MS)] == [0]


def test_an_unknown_version_of_api_versions_is_charged_once_the_user_is_known(make_relay):
    unknown = request(API_VERSIONS, 99, b"\1\1\0", corr=2, tags=True)
    script = client_of(make_relay, quota_manager=quota_manager_of_time("alice"))
    for _ in range(5):
        script.client(unknown)
    assert list(script.quota_manager.readings(NOW_MS)) == []
    logs_in(script)
    script.client(unknown)
    [(key, reading)] = script.quota_manager.readings(NOW_MS)
    assert (key.tags.user, reading.charges) == ("alice", 1)


EARLY = {
    "version nobody knows": (request(API_VERSIONS, 99, b"\1\1\0", tags=True), b""),
    "version": (versions(), offered()),
    "handshake": (handshake(), handshaken()),
}


@pytest.mark.parametrize(("ask", "response"), EARLY.values(), ids=EARLY.keys())
def test_before_a_login_no_more_is_carried_than_any_login_needs(make_relay, ask, response):
    script = client_of(make_relay, "alice")
    for _ in range(300):
        if script.closed is None:
            script.client(ask)
        if script.closed is None and response:
            script.node(response)
    assert script.close_reason is CloseReason.NOT_AUTHENTICATED
    assert script.relay.responses == 100


def test_a_sasl_frame_behind_another_request_waits_with_it(make_relay):
    script = client_of(make_relay, "alice")
    logs_in(script)
    script.client(produce(3, size=1500))
    script.node(produced(3))
    assert script.client(heartbeat(4) + handshake()) == b""
    assert script.time(END_MS) == heartbeat(4) + handshake()


def test_a_mute_is_not_forgotten_for_an_authentication_and_its_response_is_not_held(make_relay):
    limits = RelayLimits(authenticates=True, delays=True)
    script = client_of(make_relay, "alice", limits=limits)
    logs_in(script)
    script.client(produce(3, size=1500))
    assert script.client(handshake(corr=4)) == handshake(corr=4)
    assert script.node(produced(3) + handshaken(4)) == b"", "responses keep their order"
    before = len(script.sent[Side.CLIENT])
    script.time(END_MS)
    assert script.sent[Side.CLIENT][before:] == produced(3) + handshaken(4)


# ------------------------------------------------------ who cannot be seen


def test_gssapi_is_named_after_its_mechanism_or_by_the_operator(make_relay):
    for rules, user in ((SaslRules(), "?GSSAPI"), (SaslRules({"?GSSAPI": "kerberos"}), "kerberos")):
        script = client_of(make_relay, user, rules=rules)
        passes(
            script,
            (handshake("GSSAPI"), handshaken()),
            (authenticate(b"\x60token"), authenticated(b"\x60more")),
            (authenticate(b""), authenticated(b"layer")),
        )
        assert script.facts.user == ""
        passes(script, (authenticate(b"layer"), authenticated(b"")))
        assert throttled_user(script) == user
        assert script.met[0].visible is (user == "kerberos")


def test_delegation_tokens_and_opaque_bearer_tokens_give_no_names(make_relay):
    script = client_of(make_relay)
    passes(
        script,
        (handshake(SHA_256), handshaken()),
        (authenticate(scram_first("token-id", extensions=",tokenauth=true")), authenticated(SERVER_FIRST)),
        (authenticate(PROOF), authenticated(SERVER_FINAL)),
    )
    assert script.facts.user == "?SCRAM-SHA-256"
    script = client_of(make_relay)
    passes(
        script,
        (handshake("OAUTHBEARER"), handshaken()),
        (authenticate(oauthbearer("opaque")), authenticated()),
    )
    assert script.facts.user == "?OAUTHBEARER"
    assert [identity.visible for identity in script.met] == [False]


@pytest.mark.parametrize("mechanism", ["x" * 2000, "", "żółw", "a\nb"])
def test_a_mechanism_that_is_no_word_does_not_become_a_name(make_relay, mechanism):
    script = client_of(make_relay)
    passes(script, (handshake(mechanism), handshaken()), (authenticate(b"token"), authenticated()))
    assert script.facts.user == "?unknown"


def challenged(script):
    """A login by a mechanism whose nodes respond to every token with another one."""
    passes(
        script,
        (handshake("DIGEST-MD5"), handshaken()),
        (authenticate(b""), authenticated(b"challenge")),
    )


@pytest.mark.parametrize("acks", [1, 0])
def test_of_an_unknown_mechanism_a_request_of_our_own_shows_the_end(make_relay, acks):
    script = client_of(make_relay, "?DIGEST-MD5")
    challenged(script)
    asked = produce(3, size=1500, acks=acks)
    assert script.client(asked) == PROOF_ASKED
    assert (script.facts.user, script.throttles) == ("", [])
    assert proves(script) == asked
    assert script.facts.user == "?DIGEST-MD5"
    assert [t.throttle_time_ms for t in script.throttles] == [5000]


@pytest.mark.parametrize("acks", [1, 0])
@pytest.mark.parametrize("response", [{"error": 34}, {"entries": ()}, {"error": 35}])
def test_a_challenge_is_no_success_whatever_is_sent_behind_it(make_relay, response, acks):
    script = client_of(make_relay, "corp", rules=SaslRules({"?DIGEST-MD5": "corp"}))
    script.facts.listener.rights_of = lambda user: (user == "corp", user == "corp")
    challenged(script)
    script.client(produce(7, size=1500, acks=acks) + produce(8, size=1500))
    assert proves(script, **response) == b""
    assert script.close_reason is CloseReason.NOT_AUTHENTICATED
    assert (script.met, script.throttles, script.facts.may_alter) == ([], [], False)


def test_where_sasl_is_not_demanded_a_challenge_leaves_the_user_as_it_was(make_relay):
    script = client_of(make_relay, "ANONYMOUS", limits=RelayLimits())
    challenged(script)
    asked = produce(7, size=1500)
    script.client(asked)
    assert proves(script, error=34) == asked
    assert (script.met, script.facts.user) == ([], "ANONYMOUS")
    assert script.throttles


def test_a_node_that_closes_amid_an_exchange_has_accepted_no_user(make_relay):
    script = client_of(make_relay, "corp", rules=SaslRules({"?DIGEST-MD5": "corp"}))
    challenged(script)
    script.client(produce(3, size=1500) + produce(4, size=1500))
    script.do(script.relay.on_eof(Side.NODE, 1000 * NOW_MS))
    assert script.close_reason is CloseReason.AUTHENTICATION_FAILED
    assert (script.met, script.throttles) == ([], [])


def test_the_proxy_describes_quotas_to_no_client_that_has_not_logged_in(make_relay):
    script = client_of(make_relay)
    challenged(script)
    before = len(script.sent[Side.CLIENT])
    script.client(describe_request([], corr=9))
    assert proves(script, error=34) == b""
    assert script.close_reason is CloseReason.NOT_AUTHENTICATED
    assert len(script.sent[Side.CLIENT]) == before


# ------------------------------------------------- bare tokens that are opaque


def proves(script, *, error=0, entries=((3, 0, 12),)):
    """The node responds to the proxy's own ApiVersions; returns what goes to the node then."""
    assert script.sent[Side.NODE].endswith(PROOF_ASKED)
    body = pack(">hi", error, len(entries)) + b"".join(pack(">hhh", *entry) for entry in entries)
    before = len(script.sent[Side.NODE]), len(script.sent[Side.CLIENT])
    script.node(frame(pack(">i", int.from_bytes(PROOF_ASKED[8:12], "big", signed=True)) + body))
    assert len(script.sent[Side.CLIENT]) == before[1], "the client has not asked"
    return bytes(script.sent[Side.NODE][before[0] :])


def gssapi(script):
    """A client that logs in by Kerberos as those do that know no other framing; its last token gets no response."""
    passes(
        script,
        (handshake("GSSAPI", version=0), handshaken()),
        (bare(b"\x60token"), bare(b"\x60more")),
        (bare(b""), bare(b"\5\4layer")),
    )
    assert script.client(bare(b"\5\4layer")) == bare(b"\5\4layer")


@pytest.mark.parametrize("acks", [1, 0])
def test_a_request_behind_them_shows_that_they_are_through_and_is_charged(make_relay, acks):
    script = client_of(make_relay, "?GSSAPI")
    gssapi(script)
    asked = produce(7, size=1500, acks=acks)
    assert script.client(asked + heartbeat(8)) == PROOF_ASKED
    assert script.facts.user == ""
    assert proves(script) == asked
    assert script.facts.user == "?GSSAPI"
    assert [t.throttle_time_ms for t in script.throttles] == [5000]
    script.time(END_MS)
    assert script.sent[Side.NODE].endswith(heartbeat(8))
    script.node((produced(7) if acks else b"") + heartbeaten(8))
    assert script.relay.idle


@pytest.mark.parametrize("acks", [1, 0])
def test_an_attacker_who_cannot_log_in_is_charged_nothing(make_relay, acks):
    script = client_of(make_relay, "kerberos", rules=SaslRules({"?GSSAPI": "kerberos"}))
    passes(script, (handshake("GSSAPI", version=0), handshaken()))
    script.client(bare(b"\x60junk") + produce(7, size=1500, acks=acks) + produce(8, size=1500))
    assert script.sent[Side.NODE].endswith(PROOF_ASKED)
    script.do(script.relay.on_eof(Side.NODE, 1000 * NOW_MS))
    assert script.close_reason is CloseReason.AUTHENTICATION_FAILED
    assert (script.met, script.throttles) == ([], [])


def test_a_late_handshake_behind_them_does_not_change_the_user(make_relay):
    script = client_of(make_relay, "kerberos", rules=SaslRules({"?GSSAPI": "kerberos"}))
    gssapi(script)
    assert script.client(handshake("PLAIN", corr=5)) == handshake("PLAIN", corr=5)
    script.node(handshaken(5, error=34))
    script.client(heartbeat(7))
    assert proves(script) == heartbeat(7)
    assert script.facts.user == "kerberos"


def test_behind_a_second_login_with_opaque_tokens_all_is_charged(make_relay):
    script = client_of(make_relay, "?GSSAPI")
    gssapi(script)
    script.client(heartbeat(7))
    proves(script)
    script.node(heartbeaten(7))
    gssapi(script)
    assert throttled_user(script) == "?GSSAPI"
    assert script.node(produced(9)) == produced(9, 5000)
    assert script.relay.idle


def test_a_response_of_the_proxy_is_not_kept_back_by_a_token_that_gets_none(make_relay):
    script = client_of(make_relay)
    gssapi(script)
    script.client(heartbeat(7))
    proves(script)
    script.node(heartbeaten(7))
    gssapi(script)
    passes(script, (heartbeat(9), heartbeaten(9)))
    script.client(request(API_VERSIONS, 99, b"\1\1\0", corr=10, tags=True))
    assert pack(">ih", 10, 35) in script.sent[Side.CLIENT][-40:]
    assert script.relay.idle


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "user",
    [b"a,b", b"a=b", b"\xff\xfe", "żółw".encode(), b"<default>", b"x" * 65_536, b" ", b"\n", b"?GSSAPI"],
    ids=repr,
)
def test_odd_names_pass_and_are_users(make_relay, user):
    script = client_of(make_relay, DEFAULT)
    logs_in(script, user)
    name = user.decode(errors="replace")
    assert script.facts.user == name or (len(user) > 32_767 and len(script.facts.user) < 200)
    assert throttled_user(script) == script.facts.user


@pytest.mark.parametrize("body", [b"", b"\xff\xff", b"\x7f\xff", b"\0\5PLA"])
def test_frames_that_are_not_understood_pass_and_the_node_decides(make_relay, body):
    script = client_of(make_relay, "alice")
    ask = request(17, 1, body)
    passes(script, (ask, handshaken()))
    ask = request(36, 1, body, corr=2)
    passes(script, (ask, authenticated()))
    assert script.facts.user == "?unknown"


@pytest.mark.parametrize("size", [-1, -(2**31), MAX_ASKED_BYTES + 1, 2**31 - 1])
def test_a_bare_token_of_no_sensible_size_closes(make_relay, size):
    for side in Side:
        script = client_of(make_relay, "alice")
        passes(script, (handshake(version=0), handshaken()))
        if side is Side.NODE:
            script.client(bare(ALICE))
            script.node(pack(">i", size))
            assert script.close_reason is CloseReason.RESPONSE_MALFORMED
        else:
            script.client(pack(">i", size))
            expected = CloseReason.REQUEST_MALFORMED if size < 0 else CloseReason.REQUEST_TOO_LARGE
            assert script.close_reason is expected
        assert script.facts.user == ""


def test_a_sasl_request_that_is_too_large_is_refused_at_its_head(make_relay):
    script = client_of(make_relay, "alice")
    head = authenticate(b"")
    script.client(pack(">i", MAX_SASL_BYTES + 1) + head[4:])
    assert script.close_reason is CloseReason.REQUEST_TOO_LARGE


@pytest.mark.parametrize(
    ("mechanism", "token"),
    [
        ("PLAIN", ALICE),
        ("PLAIN", plain(b"$ConnectionString", b"Endpoint=sb://a.test;SharedAccessKeyName=send;SharedAccessKey=secret")),
        ("PLAIN", plain(b"$ConnectionString", b"SharedAccessSignature sr=a&sig=secret&skn=send")),
        ("OAUTHBEARER", oauthbearer(msk_token(f"https://a/?X-Amz-Credential={CREDENTIAL}&X-Amz-Signature=secret"))),
        ("AWS_MSK_IAM", MSK_JSON),
    ],
)
def test_no_secret_is_shown(make_relay, mechanism, token):
    script = client_of(make_relay, "alice")
    script.hold_decisions = True
    script.client(handshake(mechanism))
    script.response_asks()
    script.node(handshaken())
    script.response_asks()
    script.client(authenticate(token))
    secrets = ("secret", token.decode(), msk_token("secret"))
    assert not [secret for secret in secrets if secret in repr(script.asks)]
    script.response_asks()
    assert not [secret for secret in secrets if secret in repr(script.facts.login)]
    assert script.facts.login.failure.claimed_user in ("alice", "send", ACCESS_KEY)


def test_a_client_that_hangs_up_half_way_has_no_user(make_relay):
    script = client_of(make_relay, "alice")
    script.client(handshake())
    script.do(script.relay.on_eof(Side.CLIENT, 1000 * NOW_MS))
    assert script.close_reason is CloseReason.CLIENT_CLOSED
    script = client_of(make_relay, "alice")
    passes(script, (handshake(), handshaken()))
    script.client(authenticate(ALICE) + heartbeat(3))
    script.do(script.relay.on_eof(Side.CLIENT, 1000 * NOW_MS))
    script.node(authenticated())
    assert script.facts.user == "alice"
    assert script.sent[Side.NODE].endswith(heartbeat(3))


# --------------------------------------------------------------------- fuzz

EXCHANGES = [
    [(handshake(), handshaken()), (authenticate(ALICE), authenticated())],
    [(handshake(version=0), handshaken()), (bare(ALICE), bare(b""))],
    [
        (handshake(SHA_256), handshaken()),
        (authenticate(scram_first("alice")), authenticated(SERVER_FIRST)),
        (authenticate(PROOF), authenticated(SERVER_FINAL)),
    ],
    [
        (handshake(SHA_256, version=0), handshaken()),
        (bare(scram_first("alice")), bare(SERVER_FIRST)),
        (bare(PROOF), bare(SERVER_FINAL)),
    ],
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(EXCHANGES), st.data())
def test_logins_do_not_depend_on_how_tcp_cuts_them(exchange, data):
    script = client_of(Relay, "alice")
    pairs = [(versions(), offered()), *exchange, (produce(7, size=900), produced(7)), (heartbeat(8), heartbeaten(8))]
    asks = b"".join(ask for ask, _ in pairs)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(asks)), max_size=12)))
    for a, b in zip([0, *cuts], [*cuts, len(asks)], strict=True):
        script.client(asks[a:b])
    for ask, response in pairs:
        assert ask in script.sent[Side.NODE]
        at = data.draw(st.integers(0, len(response)))
        script.node(response[:at])
        script.node(response[at:])
    assert script.closed is None
    assert script.sent[Side.NODE] == asks
    assert script.sent[Side.CLIENT] == b"".join(response for _, response in pairs)
    assert script.facts.user == "alice"
    assert script.relay.idle


_client_frames = st.one_of(
    st.sampled_from([ask for exchange in [*EXCHANGES, *FAILURES.values()] for ask, _ in exchange]),
    st.sampled_from([versions(), heartbeat(2), produce(3, size=500), fetch(4), bare(b"\x60x"), bare(b"")]),
    st.binary(max_size=40),
    st.binary(max_size=200).map(bare),
)
_node_frames = st.one_of(
    st.sampled_from([response for exchange in [*EXCHANGES, *FAILURES.values()] for _, response in exchange]),
    st.sampled_from([offered(), heartbeaten(2), produced(3), fetched(4, size=300)]),
    st.binary(max_size=40),
)


@pytest.mark.rule("sasl")
@settings(max_examples=300, deadline=None)
@given(st.booleans(), st.lists(st.tuples(st.booleans(), _client_frames, _node_frames), max_size=12))
def test_whatever_comes_a_user_is_named_only_by_a_success(demanded, steps):
    script = client_of(Relay, "alice", limits=RelayLimits(authenticates=demanded))
    nobody = script.facts.user
    now_ms = NOW_MS
    for from_client, ask, response in steps:
        now_ms += 100
        if script.closed:
            break
        (script.client if from_client else script.node)(ask if from_client else response, now_ms)
        if script.wake_at is not None and script.wake_at <= now_ms and not script.closed:
            script.time(now_ms)
    assert (script.facts.user == nobody) == (script.met == [])
    if not script.met:
        assert all("alice" not in key.tags.user for key, _ in script.quota_manager.readings(now_ms))
