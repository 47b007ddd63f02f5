"""The price sheet, which finance writes: what use costs, and which tenant pays for which clients.

currency: EUR
decimals: 2                      # places of an amount, 0 to 6
prices:                          # what is not named is free
  gb_in: 0.02                    # 10^9 bytes that clients sent
  gb_out: 0.03                   # 10^9 bytes that they got
  million_requests: 0.10
  handler_hour: 1.20
  thousand_mutations: 0.50
free_tier:                       # per tenant and calendar month (UTC)
  gb_out: 100
tenants:                         # a client belongs to the first tenant whose rules match it
  - name: payments
    match:                       # any of these; all parts of a rule must match; `*` any text, `?` one character
      - user: pay-*
      - {user: etl, client_id: "payments-*", virtual_cluster: main}
    free_tier: {gb_out: 500}     # instead of the one above
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Self

from pydantic import model_validator

from kafka_throttle.common.kinds import Kind, Many, Some, Text, Whole
from kafka_throttle.common.problems import Problem
from kafka_throttle.common.settings import Settings, items, read_settings, repeated_names

UNITS: Mapping[str, tuple[str, int]] = {
    "gb_in": ("in_bytes", 10**9),
    "gb_out": ("out_bytes", 10**9),
    "million_requests": ("requests", 10**6),
    "handler_hour": ("handler_us", 3_600 * 10**6),
    "thousand_mutations": ("milli_mutations", 1_000 * 1_000),
}
"""What has a price: the sum to which the price applies (see figures.SUMS), and for how much of it one price is."""

PARTS = ("user", "client_id", "virtual_cluster")
UNASSIGNED = "unassigned"
MOST_TENANTS = 10_000
_MOST_PLACES = 6
_MOST_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant that pays. Each rule has patterns by part (PARTS); all parts that the rule names must match."""

    name: str
    rules: tuple[Mapping[str, str], ...]
    free_tier: Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class PriceSheet:
    """Prices and free tiers by UNITS; use without a price is free."""

    currency: str
    decimals: int
    prices: Mapping[str, Decimal]
    free_tier: Mapping[str, Decimal] = field(default_factory=dict)
    """For unassigned clients, and for tenants without a free tier in their own entry."""
    tenants: tuple[Tenant, ...] = ()


class _Decimal(Kind):
    """A number as it is written: YAML's 0.1 is meant as a tenth, not as the double next to it."""

    expected = f"a number from 0 to less than 10^{_MOST_DIGITS} with at most {_MOST_DIGITS} places"

    def parse(self, value: Any) -> Decimal:
        """The number."""
        try:
            amount = Decimal("NaN") if isinstance(value, bool) else Decimal(str(value))
        except InvalidOperation as error:
            raise ValueError from error
        if not amount.is_finite() or not 0 <= amount < 10**_MOST_DIGITS or amount != round(amount, _MOST_DIGITS):
            raise ValueError
        return amount


_Amount = Annotated[Decimal | None, _Decimal()]
_Pattern = Annotated[str | None, Text("text (numbers need quotes)", lambda _: True)]


class _Amounts(Settings):
    gb_in: _Amount = None
    gb_out: _Amount = None
    million_requests: _Amount = None
    handler_hour: _Amount = None
    thousand_mutations: _Amount = None

    def by_unit(self) -> dict[str, Decimal]:
        return {unit: amount for unit in UNITS if (amount := getattr(self, unit)) is not None}


class _Rule(Settings):
    user: _Pattern = None
    client_id: _Pattern = None
    virtual_cluster: _Pattern = None

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        return self if self.by_part() else self.unless(["expected a user, client_id or virtual_cluster, got nothing"])

    def by_part(self) -> dict[str, str]:
        return {part: pattern for part in PARTS if (pattern := getattr(self, part)) is not None}


class _Tenant(Settings):
    name: Annotated[
        str,
        Text(
            f"a name (numbers need quotes) other than {UNASSIGNED!r}, which is what no tenant has",
            lambda text: text not in ("", UNASSIGNED),
        ),
    ]
    match: Some[_Rule]
    free_tier: _Amounts | None = None

    @model_validator(mode="after")
    def _is_short(self) -> Self:
        return self.unless(_too_many("match", self.match))


class _Sheet(Settings):
    currency: Annotated[str, Text("text (numbers need quotes)", bool)]
    decimals: Annotated[int, Whole(0, _MOST_PLACES)] = 2
    prices: _Amounts
    free_tier: _Amounts = _Amounts()
    tenants: Many[_Tenant] = ()

    @model_validator(mode="after")
    def _has_prices(self) -> Self:
        none = [] if self.prices.by_unit() else [Problem("prices", "expected at least one price, got none")]
        return self.unless([*none, *_too_many("tenants", self.tenants)])


def _too_many(path: str, entries: tuple[Settings, ...]) -> Iterator[Problem]:
    if len(entries) > MOST_TENANTS:
        yield Problem(path, f"expected at most {MOST_TENANTS} entries, got {len(entries)}")


def price_sheet(data: Any) -> PriceSheet:
    """The sheet that a YAML document holds. Raises Problems with each problem and its place."""
    sheet = read_settings(_Sheet, data, [lambda data: repeated_names(items(data, "tenants"), "tenants")])
    free_tier = sheet.free_tier.by_unit()
    return PriceSheet(
        sheet.currency,
        sheet.decimals,
        sheet.prices.by_unit(),
        free_tier,
        tuple(
            Tenant(
                tenant.name,
                tuple(rule.by_part() for rule in tenant.match),
                free_tier if tenant.free_tier is None else tenant.free_tier.by_unit(),
            )
            for tenant in sheet.tenants
        ),
    )


def regex_of(pattern: str) -> str:
    """The pattern as a regular expression that Java and Python read in the same way; to match the whole text."""
    parts = {"*": ".*", "?": "."}
    text = "".join(parts.get(part) or re.sub(r"(\W)", _escaped, part) for part in re.split(r"([*?])", pattern))
    return rf"(?s)\A{text}\z"


def _escaped(found: re.Match[str]) -> str:
    return f"\\x{{{ord(found[0]):x}}}"
