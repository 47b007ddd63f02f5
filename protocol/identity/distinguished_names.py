"""The subject of an X.509 certificate as Java writes it, its host names, and its validity.

For a client certificate, a broker's user is `X500Principal.getName()`: RFC 2253, with Java's choices where the RFC
leaves them open.
"""

import re
from calendar import timegm
from typing import Final, NamedTuple

from kafka_throttle.protocol.errors import MalformedMessage, TruncatedMessage

_SEQUENCE, _SET, _OID, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0x31, 0x06, 0x17, 0x18
_EXPLICIT_VERSION, _EXPLICIT_EXTENSIONS = 0xA0, 0xA3
_BOOLEAN, _OCTET_STRING, _DNS_NAME = 0x01, 0x04, 0x82
_SUBJECT_ALT_NAME = bytes.fromhex("551d11")
"""2.5.29.17 in DER."""

_TEXTS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString: Java reads each as UTF-8."""

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""Attribute types with a name. For all others Java writes the number, and the value as the hexadecimal of its DER."""

_RENEWED_BEFORE: Final = 1 / 4
"""The share of its validity that a certificate should still have when it is renewed."""
_RENEWED_BEFORE_AT_MOST_S: Final = 30 * 86_400

_ESCAPED = frozenset(',=+<>#;"\\')
_MAX_ARC_BYTES = 32

_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""Half of a surrogate pair in UTF-8: Java replaces it by one U+FFFD, Python by one for each byte."""


class Validity(NamedTuple):
    """When a certificate begins and ends to be valid, in seconds since 1970."""

    begins_s: int
    ends_s: int

    @property
    def renewal_due_s(self) -> float:
        """From when on the certificate expires soon: a quarter of its validity is left, but 30 days at most."""
        return self.ends_s - min(_RENEWED_BEFORE * (self.ends_s - self.begins_s), _RENEWED_BEFORE_AT_MOST_S)

    def urgency(self, now_s: float) -> float:
        """How much of the time to renew it is over: from 0 on it expires soon, from 1 on it has expired."""
        due_s = self.renewal_due_s
        return (now_s - due_s) / max(self.ends_s - due_s, 1)


class _Der:
    """A cursor over the elements between two offsets of DER (X.690). Raises MalformedMessage or TruncatedMessage."""

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.at = at
        self.end = len(data) if end is None else end

    def __bool__(self) -> bool:
        return self.at < self.end

    def tag(self) -> int:
        """The tag of the next element."""
        if self.at >= self.end:
            raise TruncatedMessage(self.at, 1, self.end)
        return self.data[self.at]

    def take(self, wanted: int | None = None) -> tuple[int, int]:
        """Step over an element, with the tag `wanted` if one is given; return where its content begins and ends."""
        tag, begin = self.tag(), self.at
        if tag & 0x1F == 0x1F or (wanted is not None and tag != wanted):
            raise MalformedMessage(f"DER tag {tag:#04x} at offset {begin}")
        start, size = begin + 2, self._byte(begin + 1)
        if size & 0x80:
            count = size & 0x7F
            if not 1 <= count <= 4:
                raise MalformedMessage(f"DER length of {count} bytes at offset {begin}")
            start += count
            size = int.from_bytes(self.data[begin + 2 : start], "big")
        if start + size > self.end:
            raise TruncatedMessage(begin, start + size - begin, self.end)
        self.at = start + size
        return start, self.at

    def inside(self, wanted: int) -> "_Der":
        """A cursor over the content of the next element, which is stepped over."""
        start, end = self.take(wanted)
        return _Der(self.data, start, end)

    def content(self, wanted: int) -> bytes:
        """The content of the next element."""
        start, end = self.take(wanted)
        return self.data[start:end]

    def whole(self) -> bytes:
        """The next element with its tag and length."""
        begin = self.at
        _, end = self.take()
        return self.data[begin:end]

    def _byte(self, at: int) -> int:
        if at >= self.end:
            raise TruncatedMessage(at, 1, self.end)
        return self.data[at]


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate in DER, in Java's form. Raises ProtocolError."""
    fields = _fields_from_issuer(certificate)
    fields.take(_SEQUENCE)
    fields.take(_SEQUENCE)
    return distinguished_name(fields.whole())


def not_after(certificate: bytes) -> int:
    """When the validity of a certificate in DER ends, in seconds since 1970. Raises ProtocolError."""
    return validity_of(certificate).ends_s


def validity_of(certificate: bytes) -> Validity:
    """The validity of a certificate in DER. Raises ProtocolError."""
    fields = _fields_from_issuer(certificate)
    fields.take(_SEQUENCE)
    validity = fields.inside(_SEQUENCE)
    begin_tag = validity.tag()
    begins = _seconds(begin_tag, validity.content(begin_tag))
    end_tag = validity.tag()
    return Validity(begins, _seconds(end_tag, validity.content(end_tag)))


