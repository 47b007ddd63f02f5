"""Carries a relay's actions out in the simulation: proxy/server/connection.py with another network and clock."""

from collections import deque
from collections.abc import Callable, Generator
from typing import TypeVar
from zlib import crc32

from kafka_throttle.proxy.decisions.decide import decide
from kafka_throttle.proxy.decisions.facts import ConnectionFacts, NoPortForNode
from kafka_throttle.proxy.decisions.steps import QuotaAlteration, SlowDecision
from kafka_throttle.proxy.relay.actions import (
    Action,
    AwaitMemory,
    Close,
    CloseReason,
    Decision,
    DecisionKind,
    DecisionRequest,
    HangUp,
    OpenUpstream,
    Pause,
    Resume,
    Send,
    Throttled,
    WakeAt,
)
from kafka_throttle.proxy.relay.connection_timeouts import ConnectionTimeouts, TimeOuts
from kafka_throttle.proxy.relay.seam import ConnectionRelay
from kafka_throttle.proxy.server.connection import LINGER_S
from kafka_throttle.proxy.side import Side
from tests.simulation.model import HELD_BYTES, Model
from tests.simulation.network import READ_BYTES, Events, Link, Stream
from tests.simulation.oracle import Violation
from tests.simulation.wire import Surroundings
from tests.support.whole_messages import finish

RunAlteration = Callable[["Shell", DecisionRequest, QuotaAlteration], None]
"""Has the alterations written, and calls the shell when that is done, also if its client has gone."""

READ_AHEAD_BYTES = 512
Found = TypeVar("Found")

LINGER_MS = int(LINGER_S * 1000)

CLIENT, NODE = Side.CLIENT, Side.NODE


class SimulatedNodes:
    """Where clients find the nodes of a world; notes what is learned of them."""

    def __init__(self, around: Surroundings) -> None:
        self.learned: dict[int, tuple[str, int]] = {}
        self._around = around

    def learn(self, node_id: int, host: str, port: int) -> None:
        self.learned[node_id] = (host, port)

    def advertised(self, node_id: int) -> tuple[bytes, int]:
        if node_id in self._around.portless:
            raise NoPortForNode(f"node {node_id}")
        return self._around.ours(node_id)


class _Observer:
    """One side of a shell, as its stream sees it."""

    def __init__(self, shell: "Shell", side: Side) -> None:
        self._shell = shell
        self._side = side

    def bytes_came(self, data: bytes) -> None:
        self._shell.bytes_came(self._side, data)

    def eof_came(self) -> None:
        self._shell.eof_came(self._side)

    def lost(self, error: str) -> None:
        self._shell.lost(self._side, error)

    def writing_paused(self) -> None:
        self._shell.writing_paused(self._side)

    def writing_resumed(self) -> None:
        self._shell.writing_resumed(self._side)

    def room(self) -> int:
        relay = self._shell.relay
        if self._side is NODE or not relay.muted:
            return READ_BYTES
        return min(max(relay.missing_bytes, READ_AHEAD_BYTES), READ_BYTES)


class Trace:
    """A hash over all that relays were given and did; with `lines` also in words."""

    def __init__(self, lines: list[str] | None = None) -> None:
        self.hash = 0
        self.lines = lines

    def note(self, now_ms: int, number: int, what: str, data: bytes = b"") -> None:
        self.hash = crc32(data, crc32(f"{now_ms} {number} {what} {len(data)}".encode(), self.hash))
        if self.lines is not None:
            seen = f" {len(data)} B {data[:24].hex()}" if data else ""
            self.lines.append(f"{now_ms:>12} ms  #{number} {what}{seen}")


