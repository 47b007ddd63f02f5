"""What is fuzzed: functions that take any bytes and raise when something untrue comes of them, and seeds for each.

Kept small: a seed is here because it leads somewhere that others do not.
"""

import re
from base64 import urlsafe_b64encode
from contextlib import suppress

from kafka.record.util import calc_crc32c

from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.protocol.identity.cloud_names import access_key_of_json, access_key_of_url, shared_access_key_name
from kafka_throttle.protocol.identity.distinguished_names import host_names_of, subject_of, validity_of
from kafka_throttle.protocol.identity.principal_rules import InvalidPrincipalRules, NoPrincipalRule, principal_rules
from kafka_throttle.protocol.identity.proxy_header import (
    LOCAL_PROXY_HEADER,
    Endpoint,
    MalformedProxyHeader,
    NoProxyHeader,
    ProxyHeader,
    proxy_header_v2,
    read_proxy_header,
)
from kafka_throttle.protocol.identity.sasl_names import AWS_MSK_IAM, OAUTHBEARER, PLAIN, SCRAM, claimed_names, succeeds
from kafka_throttle.protocol.messages.sasl import (
    bare_token,
    read_authenticate,
    read_authenticate_response,
    read_handshake,
    read_handshake_response,
)
from kafka_throttle.proxy.decisions.sasl import Identity
from kafka_throttle.proxy.relay.actions import RelayLimits
from kafka_throttle.proxy.relay.relay import Relay
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from tests.fuzz import messages
from tests.fuzz.messages import TURN
from tests.fuzz.target import Target
from tests.relay.frames import frame, produce, produced
from tests.relay.script import NOW_MS, Script
from tests.support.sasl_frames import authenticate, authenticated, handshake, handshaken, plain, scram_first

_SHORT_SUBJECT = 24
"""Of patterns that fuzzing makes up, time may grow with more than the length."""


# ---------------------------------------------------------------- PROXY header


def _heard(data: bytes) -> ProxyHeader | str | None:
    try:
        return read_proxy_header(data, calc_crc32c)
    except (NoProxyHeader, MalformedProxyHeader) as error:
        return f"{type(error).__name__}: {error}"


