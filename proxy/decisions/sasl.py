"""Which user a client has proven to be. SASL frames are read as they pass and never changed; the node judges them.

A name counts once the node has accepted the exchange in which the client claimed it (KIP-152, KIP-368); until then the
client stays the user that it was. Frames that are not understood pass, too. A client that succeeds with them shows the
name `?` and the mechanism. The operator may have set another user for a name. Of a token, only the name is stored.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from kafka_throttle.protocol.api_key import SASL_HANDSHAKE
from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.protocol.identity.sasl_names import (
    OAUTHBEARER,
    PLAIN,
    SCRAM,
    SHARED_NAMES,
    SUBJECT_CLAIMS,
    Claim,
    claimed_names,
    succeeds,
    unnamed,
)
from kafka_throttle.protocol.messages import sasl
from kafka_throttle.protocol.messages.api_versions import is_whole_offer, versions_request
from kafka_throttle.proxy.relay.actions import OWN_REQUEST_ID, Decision, DecisionRequest, Exchange
from kafka_throttle.proxy.relay.sasl_state import BEHIND_AN_EXCHANGE
from kafka_throttle.proxy.side import Side

_ILLEGAL_SASL_STATE = 34
_MAX_NAME_BYTES = 32_767
"""No quota can be set on a longer name, as Kafka's strings are not longer."""

_MAX_WORDS_BYTES = 500
_ERROR_NAMES = {
    33: "UNSUPPORTED_SASL_MECHANISM",
    _ILLEGAL_SASL_STATE: "ILLEGAL_SASL_STATE",
    58: "SASL_AUTHENTICATION_FAILED",
}

_MECHANISM = re.compile(r"[A-Za-z0-9_-]{1,20}")
_INSPECTED = frozenset({PLAIN, OAUTHBEARER, *SCRAM})
_FORWARD = Decision(note=True)
_ASK_FIRST = Decision(own_requests=(versions_request(OWN_REQUEST_ID),))


@dataclass(slots=True, frozen=True)
class SaslRules:
    """`user_names` are users by the names that logins show, the most exact name first; all other logins are the user
    that they show. The first of `claims` that a JWT has names its user.
    """

    user_names: Mapping[str, str] = field(default_factory=dict)
    claims: Sequence[Claim] = SUBJECT_CLAIMS


@dataclass(slots=True, frozen=True)
class Identity:
    """The user that the node has accepted. Not `visible`: the real name is unknown, and others share this one."""

    user: str
    mechanism: str
    visible: bool


@dataclass(slots=True, frozen=True)
class LoginFailure:
    """What is known of a failed authentication: claims of the client and of the node, which nothing proves.

    `claimed_user` is the user that the client claimed to be; None if no token named one. `error_code` is None if the
    node gave none.
    """

    mechanism: str
    claimed_user: str | None
    error_code: int | None = None
    error_message: str = ""

    @property
    def error(self) -> str | None:
        """The name of the error code."""
        return None if self.error_code is None else _ERROR_NAMES.get(self.error_code, str(self.error_code))


