"""Kinds of values in settings files, each with a text that says what is expected."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

INT32_MAX = 2_147_483_647
MAX_PORT = 65_535

Item = TypeVar("Item")


def _expected(expected: str) -> PydanticCustomError:
    return PydanticCustomError("expected", "{expected}", {"expected": expected})


class Kind:
    """Checks one scalar value of a file; `expected` says in words which values are valid."""

    expected: str

    def parse(self, value: Any) -> Any:
        """The parsed value. Raises ValueError if it is not of this kind."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.validate)

    def validate(self, value: Any) -> Any:
        """The parsed value. Raises a pydantic error if it is not of this kind."""
        try:
            return self.parse(value)
        except ValueError as error:
            raise _expected(self.expected) from error


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number from `low` to `high`, not a boolean."""

    low: int
    high: int

    @property
    def expected(self) -> str:  # type: ignore[override]
        """In words."""
        return f"a whole number from {self.low} to {self.high}"

    def parse(self, value: Any) -> int:
        """The number. Raises ValueError if it is not valid."""
        if type(value) is not int or not self.low <= value <= self.high:
            raise ValueError
        return value


@dataclass(frozen=True)
class Number(Kind):
    """A number for which `accepts` is true, as a double; not a boolean."""

    expected: str
    accepts: Callable[[float], bool]

    def parse(self, value: Any) -> float:
        """The number as a double. Raises ValueError if it is not valid."""
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max or not self.accepts(value):
            raise ValueError
        return float(value)


@dataclass(frozen=True)
class Text(Kind):
    """A string for which `accepts` is true."""

    expected: str
    accepts: Callable[[str], bool]

    def parse(self, value: Any) -> str:
        """The string. Raises ValueError if it is not valid."""
        if not isinstance(value, str) or not self.accepts(value):
            raise ValueError
        return value


@dataclass(frozen=True)
class Optional(Kind):
    """A value of another kind, or null."""

    kind: Kind

    @property
    def expected(self) -> str:  # type: ignore[override]
        """In words."""
        return self.kind.expected

    def parse(self, value: Any) -> Any:
        """None for null, otherwise the value parsed by the other kind."""
        return None if value is None else self.kind.parse(value)


def _as_tuple(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(value)
    raise _expected("a list")


def _not_empty(value: Any) -> Any:
    if not value:
        raise _expected("a list with at least one entry")
    return value


Many = Annotated[tuple[Item, ...], BeforeValidator(_as_tuple)]


Some = Annotated[tuple[Item, ...], BeforeValidator(_not_empty), BeforeValidator(_as_tuple)]
