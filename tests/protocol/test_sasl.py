"""SASL frames, and the user that a token names: a name that a node would not read is not read here either."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.net.sasl.oauth import AbstractTokenProvider, SaslMechanismOAuth
from kafka.net.sasl.plain import SaslMechanismPlain
from kafka.net.sasl.scram import SaslMechanismScram

from kafka_throttle.protocol.api_key import SASL_AUTHENTICATE, SASL_HANDSHAKE
from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.protocol.identity.sasl_names import MAX_TOKEN_BYTES, Claim, claimed_names, jwt_subject, succeeds
from kafka_throttle.protocol.messages.sasl import (
    bare_token,
    read_authenticate,
    read_authenticate_response,
    read_handshake,
    read_handshake_response,
)
from kafka_throttle.proxy.relay.request import read_request
from tests.support.message_vectors import KAFKA_VERSIONS, message_vectors
from tests.support.sasl_frames import (
    authenticate,
    authenticated,
    handshake,
    handshaken,
    jwt,
    oauthbearer,
    plain,
    scram_first,
)

SHA_256 = "SCRAM-SHA-256"
MECHANISMS = ("PLAIN", SHA_256, "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")


def claimed_name(*what):
    """The most exact name that a token shows."""
    return next(iter(claimed_names(*what)), None)


every_version = pytest.mark.parametrize("version", [0, 1, 2])


def body_at(frame):
    """Where the body of a request begins."""
    return read_request(frame, 0, len(frame), len(frame)).body_at


@pytest.mark.parametrize("version", [0, 1])
def test_a_handshake_names_its_mechanism(version):
    frame = handshake("SCRAM-SHA-512", version)
    assert read_handshake(frame, body_at(frame)) == "SCRAM-SHA-512"
    assert read_handshake_response(handshaken(error=33)) == 33


@every_version
@pytest.mark.parametrize("token", [b"", b"\0alice\0secret", b"t" * 300])
def test_a_token_is_found_in_its_frame(version, token):
    frame = authenticate(token, version)
    assert bytes(read_authenticate(frame, body_at(frame), version)) == token
    response = read_authenticate_response(authenticated(token, version, error=58, text=b"no"), version)
    assert (response.error_code, bytes(response.token)) == (58, token)
    assert b"secret" not in repr(response).encode()


@pytest.mark.parametrize("kafka_version", KAFKA_VERSIONS)
def test_frames_of_kafka_itself_are_read(kafka_version):
    found = [v for v in message_vectors(kafka_version) if v.key in (SASL_HANDSHAKE, SASL_AUTHENTICATE)]
    assert found
    for vector in found:
        if vector.is_response and vector.key == SASL_HANDSHAKE:
            read_handshake_response(vector.frame)
        elif vector.is_response:
            read_authenticate_response(vector.frame, vector.version)
        elif vector.key == SASL_HANDSHAKE:
            read_handshake(vector.frame, body_at(vector.frame))
        else:
            read_authenticate(vector.frame, body_at(vector.frame), vector.version)


def test_a_bare_token_may_be_empty():
    assert bytes(bare_token(b"\0\0\0\0")) == b""
    assert bytes(bare_token(b"\0\0\0\2ab")) == b"ab"


# ------------------------------------------------------------------- PLAIN


@pytest.mark.parametrize(
    ("token", "name"),
    [
        (plain(b"alice"), "alice"),
        (plain(b"alice", authzid=b"alice"), "alice"),
        (plain(b"alice", authzid=b"bob"), None),
        (plain(b"a=b,c"), "a=b,c"),
        (plain("żółw".encode()), "żółw"),
        (plain(b"\xff\xfe"), "\ufffd\ufffd"),
        (plain(b"\xff", authzid=b"\xfe"), "\ufffd"),
        (plain(b"u" * 65_536), "u" * 65_536),
        (plain(b""), None),
        (plain(b"alice", b""), None),
        (b"alice\0secret", None),
        (b"\0alice\0sec\0ret", None),
        (b"\0" * 100_000, None),
        (b"", None),
    ],
)
def test_plain(token, name):
    assert claimed_name("PLAIN", token) == name


# ------------------------------------------------------------------- SCRAM


@pytest.mark.parametrize(
    ("token", "name"),
    [
        (scram_first("alice"), "alice"),
        (scram_first("a=2Cb=3Dc"), "a,b=c"),
        (scram_first("=3D2C"), "=2C"),
        (scram_first("a=b"), None),
        (scram_first("a="), None),
        (scram_first("=2c"), None),
        (scram_first("alice", authzid="a=alice"), "alice"),
        (scram_first("a=3Db", authzid="a=a=3Db"), "a=b"),
        (scram_first("alice", authzid="a=bob"), None),
        (scram_first("alice", authzid="alice"), None),
        (scram_first("token-id", extensions=",tokenauth=true"), None),
        (scram_first("token-id", extensions=",tokenauth=TRUE"), None),
        (scram_first("alice", extensions=",tokenauth=false"), "alice"),
        (scram_first("alice", extensions=",tokenauth=true,tokenauth=false"), "alice"),
        (scram_first("alice", extensions=",x=y" * 1000), "alice"),
        (b"n,,m=must,n=alice,r=nonce", "alice"),
        (b"y,,n=alice,r=nonce", None),
        (b"p=tls-unique,,n=alice,r=nonce", None),
        (b"n,,n=alice", None),
        (b"n,,n=,r=nonce", None),
        (b"n,,r=nonce,n=alice", None),
        (b"n,,n=\xff,r=nonce", None),
        (b"c=biws,r=nonce,p=proof", None),
        (b"n", None),
        (b"", None),
    ],
)
def test_scram(token, name):
    assert claimed_name(SHA_256, token) == name
    assert claimed_name("SCRAM-SHA-512", token) == name


# ------------------------------------------------------------- OAUTHBEARER


@pytest.mark.parametrize(
    ("token", "name"),
    [
        (oauthbearer(jwt({"sub": "alice"})), "alice"),
        (oauthbearer(jwt({"sub": "alice"}), authzid="a=alice"), "alice"),
        (oauthbearer(jwt({"sub": "alice"}), authzid="a=bob"), None),
        (oauthbearer(jwt({"sub": "alice"}), more="host=h\1port=1\1"), "alice"),
        (oauthbearer(jwt({"sub": "bob"}), more=f"auth=bearer  {jwt({'sub': 'alice'})}\1"), "alice"),
        (oauthbearer("opaque"), None),
        (b"n,,\1auth=Basic YTpi\1\1", None),
        (b"n,,\1\1", None),
        (b"n,\1auth=Bearer x\1\1", None),
        (b"\1", None),
        (b"\xff", None),
    ],
)
def test_oauthbearer(token, name):
    assert claimed_name("OAUTHBEARER", token) == name


@pytest.mark.parametrize(
    ("token", "name"),
    [
        (jwt({"sub": "alice", "exp": 1}), "alice"),
        (jwt({"sub": "żółw?>"}), "żółw?>"),
        (jwt({"sub": " alice\n"}), "alice"),
        (jwt({"sub": " alice\n"}, signature=""), " alice\n"),
        (jwt({"sub": "  "}), None),
        (jwt({"sub": "  "}, signature=""), None),
        (jwt({"sub": 7}), None),
        (jwt({"sub": None}), None),
        (jwt({}), None),
        (jwt(["sub"]), None),
        (jwt({"sub": "alice"}) + ".x", None),
        ("a.b", None),
        ("a.b.c.d.e", None),
        ("a.=.c", None),
        ("..", None),
        ("", None),
    ],
)
def test_the_subject_of_a_jwt(token, name):
    assert jwt_subject(token) == name


def test_another_claim_may_name_the_principal():
    token = oauthbearer(jwt({"sub": "4711", "email": "alice@example.com"}))
    assert claimed_name("OAUTHBEARER", token, (Claim("email"),)) == "alice@example.com"


@pytest.mark.parametrize(
    ("found", "name"),
    [
        ({"sub": "4711", "preferred_username": "ann", "client_id": "billing"}, "ann"),
        ({"sub": "4711", "client_id": "billing"}, "service-account-billing"),
        ({"sub": "4711", "preferred_username": " ", "client_id": "billing"}, "service-account-billing"),
        ({"sub": "4711", "preferred_username": 7, "client_id": "billing"}, "service-account-billing"),
        ({"sub": "4711"}, None),
    ],
)
def test_the_first_claim_that_a_token_has_names_the_principal_by_whichever_mechanism_it_comes(found, name):
    claims = (Claim("preferred_username"), Claim("client_id", "service-account-"))
    assert claimed_name("OAUTHBEARER", oauthbearer(jwt(found)), claims) == name
    by_plain = plain(b"$accessToken", jwt(found).encode())
    assert claimed_name("PLAIN", by_plain, claims) == (name or "$accessToken")
    assert claimed_name("PLAIN", plain(b"alice", jwt(found).encode()), claims) == "alice"


@pytest.mark.parametrize("json_text", ["[" * 100_000, '{"sub": "a', "9" * 10_000, '{"sub":"\\ud800"}', "\x00"])
def test_json_that_is_nonsense_gives_no_name(json_text):
    part = base64.urlsafe_b64encode(json_text.encode()).decode()
    assert claimed_name("OAUTHBEARER", oauthbearer(f"e30.{part}.c2ln")) is None


class _Provider(AbstractTokenProvider):
    def token(self):
        return jwt({"sub": "alice"})

    def extensions(self):
        return {"logicalCluster": "lkc-1"}


@pytest.mark.parametrize(
    ("mechanism", "client"),
    [
        ("PLAIN", SaslMechanismPlain(sasl_plain_username="alice", sasl_plain_password="secret")),
        (
            SHA_256,
            SaslMechanismScram(sasl_mechanism=SHA_256, sasl_plain_username="alice", sasl_plain_password="secret"),
        ),
        ("OAUTHBEARER", SaslMechanismOAuth(sasl_oauth_token_provider=_Provider())),
    ],
)
def test_what_clients_send_is_read(mechanism, client):
    assert claimed_name(mechanism, client.auth_bytes()) == "alice"


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize(
    ("mechanism", "response", "ends_well"),
    [
        ("PLAIN", b"", True),
        ("PLAIN", b"x", None),
        (SHA_256, b"r=nonce,s=c2FsdA==,i=4096", False),
        (SHA_256, b"v=c2ln", True),
        (SHA_256, b"e=invalid-proof", False),
        (SHA_256, b"", False),
        ("OAUTHBEARER", b"", True),
        ("OAUTHBEARER", b'{"status":"invalid_token"}', False),
        ("GSSAPI", b"", True),
        ("GSSAPI", b"\x60token", None),
    ],
)
def test_which_responses_end_an_exchange_well(mechanism, response, ends_well):
    assert succeeds(mechanism, response) is ends_well


# ------------------------------------------------------------------- fuzz

_pieces = st.sampled_from(
    [
        b"n",
        b"y",
        b",",
        b"=",
        b"a=",
        b"n=",
        b"m=",
        b"r=",
        b"=2C",
        b"=3D",
        b"\0",
        b"\1",
        b"auth=",
        b"Bearer ",
        b".",
        b"tok",
    ]
    + [b",tokenauth=true", jwt({"sub": "alice"}).encode(), b"e30", b"alice", b"\xff"]
)
tokens = st.one_of(st.binary(max_size=300), st.lists(_pieces, max_size=30).map(b"".join))


@given(st.sampled_from(MECHANISMS), tokens)
def test_any_token_gives_a_name_or_none(mechanism, token):
    name = claimed_name(mechanism, token)
    assert name is None or (name and name.encode())
    assert succeeds(mechanism, token) in (True, False, None)


@given(st.text(min_size=1).filter(lambda text: "\0" not in text), st.text(min_size=1))
def test_any_name_is_read_as_it_was_written(name, password):
    assert claimed_name("PLAIN", plain(name.encode(), password.replace("\0", "0").encode())) == name
    escaped = name.replace("=", "=3D").replace(",", "=2C")
    assert claimed_name(SHA_256, scram_first(escaped)) == name
    assert jwt_subject(jwt({"sub": name}, signature="")) == (name if name.strip("".join(map(chr, range(33)))) else None)


@given(st.sampled_from([0, 1, 2]), st.binary(max_size=200))
def test_any_frame_is_read_or_refused(version, data):
    frame = len(data).to_bytes(4, "big") + data
    for read in (
        lambda: read_handshake(frame, 8),
        lambda: read_handshake_response(frame),
        lambda: read_authenticate(frame, 8, version),
        lambda: read_authenticate_response(frame, version),
    ):
        try:
            read()
        except ProtocolError:
            continue


def test_a_token_that_no_broker_takes_gives_no_name():
    assert claimed_name("PLAIN", plain(b"alice", b"p" * MAX_TOKEN_BYTES)) is None
    claims = json.dumps({"sub": "alice"})
    assert claimed_name("GSSAPI", claims.encode()) is None