def _proxy_header(data: bytes) -> None:
    """However it is cut the same is said once it is certain, and nothing behind a header matters."""
    whole = _heard(data)
    for end in {len(data) // 2, max(len(data) - 1, 0), min(16, len(data)), min(107, len(data))}:
        part = _heard(data[:end])
        assert part is None or type(part) is type(whole), (part, whole)
        assert isinstance(part, str | None) or part == whole, (part, whole)
    if isinstance(whole, ProxyHeader):
        assert 15 <= whole.length_bytes <= len(data)
        assert _heard(data[: whole.length_bytes]) == whole
        assert _heard(data[: whole.length_bytes - 1]) is None
        if whole.source is not None and whole.destination is not None:
            again = _heard(proxy_header_v2(whole.source, whole.destination))
            assert isinstance(again, ProxyHeader)
            assert again.source is not None


_V2_CHECKED = proxy_header_v2(Endpoint("10.0.0.7", 1), Endpoint("10.0.0.1", 9092))
_V2_CHECKED = _V2_CHECKED[:14] + b"\x00\x13" + _V2_CHECKED[16:] + b"\x03\x00\x04"
_V2_CHECKED += calc_crc32c(_V2_CHECKED + bytes(4)).to_bytes(4, "big")

_PROXY_HEADERS = (
    b"PROXY TCP4 10.0.0.7 10.0.0.1 40000 9092\r\n\x00\x00",
    b"PROXY TCP6 2001:db8::1 ::1 40000 9092\r\n",
    b"PROXY UNKNOWN ffff::\r\n",
    LOCAL_PROXY_HEADER,
    proxy_header_v2(Endpoint("2001:db8::7", 40_000), Endpoint("10.0.0.1", 9092)) + b"\x00\x00",
    _V2_CHECKED,
)


# ------------------------------------------------------------------------ SASL


def _sasl(data: bytes) -> None:
    """Frames and tokens of every mechanism: a name that can be logged and looked up, or none."""
    for read in (
        read_handshake,
        lambda frame, at: read_authenticate(frame, at, 1),
        lambda f, at: read_authenticate(f, at, 2),
    ):
        with suppress(ProtocolError):
            read(data, 0)
    for response in (read_handshake_response, lambda frame: read_authenticate_response(frame, 1), bare_token):
        with suppress(ProtocolError):
            response(data)
    with suppress(ProtocolError):
        read_authenticate_response(data, 2)
    for mechanism in (PLAIN, *SCRAM, OAUTHBEARER, AWS_MSK_IAM, "GSSAPI"):
        assert all(name.encode() for name in claimed_names(mechanism, data))
        assert succeeds(mechanism, data) in (True, False, None)


_SASL = (
    b"\x00\x05PLAIN",
    b"\x00\x00\x00\x0c\x00alice\x00secret",
    b"\x00alice\x00secret",
    b"n,,n=al=2Cice,r=fyko+d2lbbFgONRv9qkxdawL",
    b"n,a=alice,m=x,n=alice,r=nonce,tokenauth=true",
    b"n,,\x01auth=Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9.\x01\x01",
)


def _cloud_names(data: bytes) -> None:
    """What tokens of cloud services are made of: whatever it says, a name is a plain word."""
    text = data.decode("latin-1")
    url = "https://a.test/?" + text
    for name in (
        access_key_of_url(urlsafe_b64encode(url.encode()).decode()),
        access_key_of_json(data),
        shared_access_key_name(text),
    ):
        assert name is None or re.fullmatch(r"[A-Za-z0-9._-]{1,256}", name)


_CREDENTIAL = b"AKIAIOSFODNN7EXAMPLE/20261128/eu-west-1/kafka-cluster/aws4_request"
_CLOUD_NAMES = (
    b"Action=kafka-cluster%3AConnect&X-Amz-Credential=" + _CREDENTIAL.replace(b"/", b"%2F") + b"&User-Agent=a%2F1",
    b'{"version":"2020_10_22","x-amz-credential":"' + _CREDENTIAL + b'","user-agent":"a"}',
    b"Endpoint=sb://a.test/;SharedAccessKeyName=send;SharedAccessKey=c2VjcmV0;EntityPath=hub",
    b"Endpoint=sb://a.test/;SharedAccessSignature=SharedAccessSignature sr=a&sig=c2ln&se=1&skn=send",
)


def _sasl_connection(data: bytes) -> None:
    """Whatever both sides say, somebody is named only by a success, and before one nobody's quota is spent."""
    quota_manager = ClientQuotaManager(Sensors(16), QuotaTable({Entity(user=DEFAULT): {QuotaType.PRODUCE: 100.0}}))
    script = Script(Relay, quota_manager, RelayLimits(authenticates=True)).connected()
    met: list[Identity] = []
    script.facts.user, script.facts.note_identity = "", met.append
    for turn, part in enumerate(data.split(TURN)):
        if script.closed is None:
            (script.node if turn % 2 else script.client)(part)
    assert (script.facts.user == "") == (not met)
    assert met or not list(quota_manager.readings(NOW_MS))
    assert b"secret" not in repr(script.facts.login).encode()


_LOGINS = (
    (handshake(), handshaken(), authenticate(plain(b"alice")), authenticated(), produce(3)),
    (handshake(version=0), handshaken(), frame(plain(b"alice")), frame(b""), produce(3, size=1500)),
    (
        handshake("GSSAPI", version=0),
        handshaken(),
        frame(b"\x60"),
        frame(b"\x60"),
        frame(b"\5") + produce(3),
        produced(3),
    ),
    (handshake("SCRAM-SHA-256"), handshaken(), authenticate(scram_first("alice")), authenticated(b"r=n"), b""),
    (handshake("X"), handshaken(), authenticate(b"{}"), authenticated(b"{}"), produce(3), produced(3), produce(4)),
    (handshake(), handshaken(error=33), produce(3)),
)


# --------------------------------------------------------- certificates, rules


def _certificate(data: bytes) -> None:
    for read in (subject_of, validity_of, host_names_of):
        with suppress(ProtocolError):
            read(data)


def _der(tag: int, *parts: bytes) -> bytes:
    return bytes([tag, sum(map(len, parts))]) + b"".join(parts)


def _named(last_arc: int, text: bytes) -> bytes:
    return _der(0x31, _der(0x30, _der(0x06, b"\x55\x04" + bytes([last_arc])), _der(0x0C, text)))


_FIELDS = (
    *(_der(0xA0, _der(0x02, b"\x02")), _der(0x02, b"\x01"), _der(0x30), _der(0x30)),
    _der(0x30, _der(0x17, b"200101000000Z"), _der(0x17, b"301231235959Z")),
    _der(0x30, _named(10, b"Acme"), _named(3, b"etl")),
)
_CERTIFICATES = (_der(0x30, _der(0x30, *_FIELDS)), b"\x30\x81\x04\x30\x02\x02\x00")


def _rules(data: bytes) -> None:
    """Any text as rules, any other as a subject."""
    text, _, subject = data.decode(errors="replace").partition("\n")
    with suppress(InvalidPrincipalRules, NoPrincipalRule):
        assert isinstance(principal_rules(text).name_of(subject[:_SHORT_SUBJECT]), str)


_RULES = (
    b"DEFAULT\nCN=etl,O=Acme",
    b"RULE:^CN=([^,]+),.*$/$1/L, DEFAULT\nCN=Etl,O=Acme",
    b"RULE:^CN=(?<n>\\w+).*/a\\$${n}/U\nCN=etl",
)

TARGETS = {
    "proxy-header": Target(_proxy_header, _PROXY_HEADERS),
    "sasl": Target(_sasl, _SASL),
    "cloud-names": Target(_cloud_names, _CLOUD_NAMES),
    "sasl-connection": Target(_sasl_connection, tuple(map(TURN.join, _LOGINS))),
    "certificate": Target(_certificate, _CERTIFICATES),
    "principal-rules": Target(_rules, _RULES),
    **messages.TARGETS,
}
