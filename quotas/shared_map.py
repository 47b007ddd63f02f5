"""Immutable mappings. A changed copy shares nearly all memory with the original."""

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from itertools import chain
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

_BUCKETS = 1024
_MASK = _BUCKETS - 1


class SharedMap(Mapping[Key, Value], Generic[Key, Value]):
    """An immutable mapping, in no special order. Several threads may read it.

    A copy with k changes costs k small dictionaries (each with a 1024th of all keys). The differences of two versions
    are found without looking at their shared parts.
    """

    __slots__ = ("_buckets", "_count")

    def __init__(self, content: Mapping[Key, Value] | None = None) -> None:
        self._buckets: list[dict[Key, Value]] = [_EMPTY] * _BUCKETS
        self._count = 0
        self._put(content or {})

    def changed(self, changes: Mapping[Key, Value | None]) -> "SharedMap[Key, Value]":
        """A copy with these values; None removes the key."""
        made = SharedMap.__new__(SharedMap)
        made._buckets, made._count = self._buckets.copy(), self._count
        made._put(changes)
        return made

    def _put(self, changes: Mapping[Key, Any]) -> None:
        own: set[int] = set()
        for key, value in changes.items():
            i = hash(key) & _MASK
            if i not in own:
                own.add(i)
                self._count -= len(self._buckets[i])
                self._buckets[i] = self._buckets[i].copy()
            if value is None:
                self._buckets[i].pop(key, None)
            else:
                self._buckets[i][key] = value
        for i in own:
            self._count += len(self._buckets[i])

    def changes_since(self, before: "SharedMap[Key, Value]") -> dict[Key, Value | None]:
        """The changes that turn `before` into this mapping, in the form that `changed` takes."""
        changes: dict[Key, Value | None] = {}
        for new, old in zip(self._buckets, before._buckets, strict=True):
            if new is not old:
                changes.update((key, value) for key, value in new.items() if old.get(key) != value)
                changes.update((key, None) for key in old if key not in new)
        return changes

    def __getitem__(self, key: Key) -> Value:
        return self._buckets[hash(key) & _MASK][key]

    def get(self, key: Key, default: Any = None) -> Any:
        """The value, or `default`."""
        return self._buckets[hash(key) & _MASK].get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._buckets[hash(key) & _MASK]

    def __iter__(self) -> Iterator[Key]:
        return chain.from_iterable(self._buckets)

    def __len__(self) -> int:
        return self._count

    def items(self) -> ItemsView[Key, Value]:
        """See Mapping."""
        return _Items(self)

    def values(self) -> ValuesView[Value]:
        """See Mapping."""
        return _Values(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SharedMap):
            return self._buckets == other._buckets
        if isinstance(other, Mapping):
            return len(self) == len(other) and all(key in other and other[key] == self[key] for key in self)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SharedMap({dict(self)!r})"


class _Items(ItemsView[Key, Value]):
    _mapping: SharedMap[Key, Value]

    def __iter__(self) -> Iterator[tuple[Key, Value]]:
        return chain.from_iterable(map(dict.items, self._mapping._buckets))


class _Values(ValuesView[Value], Generic[Value]):
    _mapping: SharedMap[Any, Value]

    def __iter__(self) -> Iterator[Value]:
        return chain.from_iterable(map(dict.values, self._mapping._buckets))


_EMPTY: dict[Any, Any] = {}
"""Shared by all empty buckets; never changed."""
