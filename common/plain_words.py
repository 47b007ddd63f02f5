"""What an error of a library says, as an operator can read it."""

import os
import re
from typing import Final

_CLASS_NAME: Final = re.compile(r"(?:\[Error \d+\] )?\b(?:[A-Z]\w*)?(?:Error|Exception)\b(?:: )?")
_ERRNO: Final = re.compile(r"\b(\d{1,3}) E[A-Z]{2,}\b")


def plain_words(error: BaseException) -> str:
    """What an error says, without the names of its classes and of the system's error numbers."""
    text = _ERRNO.sub(lambda found: os.strerror(int(found[1])), _CLASS_NAME.sub("", str(error))).strip()
    if text and not isinstance(error, LookupError):  # such an error says what was missing, and nothing else
        return text
    name = type(error).__name__.removesuffix("Error")
    return f"failed ({re.sub('(?<=[a-z])(?=[A-Z])', ' ', name).lower()} error)"
