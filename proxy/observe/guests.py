"""Connections to an HTTP listener: bounded in number, and in the time that they may stay silent.

Scrapers, probes and operators are few; whatever else connects there must not take descriptors that Kafka clients need.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import structlog

from common.at_most_every import AtMostEvery
from proxy.gate.fair_pool import FairPool
from quotas.entities import plain_ip

_REPORTED_EVERY_S = 60.0

log = structlog.get_logger()


class ToldSeldom:
    """A warning that anybody who connects can bring about: told once a minute, with how often it was so since."""

    def __init__(self, event: str, **about: str | int) -> None:
        self._event = event
        self._about = about
        self._count = 0
        self._limiter = AtMostEvery(_REPORTED_EVERY_S)

    def note(self, **last: str) -> None:
        """It is so once more; `last` says how."""
        self._count += 1
        if self._limiter.is_due(asyncio.get_running_loop().time()):
            log.warning(self._event, **self._about, connections=self._count, **last)
            self._count = 0


class Guests:
    """Who is connected to one listener: `most` at a time, none that has sent nothing for `idle_s`.

    `new_handler` makes what speaks HTTP with one of them; `section` is what the configuration calls the listener. When
    it is full, an address makes room for others, see FairPool.
    """

    def __init__(self, section: str, new_handler: Callable[[], asyncio.Protocol], most: int, idle_s: float) -> None:
        self.new_handler = new_handler
        self.idle_s = idle_s
        self._most = most
        self._pool: FairPool[_Guest] = FairPool()
        self._refused = ToldSeldom("http_connections_refused", listener=section, limit=most)

    def __len__(self) -> int:
        return len(self._pool)

    def __call__(self) -> asyncio.Protocol:
        """What the event loop gives a new connection to."""
        return _Guest(self)

    def enter(self, guest: "_Guest", address: str) -> bool:
        """Whether one more may be here. If it is full, it or one that makes room for it has to go."""
        if len(self._pool) >= self._most:
            leaving = self._pool.who_leaves_for(address)
            self._refused.note(last_address=address)
            if leaving is None:
                return False
            leaving.abort()
            self.leave(leaving)
        self._pool.enter(guest, address)
        return True

    def leave(self, guest: "_Guest") -> None:
        """It is here no longer."""
        if guest in self._pool:
            self._pool.leave(guest)


class _Guest(asyncio.Protocol):
    """One connection: hands on what it hears to what speaks HTTP, and ends when it has heard nothing for long."""

    def __init__(self, home: Guests) -> None:
        self._home = home
        self._handler: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, if there is room."""
        self._transport = cast(asyncio.Transport, transport)  # which uvloop's is not in name
        peer = transport.get_extra_info("peername")
        if not self._home.enter(self, plain_ip(peer[0]) if peer else ""):
            self.abort()
            return
        self._handler = self._home.new_handler()
        self._handler.connection_made(transport)
        self._heard_s = asyncio.get_running_loop().time()
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Something came."""
        self._heard_s = asyncio.get_running_loop().time()
        if self._handler is not None:
            self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """It sends no more."""
        return None if self._handler is None else self._handler.eof_received()

    def pause_writing(self) -> None:
        """It does not read."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """It reads again."""
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        self._home.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._handler is not None:
            self._handler.connection_lost(exc)
            self._handler = None

    def abort(self) -> None:
        """End it with whatever is still to be sent."""
        if self._transport is not None:
            self._transport.abort()

    def _wait(self) -> None:
        at_s = self._heard_s + self._home.idle_s
        self._timer = asyncio.get_running_loop().call_at(at_s, self._look)

    def _look(self) -> None:
        """A timer is for the earliest moment: what came since has put the end off."""
        if asyncio.get_running_loop().time() < self._heard_s + self._home.idle_s:
            self._wait()
        else:
            self._timer = None
            self.abort()
