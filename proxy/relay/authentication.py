"""What SASL means to a relay: which frames are bare tokens, which requests may pass by now, and which pass a mute."""

from struct import Struct
from typing import Final

from protocol.api_key import API_VERSIONS
from protocol.errors import MalformedMessage
from protocol.frames import MAX_ASKED_BYTES
from protocol.messages.sasl import SASL_APIS
from proxy.relay.actions import Action, CloseReason, DecisionKind, DecisionRequest, Exchange, RelayLimits
from proxy.relay.carriage import ASKING, AUTHENTICATING, NO_TICKET, THROTTLED, Bind, UsageOf
from proxy.relay.plans import PLANS, SASL_TOKEN, plan_key
from proxy.relay.relay_counters import RelayCounters
from proxy.relay.request import Refusal, Request, read_request
from proxy.relay.response_side import ResponseSide
from proxy.side import Side
from quotas.client_quotas import ClientQuotaManager, ClientSensors

_HEAD = Struct(">ihh")
_SASL_KEYS = frozenset(key.to_bytes(2, "big") for key in SASL_APIS)
_TOKENS = frozenset({Exchange.TOKENS, Exchange.OPAQUE_TOKENS})
_MAY_BE_OVER = frozenset({Exchange.OPAQUE_TOKENS, Exchange.UNPROVEN})

_MOST_BEFORE_LOGIN: Final = 100
"""How many requests may come before an authentication has succeeded: they are charged to no quota."""

BEHIND_AN_EXCHANGE: Final = b""
"""The frame of a DecisionRequest when a request follows an exchange and the node has not shown that this is over."""


