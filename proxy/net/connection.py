"""One client connection on the event loop: two transports, a timer, and the relay that says what to do."""

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from proxy.clock import Clock
from proxy.logs import shown
from proxy.net.episode import ThrottleEpisode
from proxy.relay.actions import (
    Action,
    Ask,
    Close,
    CloseReason,
    OpenUpstream,
    Pause,
    Resume,
    Send,
    Side,
    Throttled,
    WakeAt,
)
from proxy.relay.relay import Relay
from proxy.verdicts.decide import decide
from proxy.verdicts.facts import ConnectionFacts

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

READ_BYTES = 256 * 1024
_READ_AHEAD_BYTES = 512
LINGER_S = 10.0
"""How long a connection that is closing may take to write out what was sent to it."""

_read_buffer = memoryview(bytearray(READ_BYTES))
"""One for all client connections: uvloop fills it and has it emptied within one callback."""

_small_read_buffer = _read_buffer[:_READ_AHEAD_BYTES]


class NodeUnreachable(ConnectionError):
    """No address of a node, or of the bootstrap list, took a connection. The message says what was tried."""


class NodeUnknown(LookupError):
    """Nobody has named the address of this node yet."""


@dataclass(slots=True)
class UpstreamConnection:
    """What connecting to a node gave."""

    transport: asyncio.Transport
    node_id: int


Connect = Callable[[Callable[[], asyncio.Protocol]], Awaitable[UpstreamConnection]]
"""Opens the upstream connection with the given protocol. Raises NodeUnreachable or NodeUnknown."""


@dataclass(slots=True, frozen=True)
class ShellSettings:
    """What the shell of a connection needs to know of the configuration."""

    write_buffer_bytes: int


