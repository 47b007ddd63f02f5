"""An incoming connection, and the stages of its admission that have to wait for the client.

The stages: *arrive* (limits of instance and listener), *origin* (which address counts), *admit* (limits of that
address), *secure* (TLS), *open* (a relay is made). proxy/server/acceptor.py takes each connection through them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from socket import SocketType
from typing import TYPE_CHECKING

from kafka_throttle.protocol.identity.proxy_header import Endpoint
from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.gate.admission import ConnectionSlot
from kafka_throttle.proxy.gate.fair_pool import FairPool
from kafka_throttle.proxy.net.tls_socket import TlsSocket
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.quotas.entities import network_of, plain_ip

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class TurnedAway(Exception):
    """A stage does not let a connection go on."""

    def __init__(self, reason: CloseReason, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(reason.value, detail)


@dataclass(slots=True, eq=False)
class IncomingConnection:
    """A non-blocking socket that was accepted at `port`, and what is known about its client.

    `address` and `client_port` are the client's, for quotas, logs and metrics: those of the peer, or those in a PROXY
    header. `address` is in its plain spelling. `destination` is the address that the client connected to, if a PROXY
    header says it. `of_balancer`: a load balancer connected for itself and not for a client. `node_id` is the node that
    the connection is for. `place` is set once the connection is admitted, `tls` once TLS is established.
    """

    socket: SocketType
    port: int
    node_id: int
    address: str
    user: str
    log: "FilteringBoundLogger"
    client_port: int = 0
    destination: Endpoint | None = None
    place: ConnectionSlot | None = None
    tls: TlsSocket | None = None
    of_balancer: bool = False

    @property
    def slot(self) -> ConnectionSlot:
        """The slot of a connection that is admitted."""
        assert self.place is not None
        return self.place

    @property
    def network(self) -> str:
        """Who takes turns for this connection until its user is known: its address, or of IPv6 the network of /64."""
        return network_of(self.address if self.place is None else self.place.origin)

    def came_from(self, host: str, port: int, destination: Endpoint | None = None) -> None:
        """Note the client that the peer forwards: its address and port, and the `destination` that it connected to."""
        self.address = plain_ip(host)
        self.client_port = port
        self.destination = destination
        self.log = self.log.bind(client=str(HostPort(self.address, port)))


GoOn = Callable[[IncomingConnection], None]
TurnAway = Callable[[IncomingConnection, CloseReason, str], None]


class SlowStage:
    """A stage that waits for bytes of the client: one task for each connection, at most `most` at a time.

    Connections go through it only while it is `needed`.

    `work` sets what it learns in the connection, or raises TurnedAway. Connections beyond `most` are turned away
    with the reason `crowded`, those that take longer than `timeout_ms` with `overdue`, and those that are left when the
    stage stops with SHUTDOWN. When the stage is full, an address with many connections displaces only its own (see
    FairPool).
    """

    def __init__(
        self,
        work: Callable[[IncomingConnection], Awaitable[None]],
        timeout_ms: int,
        most: int,
        overdue: CloseReason,
        crowded: CloseReason,
    ) -> None:
        self.needed = False
        self.timeout_ms = timeout_ms
        self.most = most
        self._work = work
        self._overdue = overdue
        self._crowded = crowded
        self._tasks: FairPool[asyncio.Task[None]] = FairPool()
        self._crowded_out: set[asyncio.Task[None]] = set()

    @property
    def under_way(self) -> int:
        """How many connections are in this stage."""
        return len(self._tasks)

    def begin(self, incoming: IncomingConnection, go_on: GoOn, turn_away: TurnAway) -> None:
        """Take a connection through the stage. Exactly one of `go_on` and `turn_away` is called, at once or later."""
        if len(self._tasks) >= self.most and not self._make_room_for(incoming.network):
            turn_away(incoming, self._crowded, "")
            return
        task = asyncio.get_running_loop().create_task(self._work_on(incoming))
        self._tasks.enter(task, incoming.network)
        task.add_done_callback(lambda done: self._finish(done, incoming, go_on, turn_away))

    def _make_room_for(self, origin: str) -> bool:
        """Cancel another connection if the pool gives its place to this origin. Returns whether there is room now."""
        oldest = self._tasks.victim_for(origin)
        if oldest is None:
            return False
        self._tasks.leave(oldest)
        self._crowded_out.add(oldest)
        oldest.cancel()
        return True

    def stop(self) -> None:
        """Refuse all connections in this stage."""
        for task in self._tasks:
            task.cancel()

    async def _work_on(self, incoming: IncomingConnection) -> None:
        try:
            async with asyncio.timeout(self.timeout_ms / 1000):
                await self._work(incoming)
        except TimeoutError:
            raise TurnedAway(self._overdue, f"not within {self.timeout_ms} ms") from None

    def _finish(
        self, task: "asyncio.Task[None]", incoming: IncomingConnection, go_on: GoOn, turn_away: TurnAway
    ) -> None:
        crowded_out = task in self._crowded_out
        if crowded_out:
            self._crowded_out.discard(task)
        else:
            self._tasks.leave(task)
        if task.cancelled():
            turn_away(incoming, self._crowded if crowded_out else CloseReason.SHUTDOWN, "")
            return
        match task.exception():
            case None:
                go_on(incoming)
            case TurnedAway() as why:
                turn_away(incoming, why.reason, why.detail)
            case error:
                incoming.log.error("internal_error", exc_info=error)
                turn_away(incoming, CloseReason.INTERNAL_ERROR, "")
