"""Authentications as their frames: what a client sends, and what a node that knows the outcome responds."""

from dataclasses import dataclass
from struct import pack

from kafka_throttle.protocol.api_key import SASL_AUTHENTICATE as AUTHENTICATE
from kafka_throttle.protocol.api_key import SASL_HANDSHAKE as HANDSHAKE
from tests.simulation import wire
from tests.simulation.plan import RequestPlan, ResponsePlan, TokenPlan
from tests.support.sasl_frames import jwt, oauthbearer, plain, scram_first

_UNSUPPORTED_MECHANISM, _ILLEGAL_STATE, _FAILED = 33, 34, 58
_SCRAM = "SCRAM-SHA-256"
_SERVER_FIRST, _PROOF, _SERVER_FINAL = b"r=nonce,s=c2FsdA==,i=4096", b"c=biws,r=nonce,p=cHJvb2Y=", b"v=c2ln"
_REJECTED = b'{"status":"invalid_token"}'
_GSSAPI = "GSSAPI"
MECHANISMS = ("PLAIN", _SCRAM, "OAUTHBEARER", _GSSAPI)


@dataclass(slots=True)
class Login:
    """How a user logs in: with `bare` tokens or in requests of this `version`; `fails` is what goes wrong, if it does:
    the `password`, the `mechanism`, or the whole `state`. After a failure the node hangs up, or does not. A client of
    GSSAPI that is `rude` stops half-way.
    """

    user: str
    mechanism: str = "PLAIN"
    version: int = 1
    bare: bool = False
    fails: str = ""
    hangs_up: bool = True
    rude: bool = False

    def requests(self, correlation_id: int) -> list[RequestPlan]:
        """The frames, in order. Each must have its response before the next one is sent."""
        handshake = self._handshake()
        frames = [RequestPlan(HANDSHAKE, 0 if self.bare else 1, correlation_id, token=handshake)]
        if handshake.outcome == "failed":
            return frames
        for number, (data, response, outcome) in enumerate(self._tokens(), 1):
            request = RequestPlan(AUTHENTICATE, 0 if self.bare else self.version, correlation_id + number)
            if self.bare:
                request.token = TokenPlan(data, response, outcome, self.user, bare=True)
                if outcome == "failed":
                    request.response = ResponsePlan("close")
            else:
                request.token = self._framed(data, response, outcome)
                request.token.over = number == 2
            frames.append(request)
        return frames

    def _handshake(self) -> TokenPlan:
        error = {"mechanism": _UNSUPPORTED_MECHANISM, "state": _ILLEGAL_STATE}.get(self.fails, 0)
        data = wire.text(self.mechanism.encode(), False)
        response = pack(">hi", error, 1) + data
        if self.fails == "state":
            return TokenPlan(data, response, "out_of_place")
        if self.fails == "mechanism":
            return TokenPlan(data, response, "failed", hangs_up=self.hangs_up)
        return TokenPlan(data, response, "tokens" if self.bare else "begun")

    def _tokens(self) -> list[tuple[bytes, bytes, str]]:
        """What the client sends, what the node responds, and what that means."""
        fails, user = bool(self.fails), self.user
        if self.fails == "state":
            return []
        last = "failed" if fails else "succeeded"
        if self.mechanism == _SCRAM:
            first = (scram_first(user), _SERVER_FIRST, "ongoing")
            return [first, (_PROOF, b"" if fails else _SERVER_FINAL, last)]
        if self.mechanism == _GSSAPI:
            challenged = (b"\x60token", b"challenge", "unproven")
            if self.rude:
                return [challenged]
            return [challenged, (b"\x05token", b"" if fails else b"last word", "failed" if fails else "unproven")]
        if self.mechanism == "OAUTHBEARER":
            initial = oauthbearer(jwt({"sub": user}))
            return [(initial, _REJECTED, "ongoing"), (b"\1", b"", last)] if fails else [(initial, b"", last)]
        return [(plain(user.encode()), b"", last)]

    def _framed(self, token: bytes, response: bytes, outcome: str) -> TokenPlan:
        flexible = self.version >= 2
        error = _FAILED if outcome == "failed" else 0
        lifetime = pack(">q", 3_600_000) if self.version else b""
        reported = (
            pack(">h", error) + wire.text(b"no" if error else None, flexible) + _bytes(response, flexible) + lifetime
        )
        end = b"\0" if flexible else b""
        hangs_up = self.hangs_up and outcome == "failed"
        user = f"?{_GSSAPI}" if self.mechanism == _GSSAPI else self.user
        return TokenPlan(_bytes(token, flexible) + end, reported + end, outcome, user, hangs_up=hangs_up)


def _bytes(value: bytes, compact: bool) -> bytes:
    return (wire.uvarint(len(value) + 1) if compact else pack(">i", len(value))) + value
