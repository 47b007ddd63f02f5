"""What use costs, and who is to pay for whom: the sheet that finance writes.

currency: EUR
decimals: 2                      # places of an amount, 0 to 6
prices:                          # whatever is not named is free
  gb_in: 0.02                    # 10^9 bytes that clients sent
  gb_out: 0.03                   # 10^9 bytes that they got
  million_requests: 0.10
  handler_hour: 1.20
  thousand_mutations: 0.50
free_tier:                       # per tenant and calendar month (UTC)
  gb_out: 100
tenants:                         # the first whose rules match a client has it
  - name: payments
    match:                       # any of these; in a rule all that it names; `*` any text, `?` one character
      - user: pay-*
      - {user: etl, client_id: "payments-*", virtual_cluster: main}
    free_tier: {gb_out: 500}     # instead of the one above
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

UNITS: Mapping[str, tuple[str, int]] = {
    "gb_in": ("in_bytes", 10**9),
    "gb_out": ("out_bytes", 10**9),
    "million_requests": ("requests", 10**6),
    "handler_hour": ("handler_us", 3_600 * 10**6),
    "thousand_mutations": ("milli_mutations", 1_000 * 1_000),
}
"""What has a price: the sum that it is of (see figures.SUMS), and how much of that one price is for."""

_Value = TypeVar("_Value")

PARTS = ("user", "client_id", "virtual_cluster")
UNASSIGNED = "unassigned"
MOST_TENANTS = 10_000
_MOST_PLACES = 6
_MOST_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a sheet: where, as `tenants[0].match[1].user`, and what was expected and found there."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.path else self.problem


class BadPriceSheet(ValueError):
    """A sheet that cannot be used; its text has one line for each mistake."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who pays. Each rule is patterns by part (PARTS); those that it names must all match."""

    name: str
    rules: tuple[Mapping[str, str], ...]
    free_tier: Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class PriceSheet:
    """Prices and free tiers by UNITS; what has no price is free."""

    currency: str
    decimals: int
    prices: Mapping[str, Decimal]
    free_tier: Mapping[str, Decimal] = field(default_factory=dict)
    """Of what nobody is assigned to, and of tenants without one of their own."""
    tenants: tuple[Tenant, ...] = ()


def price_sheet(data: Any) -> PriceSheet:
    """The sheet that a YAML document holds. Raises BadPriceSheet with all its mistakes."""
    reading = _Reading()
    sheet = reading.sheet(data)
    if reading.problems:
        raise BadPriceSheet(reading.problems)
    return sheet


def regex_of(pattern: str) -> str:
    """The pattern as a regular expression that Java and Python read alike; it is for the whole text."""
    parts = {"*": ".*", "?": "."}
    text = "".join(parts.get(part) or re.sub(r"(\W)", _escaped, part) for part in re.split(r"([*?])", pattern))
    return rf"(?s)\A{text}\z"


def _escaped(found: re.Match[str]) -> str:
    return f"\\x{{{ord(found[0]):x}}}"


