"""One call of a relay: when it is, and what the relay has to be done."""

from typing import Final

from kafka_throttle.protocol.splices import Splice
from kafka_throttle.proxy.relay.actions import Action, DecisionKind, DecisionRequest, Send
from kafka_throttle.proxy.relay.plans import Plan
from kafka_throttle.proxy.side import Side

Piece = bytes | memoryview

NO_TICKET: Final = -1

STOP: Final = -1
"""In place of where the next step begins: nothing more can be done now."""


class Turn:
    """The time of the call that a relay is in, and the actions that the call will return.

    Each part of the relay reads the time here and adds its actions here. `actions` are carried out in order. What is
    added to `after` comes after the bytes that are being put together: bytes go out first.
    """

    __slots__ = ("_ticket", "actions", "after", "now_ms", "now_us")

    def __init__(self) -> None:
        self.now_us = 0
        self.now_ms = 0
        self.actions: list[Action] = []
        self.after: list[Action] = []
        self._ticket = 0

    def begin(self, now_us: int) -> list[Action]:
        """Begin a call at this monotonic time; return the list of its actions."""
        self.now_us = now_us
        self.now_ms = now_us // 1000
        self.actions = []
        return self.actions

    def send(self, side: Side, pieces: list[Piece]) -> None:
        """Send the pieces, if there are any, and then do what comes after them."""
        if pieces:
            self.actions.append(Send(side, pieces))
        if self.after:
            self.actions += self.after
            self.after = []

    def do_after(self) -> None:
        """No more bytes are put together: do what comes after them."""
        if self.after:
            self.actions += self.after
            self.after = []

    def ask(self, kind: DecisionKind, side: Side, plan: Plan, frame: bytes) -> DecisionRequest:
        """Ask for a decision about a frame."""
        self._ticket += 1
        ask = DecisionRequest(self._ticket, kind, side, plan.api_key, plan.api_version, frame)
        self.after.append(ask)
        return ask


class Passage:
    """Takes what has come from one side apart into what passes unchanged, what is replaced, and what is left out."""

    __slots__ = ("_run_at", "buf", "pieces")

    def __init__(self, buf: bytes) -> None:
        self.buf = buf
        self.pieces: list[Piece] = []
        self._run_at = 0
        """Where the bytes begin that go out unchanged and are not yet among the pieces."""

    def cut(self, at: int, go_on_at: int) -> None:
        """Let the bytes before `at` pass, and leave out those from there to `go_on_at`."""
        run_at = self._run_at
        if at > run_at:
            self.pieces.append(self.buf if at - run_at == len(self.buf) else memoryview(self.buf)[run_at:at])
        self._run_at = go_on_at

    def replace(self, splice: Splice, offset: int = 0) -> None:
        """Have the data of a splice go out instead of the bytes that it replaces; it counts from `offset`."""
        self.cut(offset + splice.start, offset + splice.end)
        self.pieces.append(splice.data)
