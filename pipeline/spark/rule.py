"""What the text of a quota's rule, as `user=alice, client-id=<default>`, is set on."""

import re

from pyspark.sql import Column

_PARTS_OF_TEXT = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^"',= ]*)"""
_PAIR = rf"(?s)^user={_PARTS_OF_TEXT}, client-id="


def is_of_user(rule: Column) -> Column:
    """Whether it is set on a user, with or without a client-id."""
    return rule.startswith("user=")


def is_of_pair(rule: Column) -> Column:
    """Whether it is set on a user together with a client-id."""
    # A regular expression costs more than everything else: only the few rules that may have both names are given to it.
    return rule.contains(", client-id=") & rule.rlike(_PAIR)


def is_of_client_id(rule: Column) -> Column:
    """Whether it is set on a client-id, with or without a user."""
    return rule.startswith("client-id=") | is_of_pair(rule)


def kind_of(rule: str) -> str:
    """The kind of entity that it is set on, as `usage recommend --by` has it."""
    if rule.startswith("client-id="):
        return "client-id"
    return "user+client-id" if re.match(_PAIR, rule) else "user"
