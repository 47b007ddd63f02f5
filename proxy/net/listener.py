"""One listener of a virtual cluster on the event loop: its ports, and the connections that came in through them."""

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from socket import socket
from typing import TYPE_CHECKING

import structlog

from protocol.api_versions import carried
from proxy.acceptor.sockets import BACKLOG
from proxy.clock import Clock
from proxy.config import LimitsConfig, ListenerConfig
from proxy.net.connection import ClientProtocol, Connection, ShellSettings
from proxy.net.upstream import Upstream
from proxy.relay.actions import CloseReason
from proxy.relay.relay import Relay, RelayLimits
from proxy.relay.tally import Tally
from proxy.verdicts.facts import ConnectionFacts
from proxy.virtual_cluster import ListenerPorts
from quotas.ledger import Ledger

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

ANONYMOUS = "ANONYMOUS"
"""The user of a listener without authentication, as Kafka names it."""

_connection_ids = itertools.count(1)


class Listener:
    """Accepts clients of one virtual cluster and gives each a relay."""

    def __init__(
        self,
        virtual_cluster: str,
        config: ListenerConfig,
        upstream: Upstream,
        ledger: Ledger,
        clock: Clock,
        may_open: Callable[[], bool],
        note_closed: Callable[[str, str, str], None],
    ) -> None:
        self.virtual_cluster = virtual_cluster
        self.name = config.name
        self.ports = ListenerPorts(config, upstream.directory)
        self.connections: set[Connection] = set()
        self.tallies: dict[int, Tally] = {}
        self._upstream = upstream
        self._ledger = ledger
        self._clock = clock
        self._may_open = may_open
        self._note_closed = partial(note_closed, virtual_cluster, config.name)
        self._servers: list[asyncio.Server] = []
        self._relay_limits = RelayLimits()
        self._settings = ShellSettings(write_buffer_bytes=0)
        self._log = structlog.get_logger().bind(virtual_cluster=virtual_cluster, listener=config.name)

    def set_limits(self, limits: LimitsConfig) -> None:
        """Bounds for connections that come from now on."""
        self._relay_limits = RelayLimits(limits.max_frame_bytes, limits.max_answer_bytes, limits.max_in_flight)
        self._settings = ShellSettings(limits.write_buffer_bytes)

    async def serve(self, sockets: dict[int, socket]) -> None:
        """Accept on the bound sockets, by port."""
        loop = asyncio.get_running_loop()
        for port, sock in sockets.items():
            server = await loop.create_server(
                partial(ClientProtocol, partial(self._accept, port)), sock=sock, backlog=BACKLOG
            )
            self._servers.append(server)

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections go on."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _accept(self, port: int, transport: asyncio.Transport) -> Connection | None:
        peer = transport.get_extra_info("peername") or ("?", 0)
        log = self._log.bind(connection_id=next(_connection_ids), client=f"{peer[0]}:{peer[1]}")
        if not self._may_open():
            self._turn_away(log, CloseReason.TOO_MANY_CONNECTIONS)
            return None
        node_id = self.ports.node_of(port)
        if node_id is None:
            self._turn_away(log, CloseReason.NODE_UNKNOWN, f"no node has the spare port {port}")
            return None
        tally = self.tallies.setdefault(node_id, Tally())
        tally.connections_opened += 1
        tally.connections_open += 1
        facts = ConnectionFacts(self.virtual_cluster, self.ports, self._ledger, node_id, ANONYMOUS, carried)
        connection = Connection(
            Relay(self._ledger, tally, self._relay_limits),
            facts,
            partial(self._upstream.connect, node_id),
            self._settings,
            self._clock,
            log.bind(node_id=node_id),
            partial(self._forget, tally),
        )
        self.connections.add(connection)
        return connection

    def _forget(self, tally: Tally, connection: Connection, reason: CloseReason) -> None:
        self.connections.discard(connection)
        tally.connections_open -= 1
        self._note_closed(reason.value)

    def _turn_away(self, log: "FilteringBoundLogger", reason: CloseReason, detail: str = "") -> None:
        log.warning("connection_closed", reason=reason.value, detail=detail)
        self._note_closed(reason.value)