@dataclass(slots=True)
class Login:
    """The state of one connection's SASL authentication. `mechanism` is that of the last success, "" before one."""

    rules: SaslRules = field(default_factory=SaslRules)
    mechanism: str = ""
    _offered: str = ""
    _exchanged: str = ""
    _claimed: tuple[str, ...] = ()
    _tokens: int = 0
    _failure: LoginFailure | None = field(default=None, repr=False)

    @property
    def failure(self) -> LoginFailure:
        """What is known of the authentication that failed last, or that is under way and not over."""
        return self._failure or LoginFailure(self._exchanged, self._claimed_user)

    def judge(self, ask: DecisionRequest, become: Callable[[Identity], None]) -> Decision:
        """What a SASL frame means; `become` is called once the node has accepted a user."""
        if ask.frame == BEHIND_AN_EXCHANGE:
            return self._judge_proof(ask.own_responses, become) if ask.own_responses else _ASK_FIRST
        if ask.side is Side.CLIENT:
            self._note_request(ask)
            return _FORWARD
        try:
            if ask.api_key == SASL_HANDSHAKE:
                return self._judge_handshake(sasl.read_handshake_response(ask.frame), ask.api_version)
            if ask.api_version == sasl.BARE:
                return self._judge_token(sasl.bare_token(ask.frame), become, bare=True)
            response = sasl.read_authenticate_response(ask.frame, ask.api_version)
        except ProtocolError as error:
            self._failed(error_message=f"the node's response: {error}")
            return Decision(exchange=Exchange.FAILED)
        if response.error_code != sasl.NONE:
            self._failed(response.error_code, response.error_message)
            if response.error_code != _ILLEGAL_SASL_STATE:
                self._exchanged = ""
            return _refusal(response.error_code)
        return self._judge_token(response.token, become)

    def _note_request(self, ask: DecisionRequest) -> None:
        try:
            if ask.api_key == SASL_HANDSHAKE:
                self._offered = ""
                self._offered = sasl.read_handshake(ask.frame, ask.body_at)
            else:
                self._note_token(_token_in(ask))
        except ProtocolError:
            self._note_token(b"")

    def _note_token(self, token: bytes | memoryview) -> None:
        """Note the user that a token claims.

        While tokens are rejected (OAUTHBEARER), a client may claim another user: the last one counts. With SCRAM the
        first one counts: the tokens that follow are proof.
        """
        self._tokens += 1
        if self._tokens == 1 or self._exchanged not in SCRAM:
            self._claimed = claimed_names(self._exchanged, token, self.rules.claims)

    def _judge_handshake(self, error_code: int, api_version: int) -> Decision:
        if error_code == _ILLEGAL_SASL_STATE:
            self._failed(error_code)
            return _refusal(error_code)
        self._exchanged, self._claimed, self._tokens = "", (), 0
        if error_code != sasl.NONE:
            self._failure = LoginFailure(self._offered, None, error_code)
            return _refusal(error_code)
        self._exchanged = self._offered or "?"
        if api_version != sasl.BARE_TOKENS_VERSION:
            return Decision(exchange=Exchange.BEGUN)
        inspected = self._exchanged in _INSPECTED
        return Decision(exchange=Exchange.TOKENS if inspected else Exchange.OPAQUE_TOKENS)

    def _judge_token(self, token: memoryview, become: Callable[[Identity], None], bare: bool = False) -> Decision:
        """What a token of the node that comes without an error means."""
        mechanism = self._exchanged
        if not mechanism or (bare and mechanism not in _INSPECTED):
            return Decision(exchange=Exchange.ONGOING)
        if mechanism in SCRAM and bytes(token[:2]) == b"e=":
            self._failed(error_message=bytes(token[2:_MAX_WORDS_BYTES]).decode(errors="replace"))
            return Decision(exchange=Exchange.FAILED)
        success = succeeds(mechanism, token)
        if success:
            return self._succeed(become)
        return Decision(exchange=Exchange.ONGOING if bare or success is False else Exchange.UNPROVEN)

    def _judge_proof(self, own_responses: Sequence[bytes], become: Callable[[Identity], None]) -> Decision:
        """Whether the node's response shows that the exchange has succeeded. Before that it responds with error 34."""
        if is_whole_offer(own_responses[0]):
            return self._succeed(become)
        self._failed(error_message="after it the node responds only to requests that belong to an authentication")
        self._exchanged, self._claimed = "", ()
        return Decision(exchange=Exchange.FAILED)

    def _failed(self, error_code: int | None = None, error_message: str = "") -> None:
        self._failure = LoginFailure(self._exchanged or self._offered, self._claimed_user, error_code, error_message)

    @property
    def _claimed_user(self) -> str | None:
        return self._claimed[0] if self._claimed else None

    def _succeed(self, become: Callable[[Identity], None]) -> Decision:
        users, mechanism = self.rules.user_names, self._exchanged
        if not _MECHANISM.fullmatch(mechanism):
            mechanism = "unknown"
        names = self._claimed or (unnamed(mechanism),)
        user = next((users[name] for name in names if name in users), None)
        hidden = not self._claimed or (mechanism == PLAIN and names[0] in SHARED_NAMES)
        identity = Identity(_measurable(user or names[0]), mechanism, visible=user is not None or not hidden)
        self.mechanism, self._exchanged, self._claimed, self._failure = mechanism, "", (), None
        become(identity)
        return Decision(exchange=Exchange.SUCCEEDED)


def _refusal(error_code: int) -> Decision:
    out_of_place = error_code == _ILLEGAL_SASL_STATE
    return Decision(exchange=Exchange.OUT_OF_PLACE if out_of_place else Exchange.FAILED)


def _token_in(ask: DecisionRequest) -> memoryview:
    if ask.api_version == sasl.BARE:
        return sasl.bare_token(ask.frame)
    return sasl.read_authenticate(ask.frame, ask.body_at, ask.api_version)


def _measurable(user: str) -> str:
    """The name under which a user is measured. A name too long for any quota is replaced by a digest."""
    raw = user.encode()
    return user if len(raw) <= _MAX_NAME_BYTES else f"{user[:64]}… sha256 {sha256(raw).hexdigest()}"
