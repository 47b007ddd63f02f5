"""Where the login of one client stands: which frames are bare tokens, and which requests may pass by now."""

from enum import Enum
from struct import Struct
from typing import Final

from kafka_throttle.protocol.errors import MalformedMessage
from kafka_throttle.protocol.frames import MAX_SASL_BYTES
from kafka_throttle.proxy.relay.actions import CloseReason, DecisionKind, Exchange
from kafka_throttle.proxy.relay.plans import PLANS, SASL_TOKEN, plan_key
from kafka_throttle.proxy.relay.relay_counters import RelayCounters
from kafka_throttle.proxy.relay.request import Refusal, RequestHead, read_request

_HEAD: Final = Struct(">ihh")
_SASL_KEYS: Final = frozenset(
    plan.api_key.to_bytes(2, "big") for plan in PLANS.values() if plan.asked is DecisionKind.SASL
)
_TOKENS: Final = frozenset({Exchange.TOKENS, Exchange.OPAQUE_TOKENS})
_MAY_BE_OVER: Final = frozenset({Exchange.OPAQUE_TOKENS, Exchange.UNPROVEN})

_MOST_BEFORE_LOGIN: Final = 100
"""How many requests may come before an authentication has succeeded: they are charged to no quota."""

BEHIND_AN_EXCHANGE: Final = b""
"""The frame of a DecisionRequest when a request follows an exchange and the node has not shown that this is over."""


class Login(Enum):
    """What a request that is not SASL finds.

    - NONE: the client need not authenticate, or has.
    - UNPROVEN: the client must authenticate and has not.
    - MAY_BE_OVER: an exchange went before, and only the node knows whether it has succeeded.
    """

    NONE = "none"
    UNPROVEN = "unproven"
    MAY_BE_OVER = "may_be_over"


class SaslState:
    """The state of a client's authentication.

    - `exchange`: the last known state of the exchange, until a request that is not SASL follows, or the exchange fails.
    - `login`: what a request that is not SASL finds now.
    - `bare`: the next frame of the client is a bare token, unless it is the request that ends an opaque exchange.
    - `unproven`: the node requires an authentication, and none has succeeded yet: nothing else may pass.
    - `refused`: the node has refused the client.
    """

    __slots__ = ("_counters", "_out_of_place", "_succeeded", "bare", "exchange", "login", "refused", "unproven")

    def __init__(self, counters: RelayCounters, authenticates: bool) -> None:
        self.bare = False
        self.unproven = authenticates
        self.refused = False
        self._counters = counters
        self.exchange: Exchange | None = None
        self.login = Login.UNPROVEN if authenticates else Login.NONE
        self._succeeded = False
        self._out_of_place = False
        """The node treats SASL frames like any request now, so they must not pass a mute."""

    @property
    def may_authenticate(self) -> bool:
        """Whether a SASL frame can be part of an authentication."""
        return self.unproven or self._succeeded or self.exchange is not None

    @property
    def awaits_proof(self) -> bool:
        """Whether the node may close the connection instead of reporting that it refuses the client."""
        return self.bare or self.exchange in _MAY_BE_OVER

    @property
    def may_stay_unanswered(self) -> bool:
        """Whether the latest token may be the last one, which has no response."""
        return self.exchange is Exchange.OPAQUE_TOKENS

    def passes_throttle(self, buf: bytes, at: int) -> bool:
        """Whether the frame at `at` passes a throttle: SASL does, because a session may end meanwhile (KIP-368)."""
        if self._out_of_place or not self.may_authenticate:
            return False
        return self.bare or buf[at + 4 : at + 6] in _SASL_KEYS

    def read_token(self, buf: bytes, at: int, end: int, max_frame_bytes: int) -> RequestHead | None:
        """The frame at `at` when a bare token is expected: a token, or the request that ends an opaque exchange."""
        opaque = self.exchange is Exchange.OPAQUE_TOKENS
        if end - at < 4 or (opaque and end - at < min(_HEAD.size, _size(buf, at) + 4)):
            return None
        size = _size(buf, at)
        if opaque and size >= _HEAD.size and _begins_request(buf, at):
            self.bare = False
            return read_request(buf, at, end, max_frame_bytes)
        if size < 0:
            raise MalformedMessage(f"a token of {size} bytes")
        if size > MAX_SASL_BYTES:
            detail = f"a SASL token of {size} bytes announced, {MAX_SASL_BYTES} allowed"
            raise Refusal(CloseReason.REQUEST_TOO_LARGE, detail)
        return RequestHead(SASL_TOKEN, size, 0, b"", 4)

    def bound(self, requests: int) -> None:
        """Raise Refusal when more requests have come than any login needs: they are charged to no quota."""
        if self.unproven and requests >= _MOST_BEFORE_LOGIN:
            raise Refusal(CloseReason.NOT_AUTHENTICATED, f"{requests} requests, and no authentication has succeeded")

    def end_exchange(self) -> None:
        """A request that is not SASL passes: the exchange before it is over."""
        self.exchange = None
        self._note_login()

    def note(self, exchange: Exchange) -> bool:
        """Take up the state of the exchange that a decision has found; return whether other frames come from now on."""
        if exchange is Exchange.OUT_OF_PLACE and self.login is Login.MAY_BE_OVER:
            return False  # perhaps it is out of place because the exchange before it was over
        is_other = self._note(exchange)
        self._note_login()
        return is_other

    def _note_login(self) -> None:
        if self.exchange in _MAY_BE_OVER and not self._succeeded:
            self.login = Login.MAY_BE_OVER
        else:
            self.login = Login.UNPROVEN if self.unproven else Login.NONE

    def _note(self, exchange: Exchange) -> bool:
        if exchange is Exchange.OUT_OF_PLACE and self.unproven:
            exchange = Exchange.FAILED
        self.refused = exchange is Exchange.FAILED
        self._out_of_place = exchange is Exchange.OUT_OF_PLACE
        if exchange is Exchange.SUCCEEDED:
            self.exchange, self.bare = exchange, False
            self.unproven, self._succeeded = False, True
            self._counters.authentications += 1
            return True
        if exchange is Exchange.FAILED:
            self._counters.authentications_failed += 1
            self.exchange = None
        elif exchange is Exchange.OUT_OF_PLACE:
            self.exchange = None
        elif exchange is not Exchange.ONGOING:
            self.exchange, self.bare = exchange, exchange in _TOKENS
            return True
        return False


def _size(buf: bytes, at: int) -> int:
    return int.from_bytes(buf[at : at + 4], "big", signed=True)


def _begins_request(buf: bytes, at: int) -> bool:
    """Whether a frame begins like a Kafka request. Tokens of GSSAPI begin with 0x60 or 0x05."""
    _, api_key, api_version = _HEAD.unpack_from(buf, at)
    return plan_key(api_key, api_version) in PLANS
