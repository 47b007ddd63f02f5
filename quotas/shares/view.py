"""What a member knows of the others."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kafka_throttle.quotas.shares.document import Document, Entry
from kafka_throttle.quotas.shares.history import Freed, Windows
from kafka_throttle.quotas.shares.moves import Key


class Changes(NamedTuple):
    """How the claimed keys have changed."""

    found: set[Key]
    """Claimed by another member now, and not before."""
    lost: set[Key]
    """No longer claimed by another member."""
    touched: set[Key]
    """Claimed otherwise than before, or no longer, by one of them at least."""


class OtherMembers:
    """The other members with their last good documents, and what members that have vanished had used."""

    def __init__(self, windows: Windows) -> None:
        self.documents: dict[str, Document | None] = {}
        self._windows = windows
        self._received_ms: dict[str, int] = {}
        self._claims: dict[Key, dict[str, Entry]] = {}
        self._vanished: list[tuple[int, Mapping[Key, Entry]]] = []

    def update(self, documents: Mapping[str, Document | None], now_ms: int) -> Changes:
        """Take a view. What vanished members claimed counts as used to the full."""
        reach_ms = self._windows.count * self._windows.window_ms
        self._vanished = [(gone_ms, keys) for gone_ms, keys in self._vanished if now_ms - gone_ms < reach_ms]
        touched: dict[Key, bool] = {}
        for member in [member for member in self.documents if member not in documents]:
            keys = _keys_of(self.documents.pop(member))
            self._received_ms.pop(member, None)
            self._vanished.append((now_ms, keys))
            self._replace(member, keys, {}, touched)
        for member, document in documents.items():
            before = self.documents.get(member)
            self.documents[member] = document
            if document is not None and document != before:
                self._received_ms[member] = now_ms
                self._replace(member, _keys_of(before), _keys_of(document), touched)
        found = {key for key, was_there in touched.items() if not was_there and key in self._claims}
        lost = {key for key, was_there in touched.items() if was_there and key not in self._claims}
        return Changes(found, lost, set(touched))

    def claims_of(self, key: Key) -> Mapping[str, Entry]:
        """The claims of a key by member."""
        return self._claims.get(key, {})

    def is_claimed(self, key: Key) -> bool:
        """Whether another member claims the key."""
        return key in self._claims

    @property
    def keys(self) -> Iterable[Key]:
        """All keys that others claim."""
        return self._claims.keys()

    def claimed(self, key: Key) -> float:
        """What the others claim of a key, together."""
        return sum(entry.claim for entry in self.claims_of(key).values())

    def freed(self, key: Key, now_ms: int) -> list[Freed]:
        """What others have given away of a key, or left behind, and perhaps nobody has taken yet."""
        freed = [
            Freed(entry.freed_share, entry.freed, self._received_ms[member])
            for member, entry in self.claims_of(key).items()
            if entry.freed
        ]
        for gone_ms, keys in self._vanished:
            if (entry := keys.get(key)) is not None and entry.claim > 0:
                freed.append(Freed(entry.claim, self._windows.full(entry.claim), gone_ms))
        return freed

    def acknowledged(self, me: str, by: Iterable[str]) -> int | None:
        """The largest seq of `me` that all of these members have seen; None if there are no such members."""
        least: int | None = None
        for member in by:
            document = self.documents.get(member)
            seen = 0 if document is None else document.seen.get(me, 0)
            least = seen if least is None else min(least, seen)
        return least

    def _replace(
        self, member: str, before: Mapping[Key, Entry], after: Mapping[Key, Entry], touched: dict[Key, bool]
    ) -> None:
        """Replace the entries of a member; note the keys that have changed, and whether somebody claimed them."""
        for key, entry in after.items():
            if before.get(key) != entry:
                touched.setdefault(key, key in self._claims)
                self._claims.setdefault(key, {})[member] = entry
        for key in before:
            if key not in after:
                touched.setdefault(key, True)
                claims = self._claims[key]
                del claims[member]
                if not claims:
                    del self._claims[key]


def _keys_of(document: Document | None) -> Mapping[Key, Entry]:
    return {} if document is None else document.keys
