"""Limits the connections of an HTTP listener: their number, and how long each may read nothing of a response.

Scrapers, probes and operators are few. Other peers that connect must not use up descriptors that Kafka clients need.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import structlog

from kafka_throttle.common.plain_words import words_of
from kafka_throttle.proxy.gate.fair_pool import FairPool
from kafka_throttle.proxy.observe.http_refusals import HttpRefusals, Refusal
from kafka_throttle.quotas.entities import network_of

_GOODBYE_WITHIN_S = 1.0
"""How long the end of a TLS connection may take."""

log = structlog.get_logger()


class HttpConnections:
    """The connections of one HTTP listener: at most `most`, each closed when it reads nothing for `idle_s` or longer.

    `new_handler` makes the HTTP protocol object of one connection, which closes it when no request comes. `is_asked`
    says of such an object whether a request is under way. When the listener is full, a connection that waits
    for its peer gives way to any new one, so that a probe is always answered; if a request is under way on each,
    addresses with many connections give way to others (see FairPool). New connections speak TLS if there is a `tls`
    context; it may be replaced at any time.
    """

    def __init__(
        self,
        refusals: HttpRefusals,
        new_handler: Callable[[], asyncio.Protocol],
        is_asked: Callable[[asyncio.Protocol], bool],
        most: int,
        idle_s: float,
    ) -> None:
        self.tls: ssl.SSLContext | None = None
        self.new_handler = new_handler
        self.is_asked = is_asked
        self.idle_s = idle_s
        self._most = most
        self._refusals = refusals
        self._pool: FairPool[_Guest] = FairPool()

    def __len__(self) -> int:
        return len(self._pool)

    def take_in(self, sock: socket.socket, address: str) -> None:
        """Serve a connection that was accepted, or close it. May close another connection to make room for it."""
        if len(self._pool) >= self._most and not self._make_room_for(address):
            sock.close()
            return
        guest, loop = _Guest(self), asyncio.get_running_loop()
        self._pool.enter(guest, network_of(address))
        timeouts = {"ssl_handshake_timeout": self.idle_s, "ssl_shutdown_timeout": _GOODBYE_WITHIN_S} if self.tls else {}
        opening = loop.connect_accepted_socket(lambda: guest, sock, ssl=self.tls, **timeouts)
        guest.opening = loop.create_task(opening)
        guest.opening.add_done_callback(partial(self._opened, guest, sock, address))

    def _opened(self, guest: "_Guest", sock: socket.socket, address: str, opening: "asyncio.Task[Any]") -> None:
        """The connection is open; with TLS, its handshake is over."""
        guest.opening = None
        if not guest.is_open:
            self.leave(guest)
            sock.close()
        if not opening.cancelled() and (error := opening.exception()) is not None:
            self._note_failed(error, address)

    def stop(self) -> None:
        """Close the connections whose TLS handshake is under way."""
        for guest in list(self._pool):
            if not guest.is_open:
                guest.abort()

    def leave(self, guest: "_Guest") -> None:
        """Remove a connection that has ended."""
        if guest in self._pool:
            self._pool.leave(guest)

    def _make_room_for(self, address: str) -> bool:
        """Close another connection if one has to give way to this address. Returns whether there is room now."""
        if times := self._refusals.times(Refusal.TOO_MANY_CONNECTIONS):
            log.warning(
                "http_connections_refused",
                listener=self._refusals.listener,
                limit=self._most,
                connections=times,
                last_address=address,
            )
        leaving = self._pool.oldest(_Guest.waits_for_peer) or self._pool.victim_for(network_of(address))
        if leaving is None:
            return False
        leaving.abort()
        self.leave(leaving)
        return True

    def _note_failed(self, error: BaseException, address: str) -> None:
        if not isinstance(error, OSError):
            raise error
        if times := self._refusals.times(Refusal.TLS_FAILED):
            log.warning(
                "http_handshakes_failed",
                listener=self._refusals.listener,
                connections=times,
                last_address=address,
                problem=words_of(error),
            )


class _Guest(asyncio.Protocol):
    """One connection: passes its events to the HTTP handler, and aborts when the peer does not read the response.

    `opening` is the task that opens it, with TLS the handshake.
    """

    def __init__(self, host: HttpConnections) -> None:
        self.opening: asyncio.Task[Any] | None = None
        self._host = host
        self._handler: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stuck = False
        """Whether bytes wait for the peer since the last look, and it has taken or sent none that we know of."""

    @property
    def is_open(self) -> bool:
        """Whether the connection is served."""
        return self._handler is not None

    def waits_for_peer(self) -> bool:
        """Whether the peer must act next: send a request, read the response, or go on with the TLS handshake."""
        return self._handler is None or self._is_unread() or not self._host.is_asked(self._handler)

    def _is_unread(self) -> bool:
        """Whether a part of a response waits for the peer to read."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the HTTP handler."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit it
        self._handler = self._host.new_handler()
        self._handler.connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Pass received bytes on."""
        self._is_stuck = False
        if self._handler is not None:
            self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """The peer has closed its sending direction."""
        return None if self._handler is None else self._handler.eof_received()

    def pause_writing(self) -> None:
        """The write buffer is full: the peer does not read."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """The write buffer has room again."""
        self._is_stuck = False
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._host.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._handler is not None:
            self._handler.connection_lost(exc)
            self._handler = None

    def abort(self) -> None:
        """Close the connection at once, and drop bytes that are not sent."""
        if self._transport is not None:
            self._transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._host.idle_s, self._look)

    def _look(self) -> None:
        """Abort if bytes waited for the peer at the last look, too, and it has read none since."""
        self._timer = None
        is_unread = self._is_unread()
        if is_unread and self._is_stuck:
            self.abort()
            return
        self._is_stuck = is_unread
        self._wait()
