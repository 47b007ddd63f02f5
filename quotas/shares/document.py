"""The document by which a member tells the others what it claims, as JSON.

    {"format": 1, "member": id, "seq": n, "asks": n, "seen": {member id: seq, ...},
     "keys": [[key, claim, demand, freed share, [freed seconds by age]], ...]}

Whatever bytes arrive, `parse` returns a Document or raises RefusedDocument.
"""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, NamedTuple, NoReturn

from kafka_throttle.quotas.shares.history import ByAge
from kafka_throttle.quotas.shares.moves import Key

FORMAT: Final = 1

MAX_BYTES: Final = 900 * 1024
"""ZooKeeper refuses more than 1 MiB."""

MAX_SEQ: Final = 2**62

_DECIMALS: Final = 6
_FIELDS: Final = {"format", "member", "seq", "asks", "seen", "keys"}
_MAX_DEPTH: Final = 4
_MAX_AGES: Final = 4096


class RefusedDocument(ValueError):
    """No document of this format, or not of this member. The text says what is wrong."""


class Entry(NamedTuple):
    """What a member publishes about one key. Shares are parts of the limit."""

    claim: float
    demand: float
    freed_share: float = 0.0
    """What it gave away and nobody has taken yet,"""
    freed: ByAge = ()
    """and what it had used of that, in seconds of the whole limit, when the document was made."""


class Document(NamedTuple):
    """What a member publishes."""

    member: str
    seq: int
    """Counts the documents of the member."""
    asks: int
    """The author needs to see acknowledged that others know this `seq` of it, or a later one."""
    seen: Mapping[str, int]
    """The seq of each other member's document that this one takes into account."""
    keys: Mapping[Key, Entry]

    def encoded(self) -> bytes:
        """The JSON text."""
        keys = [[key, *entry] for key, entry in self.keys.items()]
        fields = {"format": FORMAT, "member": self.member, "seq": self.seq, "asks": self.asks}
        return json.dumps({**fields, "seen": dict(self.seen), "keys": keys}, separators=(",", ":")).encode()


class Documents:
    """The last good document of each other member."""

    def __init__(self) -> None:
        self.refused = 0
        """How many documents were refused."""
        self._contents: dict[str, bytes] = {}
        self._documents: dict[str, Document | None] = {}
        self._problems: list[tuple[str, str]] = []

    def read(self, contents: Mapping[str, bytes]) -> Mapping[str, Document | None]:
        """The documents of all other members, from what they published last. None: there is no good one yet."""
        for member in [member for member in self._contents if member not in contents]:
            del self._contents[member], self._documents[member]
        for member, content in contents.items():
            if self._contents.get(member) == content:
                continue
            self._contents[member] = content
            self._documents.setdefault(member, None)
            try:
                self._documents[member] = parse(content, member)
            except RefusedDocument as refused:
                self.refused += 1
                self._problems.append((member, str(refused)))
        return dict(self._documents)

    def take_problems(self) -> list[tuple[str, str]]:
        """The member and the reason of each document that was refused since the last call."""
        problems, self._problems = self._problems, []
        return problems


def rounded_down(share: float) -> float:
    """A share as it is published."""
    return max(int(share * 10**_DECIMALS), 0) / 10**_DECIMALS


def size_of(key: Key) -> int:
    """How many bytes a key takes in a document, at most, but for `freed`."""
    return len(json.dumps(key)) + 48


def parse(content: bytes, member: str) -> Document:
    """The document that `member` has published. Raises RefusedDocument."""
    if not content:
        raise RefusedDocument("it is empty")
    if len(content) > MAX_BYTES:
        raise RefusedDocument(f"expected at most {MAX_BYTES} bytes, got {len(content)}")
    try:
        fields = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedDocument(f"expected JSON: {str(error)[:200]}") from error
    if not isinstance(fields, dict):
        raise RefusedDocument(f"expected an object, got {_shown(fields)}")
    if fields.get("format") != FORMAT:
        raise RefusedDocument(f"expected format {FORMAT}, got {_shown(fields.get('format'))}")
    if fields.keys() != _FIELDS:
        raise RefusedDocument(f"expected the fields {', '.join(sorted(_FIELDS))}, got {_shown(sorted(fields))}")
    if fields["member"] != member:
        raise RefusedDocument(f"expected a document of {_shown(member)}, got one of {_shown(fields['member'])}")
    seq = _count(fields["seq"], "seq")
    asks = _count(fields["asks"], "asks")
    if not isinstance(fields["seen"], dict):
        raise RefusedDocument(f"seen: expected an object, got {_shown(fields['seen'])}")
    seen = {name: _count(value, f"seen of {_shown(name)}") for name, value in fields["seen"].items()}
    return Document(member, seq, asks, seen, _keys(fields["keys"]))


def _keys(values: Any) -> dict[Key, Entry]:
    if not isinstance(values, list):
        raise RefusedDocument(f"keys: expected a list, got {_shown(values)}")
    keys: dict[Key, Entry] = {}
    for index, value in enumerate(values):
        where = f"keys[{index}]"
        if not isinstance(value, list) or len(value) != 5:
            raise RefusedDocument(f"{where}: expected key, claim, demand, freed share and freed, got {_shown(value)}")
        key = _key(value[0], where, 0)
        if not isinstance(key, tuple) or not key:
            raise RefusedDocument(f"{where}: expected a key, got {_shown(value[0])}")
        if key in keys:
            raise RefusedDocument(f"{where}: {_shown(value[0])} is there twice")
        claim, demand, freed_share = (_number(number, where, 1.0) for number in value[1:4])
        if not isinstance(value[4], list) or len(value[4]) > _MAX_AGES:
            raise RefusedDocument(f"{where}: expected a list of at most {_MAX_AGES} amounts, got {_shown(value[4])}")
        keys[key] = Entry(claim, demand, freed_share, tuple(_number(amount, where, 1e9) for amount in value[4]))
    return keys


def _key(value: Any, where: str, depth: int) -> Any:
    """A part of a key: what JSON has but objects, with tuples for lists."""
    if isinstance(value, list) and depth < _MAX_DEPTH:
        return tuple(_key(part, where, depth + 1) for part in value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise RefusedDocument(f"{where}: expected a key of plain values, got {_shown(value)}")


def _number(value: Any, where: str, largest: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= largest or not isfinite(value):
        raise RefusedDocument(f"{where}: expected a number from 0 to {largest:g}, got {_shown(value)}")
    return float(value)


def _count(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SEQ:
        raise RefusedDocument(f"{where}: expected a count, got {_shown(value)}")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _shown(value: Any) -> str:
    return repr(value)[:80]