def host_names_of(certificate: bytes) -> list[str]:
    """The host names of a certificate in DER (RFC 5280, 4.2.1.6: dNSName), also those with "*".

    Raises ProtocolError.
    """
    fields = _fields_from_issuer(certificate)
    for _ in ("issuer", "validity", "subject", "key"):
        fields.take(_SEQUENCE)
    while fields:
        if fields.tag() == _EXPLICIT_EXTENSIONS:
            return _dns_names(fields.inside(_EXPLICIT_EXTENSIONS).inside(_SEQUENCE))
        fields.take()
    return []


def _dns_names(extensions: _Der) -> list[str]:
    found = []
    while extensions:
        extension = extensions.inside(_SEQUENCE)
        if extension.content(_OID) != _SUBJECT_ALT_NAME:
            continue
        if extension.tag() == _BOOLEAN:  # whether it is critical
            extension.take()
        names = extension.inside(_OCTET_STRING).inside(_SEQUENCE)
        while names:
            tag = names.tag()
            name = names.content(tag)
            if tag == _DNS_NAME:
                found.append(name.decode(errors="replace"))
    return found


def _fields_from_issuer(certificate: bytes) -> _Der:
    """The fields of TBSCertificate after version, serialNumber and signature (RFC 5280)."""
    fields = _Der(certificate).inside(_SEQUENCE).inside(_SEQUENCE)
    if fields.tag() == _EXPLICIT_VERSION:
        fields.take()
    fields.take()
    fields.take(_SEQUENCE)
    return fields


def _seconds(tag: int, text: bytes) -> int:
    """The time in YYMMDDHHMMSSZ (up to 2049) or YYYYMMDDHHMMSSZ (from then on), in seconds (RFC 5280, 4.1.2.5)."""
    digits = text[:-1]
    size = {_UTC_TIME: 12, _GENERALIZED_TIME: 14}.get(tag)
    if len(digits) != size or not digits.isdigit() or text[-1:] != b"Z":
        raise MalformedMessage(f"time {text[:20]!r} in a certificate")
    year, rest = int(digits[:-10]), digits[-10:]
    if tag == _UTC_TIME:
        year += 1900 if year >= 50 else 2000
    month, day, hour, minute, second = (int(rest[i : i + 2]) for i in range(0, 10, 2))
    if not (year and 1 <= month <= 12):
        raise MalformedMessage(f"time {text[:20]!r} in a certificate")
    return timegm((year, month, day, hour, minute, second))


def distinguished_name(name: bytes) -> str:
    """A Name in DER as RFC 2253, last part first. Raises ProtocolError."""
    parts = []
    outer = _Der(name)
    sets = outer.inside(_SEQUENCE)
    while sets:
        attributes = []
        members = sets.inside(_SET)
        while members:
            attributes.append(_attribute(members.inside(_SEQUENCE)))
        if not attributes:
            raise MalformedMessage("an empty part of a distinguished name")
        parts.append("+".join(attributes))
    if outer:
        raise MalformedMessage(f"{outer.end - outer.at} bytes after a distinguished name")
    return ",".join(reversed(parts))


def _attribute(pair: _Der) -> str:
    number = _oid(pair.content(_OID))
    keyword = _KEYWORDS.get(number)
    tag = pair.tag()
    if keyword is None or tag not in _TEXTS:
        text = f"{keyword or number}=#{pair.whole().hex()}"
    else:
        text = f"{keyword}={_escaped(_text(pair.content(tag)))}"
    if pair:
        raise MalformedMessage(f"{pair.end - pair.at} bytes after an attribute")
    return text


def _text(data: bytes) -> str:
    return _SURROGATE.sub("\ufffd".encode(), data).decode(errors="replace")


def _escaped(text: str) -> str:
    """The text with Java's escapes, which are more than those of RFC 2253: spaces and carriage returns at both ends,
    each "=" and "#", and NUL.
    """
    stripped = text.strip(" \r")
    lead = len(text) - len(text.lstrip(" \r"))
    escaped = "".join(rf"\{c}" if c in _ESCAPED else r"\00" if c == "\0" else c for c in stripped)
    return "".join([*(rf"\{c}" for c in text[:lead]), escaped, *(rf"\{c}" for c in text[lead + len(stripped) :])])


def _oid(data: bytes) -> str:
    arcs: list[int] = []
    start = 0
    for at, byte in enumerate(data):
        if byte & 0x80:
            continue
        if at - start > _MAX_ARC_BYTES:
            raise MalformedMessage(f"object identifier with an arc of {at - start} bytes")
        arc = 0
        for part in data[start : at + 1]:
            arc = arc << 7 | part & 0x7F
        arcs += [arc] if arcs else divmod(arc, 40) if arc < 80 else (2, arc - 80)
        start = at + 1
    if not arcs or start != len(data):
        raise MalformedMessage("object identifier that is cut short")
    return ".".join(map(str, arcs))
