"""Why a connection of the proxy's own to a node came to nothing, and which setting to look at.

Libraries tell a closed socket, which is what nodes say to whoever speaks TLS to a plain listener, or plain to one that
speaks TLS, or no SASL where that is wanted. So such a node is asked once more, by hand, what it speaks.
"""

import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from struct import pack, unpack
from typing import Final, NamedTuple

from kafka.errors import (
    IllegalSaslStateError,
    KafkaConnectionError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)

from quotas.changes import SourceUnavailable

_HOST_MISMATCH: Final = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH of OpenSSL."""

_ALERT: Final = re.compile(r"\[SSL: (\w+_ALERT_\w+)\]")
_CLASS_NAME: Final = re.compile(r"(?:\[Error \d+\] )?\b(?:[A-Z]\w*)?(?:Error|Exception)\b(?:: )?")
_ERRNO: Final = re.compile(r"\b(\d{1,3}) E[A-Z]{2,}\b")
_LOOK_S: Final = 3.0
_WORD_S = 1.0
ADDRESSES: Final = "upstream.bootstrap_servers"
PROTOCOL: Final = "upstream.admin.security_protocol"
CA_FILE: Final = "upstream.admin.ca_file"
OWN_CERTIFICATE: Final = "upstream.admin.certificate_file"
MECHANISM: Final = "upstream.admin.sasl_mechanism"
LOGIN: Final = "upstream.admin.username, upstream.admin.password_file"
_API_VERSIONS: Final = pack(">ihhih", 10, 18, 0, 7, -1)
_SASL_HANDSHAKE: Final = pack(">ihhihh", 13, 17, 1, 8, -1, 1) + b"?"
_UNSUPPORTED_SASL_MECHANISM: Final = 33


class Spoken(Enum):
    """What a port speaks, as far as a look tells."""

    KAFKA = "Kafka without TLS"
    KAFKA_WITH_SASL = "Kafka that wants SASL"
    TLS = "TLS"
    TLS_WITH_CERTIFICATES = "TLS to who shows a certificate"
    NOTHING_KNOWN = "nothing that is known"
    NOBODY_IS_THERE = "nothing, as nobody takes a connection"


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


class Who(NamedTuple):
    """How the proxy speaks on a connection of its own; `logged_in` says whether that has succeeded."""

    secured: bool
    shows_certificate: bool
    logs_in: bool
    logged_in: bool


def fault_of(error: BaseException, text: str, who: Who, look: Callable[[], Spoken]) -> Fault:
    """What an error of kafka-python comes to; `text` is what is told of it where nothing better is known.

    `look` finds out what the node speaks.
    """
    for each in _with_causes(error):
        if isinstance(each, ssl.SSLError):
            return _tls_fault(each, look)
        if isinstance(each, UnsupportedSaslMechanismError):
            return Fault("mechanism_refused", f"it does not take the SASL mechanism: {text}", MECHANISM)
        if isinstance(each, IllegalSaslStateError):
            return Fault("authentication_unexpected", f"it wants no SASL ({text})", PROTOCOL)
        if isinstance(each, SaslAuthenticationFailedError):
            return Fault("authentication_failed", f"it refuses the login: {text}", LOGIN)
    if alert := _ALERT.search(text):  # behind a handshake of TLS 1.3, of which kafka-python keeps the words only
        return _refusal_of_tls(alert[1])
    return _fault_of_closed(text, who, look())


def plain_words(error: BaseException) -> str:
    """What an error of a library says, without the names of its classes and of the system's error numbers."""
    text = _ERRNO.sub(lambda found: os.strerror(int(found[1])), _CLASS_NAME.sub("", str(error))).strip()
    if text and not isinstance(error, LookupError):  # such an error says what was missing, and nothing else
        return text
    if isinstance(error, KafkaConnectionError):
        return "the connection was closed"
    name = type(error).__name__.removesuffix("Error")
    return f"failed ({re.sub('(?<=[a-z])(?=[A-Z])', ' ', name).lower()} error)"


