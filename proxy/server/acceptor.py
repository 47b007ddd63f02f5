"""All that is between `accept` and an open connection: `Acceptor.take_in`."""

import itertools
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from socket import SocketType
from typing import TYPE_CHECKING, Any

from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.config.settings import LimitsConfig, ListenerConfig
from kafka_throttle.proxy.gate.admission import ConnectionSlot, Next, Refused, Step
from kafka_throttle.proxy.gate.connection_gate import ConnectionGate
from kafka_throttle.proxy.gate.opening_turns import OpeningTurns
from kafka_throttle.proxy.gate.stages import IncomingConnection
from kafka_throttle.proxy.net.poller import Poller
from kafka_throttle.proxy.observe.logs import bound_later
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.proxy.server.ends import ConnectionEnds
from kafka_throttle.proxy.server.origin import Origin, origin_stage
from kafka_throttle.proxy.server.sockets import ListeningSockets
from kafka_throttle.proxy.server.tls_material import TlsMaterial
from kafka_throttle.proxy.server.tls_stage import TlsStage, secure_stage
from kafka_throttle.proxy.upstream.connector import Upstream
from kafka_throttle.proxy.upstream.topology import BOOTSTRAP_NODE_ID, ListenerNames, ListenerPorts
from kafka_throttle.quotas.connection_quotas import ListenerKey
from kafka_throttle.quotas.entities import ANONYMOUS, plain_ip

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_connection_ids = itertools.count(1)


class Stage(IntEnum):
    """What an incoming connection has behind it."""

    ACCEPTED = 0
    ARRIVED = 1
    ORIGIN_KNOWN = 2
    ADMITTED = 3
    TURN_CAME = 4
    SECURED = 5


