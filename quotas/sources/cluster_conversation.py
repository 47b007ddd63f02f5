"""What the proxy says to a node on a connection of its own, and in which order. Does no I/O.

A step is a generator: it yields what is asked, is sent the whole response to each, and returns what came of it. It
raises ProtocolError for a response that is none, and NodeRefuses.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeVar

from kafka_throttle.common.printable import printable
from kafka_throttle.protocol.frames import INT32_MAX
from kafka_throttle.protocol.identity.scram import ScramClient, ScramFailed
from kafka_throttle.protocol.messages.api_versions import offer_request
from kafka_throttle.protocol.messages.sasl import (
    ILLEGAL_SASL_STATE,
    UNSUPPORTED_SASL_MECHANISM,
    SaslToken,
    authenticate_request,
    handshake_request,
)
from kafka_throttle.protocol.own_requests import Offer, OwnRequest
from kafka_throttle.quotas.sources.cluster_faults import (
    ADDRESSES,
    MECHANISM,
    PROTOCOL,
    Fault,
    NodeRefuses,
    login_setting,
)

Result = TypeVar("Result")


class Asked(NamedTuple):
    """The whole frame of a request, and how many bytes its response may have at most."""

    frame: bytes
    most_bytes: int


Step = Generator[Asked, bytes, Result]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

_SINCE: Final = dict.fromkeys(("DescribeClientQuotas", "AlterClientQuotas"), ": Kafka 2.6 and later do")
"""Which nodes offer an API that older ones do not."""
_REASON_BYTES: Final = 200
_SHOWN_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class SaslLogin:
    """Who the proxy is, for SASL. `password` is the token with OAUTHBEARER, which needs no user name.

    `nonce` is another one each time. `extensions` go with a token (KIP-342).
    """

    mechanism: Mechanism
    username: str
    password: str = field(repr=False)
    nonce: str = field(repr=False)
    extensions: tuple[tuple[str, str], ...] = ()

    @property
    def not_done(self) -> str:
        """Error text for a failed login."""
        who = repr(self.username) if self.username else "the proxy"
        return f"before {who} was authenticated with {self.mechanism}"

    def bearer(self) -> bytes:
        """The initial response of a client with a token (RFC 7628)."""
        pairs = (("auth", f"Bearer {self.password}"), *self.extensions)
        return "n,,\1{}\1\1".format("\1".join(f"{key}={value}" for key, value in pairs)).encode()


class Conversation:
    """All that is said over one connection: `introduced`, `log_in` if that is wanted, then `response_to` each request.

    `first_id` is the correlation id of the first request.
    """

    def __init__(self, first_id: int = 1) -> None:
        self.login: SaslLogin | None = None
        """The last one, also if it came to nothing."""
        self._offer: Offer = {}
        self._next_id = first_id
        self.logged_in = False
        """Whether a login has succeeded."""
        self.lifetime_ms = 0
        """How long that login is good for, from then on; 0: as long as the connection stands."""
        self.throttle_ms = 0
        """How long the node wants no further request, as its last response says."""
        self.asked = ""
        """The name of the API that was asked last."""

    def introduced(self) -> Step[None]:
        """Learn what the node offers."""
        self._offer = yield from self._exchange(offer_request(), 0)

    def log_in(self, login: SaslLogin) -> Step[None]:
        """Prove who we are, for the first time or again (KIP-368)."""
        self.login, self.logged_in = login, False
        yield from self._log_in(login)
        self.logged_in = True

    def response_to(self, request: OwnRequest[Result]) -> Step[Result]:
        """The response to a request, in the newest version that both sides know."""
        version = request.version_for(self._offer)
        if version is None:
            raise NodeRefuses(Fault("api_missing", self._not_offered(request), ADDRESSES))
        result: Result = yield from self._exchange(request, version)
        return result

    def _exchange(self, request: OwnRequest[Result], version: int) -> Step[Result]:
        number, self.asked = self._next_id, request.name
        self._next_id = (number + 1) & INT32_MAX
        frame = yield Asked(request.frame(version, number), request.most_bytes)
        result, self.throttle_ms = request.response(frame, version, number)
        return result

    def _not_offered(self, request: OwnRequest[Result]) -> str:
        """Why a request cannot be sent: the node offers its API not at all, or in versions that we do not speak."""
        offered, (lowest, highest) = self._offer.get(request.api_key), request.versions
        api = request.name
        if offered is None:
            return f"it does not offer the API {api}{_SINCE.get(api, '')}"
        versions = f"{offered[0]} to {offered[1]}"
        return f"it offers the API {api} in versions {versions}, the proxy asks in {lowest} to {highest}"

    def _log_in(self, login: SaslLogin) -> Step[None]:
        handshake = yield from self.response_to(handshake_request(login.mechanism))
        if handshake.error_code == UNSUPPORTED_SASL_MECHANISM:
            taken = ", ".join(handshake.mechanisms)
            problem = f"it does not take the SASL mechanism {login.mechanism}, but {taken or 'none'}"
            raise NodeRefuses(Fault("mechanism_refused", problem, MECHANISM))
        if handshake.error_code == ILLEGAL_SASL_STATE:
            raise NodeRefuses(Fault("authentication_unexpected", "it wants no SASL", PROTOCOL))
        if handshake.error_code:
            raise _refuses(login, f"error {handshake.error_code}")
        if login.mechanism == "PLAIN":
            yield from self._token(login, f"\0{login.username}\0{login.password}".encode())
            return
        if login.mechanism == "OAUTHBEARER":
            yield from self._bear(login)
            return
        scram = ScramClient(login.mechanism, login.username, login.password, login.nonce)
        token: bytes | None = scram.first()
        try:
            while token is not None:
                response = yield from self._token(login, token)
                token = scram.respond(bytes(response.token))
        except ScramFailed as error:
            raise _refuses(login, str(error)) from None

    def _bear(self, login: SaslLogin) -> Step[None]:
        """Show a token. A node that refuses it answers with the reason, and says no to the empty message after that."""
        response = yield from self._token(login, login.bearer())
        if reason := bytes(response.token[:_REASON_BYTES]).decode(errors="replace"):
            yield from self._token(login, b"\1")
            raise _refuses(login, reason)

    def _token(self, login: SaslLogin, token: bytes) -> Step[SaslToken]:
        response = yield from self.response_to(authenticate_request(token))
        if response.error_code:
            raise _refuses(login, response.error_message or f"error {response.error_code}")
        self.lifetime_ms = response.lifetime_ms
        return response


def _refuses(login: SaslLogin, text: str) -> NodeRefuses:
    said = text.replace(login.password, "...") if login.password else text
    problem = f"it refuses the login: {printable(said, _SHOWN_CHARACTERS)}, {login.not_done}"
    return NodeRefuses(Fault("authentication_failed", problem, login_setting(login.mechanism)))
