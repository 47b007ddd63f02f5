"""What YAML files of people and programs hold."""

import pytest

from common.yaml_file import parse_yaml


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.048576e+06", 1_048_576),
        ("5e+06", 5_000_000),
        ("1048576.0", 1_048_576),
        ("-3.0", -3),
        ("9.223372036854775807e+18", 2**63 - 1),
    ],
)
def test_a_whole_number_is_an_int_however_a_template_writes_it(text, number):
    found = parse_yaml(text, "a.yaml")
    assert (type(found), found) == (int, number)


@pytest.mark.parametrize("text", ["1.5", "1e-3", ".inf", "1e+30", "-1e+30"])
def test_any_other_number_stays_a_double(text):
    found = parse_yaml(text, "a.yaml")
    assert (type(found), found) == (float, float(text.replace(".inf", "inf")))


def test_the_number_of_a_string_stays_a_string():
    assert parse_yaml("['1048576.0', !!str 5e+06]", "a.yaml") == ["1048576.0", "5e+06"]
