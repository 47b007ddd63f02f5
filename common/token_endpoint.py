"""Tokens from the endpoint of an authorization server, for a client that proves who it is (RFC 6749, section 4.4)."""

import contextlib
import json
import math
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

from kafka_throttle.common.login_secrets import (
    MAX_TOKEN_BYTES,
    Attempt,
    PasswordFile,
    SecretUnusable,
    TokenFile,
    is_token,
)
from kafka_throttle.common.plain_words import words_of
from kafka_throttle.common.printable import printable
from kafka_throttle.common.tls_trust import trust

_WITHIN_S: Final = 10.0
"""How long one request may take in all."""
_PART_OF_LIFETIME: Final = 0.8
"""After so much of a token's lifetime the next one is asked for."""
_ASSUMED_LIFETIME_S: Final = 300.0
"""Of a token whose server does not say how long it is good."""
_LEAST_PAUSE_S: Final = 5.0
"""Between two requests if the first has failed."""
_MOST_CHARACTERS: Final = 300
_MOST_RESPONSE_BYTES: Final = 2 * MAX_TOKEN_BYTES
_OK: Final = 200
_UNAUTHORIZED: Final = 401
_ERROR: Final = ("error", "error_description")


class TokenUnavailable(SecretUnusable):
    """The endpoint has given no token; the text says why.

    `code` is what it has answered without its words, "" if it has not: some servers put the time into each answer.
    """

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class Issued(NamedTuple):
    """A token, and for how long it is good."""

    token: str
    lifetime_s: float


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """Where tokens are from, and who asks for them.

    `ca_file` has the authorities to trust; without it, those of the system are trusted.
    """

    url: str
    client_id: str
    client_secret_file: str
    scope: str | None = None
    ca_file: str | None = None

    def begin(self) -> Attempt:
        """Begin a login with a token that is good for a while. Blocks for seconds at most. Raises SecretUnusable."""
        return _tokens_of(self).begin()

    @property
    def client_secret(self) -> PasswordFile:
        """What the client proves itself with."""
        return PasswordFile(self.client_secret_file, f"{self.client_id} at {self.url}")


SecretPlace = PasswordFile | TokenFile | TokenEndpoint
SECRET_PLACES: Final = (PasswordFile, TokenFile, TokenEndpoint)
"""Each kind of place from which logins have their secret."""


@cache
def _tokens_of(endpoint: TokenEndpoint) -> "Tokens":
    return Tokens(endpoint)


