"""One client connection on the event loop: two streams, a timer, and the relay that decides what to do."""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kafka_throttle.common.plain_words import words_of
from kafka_throttle.common.printable import printable
from kafka_throttle.protocol.api_key import ALTER_CLIENT_QUOTAS
from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.decisions.decide import decide
from kafka_throttle.proxy.decisions.facts import ConnectionFacts
from kafka_throttle.proxy.decisions.sasl import LoginFailure
from kafka_throttle.proxy.decisions.steps import QuotaAlteration, SlowDecision
from kafka_throttle.proxy.net.stream import READ_BYTES, Stream, StreamListener
from kafka_throttle.proxy.net.tls_socket import AnySocket
from kafka_throttle.proxy.net.turns import finish_in_turns
from kafka_throttle.proxy.observe.added_latency import AddedLatency
from kafka_throttle.proxy.observe.last_throttles import PastThrottle
from kafka_throttle.proxy.observe.logs import is_reported
from kafka_throttle.proxy.observe.throttle_episode import ThrottledClients, ThrottleEpisode
from kafka_throttle.proxy.relay.actions import (
    Action,
    AwaitMemory,
    Close,
    CloseReason,
    Decision,
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
from kafka_throttle.proxy.relay.introduction import introduction_of
from kafka_throttle.proxy.relay.seam import ConnectionRelay
from kafka_throttle.proxy.server.sharing import DecisionTurns
from kafka_throttle.proxy.side import Side
from kafka_throttle.proxy.upstream.node_socket import (
    Cancellable,
    NodePaced,
    NodeSocket,
    NodeUnknown,
    NodeUnreachable,
    Reached,
)
from kafka_throttle.quotas.fair_queue import Whose

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_READ_AHEAD_BYTES = 512
_MAX_EPISODES = 16
"""How many throttle episodes a connection may have at a time. The next one ends the one that would be over first."""
_NEW_MS = 1_000
"""How long a connection is new, in ms: so much time its client has for its first response, also when the proxy ends."""
_SOON_MS = 1_000
"""A client that ends its connection within this time may be one that connects in a loop."""
LINGER_S = 10.0
"""How long a connection that is closing may take to write out its last bytes."""


class ConnectionHost(Protocol):
    """The owner of a connection, which is its listener: does for it what concerns others, and is called on changes."""

    throttled: ThrottledClients
    """The throttle episodes of all connections of the virtual cluster."""
    latency: AddedLatency
    """The latency that the proxy adds at this listener."""
    decision_turns: DecisionTurns
    """The turns that all connections of the process take for slow decisions."""
    alteration_turns: DecisionTurns
    """The turns of requests that alter the quotas of the virtual cluster, which wait for the source."""

    def connect(self, connection: "Connection", opening: OpenUpstream, reached: Reached) -> Cancellable:
        """Connect to the connection's node. `reached` is called later with the result, never at once."""

    def open_stream(self, sock: AnySocket, side: Side, owner: StreamListener) -> Stream:
        """A new stream over a socket of one side."""

    def alter_quotas(
        self, alteration_request: QuotaAlteration, log: "FilteringBoundLogger"
    ) -> Awaitable[Sequence[Exception | None]]:
        """Have quota alterations written, also if the client disconnects meanwhile.

        Returns for each alteration None, or the exception that says why it was refused.
        """

    def note_throttle(self, connection: "Connection", throttled: Throttled, now_ms: int) -> PastThrottle:
        """The connection was throttled at this monotonic time. Returns the client and the quota."""

    def is_worth_a_line(self, connection: "Connection", reason: CloseReason, detail: str) -> bool:
        """Whether to log that the connection ended for this reason. A client may repeat the same mistake for ever."""

    def closed(self, connection: "Connection", reason: CloseReason) -> None:
        """The connection has ended: it carries no more requests or responses."""

    def lingers(self, connection: "Connection") -> None:
        """The connection has ended, but a socket of it is still open. Abort it if it is not `gone` after LINGER_S."""

    def gone(self, connection: "Connection") -> None:
        """Both sockets of a connection that lingered are closed."""


Step = Callable[[int], list[Action]]
"""A call of the relay: takes the monotonic time in us, returns the actions to carry out."""


class Connection:
    """Drives one relay between a client and a node."""

    def __init__(
        self,
        relay: ConnectionRelay,
        facts: ConnectionFacts,
        home: ConnectionHost,
        clock: Clock,
        log: "FilteringBoundLogger",
    ) -> None:
        self.relay = relay
        self.facts = facts
        self.opened_ms = clock.now_ms()
        self.closing = False
        self._episodes: tuple[ThrottleEpisode, ...] = ()
        """The throttle episodes that are not over, one for each cause."""
        self._host = home
        self._now_ms = clock.now_ms
        self._now_us = clock.now_us
        self._log = log
        self._client: Stream | None = None
        self._node: Stream | None = None
        self._connecting: Cancellable | None = None
        self._work: tuple[tuple[DecisionRequest, asyncio.Task[None]], ...] = ()
        """The slow decisions under way, at most one for each direction. Holds the only references to their tasks."""
        self._timer: asyncio.TimerHandle | None = None
        self._timeouts = ConnectionTimeouts()
        self._busy = False
        self._leaves = False
        self._ended = False
        self._lingers = False
        self._steps: deque[Step] = deque()

    # ----------------------------------------------------------------- events

    def client_connected(self, sock: AnySocket) -> None:
        """The client is connected: open a stream over its socket."""
        self._client = self._host.open_stream(sock, Side.CLIENT, self)

    def bytes_came(self, side: Side, data: bytes) -> None:
        """Bytes were read from one side."""
        now_us = self._now_us()
        try:
            actions = self.relay.on_bytes(side, data, now_us)
            if len(actions) == 1 and type(send := actions[0]) is Send:  # nearly always the only action
                self._send(send, now_us)
            else:
                self._carry_out(actions, now_us)
        except Exception:
            self._fail()
        if self._leaves:
            self.leave()

    def sampled_bytes_came(self, side: Side, data: bytes, since_us: int) -> Callable[[], object]:
        """As `bytes_came`. Returns a call that notes the latency of the requests or responses that have passed."""
        relay = self.relay
        if side is Side.CLIENT:
            before = list(relay.requests_by_api)
            self.bytes_came(side, data)
            pairs = enumerate(zip(before, relay.requests_by_api, strict=True))
            counts = {api_key: count - earlier for api_key, (earlier, count) in pairs if count != earlier}
        else:
            api_key, responses = relay.oldest_api_key, relay.responses
            self.bytes_came(side, data)
            counts = {api_key: relay.responses - responses} if relay.responses > responses and api_key >= 0 else {}
        return partial(self._note_latency, side, counts, since_us)

    def _note_latency(self, side: Side, counts: Mapping[int, int], since_us: int) -> None:
        self._host.latency.note(side, counts, self._now_us() - since_us)

    def eof_came(self, side: Side) -> None:
        """One side has closed its sending direction."""
        self._do(partial(self.relay.on_eof, side))

    def lost(self, side: Side, error: Exception | None) -> None:
        """The stream of one side is closed; `error` is the reason if there was one."""
        if side is Side.NODE:
            self._node = None
        elif self._client is not None:
            if self._client.lost_bytes:
                self.relay.note_unsent(self._client.lost_bytes, self._now_us())
            self._client = None
        if not self.closing:
            reason = _LOST[side, isinstance(error, ssl.SSLError)]
            self._do(partial(self.relay.on_lost, reason, words_of(error) if error else ""))
            return
        if side is Side.NODE and self.relay.unsettled:
            self._do(partial(self.relay.on_lost, CloseReason.NODE_LOST, ""))
        if self._lingers and self._node is self._client is None:
            self._host.gone(self)

    def writing_paused(self, side: Side) -> None:
        """The write buffer of one side is full."""
        if not self.closing:
            unsent_bytes = self._stream(side).unsent_bytes
            self._do(lambda now_us: self.relay.on_blocked(side, unsent_bytes))

    def writing_resumed(self, side: Side) -> None:
        """The write buffer of one side has room again."""
        if not self.closing:
            self._do(partial(self.relay.on_writable, side))

    def give_up(self, reason: CloseReason, detail: str = "") -> None:
        """Close the connection for a reason that did not come from either peer."""
        if not self.closing:
            self._do(partial(self.relay.on_lost, reason, detail))

    def leave(self) -> None:
        """Close the connection as soon as nothing is under way: now, or when the next response has gone out.

        A client that is muted has no request under way, unless it has sent one that is not read yet.
        """
        self._leaves = True
        if not self.closing and self.relay.idle:
            self._do(self._leave_unless_unread)

    def _leave_unless_unread(self, now_us: int) -> list[Action]:
        if self._client is not None and self._client.unread:
            return []
        return self.relay.on_lost(CloseReason.SHUTDOWN, "", now_us)

    def finish(self) -> None:
        """Take no further request, and close the connection if all requests that it has taken have responses.

        A request of which only a part has come is not waited for: the node drops it, and the client sends it again.
        """
        self.relay.take_no_more()
        if self.relay.answered:
            self.give_up(CloseReason.SHUTDOWN)

    @property
    def is_new(self) -> bool:
        """Whether its client has just connected, and has had no response yet."""
        return not self.relay.responses and self._now_ms() - self.opened_ms < _NEW_MS

    @property
    def oldest_api_key(self) -> int:
        """The API of the response that comes next; -1 if none is waited for."""
        return self.relay.oldest_api_key

    def read_bytes(self) -> int:
        """The most that the next read from the client may take: little while only a request head is wanted."""
        if not self.relay.muted:
            return READ_BYTES
        return min(max(self.relay.missing_bytes, _READ_AHEAD_BYTES), READ_BYTES)

    @property
    def hears_client_out(self) -> bool:
        """Whether a client that is lost is still heard: while the node is connected to, as by a broker, which has no
        such moment.
        """
        return self._connecting is not None

    def reading_waits(self, side: Side) -> None:
        """A byte cap delays reading from one side."""
        self._timeouts.note_held_up()
        self.relay.on_held_up()

    def whose(self) -> Whose:
        """Whose turns the connection takes, wherever something is scarce."""
        return self.facts.whose

    # ----------------------------------------------------------------- actions

    def _do(self, step: Step) -> None:
        """Call the relay and carry out its actions: now, or after the actions that are being carried out.

        The relay must not be called while only a part of its last actions is done.
        """
        if self._busy:
            self._steps.append(step)
            return
        now_us = self._now_us()
        try:
            self._carry_out(step(now_us), now_us)
        except Exception:
            self._fail()

    def _carry_out(self, actions: list[Action], now_us: int) -> None:
        steps, self._busy = self._steps, True
        try:
            for action in actions:
                _CARRY_OUT[type(action)](self, action, now_us)
            while steps:
                for action in steps.popleft()(now_us):
                    _CARRY_OUT[type(action)](self, action, now_us)
        finally:
            self._busy = False

    def _ask(self, ask: DecisionRequest, now_us: int) -> None:
        self._steps.append(partial(self._decide, ask))

    def _open_upstream(self, action: OpenUpstream, now_us: int) -> None:
        self._connecting = self._host.connect(self, action, self._reached)

    def _pause(self, pause: Pause, now_us: int) -> None:
        if pause.side is Side.CLIENT:
            self._timeouts.note_held_up()
        self._stream(pause.side).pause_reading()

    def _resume(self, resume: Resume, now_us: int) -> None:
        self._stream(resume.side).resume_reading()

    def _decide(self, ask: DecisionRequest, now_us: int) -> list[Action]:
        if self.closing and not ask.settles:
            return []
        decision = decide(ask, self.facts, now_us // 1000)
        if isinstance(decision, Decision):
            return self.relay.on_decision(ask.ticket, decision, now_us)
        task = asyncio.get_running_loop().create_task(self._work_out(ask, decision))
        self._work = (*self._work, (ask, task))
        task.add_done_callback(self._worked_out)
        return []

    def _worked_out(self, task: asyncio.Task[None]) -> None:
        """Keep neither the task nor the request: a connection may be idle from now on."""
        self._work = tuple(under_way for under_way in self._work if under_way[1] is not task)

    async def _work_out(self, ask: DecisionRequest, decision: QuotaAlteration | SlowDecision) -> None:
        """Work out a slow decision in turns with other connections, have quotas written, and pass the decision on.

        A relay that is closed by then only takes back what was charged. If it is closed before the turn has come,
        nothing was charged yet.
        """
        alters = ask.api_key == ALTER_CLIENT_QUOTAS
        turns = self._host.alteration_turns if alters else self._host.decision_turns
        try:
            async with turns.turn(self.whose(), ask):
                if self.closing and not ask.settles:
                    return
                if isinstance(decision, SlowDecision):
                    outcome = await finish_in_turns(decision.steps, self.whose())
                else:
                    outcome = decision
                if isinstance(outcome, QuotaAlteration):
                    results = await self._host.alter_quotas(outcome, self._log.bind(user=printable(self.facts.user)))
                    outcome = await finish_in_turns(outcome.reply(results), self.whose())
        except Exception:
            self._fail()
        else:
            self._do(partial(self.relay.on_decision, ask.ticket, outcome))

    def _send(self, send: Send, now_us: int) -> None:
        stream = self._node if send.side is Side.NODE else self._client
        if stream is not None:
            stream.write(send.pieces)
        elif send.side is Side.CLIENT:
            self.relay.note_unsent(sum(map(len, send.pieces)), now_us)

    def _stream(self, side: Side) -> Stream:
        stream = self._node if side is Side.NODE else self._client
        assert stream is not None
        return stream

    def _await_memory(self, action: AwaitMemory, now_us: int) -> None:
        action.holding.wake = self._memory_came

    def _memory_came(self) -> None:
        self._do(self.relay.on_memory)

    def _wake_at(self, wake: WakeAt, now_us: int) -> None:
        self._cancel_timer()
        delay_s = max(wake.at_ms - now_us // 1000, 1) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake_up)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_up(self) -> None:
        self._timer = None
        if self._client is not None and self._client.peer_ended:
            self.relay.on_left()
        self._do(self.relay.on_time)

    def _note_throttle(self, throttled: Throttled, now_us: int) -> None:
        now_ms = now_us // 1000
        past = self._host.note_throttle(self, throttled, now_ms)
        episode = next((one for one in self._episodes if one.first.cause == past.cause), None)
        if episode is None:
            if len(self._episodes) == _MAX_EPISODES:
                self._end_episodes([min(self._episodes, key=lambda one: one.ends_ms)], now_ms)
            episode = ThrottleEpisode(past, now_ms, now_ms)
            self._episodes += (episode,)
            self._host.throttled.add(episode)
            self._log.info(
                "throttle_started",
                throttle_time_ms=throttled.throttle_time_ms,
                limit=past.limit,
                **episode.names(),
            )
        episode.note(throttled.throttle_time_ms, now_ms)

    def _end_episodes(self, over: Collection[ThrottleEpisode], now_ms: int) -> None:
        """Log the end of these throttle episodes."""
        self._episodes = tuple(episode for episode in self._episodes if episode not in over)
        for episode in over:
            self._host.throttled.remove(episode, now_ms)
            self._log.info("throttle_ended", **episode.names(), **episode.summary(now_ms))

    def look_after(self, now_ms: int, step_ms: int, time_outs: TimeOuts) -> None:
        """Check timeouts and the throttle episode; `step_ms` have passed since the last check."""
        if self.closing:
            return
        if self._episodes:
            self._end_episodes([episode for episode in self._episodes if episode.over(now_ms)], now_ms)
        self._do(partial(self._look_at_times, step_ms, time_outs))

    def _look_at_times(self, step_ms: int, time_outs: TimeOuts, now_us: int) -> list[Action]:
        client = self._client
        unsent_bytes = client.unsent_bytes if client is not None else 0
        taken_bytes = client.taken_bytes if client is not None and unsent_bytes else 0
        reason = self._timeouts.look(self.relay, unsent_bytes, taken_bytes, step_ms, time_outs)
        return [] if reason is None else self.relay.on_lost(reason, "", now_us)

    def is_throttled(self, now_ms: int) -> bool:
        """Whether the client is muted by a throttle."""
        return any(episode.ends_ms > now_ms for episode in self._episodes)

    # ---------------------------------------------------------------- upstream

    def _reached(self, outcome: NodeSocket | Exception) -> None:
        self._connecting = None
        try:
            if isinstance(outcome, NodeSocket):
                self._node_connected(outcome)
            else:
                raise outcome
        except NodeUnknown as error:
            self.give_up(CloseReason.NODE_UNKNOWN, str(error))
        except NodeUnreachable as error:
            self.give_up(error.reason, str(error))
        except NodePaced as error:
            self.give_up(CloseReason.NODE_PACED, str(error))
        except Exception:
            self._fail()
        finally:
            del outcome  # once raised it refers to this call, and so to the connection

    def _node_connected(self, upstream: NodeSocket) -> None:
        if self.closing:
            upstream.socket.close()
            return
        self._node = self._host.open_stream(upstream.socket, Side.NODE, self)
        self.facts.node_id = upstream.node_id
        if upstream.round_trip_us is not None:
            self.facts.listener.quota_manager.costs.of_node(upstream.node_id).note_round_trip(upstream.round_trip_us)
        self._do(partial(self.relay.on_writable, Side.NODE))
        if self._client is not None:
            self._client.notice_loss()

    # ----------------------------------------------------------------- closing

    def _close(self, close: Close, now_us: int) -> None:
        """Log the reason, and close both sides once their last bytes are written out."""
        self.closing = True
        self._end_episodes(self._episodes, now_us // 1000)
        if self.relay.client_sent_nothing and close.reason in _CLIENT_IS_GONE:
            close = Close(CloseReason.CLIENT_SENT_NOTHING)
        if close.reason not in ORDINARY or is_reported(logging.INFO):
            self._tell_end(close)
        self._end(close.reason)

    def _end(self, reason: CloseReason) -> None:
        """The part of `_close` after logging."""
        self._ended = self.closing = True
        self._cancel_timer()
        self._host.closed(self, reason)
        if self._connecting is not None:
            self._connecting.cancel()
        for ask, task in self._work:
            if ask.only_reports:
                task.cancel()
        try:
            if self._client is not None:
                self._client.close()
            if self._node is not None and not self.relay.unsettled:
                if self.relay.ended_idle and reason in _CLIENT_IS_GONE:
                    self._node.hang_up()
                else:
                    self._node.close()
        finally:
            self._lingers = self._client is not None or self._node is not None
            if self._lingers:
                self._host.lingers(self)

    def _hang_up_on_node(self, action: HangUp, now_us: int) -> None:
        """Close the stream of the node, which stayed open after the client's end until all charges were settled."""
        if self._node is not None:
            self._node.close()

    def _tell_end(self, close: Close) -> None:
        relay, login = self.relay, self.facts.login
        failed_login = _failed_login(login.failure) if close.reason is CloseReason.AUTHENTICATION_FAILED else {}
        level = self._level_of(close, failed_login)
        if not is_reported(level):
            return
        client = introduction_of(relay.first_bytes)
        self._log.log(
            level,
            "connection_closed",
            reason=close.reason.value,
            detail=printable(close.detail),
            user=printable(self.facts.user) or None,
            client_id=printable(client.client_id),
            software_name=printable(client.software_name),
            software_version=printable(client.software_version),
            **({"mechanism": login.mechanism} if login.mechanism else {}) | failed_login,
            requests=relay.requests,
            request_bytes=relay.request_bytes,
            responses=relay.responses,
            response_bytes=relay.response_bytes,
            throttled_ms=relay.throttled_ms,
            duration_ms=self._now_ms() - self.opened_ms,
        )

    def _level_of(self, close: Close, failed_login: Mapping[str, str | int | None]) -> int:
        """The level of the log line about the end of this connection.

        A client that only connected, as a health check does, is logged at DEBUG. So is a client that repeats a mistake,
        or that soon ends its connections again and again: any client can do that as often as it likes.
        """
        if close.reason is CloseReason.CLIENT_SENT_NOTHING:
            return logging.DEBUG
        if close.reason in ORDINARY and not (close.reason in _CLIENT_IS_GONE and self._is_soon_over(close.reason)):
            return logging.INFO
        what = ", ".join(str(value) for value in failed_login.values() if value) or close.detail
        if not self._host.is_worth_a_line(self, close.reason, what):
            return logging.DEBUG
        return logging.INFO if close.reason in ORDINARY else logging.WARNING

    def _is_soon_over(self, reason: CloseReason) -> bool:
        """Whether the client has ended the connection as one does that connects in a loop."""
        lasted_ms = self._now_ms() - self.opened_ms
        return reason is CloseReason.CLIENT_LOST or self.relay.requests < 2 or lasted_ms < _SOON_MS

    @property
    def unsent_bytes(self) -> int:
        """How many bytes are still to be written out, to both sides."""
        return sum(stream.unsent_bytes for stream in (self._client, self._node) if stream is not None)

    def abort(self) -> None:
        """Close both sockets at once, and drop the bytes that are not written out. No response is waited for longer."""
        if self.relay.unsettled:
            self._do(partial(self.relay.on_lost, CloseReason.CLIENT_LOST, ""))
        for stream in (self._client, self._node):
            if stream is not None:
                try:
                    stream.abort()
                except Exception:
                    self._log.exception("internal_error")

    def _fail(self) -> None:
        """Log a bug of the proxy and end this connection, also if the relay had just ended by itself. Others go on."""
        self._log.exception("internal_error")
        self._steps.clear()
        if not self._ended:
            try:
                self._end_of_a_bug()
            except Exception:
                self._log.exception("internal_error")

    def _end_of_a_bug(self) -> None:
        self.closing = True
        try:
            self._carry_out(self.relay.on_lost(CloseReason.INTERNAL_ERROR), self._now_us())
        finally:
            if not self._ended:
                self._end_episodes(self._episodes, self._now_ms())
                self._end(CloseReason.INTERNAL_ERROR)


def _failed_login(failure: LoginFailure) -> dict[str, str | int | None]:
    """Log keys of a failed login. They never contain a token, and name the user as `claimed_user`: it is not proven."""
    return {
        "mechanism": printable(failure.mechanism) or None,
        "claimed_user": None if failure.claimed_user is None else printable(failure.claimed_user),
        "error": failure.error,
        "error_message": printable(failure.error_message) or None,
    }


ORDINARY = frozenset(
    {
        CloseReason.CLIENT_CLOSED,
        CloseReason.CLIENT_LOST,
        CloseReason.CLIENT_SENT_NOTHING,
        CloseReason.NODE_CLOSED,
        CloseReason.NODE_GONE,
        CloseReason.IDLE_TIMEOUT,
        CloseReason.SHUTDOWN,
    }
)
"""Ends of a connection that are not an error."""

_CARRY_OUT: Mapping[type[Action], Callable[[Connection, Any, int], None]] = {
    Send: Connection._send,
    DecisionRequest: Connection._ask,
    Close: Connection._close,
    HangUp: Connection._hang_up_on_node,
    OpenUpstream: Connection._open_upstream,
    Pause: Connection._pause,
    Resume: Connection._resume,
    WakeAt: Connection._wake_at,
    AwaitMemory: Connection._await_memory,
    Throttled: Connection._note_throttle,
}

_CLIENT_IS_GONE = frozenset({CloseReason.CLIENT_CLOSED, CloseReason.CLIENT_LOST})

_LOST = {
    (Side.CLIENT, False): CloseReason.CLIENT_LOST,
    (Side.CLIENT, True): CloseReason.TLS_FAILED,
    (Side.NODE, False): CloseReason.NODE_LOST,
    (Side.NODE, True): CloseReason.NODE_TLS_FAILED,
}
"""The reason for a lost stream, by its side and by whether TLS failed."""
