"""The credentials of a command: a file of properties, as Kafka's tools take with --command-config.

Kafka's names and librdkafka's are understood. Certificates and keys are PEM files.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from kafka_throttle.common.problems import Problem, Problems
from kafka_throttle.quotas.sources.cluster_connection import Credentials

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_FIELDS: Final = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.truststore.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.keystore.location": "ssl_certfile",
}
_PEM_ONLY: Final = ("ssl.truststore.type", "ssl.keystore.type")
_STORES: Final = {"ssl.truststore.location": "ssl.truststore.type", "ssl.keystore.location": "ssl.keystore.type"}
_JAAS: Final = "sasl.jaas.config"
_KNOWN: Final = [*_FIELDS, *_PEM_ONLY, _JAAS]
_MAX_FILE_BYTES: Final = 1_048_576
_PROPERTY = re.compile(r"\s*(?P<key>[^\s=:]+)\s*[=:]?\s*(?P<value>.*)")
_LIKE_A_NAME = re.compile(r"[a-z]+(\.[a-z]+)+")
"""Anything else may be a line of a key, or a password, and is not shown."""
_LOGIN = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


def read_command_config(path: Path) -> Credentials:
    """The credentials in the file. Raises Problems with each problem and its place; values are never shown."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_FILE_BYTES).decode()
    except OSError as error:
        raise Problems([Problem(str(path), f"cannot be read: {error.strerror or error}")]) from error
    except UnicodeDecodeError as error:
        raise Problems([Problem(str(path), "expected UTF-8")]) from error
    problems: list[Problem] = []
    credentials = _credentials(dict(_properties(text, problems)), problems)
    if problems:
        raise Problems(problems).named(path)
    return credentials


def _properties(text: str, problems: list[Problem]) -> Iterator[tuple[str, str]]:
    for number, line in _whole_lines(text):
        match = _PROPERTY.fullmatch(line)
        if match is None:
            continue
        key, value = match["key"], match["value"].strip()
        if key in _KNOWN:
            yield key, value
            continue
        close = get_close_matches(key, _KNOWN, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(_KNOWN)}"
        shown = f" {key[:80]!r}" if _LIKE_A_NAME.fullmatch(key) else ""
        problems.append(Problem(f"line {number}", f"unknown key{shown}, {hint}"))


def _whole_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with the number of their first; a line that ends in a backslash goes on in the next
    one.

    Comments are left out, and never go on.
    """
    pending, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not first and line.lstrip().startswith(("#", "!")):
            continue
        first = first or number
        pending += line.lstrip() if pending else line
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        if pending.strip():
            yield first, pending
        pending, first = "", 0
    if pending.strip():
        yield first, pending


def _credentials(properties: Mapping[str, str], problems: list[Problem]) -> Credentials:
    fields: dict[str, Any] = {_FIELDS[key]: value for key, value in properties.items() if key in _FIELDS}
    if _JAAS in properties:
        for name, value in _LOGIN.findall(properties[_JAAS]):
            fields[f"sasl_plain_{name}"] = re.sub(r"\\(.)", r"\1", value)
    if "ssl.keystore.location" in properties:
        fields.setdefault("ssl_keyfile", properties["ssl.keystore.location"])
    for location, kind in _STORES.items():
        if location in properties and properties.get(kind) != "PEM":
            problems.append(Problem(kind, f"expected PEM, beside {location}, got {properties.get(kind) or 'nothing'}"))
    protocol = fields.setdefault("security_protocol", "PLAINTEXT")
    if protocol not in _PROTOCOLS:
        problems.append(Problem("security.protocol", f"expected one of {', '.join(_PROTOCOLS)}, got {protocol!r}"))
    problems += _problems_of_login(fields) if protocol.startswith("SASL") else ()
    problems += _problems_of_files(fields)
    return Credentials(**fields)


def _problems_of_login(fields: Mapping[str, Any]) -> Iterator[Problem]:
    if fields.get("sasl_mechanism") not in _MECHANISMS:
        got = fields.get("sasl_mechanism") or "nothing"
        yield Problem("sasl.mechanism", f"expected one of {', '.join(_MECHANISMS)}, got {got}")
    for name in ("username", "password"):
        if not fields.get(f"sasl_plain_{name}"):
            yield Problem(f"sasl.{name}", f"expected one here or in {_JAAS}, got nothing")


def _problems_of_files(fields: Mapping[str, Any]) -> Iterator[Problem]:
    names = {"ssl_cafile": "ssl.ca.location", "ssl_certfile": "ssl.certificate.location"}
    for field, name in {**names, "ssl_keyfile": "ssl.key.location"}.items():
        if field not in fields:
            continue
        try:
            with Path(fields[field]).open("rb"):
                pass
        except OSError as error:
            yield Problem(name, f"{fields[field]} cannot be read: {error.strerror or error}")
