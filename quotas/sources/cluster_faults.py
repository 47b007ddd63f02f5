"""Why a connection of the proxy's own to a node came to nothing, and which setting to look at."""

import ssl
from enum import Enum, auto
from typing import Final, NamedTuple

from kafka_throttle.common.plain_words import words_of
from kafka_throttle.quotas.changes import SourceUnavailable

_HOST_MISMATCH: Final = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH of OpenSSL."""

ADDRESSES: Final = "upstream.bootstrap_servers"
PROTOCOL: Final = "upstream.admin.security_protocol"
CA_FILE: Final = "upstream.admin.ca_file"
OWN_CERTIFICATE: Final = "upstream.admin.certificate_file"
FILES: Final = "upstream.admin.ca_file, upstream.admin.certificate_file, upstream.admin.key_file"
MECHANISM: Final = "upstream.admin.sasl_mechanism"
LOGIN: Final = "upstream.admin.username, upstream.admin.password_file"
TOKEN_ENDPOINT: Final = "upstream.admin.token_endpoint"
TOKEN: Final = f"upstream.admin.token_file, {TOKEN_ENDPOINT}"

LOGIN_EXPECTED: Final = "it requires a SASL login"
"""What is said of a node that requires SASL, if the proxy does not log in."""


def login_setting(mechanism: str | None) -> str:
    """Where the configuration may be wrong if a login is refused."""
    return TOKEN if mechanism == "OAUTHBEARER" else LOGIN


class Spoken(Enum):
    """What a port speaks, as far as a look shows."""

    KAFKA = auto()
    KAFKA_WITH_SASL = auto()
    TLS = auto()
    TLS_WITH_CERTIFICATES = auto()
    """TLS to clients that show a certificate."""
    NOTHING_KNOWN = auto()
    NOBODY_IS_THERE = auto()


class Fault(NamedTuple):
    """`reason` is one word of a few, `setting` where the configuration may be wrong."""

    reason: str
    problem: str
    setting: str


class ConnectionFault(SourceUnavailable):
    """No connection to a node, or no response over it."""

    def __init__(self, server: str, fault: Fault) -> None:
        super().__init__(f"{server}: {fault.problem} (setting: {fault.setting})")
        self.fault = fault


class NodeRefuses(Exception):
    """A node has said no, in Kafka's protocol."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.problem)
        self.fault = fault


class Security(NamedTuple):
    """How the proxy speaks on a connection of its own, and how far it came: after a TLS handshake, after a login."""

    secured: bool
    handshake_done: bool
    shows_certificate: bool
    logs_in: bool
    logged_in: bool
    login_setting: str = LOGIN


def known_fault_of_tls(error: ssl.SSLError) -> Fault | None:
    """What an error of TLS says by itself; None if it could be anything."""
    if isinstance(error, ssl.SSLCertVerificationError):
        setting = ADDRESSES if error.verify_code in _HOST_MISMATCH else CA_FILE
        return Fault("certificate_refused", f"its certificate is refused: {error.verify_message}", setting)
    text = words_of(error)
    if " alert " in text:
        return Fault("tls_refused", f"it refuses TLS: {text}", f"{OWN_CERTIFICATE}, {PROTOCOL}")
    return None


def fault_of_lost(error: Exception, text: str, security: Security, spoken: Spoken) -> Fault:
    """What it means that a connection ended with an error, at a node that speaks this; `text` is said of the error."""
    if spoken is Spoken.NOBODY_IS_THERE:
        return Fault("unreachable", text, ADDRESSES)
    if spoken is Spoken.TLS and not security.secured:
        return Fault("tls_expected", "it speaks TLS", PROTOCOL)
    if spoken in (Spoken.KAFKA, Spoken.KAFKA_WITH_SASL) and security.secured and not security.handshake_done:
        return Fault("tls_unexpected", "it speaks Kafka without TLS", PROTOCOL)
    if isinstance(error, ssl.SSLError):
        return Fault("tls_failed", f"TLS: {text}", PROTOCOL)
    if spoken is Spoken.TLS_WITH_CERTIFICATES and not security.shows_certificate:
        return Fault("tls_refused", "it wants a certificate", f"{OWN_CERTIFICATE}, {PROTOCOL}")
    if spoken is Spoken.KAFKA_WITH_SASL and not security.logs_in:
        return Fault("authentication_expected", LOGIN_EXPECTED, PROTOCOL)
    if security.logs_in and not security.logged_in:  # a node closes at once after its no, and that may be lost
        return Fault("authentication_failed", text, security.login_setting)
    return Fault("closed", text, f"{ADDRESSES}, {PROTOCOL}")
