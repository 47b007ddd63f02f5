"""KEY=VALUE, as several options take it. There may be a secret in it, so no value is ever told."""

import re
from collections.abc import Sequence
from pathlib import Path

from proxy.cli.config_file import refuse


def key_values(pairs: Sequence[str], option: str, key_of: str, expected: str) -> dict[str, str]:
    """What comes before the first "=" of each pair, and what comes after it.

    Ends the process if one has none, or no key that `key_of` matches: with its place in the command line and nothing
    of its text.
    """
    found = {}
    for number, pair in enumerate(pairs, 1):
        key, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(key_of, key):
            refuse(f"{option} ({number} of {len(pairs)}): expected {expected}, got something else")
        found[key] = value
    return found


def with_files(values: dict[str, str], option: str) -> dict[str, str]:
    """The same, but for each @FILE what is in that file, without its line end; ends the process if it is unreadable."""
    return {key: _content(value, f"{option}: {key}") for key, value in values.items()}


def _content(value: str, place: str) -> str:
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text().rstrip("\r\n")
    except (OSError, ValueError) as error:
        refuse(f"{place}: {value[1:]} cannot be read: {getattr(error, 'strerror', None) or error}")
