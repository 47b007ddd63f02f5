"""Kafka's `ssl.principal.mapping.rules`: make the name of a user from the subject of a client's certificate.

Source: SslPrincipalMapper of Kafka 4.3.1. A rule is `DEFAULT` (the subject itself) or `RULE:pattern/replacement/`,
followed by `L` or `U` for lower or upper case. The first rule with a pattern that matches the whole subject applies.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kafka_throttle.protocol.identity.java_patterns import (
    JavaPattern,
    PatternTooSlow,
    Replacement,
    TimeLeft,
    UnsupportedPattern,
    java_parser,
    java_pattern,
    java_replacement,
)

MAX_SUBJECT_CHARACTERS = 8_192
"""Longer subjects have no user."""

_MAX_MATCHED_CHARACTERS = 2_048
_MAX_MATCHED_PARTS = 32
"""No pattern is applied to a subject with more characters or more parts (commas and plus signs separate them). For
example, six times `(.*?),` would try the parts of a subject in more ways than there is time for.
"""

_TRIAL_S = 0.02

_RULE = r"(DEFAULT)|RULE:((\\.|[^\\/])*)/((\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER = java_parser(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSER = java_parser(_RULE)
_BACK_REFERENCE = re.compile(r"\$([0-9]+)")
_JAVA_BLANKS = "".join(map(chr, range(33)))


class InvalidPrincipalRules(ValueError):
    """Rules that Kafka refuses, or that have two meanings."""


class NoPrincipalRule(LookupError):
    """No rule applies to a subject: a broker drops the connection."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: JavaPattern
    replacement: Replacement
    case: str

    def apply(self, subject: str, time_left: TimeLeft) -> str | None:
        if self.pattern.fullmatch(subject, time_left) is None:
            return None
        name = self.replacement.all_in(self.pattern, subject, time_left)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


@dataclass(frozen=True, slots=True)
class PrincipalRules:
    """A list of rules; None is `DEFAULT`."""

    rules: Sequence[_Rule | None]

    @property
    def quick(self) -> bool:
        """Whether no rule has a pattern to match."""
        return all(rule is None for rule in self.rules)

    def name_of(self, subject: str, time_left: TimeLeft = lambda: _TRIAL_S) -> str:
        """The user name for a certificate with this subject. Raises NoPrincipalRule, also if a rule takes too long."""
        if len(subject) > MAX_SUBJECT_CHARACTERS:
            raise NoPrincipalRule(
                f"the subject has {len(subject)} characters, at most {MAX_SUBJECT_CHARACTERS} are allowed"
            )
        for number, rule in enumerate(self.rules, 1):
            if rule is not None:
                _check_matched(subject)
            try:
                name = subject if rule is None else rule.apply(subject, time_left)
            except PatternTooSlow:
                raise NoPrincipalRule(f"rule {number} takes too long for the subject {subject!r}") from None
            if name is not None:
                return name
        raise NoPrincipalRule(f"no rule applies to the subject {subject!r}")

    def slow_rules(self) -> Iterator[int]:
        """The numbers of rules, from 1 on, that take too long for a subject that an attacker might choose."""
        for number, rule in enumerate(self.rules, 1):
            if rule is not None and any(_is_slow(rule.pattern, subject) for subject in _HOSTILE):
                yield number


_HOSTILE = tuple(
    f"{begin}{repeated * (60 // len(repeated))}\0"
    for begin in ("", "CN=", "CN=a,OU=")
    for repeated in ("a", "A", "0", " ", ".", "-", "aA0", "a.", "a,", "CN=a,")
)
"""Repeated parts of what patterns usually look for, and then a character that does not match."""


def _is_slow(pattern: JavaPattern, subject: str) -> bool:
    try:
        pattern.fullmatch(subject, lambda: _TRIAL_S)
    except PatternTooSlow:
        return True
    return False


def _check_matched(subject: str) -> None:
    parts = subject.count(",") + subject.count("+") + 1
    if len(subject) > _MAX_MATCHED_CHARACTERS or parts > _MAX_MATCHED_PARTS:
        raise NoPrincipalRule(
            f"the subject has {len(subject)} characters in {parts} parts: patterns are applied to at most "
            f"{_MAX_MATCHED_CHARACTERS} in {_MAX_MATCHED_PARTS}"
        )


def principal_rules(text: str) -> PrincipalRules:
    """The rules in a text in Kafka's format. Raises InvalidPrincipalRules."""
    try:
        return PrincipalRules(tuple(_parsed(text)))
    except UnsupportedPattern as error:
        raise InvalidPrincipalRules(str(error)) from error


def _parsed(text: str) -> Iterator[_Rule | None]:
    for found in _SPLITTER.finditer(text.strip(_JAVA_BLANKS)):
        rule = found[1]
        match = _PARSER.match(rule)
        if match is None or match.end() != len(rule):
            raise InvalidPrincipalRules(f"{rule!r} is neither DEFAULT nor RULE:pattern/replacement/[LU]")
        if match[1] is not None:
            yield None
        elif match[2] is not None:
            pattern = java_pattern(match[2])
            yield _Rule(pattern, java_replacement(_literal_beyond(match[4], pattern.groups), pattern), match[6])


def _literal_beyond(replacement: str, groups: int) -> str:
    """The replacement with a backslash before each `$n` for which the pattern has no group.

    As in Kafka (which took the code from NiFi), each backslash is inserted at the place that the reference had before
    any was inserted.
    """
    value = replacement
    for found in _BACK_REFERENCE.finditer(replacement) if groups else ():
        digits = found[1]
        if digits.startswith("0"):
            continue
        if int(digits[:11]) > 2_147_483_647:
            raise InvalidPrincipalRules(f"replacement {replacement!r}: no group {digits} in the pattern")
        number = int(digits)
        while number > groups and number >= 10:
            number //= 10
        if number > groups:
            value = value[: found.start()] + "\\" + value[found.start() :]
    return value
