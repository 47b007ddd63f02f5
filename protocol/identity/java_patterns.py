"""Regular expressions of Java, for Python: those that mean the same in both, or that can be translated.

Source: java.util.regex.Pattern and Matcher of JDK 17. A pattern whose meaning would differ is refused.

As in Java, a match may take exponentially long. Patterns are matched by the library `regex`: it gives them the same
meaning as `re`, accepts a time limit, and lets other threads run meanwhile.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import regex

_LINE_END = "\n\r\x85\u2028\u2029"
_ANY = f"[^{_LINE_END}]"
_END = f"(?:(?=(?:\r\n|[{_LINE_END[1:]}])?\\Z)|(?<!\r)(?=\n\\Z))"
"""Java's `$` and `\\Z`: at the end, or before a line end that is the last one."""

_QUANTIFIER = re.compile(r"\{[0-9]{1,4}(?:,(?:[0-9]{1,4})?)?\}")
_REPEATED = re.compile(r"(?:[*+?]|\{[0-9,]+\})[+?]?")
_GROUP = re.compile(r"\((?:\?(?:[:=!>]|<[=!]|i:|<([a-zA-Z][a-zA-Z0-9]*)>))?")
_SAME_ESCAPES = frozenset("dDwWsStnrf")
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")


class UnsupportedPattern(ValueError):
    """A pattern or replacement that Java refuses, too, or that has another meaning in Python."""


class PatternTooSlow(Exception):
    """The match of a pattern did not end within its time."""


MAX_PATTERN_SIZE: Final = 20_000
"""The largest pattern: characters, sets and other pieces, each counted as often as it is repeated, because `regex`
writes some repetitions out.
"""

TimeLeft = Callable[[], float]
"""Returns how many seconds of this process's processor time may be spent."""


class JavaPattern:
    """A translated pattern, with methods like Java's Matcher. Raises PatternTooSlow when no time is left."""

    def __init__(self, pattern: str) -> None:
        """`pattern` is translated already."""
        self._pattern = regex.compile(pattern, regex.ASCII | regex.VERSION0)
        self.groups: int = self._pattern.groups
        self.groupindex: dict[str, int] = dict(self._pattern.groupindex)

    def fullmatch(self, text: str, time_left: TimeLeft) -> Any:
        """The match of the whole text, or None."""
        return self._within(time_left, self._pattern.fullmatch, text, 0)

    def search(self, text: str, start: int, time_left: TimeLeft) -> Any:
        """The first match from `start` on, or None."""
        return self._within(time_left, self._pattern.search, text, start)

    def _within(self, time_left: TimeLeft, match: Any, text: str, start: int) -> Any:
        seconds = time_left()
        if seconds <= 0:
            raise PatternTooSlow
        try:
            return match(text, start, timeout=seconds, concurrent=True)
        except TimeoutError:
            raise PatternTooSlow from None


def java_pattern(text: str) -> JavaPattern:
    """The pattern that matches what the Java pattern `text` matches. Raises UnsupportedPattern."""
    try:
        translated = _translated(text)
        re.compile(translated, re.ASCII)
        if (size := _size(translated)) > MAX_PATTERN_SIZE:
            raise UnsupportedPattern(
                f"pattern {text!r}: {size} characters with all repetitions written out, "
                f"at most {MAX_PATTERN_SIZE} are allowed"
            )
        return JavaPattern(translated)
    except (re.error, regex.error, OverflowError, RecursionError) as error:
        raise UnsupportedPattern(f"pattern {text!r}: {error}") from error


def java_parser(text: str) -> re.Pattern[str]:
    """As `java_pattern`, for a pattern that is known to be quick with any text."""
    return re.compile(_translated(text), re.ASCII)


_PIECE = re.compile(r"\\.|\[(?:\\.|[^\]\\])+\]|\{(\d+)(?:,(\d*))?\}|[^\\]", re.S)
"""One piece of a valid pattern: an escape, a set, a repetition, or another character, including brackets."""


def _size(pattern: str) -> int:
    """The size of a translated pattern with its repetitions written out."""
    sizes, last = [0], 0
    for piece in _PIECE.finditer(pattern):
        if piece[0] == "(":
            sizes.append(0)
            continue
        if piece[1] is not None:
            more = last * (max(int(piece[1]), int(piece[2] or 0)) - 1)
        elif piece[0] == ")":
            last = more = sizes.pop()
        else:
            last = more = 1
        if piece[1] is not None:
            last += more
        sizes[-1] += more
    return sum(sizes)


def _translated(text: str) -> str:
    pieces: list[str] = []
    groups: list[int] = []
    at = 0
    if text.startswith("(?i)"):
        pieces.append("(?i)")
        at = 4
    while at < len(text):
        piece, at = _STEPS.get(text[at], _itself)(text, at)
        if piece[0] == "(" and piece not in (_END, _ANY):
            groups.append(len(pieces))
        pieces.append(piece)
        if piece == ")" and groups:
            _check_repeated("".join(pieces[groups.pop() :]), text, at)
    return "".join(pieces)


def _check_repeated(group: str, text: str, at: int) -> None:
    """Refuse repetitions that differ in Java and Python: of a group that may match nothing, and possessive ones."""
    repeated = _REPEATED.match(text, at)
    if repeated and ((repeated[0].endswith("+") and len(repeated[0]) > 1) or re.fullmatch(group, "", re.ASCII)):
        raise UnsupportedPattern(
            f"pattern {text!r}: {repeated[0]!r} at {at} repeats a group that may match nothing or is possessive"
        )


