"""What each tenant used and owes. Amounts are decimals, and every total is the sum of the amounts that are printed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from kafka_throttle.pipeline.report.figures import totals
from kafka_throttle.pipeline.report.price_sheet import PARTS, UNASSIGNED, UNITS, PriceSheet, regex_of

_EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN)


@dataclass(frozen=True, slots=True)
class Bill:
    """One tenant's month. By UNITS: the use (an exact count of the smallest unit), the part of it that is charged, and
    the amounts.
    """

    month: str
    """As `2026-11`, in UTC."""
    tenant: str
    used: Mapping[str, int]
    charged: Mapping[str, Decimal]
    """In the unit of the price, with the free tier subtracted."""
    amounts: Mapping[str, Decimal]

    @property
    def total(self) -> Decimal:
        """The sum of the amounts, which are already rounded."""
        return sum(self.amounts.values(), Decimal(0))


def tenant_of(sheet: PriceSheet) -> Column:
    """The tenant of a row with PARTS: the first tenant whose rules match, or UNASSIGNED."""
    tenant: Column = F.lit(UNASSIGNED)
    for one in reversed(sheet.tenants):
        matches = reduce(or_, (_matches(rule) for rule in one.rules))
        tenant = F.when(matches, one.name).otherwise(tenant)
    return tenant


def _matches(rule: Mapping[str, str]) -> Column:
    return reduce(and_, (_is(part, rule[part]) for part in PARTS if part in rule))


def _is(part: str, pattern: str) -> Column:
    if set(pattern) & set("*?"):
        return F.col(part).rlike(regex_of(pattern))
    return F.col(part) == pattern


def by_tenant(days: DataFrame, sheet: PriceSheet) -> DataFrame:
    """DAILY -> month, tenant, SUMS, bytes."""
    month = F.date_format("day", "yyyy-MM")
    return totals(days.withColumn("month", month).withColumn("tenant", tenant_of(sheet)), "month", "tenant")


def bills(sheet: PriceSheet, used: Iterable[Mapping[str, object]]) -> list[Bill]:
    """The bills for these rows of `by_tenant`, by month; tenants are in the order of the sheet, UNASSIGNED is last."""
    order = {tenant.name: i for i, tenant in enumerate(sheet.tenants)}
    free = {tenant.name: tenant.free_tier for tenant in sheet.tenants}
    found = [_bill(sheet, row, free.get(str(row["tenant"]), sheet.free_tier)) for row in used]
    return sorted(found, key=lambda bill: (bill.month, order.get(bill.tenant, len(order))))


def _bill(sheet: PriceSheet, row: Mapping[str, object], free: Mapping[str, Decimal]) -> Bill:
    used = {unit: int(str(row[name])) for unit, (name, _) in UNITS.items()}
    charged = {unit: _charged(used[unit], UNITS[unit][1], free.get(unit, Decimal(0))) for unit in UNITS}
    place = Decimal(1).scaleb(-sheet.decimals)
    amounts = {
        unit: _EXACT.quantize(_EXACT.multiply(charged[unit], price), place) for unit, price in sheet.prices.items()
    }
    return Bill(str(row["month"]), str(row["tenant"]), used, charged, amounts)


def _charged(used: int, per: int, free: Decimal) -> Decimal:
    return max(Decimal(0), _EXACT.subtract(_EXACT.divide(Decimal(used), Decimal(per)), free))
