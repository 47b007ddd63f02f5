"""The names in tokens of Amazon MSK and Event Hubs: one that can be read with certainty, or none."""

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.protocol.identity.sasl_names import MAX_TOKEN_BYTES, claimed_names
from tests.support.sasl_frames import msk_token, oauthbearer, plain

KEY = "ASIAIOSFODNN7EXAMPLE"
SCOPE = "20261128/eu-west-1/kafka-cluster/aws4_request"
CREDENTIAL = f"{KEY}/{SCOPE}"
SESSION = "X-Amz-Security-Token=IQoJb3JpZ2luX2VjEXAMPLE%2B%2Fsession%3D%3Dtoken"
SIGNATURE = "X-Amz-Signature=e19e64b41975e909f0028cea5c1098e27205c537ca4ea6f67fca4df576bbabf4"
ESCAPED = quote(CREDENTIAL, safe="")

URLS = {
    "python 1.0.2": "/?Action=kafka-cluster%3AConnect&X-Amz-Algorithm=AWS4-HMAC-SHA256"
    f"&X-Amz-Credential={ESCAPED}&X-Amz-Date=20261128T012020Z&X-Amz-Expires=900&X-Amz-SignedHeaders=host"
    f"&{SESSION}&{SIGNATURE}&User-Agent=aws-msk-iam-sasl-signer-python%2F1.0.2",
    "js 1.0.3": "/?Action=kafka-cluster%3AConnect&User-Agent=aws-msk-iam-sasl-signer-js%2F1.0.3"
    f"&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={ESCAPED}&X-Amz-Date=20261128T012026Z"
    f"&X-Amz-Expires=900&{SESSION}&{SIGNATURE}&X-Amz-SignedHeaders=host",
    "go 1.0.4": "/?Action=kafka-cluster%3AConnect&User-Agent=aws-msk-iam-sasl-signer-go%2F1.0.4%2Fgo1.26.8"
    f"&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={ESCAPED}&X-Amz-Date=20261128T012254Z"
    f"&X-Amz-Expires=900&{SESSION}&{SIGNATURE}&X-Amz-SignedHeaders=host",
    "java 2.3.2": f"?Action=kafka-cluster%3AConnect&{SESSION}&X-Amz-Algorithm=AWS4-HMAC-SHA256"
    "&X-Amz-Date=20261128T012124Z&X-Amz-SignedHeaders=host&X-Amz-Expires=900"
    f"&X-Amz-Credential={ESCAPED}&{SIGNATURE}&User-Agent=aws-msk-iam-auth%2F2.3.2%2Faws-sdk-java%2F2.30.23"
    "%20os%2FLinux%236.18%20lang%2Fjava%2317.0.15%20md%2Fvendor%23Debian",
}
"""What AWS's own libraries sign, behind `https://kafka.eu-west-1.amazonaws.com`."""


def in_bearer_token(token):
    return claimed_names("OAUTHBEARER", oauthbearer(token))


def of_url(rest, begin="https://kafka.eu-west-1.amazonaws.com"):
    return in_bearer_token(msk_token(begin + rest))


def of_json(found):
    return claimed_names("AWS_MSK_IAM", found if isinstance(found, bytes) else json.dumps(found).encode())


# -------------------------------------------------------------------- Amazon MSK


@pytest.mark.parametrize("library", URLS)
def test_a_signed_url_names_its_access_key_and_what_all_such_tokens_have_in_common(library):
    assert of_url(URLS[library]) == (KEY, "?OAUTHBEARER")


def test_padding_and_the_other_alphabet_of_base64_make_no_difference():
    url = f"https://a.test/?a=~~~???>>>&X-Amz-Credential={ESCAPED}".encode()
    forms = {base64.urlsafe_b64encode(url), base64.b64encode(url)}
    forms |= {form.rstrip(b"=") for form in forms}
    assert len(forms) >= 3
    assert {in_bearer_token(form.decode()) for form in forms} == {(KEY, "?OAUTHBEARER")}


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ("/", "no query"),
        (f"/?Action=a&{SIGNATURE}", "no credential"),
        ("/?X-Amz-Credential=", "an empty one"),
        (f"/?X-Amz-Credential={ESCAPED}&X-Amz-Credential={ESCAPED}", "two"),
        (f"/?X-Amz-Credential={ESCAPED}&x-amz-credential={ESCAPED}", "another that differs in case"),
        (f"/?X-Amz-Credential={ESCAPED}&X-Amz%2DCredential=AKIAOTHERKEYOFALICE%2F{SCOPE}", "one with an escape"),
        (f"/?User-Agent=a%26X-Amz-Credential%3D{ESCAPED}&X-Amz-Credential={ESCAPED}", "one in another value"),
        (f"/?X-Amz-Credential={quote(ESCAPED, safe='')}%25", "escaped twice and more"),
        ("/?X-Amz-Credential=" + quote(f"AKIA\nIOSFODNN7EXAMPL/{SCOPE}", safe=""), "a control character"),
        ("/?X-Amz-Credential=" + quote(f"ÄKIAIOSFODNN7EXAMPLE/{SCOPE}", safe=""), "a letter that is not ASCII"),
        (f"/?X-Amz-Credential=%FF%FEAKIAIOSFODNN7EXA/{SCOPE}", "no UTF-8"),
        (f"/?X-Amz-Credential={'A' * 129}/{SCOPE}", "an id that is too long"),
        (f"/?X-Amz-Credential=AKIA/{SCOPE}", "an id that is too short"),
        (f"/?X-Amz-Credential={KEY}/20261128/eu-west-1/s3/aws4_request", "another service"),
        (f"/?X-Amz-Credential={CREDENTIAL}/more", "more behind it"),
        (f"/?X-Amz-Credential={KEY}", "only the id"),
        ("/?" + "%41" * 20_000 + f"&X-Amz-Credential={ESCAPED}", "longer than any"),
    ],
)
def test_a_url_without_one_plain_credential_gives_no_name(rest, why):
    assert of_url(rest) == (), why


