"""Limits the connections of an HTTP listener: their number, and how long each may send nothing.

Scrapers, probes and operators are few. Other peers that connect must not use up descriptors that Kafka clients need.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import structlog

from common.at_most_every import AtMostEvery
from proxy.gate.fair_pool import FairPool
from quotas.entities import plain_ip

REPORTED_EVERY_S = 60.0
"""A warning that any peer can cause is logged at most this often, with the number of times since."""

log = structlog.get_logger()


class Guests:
    """The connections of one HTTP listener: at most `most`, each closed when it has sent nothing for `idle_s`.

    `new_handler` makes the HTTP protocol object of one connection; `section` is the listener's section in the
    configuration. When the listener is full, addresses with many connections give way to others (see FairPool).
    """

    def __init__(self, section: str, new_handler: Callable[[], asyncio.Protocol], most: int, idle_s: float) -> None:
        self.new_handler = new_handler
        self.idle_s = idle_s
        self._most = most
        self._pool: FairPool[_Guest] = FairPool()
        self._section = section
        self._refused = AtMostEvery(REPORTED_EVERY_S)

    def __len__(self) -> int:
        return len(self._pool)

    def __call__(self) -> asyncio.Protocol:
        """The asyncio protocol for a new connection."""
        return _Guest(self)

    def enter(self, guest: "_Guest", address: str) -> bool:
        """Add a connection. Returns False if it must be closed. May close another connection to make room for it."""
        if len(self._pool) >= self._most:
            leaving = self._pool.who_leaves_for(address)
            self._note_refused(address)
            if leaving is None:
                return False
            leaving.abort()
            self.leave(leaving)
        self._pool.enter(guest, address)
        return True

    def _note_refused(self, address: str) -> None:
        if times := self._refused.times(asyncio.get_running_loop().time()):
            log.warning(
                "http_connections_refused",
                listener=self._section,
                limit=self._most,
                connections=times,
                last_address=address,
            )

    def leave(self, guest: "_Guest") -> None:
        """Remove a connection that has ended."""
        if guest in self._pool:
            self._pool.leave(guest)


class _Guest(asyncio.Protocol):
    """One connection: passes its events to the HTTP handler, and aborts when the peer was silent for too long."""

    def __init__(self, home: Guests) -> None:
        self._host = home
        self._handler: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the HTTP handler, if there is room for this connection."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit it
        peer = transport.get_extra_info("peername")
        if not self._host.enter(self, plain_ip(peer[0]) if peer else ""):
            self.abort()
            return
        self._handler = self._host.new_handler()
        self._handler.connection_made(transport)
        self._heard_s = asyncio.get_running_loop().time()
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Pass received bytes on."""
        self._heard_s = asyncio.get_running_loop().time()
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

    def _wait(self) -> None:
        at_s = self._heard_s + self._host.idle_s
        self._timer = asyncio.get_running_loop().call_at(at_s, self._look)

    def _look(self) -> None:
        """Abort if the peer was silent for `idle_s`. Otherwise bytes came after the timer was set: set it again."""
        if asyncio.get_running_loop().time() < self._heard_s + self._host.idle_s:
            self._wait()
        else:
            self._timer = None
            self.abort()
