"""Quota entries as the operator's file writes them, read without the proxy: for whoever asks "what if".

One entry is a mapping: whom it is set on (`user` or `default_user: true`, `client_id` or `default_client_id: true`, or
`ip` or `default_ip: true`) and at least one quota by its key. The proxy's own configuration is held to the same rules.
"""

import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from ipaddress import ip_address
from typing import Any, NamedTuple

from quotas.entities import BYTE_RATES, DEFAULT, Entity, InvalidQuota, Name, QuotaKey, QuotaType
from quotas.limits import MAX_BYTE_RATE, MAX_CONNECTION_RATE, valid_limit

_PARTS = ("user", "client_id", "ip")
_KEYS = {key.text: key for quota_type in QuotaType for key in (QuotaKey(quota_type), QuotaKey(quota_type, True))}
_KNOWN = [*(name for part in _PARTS for name in (part, f"default_{part}")), *_KEYS]

MAX_NAME_BYTES = 2**15 - 1


class Problem(NamedTuple):
    """Where in the file something is wrong, and what."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


def read_entries(data: Any, path: str, problems: list[Problem]) -> dict[Entity, dict[QuotaKey, float]]:
    """The quotas of the list `data`, which stands at `path`; what is wrong goes to `problems`, all of it."""
    if data is None:
        return {}
    if not isinstance(data, list):
        problems.append(Problem(path, f"expected a list, got {shown(data)}"))
        return {}
    entries: dict[Entity, dict[QuotaKey, float]] = {}
    places: dict[Entity, str] = {}
    for i, raw in enumerate(data):
        place = f"{path}[{i}]"
        found, entity, limits = _read_entry(raw, place)
        problems += found
        if entity is None or found:
            continue
        first = places.setdefault(entity, place)
        if first != place:
            problems.append(Problem(place, f"expected one entry for each entity, got the entity of {first}"))
        entries[entity] = limits
    return entries


def _read_entry(raw: Any, path: str) -> tuple[list[Problem], Entity | None, dict[QuotaKey, float]]:
    if not isinstance(raw, Mapping):
        return [Problem(path, f"expected a mapping, got {shown(raw)}")], None, {}
    problems = list(unknown_keys(raw, _KNOWN, path))
    names: dict[str, Name] = {part: _name(raw, part, path, problems) for part in _PARTS}
    names_fit = not problems
    limits = {key: _limit(raw[text], key, f"{path}.{text}", problems) for text, key in _KEYS.items() if _has(raw, text)}
    if not limits and not problems:
        problems.append(Problem(path, f"expected {_either([t.value for t in QuotaType])}, got nothing"))
    entity = None
    try:
        entity = Entity(**names)
        if not problems:
            for key, limit in limits.items():
                valid_limit(entity, key.quota_type, limit)
    except InvalidQuota as error:
        if names_fit:
            problems.append(Problem(path, str(error)))
    return problems, entity, limits


def _has(raw: Mapping[str, Any], key: str) -> bool:
    return raw.get(key) is not None


def _name(raw: Mapping[str, Any], part: str, path: str, problems: list[Problem]) -> Name:
    default = raw.get(f"default_{part}", False)
    if not isinstance(default, bool):
        problems.append(Problem(f"{path}.default_{part}", f"expected true or false, got {shown(default)}"))
    if not _has(raw, part):
        return DEFAULT if default is True else None
    name = raw[part]
    if not isinstance(name, str) or not name:
        expected = "an IP address" if part == "ip" else "a string that is not empty (numbers need quotes)"
        problems.append(Problem(f"{path}.{part}", f"expected {expected}, got {shown(name)}"))
        return None
    if not _fits(name):
        problems.append(
            Problem(f"{path}.{part}", f"expected at most {MAX_NAME_BYTES} bytes of UTF-8, got {shown(name)}")
        )
        return None
    if part == "ip" and not _is_address(name):
        problems.append(Problem(f"{path}.ip", f"expected an IP address, got {shown(name)}"))
        return None
    if default is True:
        problems.append(Problem(path, f"expected either {part} or default_{part}, got both"))
    return name


def _fits(name: str) -> bool:
    """Whether Kafka can carry it: a length of 16 bits, and no half of a character."""
    try:
        return len(name.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _limit(value: Any, key: QuotaKey, path: str, problems: list[Problem]) -> float:
    low, high = (1, MAX_BYTE_RATE) if key.quota_type in BYTE_RATES else (0, MAX_CONNECTION_RATE)
    if key.quota_type in BYTE_RATES or key.quota_type is QuotaType.CONNECTION:
        fits = type(value) is int and low <= value <= high
        expected = f"a whole number from {low} to {high}"
    else:
        fits = type(value) in (int, float) and 0 < value <= sys.float_info.max
        expected = "a number above 0"
    if not fits:
        problems.append(Problem(path, f"expected {expected}, got {shown(value)}"))
        return 1.0
    return float(value)


def unknown_keys(raw: Mapping[str, Any], known: list[str], path: str) -> Iterator[Problem]:
    """A problem for each key that is not among the `known`."""
    for key in raw:
        if key not in known:
            close = get_close_matches(str(key), known, n=1)
            place = f"{path}.{key}" if path else str(key)
            hint = f"did you mean {close[0]!r}?" if close else f"expected {_either(known)}"
            yield Problem(place, f"unknown key, {hint}")


def shown(value: Any) -> str:
    """What was found in the file, in one short line."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping | list):
        return "a mapping" if isinstance(value, Mapping) else "a list"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _either(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
