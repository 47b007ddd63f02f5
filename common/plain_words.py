"""Texts of library errors in a form for operators."""

import os
import re
from typing import Final

_CLASS_NAME: Final = re.compile(r"(?:\[Error \d+\] )?\b(?:[A-Z]\w*)?(?:Error|Exception)\b(?:: )?")
_ERRNO: Final = re.compile(r"\b(\d{1,3}) E[A-Z]{2,}\b")


def plain_words(error: BaseException) -> str:
    """The text of an error, without names of classes and of error numbers of the system."""
    text = _ERRNO.sub(lambda found: os.strerror(int(found[1])), _CLASS_NAME.sub("", str(error))).strip()
    if text and not isinstance(error, LookupError):  # the text of a LookupError is only the missing key
        return text
    name = type(error).__name__.removesuffix("Error")
    return f"failed ({re.sub('(?<=[a-z])(?=[A-Z])', ' ', name).lower()} error)"