@pytest.mark.parametrize("begin", ["http://a.test", "ftp://a.test", "", "\0https://a.test"])
def test_what_is_no_https_url_gives_no_name(begin):
    assert of_url(URLS["go 1.0.4"], begin) == ()


@pytest.mark.parametrize("token", ["opaque", "====", "a", "\u00e4" * 20, "A" * 500_000, "%" * 100_000])
def test_an_opaque_bearer_token_still_gives_no_name(token):
    assert in_bearer_token(token) == ()


def test_a_token_of_1_mb_is_not_even_read():
    url = msk_token(f"https://a.test/?X-Amz-Credential={ESCAPED}&a=" + "a" * 1_000_000)
    assert in_bearer_token(url) == ()
    assert of_json(b'{"x-amz-credential":"' + CREDENTIAL.encode() + b'"}' + b" " * MAX_TOKEN_BYTES) == ()


def test_an_authorization_id_that_is_not_the_key_gives_no_name():
    token = msk_token("https://a.test" + URLS["go 1.0.4"])
    assert claimed_names("OAUTHBEARER", oauthbearer(token, authzid="a=alice")) == ()
    assert claimed_names("OAUTHBEARER", oauthbearer(token, authzid=f"a={KEY}"))[0] == KEY


def test_the_payload_of_javas_own_mechanism_names_its_access_key():
    payload = {
        "x-amz-date": "20261128T012125Z",
        "x-amz-signedheaders": "host",
        "x-amz-signature": "f76d1bddd13865bd175bc29db2e5b3b49191422f89020246e078eaca0d51c124",
        "host": "b-1.example.kafka.eu-west-1.amazonaws.com",
        "action": "kafka-cluster:Connect",
        "x-amz-expires": "900",
        "x-amz-security-token": "IQoJb3JpZ2luX2VjEXAMPLE+/session==token",
        "version": "2020_10_22",
        "x-amz-algorithm": "AWS4-HMAC-SHA256",
        "x-amz-credential": CREDENTIAL,
        "user-agent": "aws-msk-iam-auth/2.3.2/aws-sdk-java/2.30.23 os/Linux#6.18 lang/java#17.0.15",
    }
    assert of_json(payload) == (KEY, "?AWS_MSK_IAM")
    assert of_json(payload | {"x-amz-credential": ESCAPED}) == (KEY, "?AWS_MSK_IAM")
    assert of_json({"host": "a.test"}) == ()


@pytest.mark.parametrize(
    "found",
    [
        b"",
        b"{",
        b"\xff\xfe{",
        b"[" * 50_000,
        b'{"a":' * 20_000,
        f'{{"x-amz-credential":"{CREDENTIAL}","x-amz-credential":"{CREDENTIAL}"}}'.encode(),
        f'{{"x-amz-credential":"{CREDENTIAL}","X-Amz-Credential":"{CREDENTIAL}"}}'.encode(),
        {"x-amz-credential": 7},
        {"x-amz-credential": [CREDENTIAL]},
        {"x-amz-credential": {"x-amz-credential": CREDENTIAL}},
        {"other": {"x-amz-credential": CREDENTIAL}},
        [["x-amz-credential", CREDENTIAL]],
        {"x-amz-credential": "\ud800" + CREDENTIAL},
        "x-amz-credential",
    ],
)
def test_json_without_one_plain_credential_gives_no_name(found):
    assert of_json(found) == ()


# -------------------------------------------------------------------- Event Hubs

ENDPOINT = "Endpoint=sb://a.servicebus.windows.net/"
SIGNED = "SharedAccessSignature sr=https%3A%2F%2Fa.test%2Fhub&sig=c2ln%3D&se=1795827600"


