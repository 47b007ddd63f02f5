"""What operators read of an error that a library has raised."""

import ssl

import pytest
from kafka.errors import SaslAuthenticationFailedError

from kafka_throttle.common.plain_words import plain_words, words_of


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("endpoint_type"), "failed (key error)"),
        (OSError("111 ECONNREFUSED"), "Connection refused"),
        (SaslAuthenticationFailedError("SaslAuthenticationFailedError: no"), "no"),
        (SaslAuthenticationFailedError(), "failed (sasl authentication failed error)"),
    ],
)
def test_no_words_of_a_library_s_own(error, words):
    assert plain_words(error) == words


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (ConnectionResetError(), "the connection was closed"),
        (EOFError(), "the connection was closed"),
        (OSError(None, "there is no port 0"), "there is no port 0"),
        (ssl.SSLZeroReturnError(6, "TLS connection has been closed (_ssl.c:992)"), "tls connection has been closed"),
        (ssl.SSLError("No cipher can be selected."), "no cipher can be selected."),
        (ssl.SSLError(524297, "[PEM] no start line"), "a key that cannot be read, or a wrong password for it"),
    ],
)
def test_the_words_of_an_error_of_a_socket(error, words):
    assert words_of(error) == words
