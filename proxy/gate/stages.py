"""A socket on its way in, and those stages of the way that have to wait for the client.

The stages: *arrive* (limits of instance and listener), *origin* (whose address counts), *admit* (limits of that
address), *secure* (TLS), *open* (a relay has it). A listener goes through them; see `proxy.server.listener`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from socket import SocketType
from typing import TYPE_CHECKING

from protocol.identity.proxy_header import Endpoint
from proxy.config.kinds import HostPort
from proxy.gate.admission import ConnectionSlot
from proxy.gate.fair_pool import FairPool
from proxy.net.tls_socket import TlsSocket
from proxy.relay.actions import CloseReason
from quotas.entities import plain_ip

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class Refused(Exception):
    """A stage lets a socket come no further."""

    def __init__(self, reason: CloseReason, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(reason.value, detail)


@dataclass(slots=True, eq=False)
class IncomingConnection:
    """A non-blocking socket that was accepted at `port`, and what is known about it by now.

    `address` is the client's, in its plain spelling, for quotas, logs and metrics: the peer's, or the one that a stage
    has been told; `client_port` belongs to it. `of_balancer`: who speaks for clients comes for itself. `node_id` is
    whom it is for, `place` what it holds once its address may have it. `destination` is where the client has connected
    to, if somebody else has told. `tls` is spoken over the socket, if it is.
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

    def came_from(self, host: str, port: int, destination: Endpoint | None = None) -> None:
        """The peer speaks for a client at this address, which has connected to that one."""
        self.address = plain_ip(host)
        self.client_port = port
        self.destination = destination
        self.log = self.log.bind(client=str(HostPort(self.address, port)))


GoOn = Callable[[IncomingConnection], None]
TurnAway = Callable[[IncomingConnection, CloseReason, str], None]


class SlowStage:
    """A stage that has to hear from the client first: a task for each socket, `most` at a time, bounded in time.

    `work` notes in the arrival what it learns, or raises Refused. Sockets beyond `most` are refused as `crowded`, those
    that take longer than `timeout_ms` as `overdue`; those that are still here when it is stopped, as SHUTDOWN.
    When the stage is full, an address crowds out only itself, see FairPool.
    """

    def __init__(
        self,
        work: Callable[[IncomingConnection], Awaitable[None]],
        timeout_ms: int,
        most: int,
        overdue: CloseReason,
        crowded: CloseReason,
    ) -> None:
        self.timeout_ms = timeout_ms
        self.most = most
        self._work = work
        self._overdue = overdue
        self._crowded = crowded
        self._tasks: FairPool[asyncio.Task[None]] = FairPool()
        self._crowded_out: set[asyncio.Task[None]] = set()

    @property
    def under_way(self) -> int:
        """How many sockets are in this stage."""
        return len(self._tasks)

    def begin(self, arrival: IncomingConnection, go_on: GoOn, turn_away: TurnAway) -> None:
        """Take a socket through; then exactly one of `go_on` and `turn_away` is called, soon or late."""
        origin = "" if arrival.place is None else arrival.place.origin
        if len(self._tasks) >= self.most and not self._make_room_for(origin):
            turn_away(arrival, self._crowded, "")
            return
        task = asyncio.get_running_loop().create_task(self._work_on(arrival))
        self._tasks.enter(task, origin)
        task.add_done_callback(lambda done: self._finish(done, arrival, go_on, turn_away))

    def _make_room_for(self, origin: str) -> bool:
        """Have one leave, if one has to."""
        oldest = self._tasks.who_leaves_for(origin)
        if oldest is None:
            return False
        self._tasks.leave(oldest)
        self._crowded_out.add(oldest)
        oldest.cancel()
        return True

    def stop(self) -> None:
        """Refuse all that are here."""
        for task in self._tasks:
            task.cancel()

    async def _work_on(self, arrival: IncomingConnection) -> None:
        try:
            async with asyncio.timeout(self.timeout_ms / 1000):
                await self._work(arrival)
        except TimeoutError:
            raise Refused(self._overdue, f"not within {self.timeout_ms} ms") from None

    def _finish(
        self, task: "asyncio.Task[None]", arrival: IncomingConnection, go_on: GoOn, turn_away: TurnAway
    ) -> None:
        crowded_out = task in self._crowded_out
        if crowded_out:
            self._crowded_out.discard(task)
        else:
            self._tasks.leave(task)
        if task.cancelled():
            turn_away(arrival, self._crowded if crowded_out else CloseReason.SHUTDOWN, "")
            return
        match task.exception():
            case None:
                go_on(arrival)
            case Refused() as refused:
                turn_away(arrival, refused.reason, refused.detail)
            case error:
                arrival.log.error("internal_error", exc_info=error)
                turn_away(arrival, CloseReason.INTERNAL_ERROR, "")