class _Reading:
    """Reads on after a mistake, to tell them all."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def sheet(self, data: Any) -> PriceSheet:
        known = ("currency", "decimals", "prices", "free_tier", "tenants")
        top = self._mapping("", data, known)
        currency = self._text("currency", top.get("currency"))
        free_tier = self._amounts("free_tier", top.get("free_tier", {}))
        return PriceSheet(
            currency,
            self._places("decimals", top.get("decimals", 2)),
            self._prices(top),
            free_tier,
            tuple(self._tenants(top.get("tenants", []), free_tier)),
        )

    def _prices(self, top: Mapping[str, Any]) -> Mapping[str, Decimal]:
        prices = self._amounts("prices", top.get("prices"))
        if top.get("prices") == {}:
            self._wrong("prices", "expected at least one price, got none", None)
        return prices

    def _tenants(self, data: Any, free_tier: Mapping[str, Decimal]) -> Iterator[Tenant]:
        names: dict[str, int] = {}
        for i, one in enumerate(self._list("tenants", data)):
            path = f"tenants[{i}]"
            tenant = self._mapping(path, one, ("name", "match", "free_tier"))
            name = self._text(f"{path}.name", tenant.get("name"))
            if name == UNASSIGNED:
                self._wrong(f"{path}.name", f"expected another name: {UNASSIGNED!r} is what no tenant has", None)
            if name and names.setdefault(name, i) != i:
                self._wrong(
                    f"{path}.name", f"expected a name of its own, got that of tenants[{names[name]}], {name!r}", None
                )
            own = self._amounts(f"{path}.free_tier", tenant["free_tier"]) if "free_tier" in tenant else free_tier
            yield Tenant(name, tuple(self._rules(f"{path}.match", tenant.get("match"))), own)

    def _rules(self, path: str, data: Any) -> Iterator[Mapping[str, str]]:
        rules = self._list(path, data)
        if isinstance(data, list) and not data:
            self._wrong(path, "expected at least one rule, got an empty list", None)
        for i, one in enumerate(rules):
            rule = self._mapping(f"{path}[{i}]", one, PARTS)
            if isinstance(one, Mapping) and not one:
                self._wrong(f"{path}[{i}]", "expected a user, client_id or virtual_cluster, got nothing", None)
            yield {
                part: self._text(f"{path}[{i}].{part}", rule[part], may_be_empty=True) for part in PARTS if part in rule
            }

    def _amounts(self, path: str, data: Any) -> Mapping[str, Decimal]:
        amounts = self._mapping(path, data, tuple(UNITS))
        return {unit: self._amount(f"{path}.{unit}", amounts[unit]) for unit in UNITS if unit in amounts}

    def _amount(self, path: str, value: Any) -> Decimal:
        """A number as it is written: YAML's 0.1 is meant as a tenth, not as the double next to it."""
        try:
            amount = Decimal("NaN") if isinstance(value, bool) else Decimal(str(value))
        except InvalidOperation:
            amount = Decimal("NaN")
        if not amount.is_finite() or amount < 0:
            return self._wrong(path, f"expected a number from 0, got {value!r}", Decimal(0))
        if amount >= 10**_MOST_DIGITS or amount != round(amount, _MOST_DIGITS):
            wanted = f"expected less than 10^{_MOST_DIGITS} and at most {_MOST_DIGITS} places"
            return self._wrong(path, f"{wanted}, got {value!r}", Decimal(0))
        return amount

    def _places(self, path: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_PLACES:
            return self._wrong(path, f"expected a whole number from 0 to {_MOST_PLACES}, got {value!r}", 0)
        return value

    def _text(self, path: str, value: Any, *, may_be_empty: bool = False) -> str:
        if isinstance(value, str) and (value or may_be_empty):
            return value
        hint = "; write it in quotes" if isinstance(value, int | float) else ""
        return self._wrong(path, f"expected text, got {'nothing' if value is None else repr(value)}{hint}", "")

    def _list(self, path: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            return self._wrong(path, f"expected a list, got {'nothing' if value is None else repr(value)[:60]}", [])
        if len(value) > MOST_TENANTS:
            return self._wrong(path, f"expected at most {MOST_TENANTS} entries, got {len(value)}", [])
        return value

    def _mapping(self, path: str, value: Any, known: tuple[str, ...]) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            got = "nothing" if value is None else repr(value)[:60]
            return self._wrong(path, f"expected a mapping with {', '.join(known)}, got {got}", {})
        for key in value:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, 1)
                hint = f", did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
                self._wrong(f"{path}.{key}" if path else str(key), f"unknown key{hint}", None)
        return value

    def _wrong(self, path: str, problem: str, instead: _Value) -> _Value:
        self.problems.append(Problem(path, problem))
        return instead