def _fault_of_closed(text: str, who: "Who", spoken: Spoken) -> Fault:
    """A node that only closes."""
    if spoken is Spoken.NOBODY_IS_THERE:
        return Fault("unreachable", text, ADDRESSES)
    if spoken is Spoken.TLS and not who.secured:
        return Fault("tls_expected", f"it speaks TLS ({text})", PROTOCOL)
    if spoken is Spoken.TLS_WITH_CERTIFICATES and not who.shows_certificate:
        return Fault("tls_refused", f"it wants a certificate ({text})", f"{OWN_CERTIFICATE}, {PROTOCOL}")
    if spoken is Spoken.KAFKA_WITH_SASL and not who.logs_in:
        return Fault("authentication_expected", f"it wants SASL ({text})", PROTOCOL)
    if who.logs_in and not who.logged_in:  # a node closes at once after its no, and that may be lost before the end
        return Fault("authentication_failed", text, LOGIN)
    return Fault("closed", text, f"{ADDRESSES}, {PROTOCOL}")


def _tls_fault(error: ssl.SSLError, look: Callable[[], Spoken]) -> Fault:
    if isinstance(error, ssl.SSLCertVerificationError):
        setting = ADDRESSES if error.verify_code in _HOST_MISMATCH else CA_FILE
        return Fault("certificate_refused", f"its certificate is refused: {error.verify_message}", setting)
    text = (error.reason or str(error)).lower().replace("_", " ")
    if " alert " in text:
        return _refusal_of_tls(text)
    if look() in (Spoken.KAFKA, Spoken.KAFKA_WITH_SASL):
        return Fault("tls_unexpected", f"it speaks Kafka without TLS ({text})", PROTOCOL)
    return Fault("tls_failed", f"TLS: {text}", PROTOCOL)


def _refusal_of_tls(text: str) -> Fault:
    words = text.lower().replace("_", " ")
    return Fault("tls_refused", f"it refuses TLS: {words}", f"{OWN_CERTIFICATE}, {PROTOCOL}")


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


# ---------------------------------------------------------------------- a look


def spoken_at(server: str, secured: bool) -> Spoken:
    """What a port speaks; whether it wants SASL is asked over TLS if that is `secured`. Blocks for seconds at most."""
    host, _, port = server.rpartition(":")
    address = host.strip("[]"), int(port)
    try:
        plain = _connected(address)
    except OSError:
        return Spoken.NOBODY_IS_THERE
    with suppress(OSError, ValueError), plain as sock:
        if _answers_kafka(sock):
            return Spoken.KAFKA_WITH_SASL if _wants_sasl(sock) else Spoken.KAFKA
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with _connected(address) as sock, context.wrap_socket(sock) as tls:
            if not secured:
                return Spoken.TLS
            if _refuses_us(tls):
                return Spoken.TLS_WITH_CERTIFICATES
            return Spoken.KAFKA_WITH_SASL if _answers_kafka(tls) and _wants_sasl(tls) else Spoken.TLS
    except ssl.SSLError as error:
        return Spoken.TLS if " alert " in str(error).lower().replace("_", " ") else Spoken.NOTHING_KNOWN
    except (OSError, ValueError):
        return Spoken.NOTHING_KNOWN


def _connected(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, _LOOK_S)


def _refuses_us(tls: ssl.SSLSocket) -> bool:
    """Whether there is a word against us behind the handshake. What we said before we heard it might have it lost."""
    tls.settimeout(_WORD_S)
    try:
        tls.recv(1)
    except ssl.SSLError as error:
        return "alert" in str(error).lower()
    except TimeoutError:
        pass
    finally:
        tls.settimeout(_LOOK_S)
    return False


def _answers_kafka(sock: socket.socket) -> bool:
    sock.sendall(_API_VERSIONS)
    response = _response(sock)
    return response[:4] == pack(">i", 7)


def _wants_sasl(sock: socket.socket) -> bool:
    """Whether a mechanism that is none is refused as such; who wants no SASL refuses it as out of place."""
    response = b""
    with suppress(OSError, ValueError):  # some only close
        sock.sendall(_SASL_HANDSHAKE)
        response = _response(sock)
    return len(response) >= 6 and unpack(">h", response[4:6])[0] == _UNSUPPORTED_SASL_MECHANISM


def _response(sock: socket.socket) -> bytes:
    """The first bytes of a frame, enough to know it by; the rest is read and dropped."""
    size = int.from_bytes(_exactly(sock, 4), "big")
    if not 6 <= size <= 100_000:
        raise ValueError(size)
    return _exactly(sock, size)[:6]


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionResetError
        data += piece
    return data