def _itself(text: str, at: int) -> tuple[str, int]:
    return text[at], at + 1


def _any(_text: str, at: int) -> tuple[str, int]:
    return _ANY, at + 1


def _end(_text: str, at: int) -> tuple[str, int]:
    return _END, at + 1


def _counted(text: str, at: int) -> tuple[str, int]:
    match = _QUANTIFIER.match(text, at)
    if match is None:
        raise UnsupportedPattern(f"pattern {text!r}: '{{' at {at} is no repetition")
    return match[0], match.end()


def _group(text: str, at: int) -> tuple[str, int]:
    match = _GROUP.match(text, at)
    assert match is not None
    if match[0] == "(" and text.startswith("?", at + 1):
        raise UnsupportedPattern(f"pattern {text!r}: {text[at : at + 4]!r} at {at} is not supported")
    return (f"(?P<{match[1]}>" if match[1] else match[0]), match.end()


def _escape(text: str, at: int) -> tuple[str, int]:
    letter = text[at + 1 : at + 2]
    special = {"A": r"\A", "z": r"\Z", "Z": _END}.get(letter)
    if special is not None:
        return special, at + 2
    if "1" <= letter <= "9" and not text[at + 2 : at + 3].isdigit():
        return rf"\{letter}", at + 2
    return _character(text, at)


def _character(text: str, at: int) -> tuple[str, int]:
    """The translation of an escape for one character, or for one of a set."""
    letter = text[at + 1 : at + 2]
    if letter in _SAME_ESCAPES:
        return rf"\{letter}", at + 2
    if letter and not (letter.isascii() and letter.isalnum()):
        return re.escape(letter), at + 2
    code = _HEX.match(text, at + 1)
    if code is not None and not 0xD800 <= (number := int(code[1] or code[2], 16)) <= 0xDFFF:
        return re.escape(chr(number)), code.end()
    raise UnsupportedPattern(f"pattern {text!r}: {text[at : at + 2]!r} at {at} is not supported")


def _set(text: str, at: int) -> tuple[str, int]:
    """The translation of a set in brackets. Java nests and intersects sets, Python does not."""
    begin, pieces = at, ["["]
    at += 1
    if text.startswith("^", at):
        pieces.append("^")
        at += 1
    first = at
    while not text.startswith("]", at) or at == first:
        letter = text[at : at + 1]
        if not letter or letter in "[]" or text.startswith(("&&", "--"), at):
            raise UnsupportedPattern(f"pattern {text!r}: the set at {begin} is not supported")
        if letter == "\\":
            piece, at = _character(text, at)
        else:
            piece, at = (rf"\{letter}" if letter in "&~|^#" else letter), at + 1
        pieces.append(piece)
    return "".join([*pieces, "]"]), at + 1


_STEPS: dict[str, Callable[[str, int], tuple[str, int]]] = {
    ".": _any,
    "$": _end,
    "{": _counted,
    "(": _group,
    "[": _set,
    "\\": _escape,
}


@dataclass(frozen=True, slots=True)
class Replacement:
    """The replacement for each match: texts and numbers of groups, in order."""

    parts: tuple[str | int, ...]

    def all_in(self, pattern: JavaPattern, text: str, time_left: TimeLeft) -> str:
        """The text with every match replaced, as by String.replaceAll. Raises PatternTooSlow."""
        pieces = []
        copied = search_from = 0
        while search_from <= len(text) and (match := pattern.search(text, search_from, time_left)):
            pieces += [text[copied : match.start()], self._of(match)]
            copied = search_from = match.end()
            if match.start() == match.end():  # Java goes on one character further, Python would look here again
                search_from += 1
        return "".join([*pieces, text[copied:]])

    def _of(self, match: Any) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self.parts)


_NAMED = re.compile(r"\{([a-zA-Z][a-zA-Z0-9]*)\}")


def java_replacement(text: str, pattern: JavaPattern) -> Replacement:
    """The replacement that a text describes. Raises UnsupportedPattern if Java would throw."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            if at + 1 == len(text):
                raise UnsupportedPattern(f"replacement {text!r}: nothing follows '\\' at its end")
            parts.append(text[at + 1])
            at += 2
        elif letter == "$":
            group, at = _group_of(text, at + 1, pattern)
            parts.append(group)
        else:
            parts.append(letter)
            at += 1
    return Replacement(tuple(parts))


def _group_of(text: str, at: int, pattern: JavaPattern) -> tuple[int, int]:
    """A group's number, with as many digits as the pattern has groups for, and where the text goes on."""
    name = _NAMED.match(text, at)
    if name is not None:
        if name[1] not in pattern.groupindex:
            raise UnsupportedPattern(f"replacement {text!r}: no group {name[1]!r} in the pattern")
        return pattern.groupindex[name[1]], name.end()
    if not "0" <= text[at : at + 1] <= "9":
        raise UnsupportedPattern(f"replacement {text!r}: '$' at {at - 1} names no group")
    group = int(text[at])
    at += 1
    while "0" <= text[at : at + 1] <= "9" and group * 10 + int(text[at]) <= pattern.groups:
        group = group * 10 + int(text[at])
        at += 1
    if group > pattern.groups:
        raise UnsupportedPattern(f"replacement {text!r}: no group {group} in the pattern")
    return group, at
