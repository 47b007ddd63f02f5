"""Texts of library errors in a form for operators."""

import os
import re
import ssl
from typing import Final

_CLASS_NAME: Final = re.compile(r"(?:\[Error \d+\] )?\b(?:[A-Z]\w*)?(?:Error|Exception)\b(?:: )?")
_ERRNO: Final = re.compile(r"\b(\d{1,3}) E[A-Z]{2,}\b")
_PLACE_IN_SOURCE: Final = re.compile(r" \(_ssl\.c:\d+\)")
_PLAINER: Final = {"key values mismatch": "the key does not belong to the certificate"}
_PEM_LIB: Final = 524297
"""The only information that OpenSSL gives about a key that it cannot decrypt."""


def plain_words(error: BaseException) -> str:
    """The text of an error, without names of classes and of error numbers of the system."""
    text = _ERRNO.sub(lambda found: os.strerror(int(found[1])), _CLASS_NAME.sub("", str(error))).strip()
    if text and not isinstance(error, LookupError):  # the text of a LookupError is only the missing key
        return text
    name = type(error).__name__.removesuffix("Error")
    return f"failed ({re.sub('(?<=[a-z])(?=[A-Z])', ' ', name).lower()} error)"


def why_tls_failed(error: ssl.SSLError) -> str:
    """OpenSSL's message, without the place in its source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason: str | None = getattr(error, "reason", None)
    if reason is None and error.args == (_PEM_LIB, *error.args[1:]):
        return "a key that cannot be read, or a wrong password for it"
    text = reason or error.strerror or str(error.args[0] if error.args else error)
    words = _PLACE_IN_SOURCE.sub("", text).lower().replace("_", " ")
    return _PLAINER.get(words, words)


def words_of(error: Exception) -> str:
    """What an error of a socket says."""
    if isinstance(error, EOFError) or (isinstance(error, ConnectionError) and error.errno is None):
        return "the connection was closed"
    if isinstance(error, ssl.SSLError):
        return why_tls_failed(error)
    return (error.strerror if isinstance(error, OSError) else None) or str(error)  # a name that is not known