def of_password(password):
    return claimed_names("PLAIN", plain(b"$ConnectionString", password.encode()))


@pytest.mark.parametrize(
    ("password", "name"),
    [
        (f"{ENDPOINT};SharedAccessKeyName=send;SharedAccessKey=c2VjcmV0=", "send"),
        (f"{ENDPOINT};SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=a=;EntityPath=hub;", None),
        (f"{ENDPOINT}; sharedaccesskeyname = a.b_c-1 ;SharedAccessKey=a", "a.b_c-1"),
        (f"{ENDPOINT};SharedAccessSignature={SIGNED}&skn=send", "send"),
        (f"{SIGNED}&skn=send", "send"),
        (f"{SIGNED}&skn=a%2Eb", "a.b"),
        (f" {SIGNED.lower()}&skn=send", "send"),
        (f"{SIGNED.replace(' ', chr(9), 1)}&skn=send", "send"),
        ("SharedAccessSignature skn=send&sig=a", "send"),
    ],
)
def test_a_connection_string_names_its_key_and_the_user_that_all_of_them_have(password, name):
    assert of_password(password) == (name or "RootManageSharedAccessKey", "$ConnectionString")


@pytest.mark.parametrize(
    "password",
    [
        "secret",
        ENDPOINT,
        f"{ENDPOINT};SharedAccessKeyName=;SharedAccessKey=a",
        f"{ENDPOINT};SharedAccessKeyName=a;SharedAccessKeyName=b;SharedAccessKey=a",
        f"{ENDPOINT};SharedAccessKeyName=a;sharedAccessKeyName=a;SharedAccessKey=a",
        f"{ENDPOINT};SharedAccessKeyName=a;SharedAccessSignature={SIGNED}&skn=b",
        f"{ENDPOINT};SharedAccessKeyName=a b;SharedAccessKey=a",
        f"{ENDPOINT};SharedAccessKeyName=a\nb;SharedAccessKey=a",
        f"{ENDPOINT};SharedAccessKeyName={'a' * 257};SharedAccessKey=a",
        f"{ENDPOINT};SharedAccessKey=SharedAccessKeyName",
        SIGNED,
        f"{SIGNED}&skn=a&skn=b",
        f"{SIGNED}&skn=a&sk%6E=b",
        f"{SIGNED}&skn=%0a",
        f"{ENDPOINT};SharedAccessSignature=SHAREDACCESSSIGNATURE skn=own&sr=a&sig=a&SKN=another",
        f"{ENDPOINT};SharedAccessSignature=SharedAccessSignature\tskn=own&sr=a&sig=a&SKN=another",
        f"{ENDPOINT};SharedAccessSignature=SharedAccessSignature  skn=own&sr=a&sig=a&SKN=another",
        "sharedaccesssignature skn=own&sr=a&sig=a&SKN=another",
        ";" * 300_000,
        f"{ENDPOINT};SharedAccessKeyName=a;" + "x=y;" * 50_000,
    ],
)
def test_a_password_without_one_plain_key_name_leaves_the_name_that_all_have(password):
    assert of_password(password) == ("$ConnectionString",)


def test_only_the_user_of_event_hubs_has_a_connection_string_as_its_password():
    password = f"{ENDPOINT};SharedAccessKeyName=send;SharedAccessKey=a".encode()
    assert claimed_names("PLAIN", plain(b"alice", password)) == ("alice",)


# ------------------------------------------------------------------ any of them


@given(st.text(max_size=200), st.text(max_size=50))
def test_whatever_a_token_is_made_of_a_name_is_a_plain_word(text, value):
    query = f"{text}&X-Amz-Credential={value}"
    tokens = {
        "OAUTHBEARER": oauthbearer(msk_token(f"https://a.test/?{query}")),
        "AWS_MSK_IAM": json.dumps({text: value, "x-amz-credential": value}).encode(),
        "PLAIN": plain(b"$ConnectionString", f"{text};SharedAccessKeyName={value}".encode()),
    }
    for mechanism, token in tokens.items():
        names = claimed_names(mechanism, token)
        assert all(name.isascii() and name.isprintable() and " " not in name for name in names)


def test_google_and_confluent_need_no_reading_of_their_own():
    def part(found):
        return base64.urlsafe_b64encode(json.dumps(found).encode()).decode().rstrip("=")

    google = ".".join(
        (part({"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}), part({"sub": "etl@p.iam.gserviceaccount.com"}), "eWEyOQ")
    )
    assert in_bearer_token(google) == ("etl@p.iam.gserviceaccount.com",)
    assert claimed_names("PLAIN", plain(b"etl@p.iam.gserviceaccount.com", b"key")) == ("etl@p.iam.gserviceaccount.com",)
    assert claimed_names("PLAIN", plain(b"ABCDEFGHIJKLMNOP", b"secret of an API key")) == ("ABCDEFGHIJKLMNOP",)
