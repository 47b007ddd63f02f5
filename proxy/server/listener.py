"""One listener of a virtual cluster on the event loop: its ports and its connections."""

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from socket import socket
from typing import TYPE_CHECKING

import structlog

from kafka_throttle.common.printable import printable
from kafka_throttle.protocol.identity.proxy_header import Endpoint, proxy_header_v2
from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.config.settings import LimitsConfig, ListenerConfig, VirtualClusterConfig
from kafka_throttle.proxy.decisions.sasl import Identity
from kafka_throttle.proxy.decisions.steps import QuotaAlteration
from kafka_throttle.proxy.gate.connection_gate import ConnectionGate, limits_of
from kafka_throttle.proxy.gate.stages import IncomingConnection
from kafka_throttle.proxy.net.deadlines import Deadlines
from kafka_throttle.proxy.net.poller import Poller
from kafka_throttle.proxy.observe.added_latency import AddedLatency
from kafka_throttle.proxy.observe.last_throttles import LastThrottles, PastThrottle
from kafka_throttle.proxy.observe.throttle_episode import ThrottledClients
from kafka_throttle.proxy.relay.actions import CloseReason, OpenUpstream, Throttled
from kafka_throttle.proxy.relay.use import Meter
from kafka_throttle.proxy.server.acceptor import Acceptor
from kafka_throttle.proxy.server.caps import CappedStreams, Caps
from kafka_throttle.proxy.server.connection import LINGER_S, Connection
from kafka_throttle.proxy.server.ends import ConnectionEnds
from kafka_throttle.proxy.server.quota_store import QuotaStore
from kafka_throttle.proxy.server.relays import Relays
from kafka_throttle.proxy.server.sharing import Sharing
from kafka_throttle.proxy.upstream.connector import Upstream
from kafka_throttle.proxy.upstream.node_socket import Cancellable, Reached
from kafka_throttle.proxy.upstream.topology import addressing
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.connection_quotas import ListenerKey
from kafka_throttle.quotas.entities import NOBODY, plain_ip

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class Listener:
    """Accepts clients of one virtual cluster, gives each a relay, and is the host of their connections."""

    def __init__(
        self,
        virtual_cluster: str,
        config: ListenerConfig,
        upstream: Upstream,
        quota_manager: ClientQuotaManager,
        book: QuotaStore,
        last_throttles: LastThrottles,
        throttled: ThrottledClients,
        poller: Poller,
        clock: Clock,
        may_open: Callable[[], bool],
        closed: dict[CloseReason, int],
        caps_of_cluster: Caps,
        gate: ConnectionGate,
        meter: Meter | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        """`closed` counts how many connections ended, by reason."""
        self.key = ListenerKey(virtual_cluster, config.name)
        self.lingering = Deadlines(LINGER_S, Connection.abort)
        """Closed connections that still have a socket open."""
        self._incoming_of: dict[Connection, IncomingConnection] = {}
        """The open connections, each with what it was when it came in."""
        self._upstream = upstream
        self._book = book
        self._last_throttles = last_throttles
        self.throttled = throttled
        self.latency = AddedLatency(virtual_cluster, config.name, {})
        self._clock = clock
        self._gate = gate
        sharing = sharing or Sharing()
        self.decision_turns = sharing.decision_turns
        self.alteration_turns = book.alteration_turns
        self._log = structlog.get_logger().bind(virtual_cluster=virtual_cluster, listener=config.name)
        self._reported_of_sasl = False
        self._ends = ConnectionEnds(self.key, gate.log, closed)
        ports = addressing(config, upstream.directory, self._let_go_of_port)
        self.relays = Relays(self.key, ports, upstream, quota_manager, book, meter, clock, sharing.memory)
        self.streams = CappedStreams(caps_of_cluster, poller, clock)
        self.open_stream = self.streams.open
        """A method of ConnectionHost."""
        self.acceptor = Acceptor(
            self.key, ports, upstream, gate, self._ends, may_open, book.may_serve, self._open, poller, clock, self._log
        )
        self.has_port = ports.has_port

    @property
    def name(self) -> str:
        """Its name in the virtual cluster."""
        return self.key.listener

    @property
    def connections(self) -> Collection[Connection]:
        """The open connections."""
        return self._incoming_of.keys()

    @property
    def open_sockets(self) -> int:
        """How many client sockets this listener has: open, on the way in, or lingering."""
        return len(self._incoming_of) + len(self.lingering) + self.acceptor.under_way

    def muted(self, now_ms: int) -> int:
        """How many connections are muted by a throttle."""
        return sum(connection.is_throttled(now_ms) for connection in self._incoming_of)

    def peers(self) -> Iterator[tuple[str, str]]:
        """The user and the address of each open connection. Connections may open and close between two items."""
        return ((one.facts.user, incoming.address) for one, incoming in list(self._incoming_of.items()))

    def clients(self) -> Iterator[tuple[str, bytes, str]]:
        """The user, the raw client-id and the address of each open connection that has sent a request.

        Connections may open and close between two items.
        """
        for one, incoming in list(self._incoming_of.items()):
            if (client_id := one.facts.client_id) is not None and one.facts.user != NOBODY:
                yield one.facts.user, client_id, incoming.address

    def serve(self, sockets: dict[int, socket]) -> None:
        """Start to accept connections on these bound sockets, given by port."""
        self.acceptor.sockets.serve(sockets)

    def stop_listening(self) -> None:
        """Close the listening sockets. Connections that are not open yet go on, and open ones, too."""
        self.acceptor.sockets.stop()

    def stop_accepting(self) -> None:
        """Close the listening sockets and the connections that are not open yet. Open connections go on."""
        self.acceptor.stop()

    def set_limits(self, limits: LimitsConfig) -> None:
        """Apply these limits to connections from now on."""
        self.acceptor.set_limits(limits)
        self.relays.set_limits(limits)
        self.streams.set_limits(limits)

    def set_rules(self, cluster: VirtualClusterConfig, config: ListenerConfig) -> None:
        """Apply the settings of the virtual cluster and of this listener: byte caps at once, all others from the next
        connection on. Call it after the byte caps of the virtual cluster have been set.
        """
        self._gate.set_listener_limits(self.key, limits_of(config.connections))
        self.acceptor.set_origin(config)
        self.relays.set_rules(cluster.quotas, cluster.throttle, cluster.sasl)
        self.streams.set_caps(config.caps)

    def _open(self, incoming: IncomingConnection) -> bool:
        """Make a relay and a connection. False if the user may not have one more connection."""
        relays, node_id, user = self.relays, incoming.node_id, incoming.user
        if not relays.demand_sasl and not self._gate.admission.change_user(incoming.slot, user):
            return False
        relay, facts = relays.new(node_id, user, incoming.slot.origin)
        connection = Connection(relay, facts, self, self._clock, incoming.log)
        facts.note_identity = partial(self._note_identity, connection, incoming.log)
        facts.note_denied = partial(self._note_denied, incoming)
        counters = relays.counters[node_id]
        connection.client_connected(
            incoming.tls or incoming.socket
        )  # what fails before closes the socket, nothing after
        counters.connections_opened += 1
        counters.connections_open += 1
        self._incoming_of[connection] = incoming
        return True

    # ---------------------------------------------------------- ConnectionHost

    def connect(self, connection: Connection, opening: OpenUpstream, reached: Reached) -> Cancellable:
        """Connect to the node of this connection."""
        incoming = self._incoming_of[connection]
        first = self._proxy_header(incoming)
        return self._upstream.open(incoming.node_id, first, connection.whose, reached, opening.mark)

    def _proxy_header(self, incoming: IncomingConnection) -> bytes:
        """The first bytes for the node: a PROXY header with the client's address, if `send_proxy_protocol` is set."""
        if not self._upstream.config.send_proxy_protocol:
            return b""
        host, port, *_ = incoming.socket.getsockname()
        destination = incoming.destination or Endpoint(plain_ip(host), port)
        return proxy_header_v2(Endpoint(incoming.address, incoming.client_port), destination)

    def alter_quotas(
        self, alteration_request: QuotaAlteration, log: "FilteringBoundLogger"
    ) -> Awaitable[Sequence[Exception | None]]:
        """Have the source of the quotas write these alterations."""
        return self._book.alter_quotas(alteration_request, log)

    def note_throttle(self, connection: Connection, throttled: Throttled, now_ms: int) -> PastThrottle:
        """Remember the throttle, for the page and the command that explain throttles."""
        return self._last_throttles.note(self._incoming_of[connection].address, throttled, connection.facts, now_ms)

    def is_worth_a_line(self, connection: Connection, reason: CloseReason, detail: str) -> bool:
        """Whether to log the end: the first time for each address and reason, and each time for a bug of the proxy."""
        return self._ends.is_worth_a_line(self._incoming_of[connection].address, reason, detail)

    def closed(self, connection: Connection, reason: CloseReason) -> None:
        """The connection has ended and no longer counts."""
        incoming = self._incoming_of.pop(connection)
        self.relays.counters[incoming.node_id].connections_open -= 1
        connection.facts.report_nothing()
        self._gate.left(incoming.slot)
        self._ends.count(reason)

    def lingers(self, connection: Connection) -> None:
        """A socket of the connection still has bytes to write out, or waits for its peer to close."""
        self.lingering.add(connection)

    def gone(self, connection: Connection) -> None:
        """Both sockets of the connection are closed."""
        self.lingering.discard(connection)

    # ------------------------------------------------------- while they are open

    def _note_identity(self, connection: Connection, log: "FilteringBoundLogger", identity: Identity) -> None:
        """A client has logged in: check the limit of its user's connections, and log what an operator should know."""
        incoming = self._incoming_of.get(connection)
        if incoming is not None and not self._gate.admission.change_user(incoming.slot, identity.user):
            connection.give_up(CloseReason.TOO_MANY_OF_USER, identity.user)
        if not identity.visible and self._gate.log.note_shared(self.key, identity.user):
            log.warning("user_not_visible", user=identity.user, mechanism=identity.mechanism)
        if not self.relays.demand_sasl and not self._reported_of_sasl:
            self._reported_of_sasl = True
            self._log.warning("sasl_not_required", mechanism=identity.mechanism, setting="sasl.required")

    def _note_denied(self, incoming: IncomingConnection, api: str, user: str, client_id: bytes) -> None:
        """A client has asked for quotas, or for a change of them, that its user has no right to."""
        if self._gate.log.note_denied(self.key, incoming.address, api, user):
            incoming.log.warning(
                "quota_request_denied",
                api=api,
                user=printable(user),
                client_id=printable(client_id.decode(errors="replace")),
                settings=["quotas.admin_users", "quotas.admin_listeners", "quotas.describe_users"],
            )

    def _let_go_of_port(self, port: int) -> None:
        """A port will stand for another node: close the connections that use it for the node that is gone."""
        for connection, incoming in list(self._incoming_of.items()):
            if incoming.port == port:
                connection.give_up(CloseReason.NODE_GONE, f"port {port} is given to another node")
