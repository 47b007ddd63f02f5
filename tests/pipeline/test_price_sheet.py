import re
from decimal import Decimal

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.common.problems import Problems
from kafka_throttle.pipeline.report.chargeback import bills
from kafka_throttle.pipeline.report.price_sheet import UNITS, price_sheet, regex_of
from kafka_throttle.proxy.cli.main import main

SHEET = {
    "currency": "EUR",
    "prices": {"gb_in": 0.1, "gb_out": "0.03", "million_requests": 1, "handler_hour": 2.5, "thousand_mutations": 0.5},
    "free_tier": {"gb_out": 1},
    "tenants": [
        {"name": "a", "match": [{"user": "a-*"}]},
        {"name": "b", "match": [{"user": "b", "client_id": "x?"}], "free_tier": {}},
    ],
}


AMOUNT = "expected a number from 0 to less than 10^12 with at most 12 places"
TENANT = "expected a name (numbers need quotes) other than 'unassigned', which is what no tenant has"


def used(month="2026-11", tenant="a", **sums):
    return {"month": month, "tenant": tenant, **dict.fromkeys((name for name, _ in UNITS.values()), 0), **sums}


def test_every_mistake_of_a_sheet_is_told_with_its_path():
    broken = {
        "curency": "EUR",
        "decimals": 7,
        "prices": {"gb_in": -1, "gb_uot": 1, "gb_out": "x", "handler_hour": True},
        "tenants": [
            {"name": "a", "match": []},
            {"name": "a", "match": [{}, {"usr": "x"}, {"user": 7}]},
            {"match": "all"},
            {"name": "unassigned", "match": [{"user": "x"}]},
        ],
    }
    with pytest.raises(Problems) as raised:
        price_sheet(broken)
    assert [(problem.path, problem.problem) for problem in raised.value.problems] == [
        ("currency", "expected text (numbers need quotes), got nothing"),
        ("decimals", "expected a whole number from 0 to 6, got 7"),
        ("prices.gb_in", f"{AMOUNT}, got -1"),
        ("prices.gb_out", f"{AMOUNT}, got 'x'"),
        ("prices.handler_hour", f"{AMOUNT}, got true"),
        ("prices.gb_uot", "unknown key, did you mean 'gb_out'?"),
        ("tenants[0].match", "expected a list with at least one entry, got an empty list"),
        ("tenants[1].match[0]", "expected a user, client_id or virtual_cluster, got nothing"),
        ("tenants[1].match[1].usr", "unknown key, did you mean 'user'?"),
        ("tenants[1].match[2].user", "expected text (numbers need quotes), got 7"),
        ("tenants[2].name", f"{TENANT}, got nothing"),
        ("tenants[2].match", "expected a list, got 'all'"),
        ("tenants[3].name", f"{TENANT}, got 'unassigned'"),
        ("curency", "unknown key, did you mean 'currency'?"),
        ("tenants[1].name", "expected a unique name, got 'a', the name of tenants[0]"),
    ]


def test_a_mistake_in_a_sheet_is_told_before_spark_is_started_with_the_file_and_the_line(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text("currency: EUR\nprices: {gb_in: 1}\ndecimals: many\n")
    result = CliRunner().invoke(
        main, ["usage", "report", "--table", "none", "--out", str(tmp_path / "out"), "--prices", str(path)]
    )
    assert result.exit_code == 2
    assert result.output == f"{path}: decimals: expected a whole number from 0 to 6, got 'many' (line 3)\n"


@pytest.mark.parametrize("document", [None, 7, [], "text", {}])
def test_what_is_no_sheet_is_refused(document):
    with pytest.raises(Problems):
        price_sheet(document)


def test_a_price_is_the_decimal_that_was_written():
    assert price_sheet(SHEET).prices["gb_in"] == Decimal("0.1")


def test_a_bill_is_use_less_the_free_tier_times_the_price():
    sheet = price_sheet(SHEET)
    rows = [
        used(in_bytes=1_500_000_000, out_bytes=3_000_000_000, requests=250_000, handler_us=3_600_000_000),
        used(tenant="b", out_bytes=1_000_000_000, milli_mutations=1_000_000),
        used(tenant="unassigned", out_bytes=999_999_999),
    ]
    a, b, nobody = bills(sheet, rows)
    assert (a.amounts["gb_in"], a.amounts["gb_out"], a.amounts["million_requests"], a.amounts["handler_hour"]) == (
        Decimal("0.15"),
        Decimal("0.06"),
        Decimal("0.25"),
        Decimal("2.50"),
    )
    assert b.total == Decimal("0.03") + Decimal("0.50")
    assert nobody.total == 0


@given(
    st.lists(st.dictionaries(st.sampled_from([n for n, _ in UNITS.values()]), st.integers(0, 10**18)), max_size=6),
    st.dictionaries(st.sampled_from(list(UNITS)), st.decimals(0, 10**6, places=6), min_size=1),
    st.integers(0, 6),
)
def test_the_parts_of_a_bill_are_its_total_to_the_last_place(rows, prices, decimals):
    sheet = price_sheet({"currency": "X", "prices": prices, "decimals": decimals})
    found = bills(sheet, [used(tenant=f"t{i}", **row) for i, row in enumerate(rows)])
    by_unit = {unit: sum((bill.amounts[unit] for bill in found), Decimal(0)) for unit in prices}
    assert sum(by_unit.values(), Decimal(0)) == sum((bill.total for bill in found), Decimal(0))
    assert all(amount == round(amount, decimals) for bill in found for amount in bill.amounts.values())


@given(
    st.text(st.sampled_from("ab*?.[(\\$^|\n é\U0001f600"), max_size=8),
    st.text(st.sampled_from("ab.[\\\n é"), max_size=8),
)
def test_a_pattern_is_for_the_whole_text(pattern, text):
    assert _matches(pattern, text) == _python(pattern, text)


def _matches(pattern, text):
    """The same by Python's names of characters: Java writes U+E9 as \\x{e9}."""
    regex = re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: rf"\U{int(found[1], 16):08x}", regex_of(pattern))
    return re.match(regex.replace(r"\z", r"\Z"), text) is not None


def _python(pattern, text):
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(_python(pattern[1:], text[i:]) for i in range(len(text) + 1))
    return bool(text) and pattern[0] in ("?", text[0]) and _python(pattern[1:], text[1:])
