"""What YAML files of people and programs hold."""

import pytest

from kafka_throttle.common.yaml_file import MAX_VALUES, YamlFileError, parse_yaml, yaml_nodes


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


@pytest.mark.parametrize(
    ("before", "values"),
    [
        ("", "b: [" + "1," * MAX_VALUES),
        ("a: &a 1\n", "b: [" + "*a ," * MAX_VALUES),
        ("", "b:\n" + "- 1\n" * MAX_VALUES),
    ],
    ids=["values", "aliases", "lines"],
)
def test_what_is_behind_one_value_too_many_is_not_read(before, values):
    with pytest.raises(YamlFileError) as refused:
        parse_yaml(f"{before}{values}\n] is no YAML, which would be another problem", "a.yaml")
    assert str(refused.value).endswith(f"expected at most {MAX_VALUES} values, got more")


def test_what_is_behind_one_level_too_many_is_not_read():
    with pytest.raises(YamlFileError) as refused:
        parse_yaml("[" * 60 + "] is no YAML", "a.yaml")
    assert str(refused.value) == "a.yaml: line 1, column 51: expected at most 50 levels, got more"


def test_the_lines_of_problems_are_not_looked_for_in_a_document_that_is_too_large():
    assert yaml_nodes("[" * 60 + "]" * 60) is None
