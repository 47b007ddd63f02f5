"""A connection of the proxy's own to one node of a Kafka cluster: awaited, or from a thread."""

import asyncio
import contextlib
import secrets
import ssl
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from typing import Final, Literal, TypeVar

from kafka_throttle.common.connecting import connected
from kafka_throttle.common.destinations import ANYWHERE, Destinations
from kafka_throttle.common.login_secrets import Attempt, GivenSecret, SecretHeldBack, SecretUnusable
from kafka_throttle.common.look_ups import in_daemon_thread
from kafka_throttle.common.plain_words import words_of
from kafka_throttle.common.tls_trust import trust
from kafka_throttle.common.token_endpoint import SecretPlace, TokenEndpoint
from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.protocol.frames import INT32_MAX
from kafka_throttle.protocol.identity.proxy_header import LOCAL_PROXY_HEADER
from kafka_throttle.protocol.own_requests import OwnRequest
from kafka_throttle.quotas.sources.cluster_conversation import Conversation, Mechanism, SaslLogin
from kafka_throttle.quotas.sources.cluster_faults import (
    ADDRESSES,
    FILES,
    PROTOCOL,
    TOKEN_ENDPOINT,
    ConnectionFault,
    Fault,
    NodeRefuses,
    Security,
    Spoken,
    fault_of_lost,
    known_fault_of_tls,
    login_setting,
)
from kafka_throttle.quotas.sources.cluster_look import spoken_at
from kafka_throttle.quotas.sources.cluster_stream import ClusterStream, opened

Result = TypeVar("Result")

_NONCE_BYTES: Final = 24
_OF_THIS_PROCESS: Final = secrets.token_bytes(16)
_PART_OF_LIFETIME: Final = 0.85
"""After so much of the lifetime of a login the next one is due, as in Java's clients."""
_LEAST_LOGIN_S: Final = 1.5
"""A node takes no login on a connection within a second of the last one. One that is late is taken, and nothing else
is before it: what is asked meanwhile waits."""
_TURNS_TO_CLOSE: Final = 3
"""Of the event loop: a transport that is aborted closes its socket in a later one."""


def mark_of(virtual_cluster: str) -> int:
    """The correlation id by which this process, with those that it starts, knows connections of its own.

    One that comes back as a client's shows that the way to the cluster leads to this proxy. Nodes do not look at it.
    Who sees that of one virtual cluster knows nothing about those of others.
    """
    mark = blake2b(virtual_cluster.encode(), digest_size=4, key=_OF_THIS_PROCESS).digest()
    return int.from_bytes(mark, "big") & INT32_MAX


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who the proxy is to the cluster, named and meant as kafka-python's settings of the same names; files are PEM."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    sasl_mechanism: Mechanism | None = None
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = field(default=None, repr=False)
    """A password that is known once and for all; `secret` is asked for each login."""
    secret: SecretPlace | None = field(default=None, repr=False)
    """Where the password is, or the token for OAUTHBEARER."""
    sasl_extensions: tuple[tuple[str, str], ...] = ()
    """What is sent with a token."""
    announced: bool = False
    """Whether connections begin with a PROXY header that says they are the sender's own."""
    destinations: Destinations = field(default=ANYWHERE, compare=False)
    """Where nodes may be. Nothing is sent anywhere else."""
    mark: int = field(default=1, compare=False)
    """The correlation id of the first request of each connection: see `mark_of`."""

    @property
    def secured(self) -> bool:
        """Whether connections speak TLS."""
        return self.security_protocol.endswith("SSL")

    @property
    def logs_in(self) -> bool:
        """Whether a login is wanted on each connection."""
        return self.sasl_mechanism is not None and self.security_protocol.startswith("SASL")

    def begin_login(self) -> Attempt:
        """Begin a login. Blocks for seconds at most. Raises SecretUnusable."""
        return (self.secret or GivenSecret(self.sasl_plain_password or "")).begin()

    def login_with(self, secret: str) -> SaslLogin:
        """What is said in a login with this secret, and a new nonce."""
        assert self.sasl_mechanism is not None
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        return SaslLogin(self.sasl_mechanism, self.sasl_plain_username or "", secret, nonce, self.sasl_extensions)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that have to be read before a connection can stand."""
        return tuple(file for file in (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile) if file)

    def tls_context(self) -> ssl.SSLContext:
        """What connections speak TLS with. Reads files; OSError where one is unusable."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ssl_cafile:
            trust(context, self.ssl_cafile)
        else:
            context.load_default_certs()
        if self.ssl_certfile:
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
        return context