class Connection:
    """Drives one Relay between a client and a node."""

    def __init__(
        self,
        relay: Relay,
        facts: ConnectionFacts,
        connect: Connect,
        settings: ShellSettings,
        clock: Clock,
        log: "FilteringBoundLogger",
        on_closed: Callable[["Connection", CloseReason], None],
    ) -> None:
        self.relay = relay
        self.facts = facts
        self.opened_ms = clock.now_ms()
        self.closing = False
        self.episode: ThrottleEpisode | None = None
        self._connect = connect
        self._settings = settings
        self._clock = clock
        self._log = log
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._client: asyncio.Transport | None = None
        self._node: asyncio.Transport | None = None
        self._node_eof = False
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------- what is reported

    def client_connected(self, transport: asyncio.Transport) -> None:
        """The client's transport stands."""
        self._client = transport
        self._prepare(transport)

    def node_connected(self, transport: asyncio.Transport) -> None:
        """The node's transport stands; the relay hears of it once the node's id is known."""
        self._node = transport
        self._prepare(transport)

    def bytes_came(self, side: Side, data: bytes) -> None:
        """Bytes were read from one side."""
        now_ms = self._clock.now_ms()
        try:
            self._carry_out(self.relay.on_bytes(side, data, now_ms), now_ms)
        except Exception:
            self._fail()

    def eof_came(self, side: Side) -> None:
        """One side will send no more."""
        now_ms = self._clock.now_ms()
        if side is Side.NODE:
            self._node_eof = True
        if self.closing:
            self._finish(side)
        else:
            self._do(lambda: self.relay.on_eof(side, now_ms))

    def lost(self, side: Side, error: Exception | None) -> None:
        """One transport is gone."""
        if side is Side.NODE:
            self._node = None
        else:
            self._client = None
        if self.closing and self._node is self._client is None:
            self._cancel_timer()
        reason = CloseReason.NODE_LOST if side is Side.NODE else CloseReason.CLIENT_LOST
        if not self.closing:
            self._do(lambda: self.relay.on_lost(reason, str(error) if error else ""))

    def writing_paused(self, side: Side) -> None:
        """One side's write buffer is full."""
        if not self.closing:
            self._do(lambda: self.relay.on_blocked(side))

    def writing_resumed(self, side: Side) -> None:
        """One side's write buffer has room again."""
        if not self.closing:
            self._do(lambda: self.relay.on_writable(side, self._clock.now_ms()))

    def give_up(self, reason: CloseReason, detail: str = "") -> None:
        """Close for a reason that is not on the wire."""
        if not self.closing:
            self._do(lambda: self.relay.on_lost(reason, detail))

    def read_buffer(self) -> memoryview:
        """Where the next bytes of the client go: little room while only a request head is wanted."""
        return _small_read_buffer if self.relay.muted else _read_buffer

    # ------------------------------------------------------------ carrying out

    def _do(self, step: Callable[[], list[Action]]) -> None:
        try:
            self._carry_out(step(), self._clock.now_ms())
        except Exception:
            self._fail()

    def _carry_out(self, actions: list[Action], now_ms: int) -> None:
        asks: deque[Ask] = deque()
        self._carry_out_but_asks(actions, asks, now_ms)
        while asks:
            ask = asks.popleft()
            verdict = decide(ask, self.facts, now_ms)
            self._carry_out_but_asks(self.relay.on_verdict(ask.ticket, verdict, now_ms), asks, now_ms)

    def _carry_out_but_asks(self, actions: list[Action], asks: deque[Ask], now_ms: int) -> None:
        for action in actions:
            match action:
                case Send():
                    self._send(action)
                case Ask():
                    asks.append(action)
                case Pause():
                    self._transport(action.side).pause_reading()
                case Resume():
                    self._transport(action.side).resume_reading()
                case WakeAt():
                    self._wake_at(action.at_ms, now_ms)
                case Throttled():
                    self._note_throttle(action, now_ms)
                case OpenUpstream():
                    self._connecting = self._loop.create_task(self._open_upstream())
                case Close():
                    self._close(action)

    def _send(self, send: Send) -> None:
        transport = self._node if send.side is Side.NODE else self._client
        if transport is None:
            return
        pieces = send.pieces
        if len(pieces) == 1:
            transport.write(pieces[0])
        else:
            transport.writelines(pieces)

    def _transport(self, side: Side) -> asyncio.Transport:
        transport = self._node if side is Side.NODE else self._client
        assert transport is not None
        return transport

    def _wake_at(self, at_ms: int, now_ms: int) -> None:
        self._cancel_timer()
        self._timer = self._loop.call_later(max(at_ms - now_ms, 1) / 1000, self._wake_up)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_up(self) -> None:
        self._timer = None
        self._do(lambda: self.relay.on_time(self._clock.now_ms()))

    def _note_throttle(self, throttled: Throttled, now_ms: int) -> None:
        if self.episode is None:
            self.episode = ThrottleEpisode.begin(throttled, now_ms)
            self._log.info("throttle_started", throttle_time_ms=throttled.throttle_time_ms, **self._why(throttled))
        self.episode.note(throttled, now_ms)

    def _why(self, throttled: Throttled) -> dict[str, str | float | None]:
        """Who is throttled, and by which quota."""
        client_id = throttled.client_id.decode(errors="replace")
        why: dict[str, str | float | None] = {"user": self.facts.user, "client_id": shown(client_id)}
        if throttled.quota_type is None:
            return {**why, "quota_type": "node"}
        standing = self.facts.ledger.table.tags_and_limit(throttled.quota_type, self.facts.user, client_id)
        entity = None if standing.entity is None else str(standing.entity)
        return {**why, "quota_type": throttled.quota_type.name.lower(), "entity": entity, "limit": standing.limit}

    def close_episode_if_over(self, now_ms: int) -> None:
        """Log the end of a throttle episode that nothing has prolonged for a while."""
        if self.episode is not None and self.episode.over(now_ms):
            self._log_episode()

    def _log_episode(self) -> None:
        if self.episode is not None:
            self._log.info("throttle_ended", **self.episode.summary())
            self.episode = None

    # ---------------------------------------------------------------- upstream

    async def _open_upstream(self) -> None:
        try:
            upstream = await self._connect(lambda: NodeProtocol(self))
        except NodeUnknown as error:
            self.give_up(CloseReason.NODE_UNKNOWN, str(error))
            return
        except NodeUnreachable as error:
            self.give_up(CloseReason.NODE_UNREACHABLE, str(error))
            return
        except Exception:
            self._fail()
            return
        if self.closing:
            upstream.transport.abort()
            return
        self.facts.node_id = upstream.node_id
        self._do(lambda: self.relay.on_writable(Side.NODE, self._clock.now_ms()))

    def _prepare(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=self._settings.write_buffer_bytes)
        sock = cast("socket.socket | None", transport.get_extra_info("socket"))
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    # ----------------------------------------------------------------- closing

    def _close(self, close: Close) -> None:
        """Let both sides have what was sent to them, then close them; tell why."""
        self.closing = True
        self._cancel_timer()
        self._log_episode()
        relay = self.relay
        quiet = close.reason in _ORDINARY
        (self._log.info if quiet else self._log.warning)(
            "connection_closed",
            reason=close.reason.value,
            detail=shown(close.detail),
            requests=relay.requests,
            request_bytes=relay.request_bytes,
            answers=relay.answers,
            answer_bytes=relay.answer_bytes,
            throttled_ms=relay.throttled_ms,
            duration_ms=self._clock.now_ms() - self.opened_ms,
        )
        if self._client is not None:
            self._client.close()
        if self._node is not None:
            self._close_node(self._node)
        if self._client is not None or self._node is not None:
            self._timer = self._loop.call_later(LINGER_S, self.abort)
        self._on_closed(self, close.reason)

    def _close_node(self, node: asyncio.Transport) -> None:
        """Half-close: a node that still reads requests without answers must not be cut short by a reset."""
        if node.is_closing():
            return
        if self._node_eof:
            node.close()
        else:
            node.write_eof()
            node.resume_reading()

    def _finish(self, side: Side) -> None:
        transport = self._node if side is Side.NODE else self._client
        if transport is not None:
            transport.close()

    def abort(self) -> None:
        """Drop both transports with whatever they still hold."""
        for transport in (self._client, self._node):
            if transport is not None:
                transport.abort()

    def _fail(self) -> None:
        """A bug of ours: it ends this connection and no other."""
        self._log.exception("internal_error")
        if not self.closing:
            self.closing = True
            self._carry_out(self.relay.on_lost(CloseReason.INTERNAL_ERROR), self._clock.now_ms())