class Acceptor:
    """Takes the sockets that a listener accepts through the stages of their admission, and has them opened.

    `open_connection` makes a connection of an admitted socket; False: its user may not have one more. `may_open` says
    whether the process may have one more socket, `may_serve` whether the quotas are known as far as that is needed.
    """

    def __init__(
        self,
        key: ListenerKey,
        ports: ListenerPorts | ListenerNames,
        upstream: Upstream,
        gate: ConnectionGate,
        ends: ConnectionEnds,
        may_open: Callable[[], bool],
        may_serve: Callable[[], bool],
        open_connection: Callable[[IncomingConnection], bool],
        poller: Poller,
        clock: Clock,
        log: "FilteringBoundLogger",
    ) -> None:
        self._key = key
        self._ports = ports
        self._gate = gate
        gate.add_listener(key, self._waited)
        self._ends = ends
        self._may_open = may_open
        self._may_serve = may_serve
        self._open = open_connection
        self._log = log
        self._turns = OpeningTurns(partial(self.take_in, after=Stage.TURN_CAME))
        self.sockets = ListeningSockets(poller, self._turns.begin, self._accepted, log)
        names = ports if isinstance(ports, ListenerNames) else None
        self._origin = Origin(poller)
        self._origin_stage = origin_stage(self._origin)
        self._tls = TlsStage(poller, clock, names, upstream.discovery.find, self._note_unnamed)
        self._secure_stage = secure_stage(self._tls)
        self._under_way: set[IncomingConnection] = set()
        """Connections that are accepted, and neither open nor refused yet."""

    # ---------------------------------------------------------------- settings

    def set_limits(self, limits: LimitsConfig) -> None:
        """Apply these limits to connections from now on."""
        self._origin_stage.timeout_ms = limits.proxy_header_timeout_ms
        self._origin_stage.most = limits.max_proxy_headers
        self._secure_stage.timeout_ms = limits.handshake_timeout_ms
        self._secure_stage.most = limits.max_handshakes

    def set_origin(self, config: ListenerConfig) -> None:
        """Apply the settings of the PROXY protocol and of server names to connections from now on."""
        self._origin.trusted = config.trusted_networks
        self._origin.required = config.proxy_protocol == "required"
        self._origin_stage.needed = config.proxy_protocol != "off"
        self._tls.demands_name = config.require_server_name

    def set_certified(self, certified: TlsMaterial | None) -> None:
        """Use this TLS material for connections from now on; None: connections are plain."""
        if certified is not None:
            self._tls.certify(certified)
        self._secure_stage.needed = certified is not None

    # ------------------------------------------------------------------ the way

    def _accepted(self, port: int, sock: SocketType, peer: Sequence[Any]) -> None:
        node_id = self._ports.node_of(port)
        address = peer[0] if len(peer) == 2 else plain_ip(peer[0])  # the kernel spells IPv4 plainly
        log = bound_later(partial(self._log_of, next(_connection_ids), address, peer[1], node_id))
        known = BOOTSTRAP_NODE_ID if node_id is None else node_id
        incoming = IncomingConnection(sock, port, known, address, ANONYMOUS, log, peer[1])
        if not self._may_open():
            self._refuse(incoming, CloseReason.TOO_MANY_CONNECTIONS)
        elif not self._may_serve():
            self._refuse(incoming, CloseReason.QUOTAS_UNKNOWN)
        elif node_id is None:
            self._refuse(incoming, CloseReason.NODE_UNKNOWN, detail=f"no node has the spare port {port}")
        else:
            self._under_way.add(incoming)
            self.take_in(incoming)

    def take_in(self, incoming: IncomingConnection, after: Stage = Stage.ACCEPTED) -> None:
        """Take a connection from its arrival as far as it need not wait: until it is open, if it waits for nothing.

        Each step says whether the connection goes on. If not, the connection is refused; or it waits for a limit, for
        its client or for its turn, and this method is called again `after` that stage.
        """
        try:
            if after < Stage.ARRIVED and not self._arrives(incoming):
                return
            if after < Stage.ORIGIN_KNOWN and self._origin_stage.needed:
                self._origin_stage.begin(incoming, partial(self.take_in, after=Stage.ORIGIN_KNOWN), self._give_up)
                return
            if after < Stage.ADMITTED and not self._is_admitted(incoming):
                return
            if after < Stage.TURN_CAME and not self._turns.is_now(incoming):
                return
            if after < Stage.SECURED and self._secure_stage.needed:
                self._secure_stage.begin(incoming, partial(self.take_in, after=Stage.SECURED), self._turn_away)
                return
            if self._open(incoming):
                self._under_way.discard(incoming)
            else:
                self._refuse(incoming, CloseReason.TOO_MANY_OF_USER)
        except Exception:  # a bug of the proxy ends this connection and no other
            incoming.log.exception("internal_error")
            self._turn_away(incoming, CloseReason.INTERNAL_ERROR)

    def _arrives(self, incoming: IncomingConnection) -> bool:
        """The rates and slots of listener and instance. While one connection waits for them, no other is accepted."""
        if self._gate.arrive(self._key, incoming):
            return True
        self.sockets.pause()
        return False

    def _is_admitted(self, incoming: IncomingConnection) -> bool:
        """The rate and the count of the client's address. A connection over the rate is held."""
        outcome = self._gate.admit(self._key, incoming)
        if isinstance(outcome, ConnectionSlot):
            incoming.place = outcome
            return True
        if isinstance(outcome, Refused):
            self._refuse(incoming, outcome.reason, outcome.reset)
        return False

    def _waited(self, what: Next[IncomingConnection]) -> None:
        """Carry out the gate's decision about a connection that has waited or was held."""
        match what.step:
            case Step.GO_ON:
                self.take_in(what.ticket, Stage.ARRIVED)
                self.sockets.accept_more()
            case Step.ADMITTED:
                what.ticket.place = what.place
                self.take_in(what.ticket, Stage.ADMITTED)
            case Step.CLOSE:
                assert what.reason is not None
                self._refuse(what.ticket, what.reason)

    # ------------------------------------------------------------------ the end

    def _give_up(self, incoming: IncomingConnection, reason: CloseReason, detail: str = "") -> None:
        """Turn away a connection before it is admitted. A health check, which sends nothing, uses no rate."""
        self._gate.give_up(self._key, measured=reason is not CloseReason.CLIENT_SENT_NOTHING)
        self._turn_away(incoming, reason, detail)

    def _turn_away(self, incoming: IncomingConnection, reason: CloseReason, detail: str = "") -> None:
        self._let_go(incoming)
        self._ends.turn_away(incoming, reason, detail)

    def _refuse(self, incoming: IncomingConnection, reason: CloseReason, reset: bool = False, detail: str = "") -> None:
        self._let_go(incoming)
        self._ends.refuse(incoming, reason, reset, detail)

    def _let_go(self, incoming: IncomingConnection) -> None:
        self._under_way.discard(incoming)
        if incoming.place is not None:
            self._gate.left(incoming.place)
            incoming.place = None

    def stop(self) -> None:
        """Close the listening sockets, unless they are closed, and the connections that are not open yet."""
        self.sockets.stop()
        self._origin_stage.stop()
        self._secure_stage.stop()
        self._turns.stop(partial(self._turn_away, reason=CloseReason.SHUTDOWN))

    # --------------------------------------------------------------------- read

    @property
    def under_way(self) -> int:
        """How many accepted connections are neither open nor refused yet."""
        return len(self._under_way)

    def _log_of(self, connection_id: int, host: str, port: int, node_id: int | None) -> "FilteringBoundLogger":
        client, known = str(HostPort(host, port)), None if node_id == BOOTSTRAP_NODE_ID else node_id
        log: FilteringBoundLogger = self._log.bind(connection_id=connection_id, client=client, node_id=known)
        return log

    def _note_unnamed(self, incoming: IncomingConnection) -> None:
        """A client of a listener with host names asked for no server name. It is served as a client that bootstraps."""
        if self._gate.log.note_unnamed(self._key, incoming.address):
            incoming.log.warning("server_name_missing", served_as="bootstrap", setting="require_server_name")