class ClusterClient:
    """A connection to `server` (host:port). It is made by the first `ask`, and of no use after one that failed."""

    def __init__(self, server: str, credentials: Credentials, timeout_s: float) -> None:
        self._server = server
        host, _, port = server.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._conversation = Conversation(credentials.mark)
        self._log_in_again_at_s = inf
        """When most of the lifetime of the last login is over."""
        self._may_log_in_at_s = 0.0
        """When a node takes the next login on this connection."""
        self._stream: ClusterStream | None = None
        self._is_connected = False
        self._free_at_s = 0.0
        """When the node wants the next request; it is not believed about more than the time-out."""
        self._has_served = False

    async def ask(self, request: OwnRequest[Result]) -> Result:
        """The response to a request, in the newest version that both sides know.

        Raises ConnectionFault, also when connection, TLS, SASL and response together take longer than the time-out.
        """
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._free_at_s - loop.time())
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._stream and loop.time() >= self._log_in_again_at_s:
                    await asyncio.sleep(self._may_log_in_at_s - loop.time())
                    if not await self._logged_in(self._stream):
                        self._let_go()
                stream = self._stream or await self._introduced()
                response = await stream.play(self._conversation.response_to(request))
        except NodeRefuses as refusal:
            fault = refusal.fault
        except (OSError, EOFError, ProtocolError) as error:
            fault = await self._fault(error)
        else:
            self._free_at_s = loop.time() + min(self._conversation.throttle_ms / 1000, self._timeout_s)
            self._has_served = True
            return response
        raise ConnectionFault(self._server, fault)

    async def _introduced(self) -> ClusterStream:
        """A connection that has logged in. One on which a secret was refused is replaced if there is another secret."""
        while True:
            stream = self._stream = await self._opened()
            await stream.play(self._conversation.introduced())
            if not self._credentials.logs_in or await self._logged_in(stream):
                return stream
            self._let_go()

    def _let_go(self) -> None:
        self.close()
        self._stream, self._is_connected, self._has_served = None, False, False
        self._conversation = Conversation(self._credentials.mark)
        self._log_in_again_at_s = inf

    async def _logged_in(self, stream: ClusterStream) -> bool:
        """Log in, for the first time or again (KIP-368). False: it was refused, and another secret can be offered.

        A connection whose login is only good for a while is logged in again with the first request after most of it.
        """
        try:
            attempt = await in_daemon_thread(self._credentials.begin_login)
        except SecretUnusable as error:
            is_of_endpoint = isinstance(self._credentials.secret, TokenEndpoint)
            is_held_back = isinstance(error, SecretHeldBack)
            reason = (
                "token_unavailable" if is_of_endpoint else "authentication_failed" if is_held_back else "files_unusable"
            )
            setting = TOKEN_ENDPOINT if is_of_endpoint else login_setting(self._credentials.sasl_mechanism)
            raise NodeRefuses(Fault(reason, str(error), setting)) from None
        began_s = asyncio.get_running_loop().time()
        try:
            await stream.play(self._conversation.log_in(self._credentials.login_with(attempt.secret)))
        except NodeRefuses as refusal:
            if refusal.fault.reason != "authentication_failed" or not attempt.refused(refusal.fault.problem):
                raise
            return False
        else:
            attempt.accepted()
        finally:
            attempt.ended()
        lifetime_s = self._conversation.lifetime_ms / 1000
        self._may_log_in_at_s = began_s + _LEAST_LOGIN_S
        self._log_in_again_at_s = began_s + _PART_OF_LIFETIME * lifetime_s if lifetime_s > 0 else inf
        return True

    async def _opened(self) -> ClusterStream:
        credentials = self._credentials
        try:
            context = await in_daemon_thread(credentials.tls_context) if credentials.secured else None
        except OSError as error:  # ssl.SSLError is one
            problem = f"{words_of(error)}, with {', '.join(credentials.files)}"
            raise NodeRefuses(Fault("files_unusable", problem, FILES)) from None
        first = LOCAL_PROXY_HEADER if credentials.announced else b""
        sock = await connected(*self._address, first, credentials.destinations)
        self._is_connected = True
        return await opened(sock, context, self._address[0])

    async def _fault(self, error: Exception) -> Fault:
        """Why a connection came to nothing, or ended."""
        credentials, conversation = self._credentials, self._conversation
        if isinstance(error, TimeoutError) and error.errno is None:
            if self._is_connected:
                return Fault("no_response", f"no response within {self._timeout_s:g} s", ADDRESSES)
            return Fault("unreachable", f"no connection within {self._timeout_s:g} s", ADDRESSES)
        if not self._is_connected:
            return Fault("unreachable", words_of(error), ADDRESSES)
        if self._has_served and not isinstance(error, ProtocolError):
            return Fault("closed", words_of(error), f"{ADDRESSES}, {PROTOCOL}")
        if isinstance(error, ssl.SSLError) and (known := known_fault_of_tls(error)) is not None:
            return known
        spoken = Spoken.NOTHING_KNOWN
        if not self._credentials.announced:  # else a look, without a PROXY header, shows nothing
            spoken = await spoken_at(*self._address, credentials.secured, credentials.mark)
        security = Security(
            secured=credentials.secured,
            handshake_done=self._stream is not None,
            shows_certificate=credentials.ssl_certfile is not None,
            logs_in=credentials.logs_in,
            logged_in=conversation.logged_in,
            login_setting=login_setting(credentials.sasl_mechanism),
        )
        if isinstance(error, ProtocolError) and (credentials.secured or spoken is not Spoken.TLS):
            return Fault("response_malformed", f"its response to {conversation.asked} cannot be read", ADDRESSES)
        text = words_of(error)
        if conversation.asked and conversation.login is not None and not conversation.logged_in:
            text = f"{text}, {conversation.login.not_done}"
        return fault_of_lost(error, text, security, spoken)

    def close(self) -> None:
        """Let go of the socket."""
        if self._stream is not None:
            self._stream.close()


class ClusterConnection:
    """A ClusterClient with an event loop of its own. One thread at a time may use it; any may `interrupt`."""

    def __init__(self, server: str, credentials: Credentials, timeout_s: float) -> None:
        self._server = server
        self._loop = asyncio.SelectorEventLoop()
        self._client = ClusterClient(server, credentials, timeout_s)
        self._asking: asyncio.Task[object] | None = None
        self._interrupted = False

    def ask(self, request: OwnRequest[Result]) -> Result:
        """As ClusterClient's. Blocks."""

        async def asked() -> Result:
            self._asking = asyncio.current_task()
            if self._interrupted:
                raise asyncio.CancelledError
            return await self._client.ask(request)

        try:
            return self._loop.run_until_complete(asked())
        except asyncio.CancelledError:
            raise ConnectionFault(self._server, Fault("no_response", "stopped", ADDRESSES)) from None

    def interrupt(self) -> None:
        """Let the `ask` that is under way in another thread fail, and all later ones."""
        self._interrupted = True
        with contextlib.suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    def close(self) -> None:
        """Let go of the socket."""
        self._client.close()
        for _ in range(_TURNS_TO_CLOSE):
            self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