_ORDINARY = frozenset(
    {
        CloseReason.CLIENT_CLOSED,
        CloseReason.CLIENT_LOST,
        CloseReason.NODE_CLOSED,
        CloseReason.SHUTDOWN,
    }
)


class ClientProtocol(asyncio.BufferedProtocol):
    """Reports what happens on the client's side."""

    def __init__(self, accept: Callable[[asyncio.Transport], Connection | None]) -> None:
        self._accept = accept
        self._connection: Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for a connection; without one the client is turned away."""
        transport = cast(asyncio.Transport, transport)
        self._connection = self._accept(transport)
        if self._connection is None:
            transport.abort()
        else:
            self._connection.client_connected(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where uvloop is to put the next bytes."""
        return _small_read_buffer if self._connection is None else self._connection.read_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` of the buffer were filled."""
        if self._connection is not None and not self._connection.closing:
            self._connection.bytes_came(Side.CLIENT, bytes(_read_buffer[:nbytes]))

    def eof_received(self) -> bool:
        """Keep the transport: what a muted client has sent is still to be carried."""
        if self._connection is not None:
            self._connection.eof_came(Side.CLIENT)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The client's socket is gone."""
        if self._connection is not None:
            self._connection.lost(Side.CLIENT, exc)

    def pause_writing(self) -> None:
        """The client does not keep up."""
        if self._connection is not None:
            self._connection.writing_paused(Side.CLIENT)

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._connection is not None:
            self._connection.writing_resumed(Side.CLIENT)


class NodeProtocol(asyncio.Protocol):
    """Reports what happens on the node's side."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket to the node stands."""
        self._connection.node_connected(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        """Bytes of answers; after the relay has closed they have no reader any more."""
        if not self._connection.closing:
            self._connection.bytes_came(Side.NODE, data)

    def eof_received(self) -> bool:
        """Keep the transport until the relay has closed it."""
        self._connection.eof_came(Side.NODE)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The node's socket is gone."""
        self._connection.lost(Side.NODE, exc)

    def pause_writing(self) -> None:
        """The node does not keep up."""
        self._connection.writing_paused(Side.NODE)

    def resume_writing(self) -> None:
        """The node has caught up."""
        self._connection.writing_resumed(Side.NODE)
