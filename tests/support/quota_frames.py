"""Requests to describe and to alter quotas as a client writes them, and their responses as a client reads them."""

from struct import pack
from typing import NamedTuple

from kafka_throttle.protocol.api_key import ALTER_CLIENT_QUOTAS as ALTER
from kafka_throttle.protocol.api_key import DESCRIBE_CLIENT_QUOTAS as DESCRIBE
from kafka_throttle.protocol.primitives import Reader, compact_string, string, uvarint


class Described(NamedTuple):
    """A response to a describe request; `entries` maps entities to their values, None where the response has none."""

    error_code: int
    error_message: str | None
    entries: dict[frozenset[tuple[str, str | None]], dict[str, float]] | None


class Altered(NamedTuple):
    """One entry of a response to an alter request."""

    error_code: int
    error_message: str | None
    entity: tuple[tuple[str, str | None], ...]


def describe_request(components, strict=False, *, version=1, corr=1, client_id=b"etl"):
    """A request with components (entity type, match type, match)."""
    body = array(version, components, lambda c: text(version, c[0]) + pack(">b", c[1]) + text(version, c[2]))
    return _request(DESCRIBE, version, corr, client_id, body + bytes([strict]))


def alter_request(entries, validate_only=False, *, version=1, corr=1, client_id=b"etl"):
    """A request with entries (entity, operations): (type, name) pairs and (key, value, remove) triples."""
    body = array(
        version,
        entries,
        lambda entry: (
            array(version, entry[0], lambda part: text(version, part[0]) + text(version, part[1]))
            + array(version, entry[1], lambda op: text(version, op[0]) + pack(">d?", op[1], op[2]))
        ),
    )
    return _request(ALTER, version, corr, client_id, body + bytes([validate_only]))


def _request(api_key, version, corr, client_id, body):
    name = pack(">h", -1) if client_id is None else string(client_id)
    message = pack(">hhi", api_key, version, corr) + name + _end(version) + body + _end(version)
    return pack(">i", len(message)) + message


def text(version, value):
    raw = value.encode() if isinstance(value, str) else value
    if raw is None:
        return b"\0" if version else pack(">h", -1)
    return compact_string(raw) if version else string(raw)


def array(version, elements, write):
    count = uvarint(len(elements) + 1) if version else pack(">i", len(elements))
    return count + b"".join(write(element) + _end(version) for element in elements)


def _end(version):
    return b"\0" if version else b""


class _Response:
    def __init__(self, frame, version):
        self.version = version
        self.reader = Reader(frame, 4)
        self.correlation_id = self.reader.int32()
        self.end()
        self.throttle_time_ms = self.reader.int32()

    def end(self):
        if self.version:
            self.reader.tags()

    def text(self):
        raw = self.reader.compact_string() if self.version else self.reader.string()
        return None if raw is None else raw.decode()

    def array(self, read):
        count = self.reader.count(bool(self.version), 1)
        return None if count < 0 else [self._element(read) for _ in range(count)]

    def _element(self, read):
        value = read()
        self.end()
        return value

    def part(self):
        return self.text(), self.text()

    def value(self):
        return self.text(), self.reader.float64()

    def described(self):
        return self.array(self.part), self.array(self.value)

    def altered(self):
        return Altered(self.reader.int16(), self.text(), tuple(self.array(self.part)))


def described(frame, version=1):
    """What the response to a describe request says. Each entity and each key is in it once."""
    response = _Response(frame, version)
    error_code, message, entries = response.reader.int16(), response.text(), response.array(response.described)
    response.end()
    assert response.reader.offset == len(frame)
    if entries is None:
        return Described(error_code, message, None)
    found = {frozenset(parts): dict(values) for parts, values in entries}
    assert len(found) == len(entries)
    assert all(len(dict(values)) == len(values) for _, values in entries)
    return Described(error_code, message, found)


def altered(frame, version=1):
    """The entries of the response to an alter request."""
    response = _Response(frame, version)
    entries = response.array(response.altered)
    response.end()
    assert response.reader.offset == len(frame)
    return entries


def correlation_id(frame):
    """Of any response."""
    return Reader(frame, 4).int32()
