"""The client's side of SCRAM: the exchange of RFC 7677, a simulated server, and messages that no server sends."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.protocol.identity.scram import HASHES, MAX_ITERATIONS, ScramClient, ScramFailed
from tests.support.sasl_frames import FIRST, NONCE, PROOF, VERIFIER


def client(mechanism="SCRAM-SHA-256", username="user", password="pencil", nonce=NONCE):
    return ScramClient(mechanism, username, password, nonce)


def test_the_exchange_of_rfc_7677():
    login = client()
    assert login.first() == f"n,,n=user,r={NONCE}".encode()
    assert login.respond(FIRST.encode()) == f"c=biws,r={NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,{PROOF}".encode()
    assert login.respond(VERIFIER.encode()) is None


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_server_that_knows_the_password_accepts_the_proof_and_is_accepted(mechanism):
    """RFC 5802, section 3, from the server's side."""
    hash_ = HASHES[mechanism]
    login = client(mechanism, "Zoë,=", "pass word")
    first_bare = login.first()[3:]
    assert first_bare == f"n=Zoë=2C=3D,r={NONCE}".encode()
    challenge = f"r={NONCE}server,s={base64.b64encode(b'salt').decode()},i=5000".encode()
    without_proof, _, proof = login.respond(challenge).rpartition(b",p=")
    salted = hashlib.pbkdf2_hmac(hash_, b"pass word", b"salt", 5000)
    signed = b",".join((first_bare, challenge, without_proof))
    stored = hashlib.new(hash_, hmac.digest(salted, b"Client Key", hash_)).digest()
    signature = hmac.digest(stored, signed, hash_)
    key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    assert hashlib.new(hash_, key).digest() == stored
    verifier = hmac.digest(hmac.digest(salted, b"Server Key", hash_), signed, hash_)
    assert login.respond(b"v=" + base64.b64encode(verifier)) is None
    with pytest.raises(ScramFailed):
        login.respond(b"v=" + base64.b64encode(verifier))


@pytest.mark.parametrize(
    "challenge",
    [
        FIRST.replace(NONCE, "another"),
        FIRST.replace("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", ""),
        FIRST.replace("4096", "4095"),
        FIRST.replace("4096", str(MAX_ITERATIONS + 1)),
        FIRST.replace("4096", "9" * 5000),
        FIRST.replace("4096", "-1"),
        FIRST.replace("4096", "²"),
        FIRST.replace("W22Z", "!22Z"),
        "m=extension," + FIRST,
        "e=other-error",
        "",
    ],
)
def test_an_invalid_challenge_is_refused(challenge):
    with pytest.raises(ScramFailed):
        client().respond(challenge.encode())


@pytest.mark.parametrize("final", ["v=" + "A" * 43 + "=", "v=", "", "e=invalid-proof", "w" + VERIFIER[1:], "\u00e9"])
def test_a_server_that_does_not_prove_that_it_knows_the_password_is_refused(final):
    login = client()
    login.respond(FIRST.encode())
    with pytest.raises(ScramFailed) as refused:
        login.respond(final.encode())
    assert "pencil" not in str(refused.value)


@given(st.binary(max_size=60) | st.text(alphabet="rsiv=,n1A", max_size=30).map(str.encode), st.booleans())
def test_any_bytes_are_taken_or_refused(message, is_second):
    login = client()
    if is_second:
        login.respond(FIRST.encode())
    try:
        login.respond(message)
    except ScramFailed:
        pass
