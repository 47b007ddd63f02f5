"""Options of the form KEY=VALUE. A value may be a secret, so errors never print values."""

import re
from collections.abc import Sequence
from pathlib import Path

from kafka_throttle.proxy.cli.config_file import refuse


def key_values(pairs: Sequence[str], option: str, key_of: str, expected: str) -> dict[str, str]:
    """The pairs as a dictionary, split at the first "=" of each.

    Ends the process for a pair without "=", or with a key that the pattern `key_of` does not match. The error has the
    position of the pair and nothing of its text.
    """
    found = {}
    for number, pair in enumerate(pairs, 1):
        key, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(key_of, key):
            refuse(f"{option} ({number} of {len(pairs)}): expected {expected}, got something else")
        found[key] = value
    return found


def with_files(values: dict[str, str], option: str) -> dict[str, str]:
    """The values, with each @FILE replaced by the content of the file without its line end; errors end the process."""
    return {key: _content(value, f"{option}: {key}") for key, value in values.items()}


def _content(value: str, place: str) -> str:
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text().rstrip("\r\n")
    except (OSError, ValueError) as error:
        refuse(f"{place}: {value[1:]} cannot be read: {getattr(error, 'strerror', None) or error}")
