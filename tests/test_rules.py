"""Each rule of the product has a test that runs for each change, and the page names those that there are."""

from tests.rules import PAGE, RULES, held, with_table


def test_each_rule_has_a_fast_test():
    assert set(RULES) - {each.rule for each in held() if each.is_fast} == set()


def test_each_mark_names_a_rule():
    assert [each for each in held() if each.rule not in RULES] == []


def test_the_page_has_the_table():
    page = PAGE.read_text()
    assert page == with_table(page), "run: python -m tests.rules"
