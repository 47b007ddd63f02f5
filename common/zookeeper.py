"""A client of a ZooKeeper ensemble, as each part of ours that speaks to one needs it: who it is there, and how it ends.

kazoo's client is threads of its own: what it calls back, it calls from them.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from kazoo import exceptions, security
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KeeperState

from kafka_throttle.common.login_secrets import Attempt, GivenSecret, PasswordFile
from kafka_throttle.common.plain_words import plain_words

_LONGEST_CONNECT_S = 3.5
"""By then TCP has knocked three times. A server name may have several addresses, and all of them be dead."""

LOST = (
    exceptions.ConnectionLoss,
    exceptions.SessionExpiredError,
    exceptions.AuthFailedError,
    KazooTimeoutError,
)
"""What kazoo raises where a request has no response because of its connection."""


@dataclass(frozen=True, slots=True)
class Login:
    """A name and its password, or the file that has it."""

    user: str
    password: str | PasswordFile = field(repr=False)

    def begin(self) -> Attempt:
        """Begin a login. Raises SecretUnusable."""
        secret = GivenSecret(self.password) if isinstance(self.password, str) else self.password
        return secret.begin()


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: whom to trust (None: whom the system trusts), and our own certificate and key, if asked for them.

    Without `key` it is in the file of the certificate.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify_host_name: bool = True


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The servers of an ensemble, each as host:port, and who we are there.

    `digest` is ZooKeeper's own scheme, `sasl` is DIGEST-MD5. With `acl` "creator" what we make may be changed only by
    whom we are.
    """

    servers: Sequence[str]
    session_timeout_ms: int = 10_000
    digest: Login | None = None
    sasl: Login | None = None
    tls: Tls | None = None
    acl: Literal["open", "creator"] = "open"

    @property
    def connect_s(self) -> float:
        """How long one address may take to connect: all servers together a session time-out, as in Java's client."""
        return min(self.session_timeout_ms / 1000 / len(self.servers), _LONGEST_CONNECT_S)


class LastKazooError(logging.Handler):
    """What kazoo said last about what is wrong: it logs the reasons, and raises without them."""

    _CONSEQUENCES = ("Transition to CONNECTING", "Failed connecting to Zookeeper")

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message, if it is a reason."""
        text = record.getMessage()
        if not text.startswith(self._CONSEQUENCES):
            error = record.exc_info[1] if record.exc_info else None
            self.text = f"{text}: {words_for(error)}" if error else text


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads; one that ends by an error has logged it, and need not print it too.

    A connection may take `connect_s` to stand. kazoo itself gives each address a whole session time-out, one after the
    other, and looks names up again only behind the last one: servers that had come back elsewhere were found too late.
    """

    def __init__(self, connect_s: float) -> None:
        super().__init__()
        self._connect_s = connect_s

    def create_connection(self, *args: Any, **settings: Any) -> Any:
        """A socket that is connected, and has shaken hands where TLS is spoken."""
        return super().create_connection(*args, **settings | {"timeout": self._connect_s})

    def spawn(self, func: Callable[..., None], *args: Any, **kwargs: Any) -> Any:
        """Run a function in a thread of its own."""

        def run() -> None:
            with suppress(Exception):
                func(*args, **kwargs)

        return super().spawn(run)


def new_client(ensemble: Ensemble, words: LastKazooError, retry_s: float) -> "Client":
    """A client that is not started. It tries to connect every `retry_s`; `words` has why that fails.

    Raises SecretUnusable.
    """
    login = ensemble.digest or ensemble.sasl
    attempt = None if login is None else login.begin()
    logger = logging.Logger("kazoo", logging.WARNING)
    logger.addHandler(words)
    return Client(
        hosts=",".join(ensemble.servers),
        timeout=ensemble.session_timeout_ms / 1000,
        connection_retry={"max_tries": -1, "delay": retry_s, "backoff": 1, "max_jitter": 0.1},
        handler=_Handler(ensemble.connect_s),
        logger=logger,
        digest=ensemble.digest,
        attempt=attempt,
        **_credentials(ensemble, "" if attempt is None else attempt.secret),
    )


class Client(KazooClient):  # type: ignore[misc]
    """A client that notes what comes of its login.

    An ensemble does not refuse a digest: with another one we are somebody else. A login by SASL comes behind the state
    CONNECTED, and kazoo tells nobody what has come of it: that is looked at when this state ends.
    """

    def __init__(self, *, digest: Login | None, attempt: Attempt | None, **settings: Any) -> None:
        self._digest = digest
        self._attempt = attempt
        self._by_sasl = "sasl_options" in settings
        super().__init__(**settings)

    @property
    def is_another(self) -> bool:
        """Whether we are somebody else now than when it logged in: another password makes another digest."""
        if self._digest is None or self._attempt is None or isinstance(self._digest.password, str):
            return False
        return self._digest.password.holds_another(self._attempt.secret)

    def _session_callback(self, state: KeeperState) -> None:
        is_up, was_up = (each in _UP for each in (state, self._state))
        if self._attempt is not None and (was_up if self._by_sasl else is_up):
            login = getattr(self, "sasl_cli", None)
            if not self._by_sasl or (login is not None and login.complete):
                self._attempt.accepted()
            else:
                self._attempt.refused("the login by SASL is refused")
            self._attempt.ended()
        super()._session_callback(state)


_UP = (KeeperState.CONNECTED, KeeperState.CONNECTED_RO)


def close(client: KazooClient) -> None:
    """Let go of session, socket and threads. May block for seconds if the server does not respond."""
    with suppress(exceptions.KazooException, OSError):  # a server that does not respond ends the session by itself
        client.stop()
        client.close()


def acl_of(ensemble: Ensemble, *, is_secret: bool = False) -> list[Any]:
    """Who may do what with a znode that we make; a secret one may be read only by whom we are."""
    if ensemble.acl == "open":
        return list(security.OPEN_ACL_UNSAFE)
    return [*security.CREATOR_ALL_ACL, *([] if is_secret else security.READ_ACL_UNSAFE)]


def words_for(error: BaseException, request_s: float | None = None) -> str:
    """What an exception of kazoo's says, in words; `request_s` is how long a response was waited for."""
    known: dict[type[BaseException], str] = {
        exceptions.NoAuthError: "not allowed",
        exceptions.InvalidACLError: "an ACL for its creator needs a login",
        KazooTimeoutError: "no answer in time" if request_s is None else f"no answer within {request_s:g} s",
    }
    return known.get(type(error)) or plain_words(error)


def _credentials(ensemble: Ensemble, password: str) -> dict[str, Any]:
    """What kazoo is told of who we are and whom we trust."""
    reported: dict[str, Any] = {}
    if ensemble.digest:
        reported["auth_data"] = [("digest", f"{ensemble.digest.user}:{password}")]
    if ensemble.sasl:
        reported["sasl_options"] = {"mechanism": "DIGEST-MD5", "username": ensemble.sasl.user, "password": password}
    if tls := ensemble.tls:
        reported.update(
            use_ssl=True,
            ca=tls.ca,
            certfile=tls.certificate,
            keyfile=tls.key or tls.certificate,
            keyfile_password=tls.key_password,
            check_hostname=tls.verify_host_name,
        )
    return reported