class Tokens:
    """The newest token of an endpoint. Any thread may use it; one at a time asks for the next token.

    A token is used until most of its lifetime is over, or it is refused. If the next one cannot be had, the old one is
    used to its end.
    """

    def __init__(
        self,
        endpoint: TokenEndpoint,
        now_s: Callable[[], float] = time.monotonic,
        issued_by: Callable[[TokenEndpoint, str], Issued] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._now_s = now_s
        self._issued_by = issued_by or issued
        self._asking = threading.Lock()
        self._token: str | None = None
        self._renew_at_s = self._ends_at_s = -math.inf
        self._asked_at_s = -math.inf
        self._refused: str | None = None
        """The token that a node has refused last."""
        self._failure: SecretUnusable = TokenUnavailable(f"{endpoint.url}: not asked yet")
        self._code = ""
        """The code of the last answer, if it was a failure."""
        self._ask_at_s = -math.inf
        """After a failure: the endpoint is not asked before."""

    def begin(self) -> Attempt:
        """See `TokenEndpoint.begin`. The lifetime of a token counts from when it was asked for."""
        with self._asking:
            now_s = self._now_s()
            if self._token is not None and self._token == self._refused:
                self._token, self._ask_at_s = None, self._asked_at_s + _LEAST_PAUSE_S
                self._failure = TokenUnavailable(f"the last token of {self._endpoint.url} was refused")
            if self._token is None or now_s >= self._renew_at_s:
                self._renew(now_s)
            if self._token is None or now_s >= self._ends_at_s:
                raise self._failure
            return _TokenAttempt(self, self._token)

    def _renew(self, now_s: float) -> None:
        if now_s < self._ask_at_s:
            return
        self._asked_at_s = now_s
        try:
            token, lifetime_s = self._asked()
        except SecretUnusable as error:
            self._ask_at_s = self._now_s() + _LEAST_PAUSE_S
            if not isinstance(error, TokenUnavailable) or not error.code or error.code != self._code:
                self._failure = error  # else the same words go on, as the log has them
            self._code = error.code if isinstance(error, TokenUnavailable) else ""
        else:
            self._token, self._code = token, ""
            self._renew_at_s, self._ends_at_s = now_s + _PART_OF_LIFETIME * lifetime_s, now_s + lifetime_s

    def _asked(self) -> Issued:
        while True:
            attempt = self._endpoint.client_secret.begin()
            try:
                found = self._issued_by(self._endpoint, attempt.secret)
            except ClientRefused as error:
                if not attempt.refused(str(error)):
                    raise
            else:
                attempt.accepted()
                return found
            finally:
                attempt.ended()

    def note_refused(self, token: str) -> bool:
        """A node has refused a token: it is not used again. Whether another one may be asked for at once.

        It takes no lock, as event loops call it, and the lock is held while the endpoint is asked.
        """
        self._refused = token
        return self._token != token or self._now_s() >= self._asked_at_s + _LEAST_PAUSE_S


class _TokenAttempt:
    """A login with a token."""

    def __init__(self, tokens: Tokens, secret: str) -> None:
        self._tokens = tokens
        self.secret = secret

    def accepted(self) -> None:
        """Nothing is remembered."""

    def refused(self, _words: str) -> bool:
        """See Attempt."""
        return self._tokens.note_refused(self.secret)

    def ended(self) -> None:
        """Nothing is remembered."""


# ---------------------------------------------------------------------- the request


class ClientRefused(TokenUnavailable):
    """The endpoint does not take the secret of the client."""


def issued(endpoint: TokenEndpoint, client_secret: str) -> Issued:
    """A new token. Takes `_WITHIN_S` at most, and the look-up of the host. Raises TokenUnavailable."""
    try:
        status, body = _response_of(endpoint, client_secret)
    except ssl.SSLError as error:
        raise TokenUnavailable(f"{endpoint.url}: TLS: {words_of(error)}") from None
    except TimeoutError:
        raise TokenUnavailable(f"{endpoint.url}: no answer within {_WITHIN_S:g} s") from None
    except OSError as error:
        raise TokenUnavailable(f"{endpoint.url}: {words_of(error)}") from None
    except HTTPException:
        raise TokenUnavailable(f"{endpoint.url}: its answer is not HTTP") from None
    except UnicodeError:  # IDNA has labels of 1 to 63 characters
        raise TokenUnavailable(f"{endpoint.url}: there can be no such host name") from None
    fields = _fields(body)
    if status == _OK:
        return _issued_in(endpoint, fields)
    code, description = (str(fields.get(key, "")).replace(client_secret, "...") for key in _ERROR)
    text = printable(": ".join(filter(None, (code, description))) or "no reason", _MOST_CHARACTERS)
    kind = ClientRefused if status == _UNAUTHORIZED or code == "invalid_client" else TokenUnavailable
    raise kind(
        f"{endpoint.url}: it gives no token to {endpoint.client_id!r}: HTTP status {status}, {text}", f"{status} {code}"
    )


def _response_of(endpoint: TokenEndpoint, client_secret: str) -> tuple[int, bytes]:
    """The status and the beginning of the response. Redirections are not followed: they might take the secret along."""
    url = urlsplit(endpoint.url)
    assert url.hostname is not None
    ends_s = time.monotonic() + _WITHIN_S
    connection = (
        HTTPConnection(url.hostname, url.port, timeout=_WITHIN_S)
        if url.scheme == "http"
        else HTTPSConnection(url.hostname, url.port, timeout=_WITHIN_S, context=_tls_context(endpoint.ca_file))
    )
    with contextlib.closing(connection):
        connection.connect()
        with _closed_after(connection.sock, ends_s - time.monotonic()) as is_over:
            try:
                form = {"grant_type": "client_credentials", **({"scope": endpoint.scope} if endpoint.scope else {})}
                target = f"{url.path or '/'}{'?' if url.query else ''}{url.query}"
                connection.request("POST", target, urlencode(form), _headers(endpoint.client_id, client_secret))
                response = connection.getresponse()
                return response.status, response.read(_MOST_RESPONSE_BYTES)
            finally:
                if is_over.is_set():  # whatever has come of it
                    raise TimeoutError


@contextlib.contextmanager
def _closed_after(sock: socket.socket, seconds: float) -> Iterator[threading.Event]:
    """Shut a socket down when the time is over, which the event says: a slow sender might go on for ever."""
    is_over = threading.Event()

    def shut() -> None:
        is_over.set()
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, seconds), shut)
    timer.daemon = True
    timer.start()
    try:
        yield is_over
    finally:
        timer.cancel()


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_file is None:
        context.load_default_certs()
    else:
        trust(context, ca_file)
    return context


def _headers(client_id: str, client_secret: str) -> dict[str, str]:
    """HTTP Basic, with both parts encoded as in a form (RFC 6749, section 2.3.1)."""
    login = b64encode(f"{quote_plus(client_id)}:{quote_plus(client_secret)}".encode()).decode()
    return {
        "Authorization": f"Basic {login}",
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }


def _fields(body: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _issued_in(endpoint: TokenEndpoint, fields: Mapping[str, Any]) -> Issued:
    token, lifetime_s = fields.get("access_token"), fields.get("expires_in", _ASSUMED_LIFETIME_S)
    if not isinstance(token, str) or not is_token(token):
        raise TokenUnavailable(f"{endpoint.url}: its answer has no access_token that can be sent")
    try:
        lifetime_s = float(lifetime_s)  # some servers write it as a string
    except (TypeError, ValueError, OverflowError):  # of an integer with hundreds of digits
        lifetime_s = _ASSUMED_LIFETIME_S
    return Issued(token, lifetime_s if lifetime_s > 0 else _ASSUMED_LIFETIME_S)