class Authentication(ResponseSide):
    """The part of a request side that knows the state of the client's authentication.

    It derives from the response side instead of standing beside it, because only one base class may have slots.
    """

    __slots__ = (
        "_bare",
        "_client_sensors_by_id",
        "_exchange",
        "_max_frame_bytes",
        "_out_of_place",
        "_refused",
        "_request_ticket",
        "_succeeded",
        "_unproven",
    )

    def __init__(
        self,
        quota_manager: ClientQuotaManager,
        counters: RelayCounters,
        limits: RelayLimits,
        bind: Bind,
        usage_of: UsageOf | None = None,
    ) -> None:
        super().__init__(quota_manager, counters, limits, bind, usage_of)
        self._max_frame_bytes = limits.max_frame_bytes
        self._client_sensors_by_id: dict[bytes, ClientSensors] = {}
        self._request_ticket = NO_TICKET
        self._exchange: Exchange | None = None
        """The last known state of the exchange, if it still matters; None: it does not."""
        self._bare = False
        """The next frame of the client is a bare token, unless it is the request that ends an opaque exchange."""
        self._unproven = limits.authenticates
        """The node requires an authentication, and none has succeeded yet: nothing else may pass."""
        self._succeeded = False
        self._refused = False
        self._out_of_place = False
        """The node treats SASL frames like any request now, so they must not pass a mute."""

    def _passes_mute(self, buf: bytes, at: int) -> bool:
        """Whether the frame at `at` passes a throttle: SASL does, because a session may end meanwhile (KIP-368)."""
        if self._mute != THROTTLED or self._out_of_place:
            return False
        return self._may_authenticate and (self._bare or buf[at + 4 : at + 6] in _SASL_KEYS)

    @property
    def _may_authenticate(self) -> bool:
        """Whether a SASL frame can be part of an authentication."""
        return self._unproven or self._succeeded or self._exchange is not None

    def _read_next(self, buf: bytes, at: int, end: int) -> Request | None:
        """The frame at `at` when a bare token is expected: a token, or the request that ends an opaque exchange."""
        if end - at < 4 or (
            self._exchange is Exchange.OPAQUE_TOKENS and end - at < min(_HEAD.size, _size(buf, at) + 4)
        ):
            return None
        size = _size(buf, at)
        if self._exchange is Exchange.OPAQUE_TOKENS and size >= _HEAD.size and _begins_request(buf, at):
            self._bare = False
            return read_request(buf, at, end, self._max_frame_bytes)
        if size < 0:
            raise MalformedMessage(f"a token of {size} bytes")
        if size > MAX_ASKED_BYTES:
            detail = f"a SASL token of {size} bytes announced, {MAX_ASKED_BYTES} allowed"
            raise Refusal(CloseReason.REQUEST_TOO_LARGE, detail)
        return Request(SASL_TOKEN, size, 0, b"", at + 4, at + 4)

    def _sent_sasl(self, request: Request) -> None:
        """After a SASL frame was sent to the node, wait for its response before anything else, unless it may have
        none.
        """
        if request.plan is not SASL_TOKEN or self._exchange is not Exchange.OPAQUE_TOKENS:
            self._mute |= AUTHENTICATING

    def _passes_uncharged(self, request: Request, after: list[Action]) -> bool | None:
        """Whether a request that is not SASL is part of an authentication; None: a decision must come first.

        Raises Refusal when the node requires an authentication and none has succeeded.
        """
        if self._exchange in _MAY_BE_OVER and not self._succeeded:
            self._ask_whether_proven(after)
            return None
        self._exchange = None
        if self._unproven and request.plan.api_key != API_VERSIONS:
            raise Refusal(CloseReason.NOT_AUTHENTICATED, f"{request.plan.name} before an authentication has succeeded")
        self._bound_login()
        return self._unproven

    def _bound_login(self) -> None:
        """Raise Refusal when more requests have come than any login needs: they are charged to no quota."""
        if self._unproven and self.requests >= _MOST_BEFORE_LOGIN:
            detail = f"{self.requests} requests, and no authentication has succeeded"
            raise Refusal(CloseReason.NOT_AUTHENTICATED, detail)

    def _ask_whether_proven(self, after: list[Action]) -> None:
        """Ask the node, by a request of the proxy, whether the exchange is over; no client request passes before."""
        self._mute |= ASKING
        self._request_ticket = self._next_ticket()
        plan = SASL_TOKEN
        ask = DecisionRequest(
            self._request_ticket, DecisionKind.SASL, Side.CLIENT, plan.api_key, plan.api_version, BEHIND_AN_EXCHANGE
        )
        ask.own_responses, self._own_responses = tuple(self._own_responses), []
        after.append(ask)

    def _exempt(self) -> None:
        """The oldest request in flight, whose response is here, is part of an authentication: charge it to no quota."""
        request = self._in_flight[0]
        self._times.release(request)
        request.client_sensors = None

    def _note_exchange(self, exchange: Exchange) -> None:
        """Take up the state of the exchange that a decision has found."""
        if exchange is Exchange.OUT_OF_PLACE and self._exchange in _MAY_BE_OVER and not self._succeeded:
            return  # perhaps it is out of place because the exchange before it was over
        if exchange is Exchange.OUT_OF_PLACE and self._unproven:
            exchange = Exchange.FAILED
        self._refused = exchange is Exchange.FAILED
        self._out_of_place = exchange is Exchange.OUT_OF_PLACE
        if exchange is Exchange.SUCCEEDED:
            self._exchange, self._bare = None, False
            self._unproven, self._succeeded = False, True
            self._counters.authentications += 1
            self._client_sensors_by_id.clear()
            self._forget_clients()
            self._become_unlike()
        elif exchange is Exchange.FAILED:
            self._counters.authentications_failed += 1
            self._exchange = None
        elif exchange is Exchange.OUT_OF_PLACE:
            self._exchange = None
        elif exchange is not Exchange.ONGOING:
            self._exchange, self._bare = exchange, exchange in _TOKENS
            self._become_unlike()

    @property
    def _awaits_proof(self) -> bool:
        """Whether the node may close the connection instead of reporting that it refuses the client."""
        return self._bare or self._exchange in _MAY_BE_OVER

    def _become_unlike(self) -> None:
        """The next request must be read, even if it is like the one before."""
        raise NotImplementedError


def _size(buf: bytes, at: int) -> int:
    return int.from_bytes(buf[at : at + 4], "big", signed=True)


def _begins_request(buf: bytes, at: int) -> bool:
    """Whether a frame begins like a Kafka request. Tokens of GSSAPI begin with 0x60 or 0x05."""
    _, api_key, api_version = _HEAD.unpack_from(buf, at)
    return plan_key(api_key, api_version) in PLANS