class Shell:
    """Drives one relay between two streams, and shows the model all of it."""

    def __init__(
        self,
        number: int,
        relay: ConnectionRelay,
        model: Model,
        facts: ConnectionFacts,
        events: Events,
        client_link: Link,
        write_buffer_bytes: int,
        decision_ms: int,
        early_decisions: bool,
        early_timers: bool,
        open_upstream: Callable[[], None],
        alter_quotas: RunAlteration,
        on_closed: Callable[[], None],
        trace: Trace,
    ) -> None:
        self.relay = relay
        self.closing = False
        self.aborted = False
        self.worst_kept_bytes = 0
        self.worst_held_bytes = 0
        self._most_sent = 0
        self._number = number
        self._model = model
        self._facts = facts
        self._decide = getattr(relay, "decide", decide)
        self._alter_quotas = alter_quotas
        self._early_decisions = early_decisions
        self._events = events
        self._high = write_buffer_bytes
        self._decision_ms = decision_ms
        self._early_timers = early_timers
        self._open_upstream = open_upstream
        self._on_closed = on_closed
        self._trace = trace
        self._timeouts = getattr(relay, "make_timeouts", ConnectionTimeouts)()
        self._client: Stream | None = Stream(events, client_link, write_buffer_bytes, _Observer(self, CLIENT))
        self._node: Stream | None = None
        self._timer: list[Callable[[], None] | None] | None = None
        self._steps: deque[tuple[str, Callable[[int], list[Action]], bytes]] = deque()
        self._carrying_out = False

    # ------------------------------------------------------- what is reported

    def bytes_came(self, side: Side, data: bytes) -> None:
        def step(now_ms: int) -> list[Action]:
            self._model.bytes_came(side, data)
            return self.relay.on_bytes(side, data, 1000 * now_ms)

        if self._hears(side):
            self._do(f"bytes of {side.value}", step, data)

    def eof_came(self, side: Side) -> None:
        def step(now_ms: int) -> list[Action]:
            self._model.eof_came(side)
            return self.relay.on_eof(side, 1000 * now_ms)

        if self._hears(side):
            self._do(f"end of {side.value}", step)

    def _hears(self, side: Side) -> bool:
        """Whether the relay gets what comes from a side: after its end, from the node, while corrections are due."""
        return not self.closing or (side is NODE and self.relay.unsettled)

    def lost(self, side: Side, error: str) -> None:
        if side is NODE:
            self._node = None
            self._lost_behind_the_end(CloseReason.NODE_LOST)
        else:
            self._client = None
        if not self.closing:
            self.give_up(CloseReason.NODE_LOST if side is NODE else CloseReason.CLIENT_LOST)
        elif self._node is self._client is None:
            self._cancel_timer()

    def _lost_behind_the_end(self, reason: CloseReason) -> None:
        """No response is waited for any more."""
        if self.closing and self.relay.unsettled:
            if reason is CloseReason.NODE_LOST:
                self._model.node_is_lost()
            self._do(reason.value, lambda now_ms: self.relay.on_lost(reason, "", 1000 * now_ms))

    def writing_paused(self, side: Side) -> None:
        def step(now_ms: int) -> list[Action]:
            self._model.blocked(side)
            return self.relay.on_blocked(side)

        if not self.closing:
            self._do(f"{side.value} blocked", step)

    def writing_resumed(self, side: Side) -> None:
        if not self.closing:
            self._do(f"{side.value} writable", self._writable(side))

    def _writable(self, side: Side) -> Callable[[int], list[Action]]:
        def step(now_ms: int) -> list[Action]:
            self._model.writable(side)
            return self.relay.on_writable(side, 1000 * now_ms)

        return step

    def finish(self) -> None:
        """Take no further request, and close if all are answered."""
        if not self.closing:
            self._model.take_no_more()
            self.relay.take_no_more()
            if self.relay.answered:
                self._model.check_answered()
                self.give_up(CloseReason.SHUTDOWN)

    def give_up(self, reason: CloseReason) -> None:
        """Close for a reason that is not on the wire."""

        def step(now_ms: int) -> list[Action]:
            self._model.lost(reason.value)
            return self.relay.on_lost(reason, "", 1000 * now_ms)

        if not self.closing:
            self._do(reason.value, step)

    def look_after(self, step_ms: int, time_outs: TimeOuts) -> None:
        """A time may be over."""
        client, model, now_ms = self._client, self._model, self._events.now_ms
        if self.closing or client is None:
            return
        unsent, late = client.kept_bytes, client.late_bytes
        reported = self._timeouts.look(self.relay, unsent, late, step_ms, time_outs)
        held_up, model.held_up = model.held_up, False
        right = model.waits.look(model.waiting_for, model.requests, held_up, now_ms, step_ms, time_outs)
        right = right or model.waits.look_at_responses(unsent, late, now_ms, step_ms, time_outs)
        if (reported.value if reported is not None else "") != right:
            raise Violation(
                f"ends by time: {reported}, {right or 'nothing'} is right (waits for {model.waiting_for or 'nothing'})"
            )
        if reported is not None:
            self.give_up(reported)

    def node_linked(self, link: Link) -> None:
        """The node's stream stands; the relay does not know of it yet."""
        stream = Stream(self._events, link, self._high, _Observer(self, NODE))
        if self.closing:
            stream.abort()
        else:
            self._node = stream

    def node_connected(self) -> None:
        """The upstream connection is there, and the relay learns of it."""
        if not self.closing:
            self._do("connected", self._writable(NODE))

    # ------------------------------------------------------------ carrying out

    def _do(self, what: str, step: Callable[[int], list[Action]], data: bytes = b"") -> None:
        """Take a step; one that comes up while another is being carried out waits until that one is done."""
        self._steps.append((what, step, data))
        if self._carrying_out:
            return
        self._carrying_out = True
        while self._steps:
            self._carry_out(*self._steps.popleft())
        self._carrying_out = False
        self._check_streams()

    def _carry_out(self, what: str, step: Callable[[int], list[Action]], data: bytes) -> None:
        now_ms = self._events.now_ms
        self._trace.note(now_ms, self._number, what, data)
        actions = step(now_ms)
        self._model.see(actions, now_ms)
        if self._facts.user != self._model.user:
            raise Violation(f"the client is taken for {self._facts.user!r}, it is {self._model.user!r}")
        self.worst_held_bytes = max(self.worst_held_bytes, self.relay.held_bytes)
        for action in actions:
            self._do_one(action)

    def _decide_later(self, ask: DecisionRequest) -> None:
        """Decide now and pass it on later, or decide later. Decisions that charge are passed on at once."""
        later_ms = self._events.now_ms + self._decision_ms
        if self._early_decisions and ask.kind not in (DecisionKind.MUTATION, DecisionKind.SASL):
            decision = self._decision(ask, self._events.now_ms)
            if decision is not None:
                self._events.at(later_ms, lambda: self._give(ask, decision))
        else:
            self._events.at(later_ms, lambda: self._do("decision", self._decision_on(ask)))

    def _decision_on(self, ask: DecisionRequest) -> Callable[[int], list[Action]]:
        def step(now_ms: int) -> list[Action]:
            decision = None if self.closing and not ask.settles else self._decision(ask, now_ms)
            return [] if decision is None else self._reported(ask, decision, now_ms)

        return step

    def _decision(self, ask: DecisionRequest, now_ms: int) -> Decision | None:
        """The decision, None if something must be done first."""
        self._model.begin_to_decide(ask)
        decision = self._decide(ask, self._facts, now_ms)
        if isinstance(decision, SlowDecision) and ask.kind is DecisionKind.MUTATION:
            decision = finish(decision.steps)  # at once: what is spent in between could not be attributed
        if isinstance(decision, SlowDecision):
            self._finish(decision.steps, lambda found: self._worked_out(ask, found))
            return None
        self._model.decided(ask, decision, now_ms)
        if isinstance(decision, Decision):
            return decision
        self._alter_quotas(self, ask, decision)
        return None

    def _worked_out(self, ask: DecisionRequest, decision: Decision | QuotaAlteration) -> None:
        """A decision that took long is here; its client may have gone."""
        self._model.decided(ask, decision, self._events.now_ms)
        if isinstance(decision, QuotaAlteration):
            self._alter_quotas(self, ask, decision)
        else:
            self._give(ask, decision)

    def _finish(self, steps: Generator[None, None, Found], then: Callable[[Found], None]) -> None:
        """Take one step after the other, 1 ms apart, so that others have their turn."""
        try:
            next(steps)
        except StopIteration as end:
            then(end.value)
        else:
            self._events.at(self._events.now_ms + 1, lambda: self._finish(steps, then))

    def alteration_done(self, ask: DecisionRequest, reply: Generator[None, None, Decision]) -> None:
        """What was to be written is written; the client gets its response if it is still there."""
        self._finish(reply, lambda decision: self._report_alteration(ask, decision))

    def _report_alteration(self, ask: DecisionRequest, decision: Decision) -> None:
        self._model.alteration_done(ask, decision)
        self._give(ask, decision)

    def _give(self, ask: DecisionRequest, decision: Decision) -> None:
        """A decision comes, perhaps after the end."""
        self._do("decision", lambda now_ms: self._reported(ask, decision, now_ms))

    def _reported(self, ask: DecisionRequest, decision: Decision, now_ms: int) -> list[Action]:
        self._model.decision_comes(ask, decision, now_ms)
        return self.relay.on_decision(ask.ticket, decision, 1000 * now_ms)

    def _do_one(self, action: Action) -> None:
        match action:
            case Send(side, pieces):
                stream = self._stream(side)
                if stream is not None:
                    data = b"".join(pieces)
                    self._trace.note(self._events.now_ms, self._number, f"-> {side.value}", data)
                    stream.write(data)
                    self._most_sent = max(self._most_sent, len(data))
                    self._note_kept(stream.kept_bytes)
            case DecisionRequest():
                if self._decision_ms:
                    self._decide_later(action)
                else:
                    self._steps.append(("decision", self._decision_on(action), b""))
            case Pause(side):
                if side is CLIENT:
                    self._timeouts.note_held_up()
                self._reading(side).pause_reading()
            case Resume(side):
                self._reading(side).resume_reading()
            case WakeAt(at_ms):
                self._wake_at(at_ms)
            case OpenUpstream():
                self._open_upstream()
            case Throttled():
                pass
            case AwaitMemory():
                raise Violation("a relay waits for memory that it shares with no other")
            case Close(reason):
                self._trace.note(self._events.now_ms, self._number, f"closed {reason.value} {action.detail}")
                self._close()
                if not self.relay.unsettled:
                    self._check_silence()
            case HangUp():
                if self._node is not None:
                    self._node.close()
                self._check_silence()

    def _note_kept(self, kept_bytes: int) -> None:
        """Above its high-water mark a stream gets no more than one read and what was held brought with them.

        A response with more addresses than are held of any goes out with all of them.
        """
        self.worst_kept_bytes = max(self.worst_kept_bytes, kept_bytes)
        if kept_bytes > self._high + READ_BYTES + max(HELD_BYTES, self._most_sent):
            raise Violation(f"{kept_bytes} bytes wait to be written, the high-water mark is {self._high}")

    def _stream(self, side: Side) -> Stream | None:
        return self._node if side is NODE else self._client

    def _reading(self, side: Side) -> Stream:
        stream = self._stream(side)
        if stream is None:
            raise Violation(f"Pause or Resume of {side}, which is not there")
        return stream

    def _check_streams(self) -> None:
        """A side is read if the relay wants it to be."""
        if self.closing:
            return
        for side, stream in ((CLIENT, self._client), (NODE, self._node)):
            if stream is None or stream.closed:
                continue
            if stream.reading and self._model.is_paused(side):
                raise Violation(f"{side} is read although the relay paused it")
            if not stream.reading and not self._model.is_paused(side) and not self._model.has_ended(side):
                raise Violation(f"{side} is not read although the relay resumed it")

    def _wake_at(self, at_ms: int) -> None:
        self._cancel_timer()
        now_ms = self._events.now_ms
        early_ms = 1 if self._early_timers and at_ms > now_ms + 1 else 0
        self._timer = self._events.at(max(at_ms - early_ms, now_ms + 1), self._wake_up)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._events.cancel(self._timer)
            self._timer = None

    def _wake_up(self) -> None:
        def step(now_ms: int) -> list[Action]:
            self._model.time_came(now_ms)
            if self._client is not None and self._client.peer_ended:
                self._model.client_left()
                self.relay.on_left()
            return self.relay.on_time(1000 * now_ms)

        self._timer = None
        self._do("time", step)

    def _check_silence(self) -> None:
        """A closed relay does nothing, whatever it is given."""
        relay, now_ms = self.relay, self._events.now_ms
        done = [relay.on_bytes(side, b"\0\0\0\1", 1000 * now_ms) + relay.on_blocked(side) for side in Side]
        done += [relay.on_writable(side, 1000 * now_ms) + relay.on_eof(side, 1000 * now_ms) for side in Side]
        done += [
            relay.on_time(1000 * now_ms),
            relay.on_decision(10**9, Decision(), 1000 * now_ms),
            relay.on_lost(CloseReason.SHUTDOWN),
        ]
        if any(done):
            raise Violation(f"actions after the end: {done}")

    # ----------------------------------------------------------------- closing

    def _close(self) -> None:
        self.closing = True
        self._cancel_timer()
        self._on_closed()
        if self._client is not None:
            self._client.close()
        if self._node is not None and not self.relay.unsettled:
            self._node.close()
        if self._client is not None or self._node is not None:
            self._timer = self._events.at(self._events.now_ms + LINGER_MS, self._abort)

    def _abort(self) -> None:
        self._timer = None
        self.aborted = True
        self._lost_behind_the_end(CloseReason.CLIENT_LOST)
        for stream in (self._client, self._node):
            if stream is not None:
                stream.abort()
