"""One listener of a virtual cluster on the event loop: its ports and its connections."""

import asyncio
import itertools
import struct
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from socket import SO_LINGER, SOL_SOCKET, SocketType, socket
from typing import TYPE_CHECKING, Any

import structlog

from common.printable import printable
from protocol.identity.proxy_header import Endpoint, proxy_header_v2
from protocol.messages.api_versions import carried
from proxy.clock import Clock
from proxy.config.kinds import HostPort
from proxy.config.settings import (
    CapsConfig,
    ConnectionLimitsConfig,
    LimitsConfig,
    ListenerConfig,
    QuotasConfig,
    SaslConfig,
)
from proxy.decisions.client_ids import measured_client_id
from proxy.decisions.facts import ConnectionFacts, ListenerFacts
from proxy.decisions.sasl import Identity, SaslRules
from proxy.gate.admission import ANONYMOUS, ConnectionSlot, Next, Refused, Step
from proxy.gate.connection_gate import ConnectionGate, limits_of
from proxy.gate.fair_queue import FairQueue
from proxy.gate.stages import GoOn, IncomingConnection, SlowStage, TurnAway
from proxy.net.deadlines import Deadlines
from proxy.net.poller import READABLE, Poller
from proxy.net.stream import Stream, StreamListener, StreamSettings
from proxy.net.tls_socket import AnySocket, TlsSocket
from proxy.net.tls_stream import TlsStream
from proxy.observe.last_throttles import LastThrottles
from proxy.observe.logs import bound_later
from proxy.relay.actions import CloseReason, QuotaAlteration, RelayLimits, Throttled
from proxy.relay.relay import Relay
from proxy.relay.relay_counters import RelayCounters
from proxy.relay.use import MUTATION, Client, Meter
from proxy.server.caps import Caps
from proxy.server.connection import LINGER_S, ORDINARY, Connection
from proxy.server.origin import Origin, origin_stage
from proxy.server.quota_store import QuotaStore
from proxy.server.sockets import accept
from proxy.server.tls_material import TlsMaterial
from proxy.server.tls_stage import TlsStage, secure_stage
from proxy.side import Side
from proxy.upstream.connector import Upstream
from proxy.upstream.node_socket import Cancellable, Reached
from proxy.upstream.topology import BOOTSTRAP_NODE_ID, ListenerNames, addressing
from quotas.byte_caps import Turnstile
from quotas.changes import Quotas
from quotas.client_quotas import WHOLE_CLUSTER, ClientQuotaManager
from quotas.connection_quotas import ListenerKey
from quotas.entities import plain_ip
from quotas.sources.entries import ThrottleConfig

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

NOBODY = ""
"""In place of the user until a required SASL login has succeeded."""

_ACCEPTS_AT_ONCE = 64
_OPENED_AT_ONCE = 8
"""How many admitted connections go on in one turn of the event loop. That costs more than accepting them."""
_MOST_IN_TURN = 1024
"""No more connections are accepted while this many wait for their turn to go on."""
_REST_S = 1.0
"""The pause in accepting after descriptors or memory have run out."""

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s: the kernel drops the bytes of the connection and sends the peer a reset."""

_REFUSED_AT_ONCE = frozenset(
    {
        CloseReason.PROXY_PEER_UNTRUSTED,
        CloseReason.PROXY_HEADER_MISSING,
        CloseReason.PROXY_HEADER_MALFORMED,
        CloseReason.TOO_MANY_PROXY_HEADERS,
        CloseReason.TOO_MANY_HANDSHAKES,
    }
)
"""Reasons for which a stage refuses connections as fast as they come, too fast for one log line each."""

_HUNG_UP = frozenset({CloseReason.CLIENT_CLOSED, CloseReason.CLIENT_LOST})


def _place_of(incoming: IncomingConnection) -> ConnectionSlot:
    """The slot of a connection that was admitted."""
    assert incoming.place is not None
    return incoming.place


_connection_ids = itertools.count(1)


class Listener:
    """Accepts clients of one virtual cluster and gives each a relay."""

    def __init__(  # noqa: PLR0915 what a listener holds
        self,
        virtual_cluster: str,
        config: ListenerConfig,
        upstream: Upstream,
        quota_manager: ClientQuotaManager,
        book: QuotaStore,
        last_throttles: LastThrottles,
        poller: Poller,
        clock: Clock,
        may_open: Callable[[], bool],
        closed: dict[CloseReason, int],
        caps_of_cluster: Caps,
        gate: ConnectionGate,
        meter: Meter | None = None,
    ) -> None:
        self._meter = meter
        self.virtual_cluster = virtual_cluster
        self.name = config.name
        self.key = ListenerKey(virtual_cluster, config.name)
        self.ports = addressing(config, upstream.directory, self._let_go_of_port)
        self.connections: set[Connection] = set()
        self.lingering = Deadlines(LINGER_S, Connection.abort)
        """Closed connections that still have a socket open."""
        self._origin = Origin(poller)
        self._origin_stage = origin_stage(self._origin)
        self.origin: SlowStage | None = None
        """Stage 2 (PROXY headers) for new connections; None: there is none."""
        names = self.ports if isinstance(self.ports, ListenerNames) else None
        self._tls = TlsStage(poller, clock, names, upstream.find, self._note_unnamed)
        self._secure_stage = secure_stage(self._tls)
        self.secure: SlowStage | None = None
        """Stage 4 (TLS) for new connections; None: there is none."""
        self._gate = gate
        gate.add_listener(self.key, self._carry_on)
        self._on_the_way: set[IncomingConnection] = set()
        """Connections that wait, are held, or are in a stage that waits for the client."""
        self._at_once = 0
        """How many more connections may go on in this turn of the event loop."""
        self._pool: FairQueue[IncomingConnection] = FairQueue()
        """Admitted connections that wait for a later turn. Addresses take turns: one with few overtakes a storm."""
        self._all_incoming: dict[Connection, IncomingConnection] = {}
        """The IncomingConnection of each open connection."""
        self._waits = False
        """True while one connection waits for a rate or a slot: no other is accepted."""
        self._left_alone: list[tuple[int, socket]] = []
        """Listening sockets, with their ports, at which connections arrived meanwhile."""
        self.tallies: dict[int, RelayCounters] = {}
        self._upstream = upstream
        self._quota_manager = quota_manager
        self._book = book
        self._last_throttles = last_throttles
        self._quotas = QuotasConfig()
        self._throttle = ThrottleConfig()
        self._demands_sasl = False
        self._sasl = SaslRules()
        self._reported_of_sasl = False
        self._poller = poller
        self._clock = clock
        self._may_open = may_open
        self._closed = closed
        """How many connections ended, by reason."""
        self.caps = Caps(clock)
        self._turnstiles = {
            Side.CLIENT: Turnstile((self.caps.ingress, caps_of_cluster.ingress)),
            Side.NODE: Turnstile((self.caps.egress, caps_of_cluster.egress)),
        }
        self._sockets: list[socket] = []
        self._resting: set[socket] = set()
        self._limits = LimitsConfig()
        self._relay_limits = RelayLimits()
        self._streams = self._new_streams()
        self._facts = self._new_facts()
        self._log = structlog.get_logger().bind(virtual_cluster=virtual_cluster, listener=config.name)

    def set_limits(self, limits: LimitsConfig) -> None:
        """Apply these limits to connections from now on."""
        self._limits = limits
        self._relay_limits = self._new_relay_limits()
        self._streams = self._new_streams()
        self._origin_stage.timeout_ms = limits.proxy_header_timeout_ms
        self._origin_stage.most = limits.max_proxy_headers
        self._secure_stage.timeout_ms = limits.handshake_timeout_ms
        self._secure_stage.most = limits.max_handshakes

    def set_rules(self, quotas: QuotasConfig, throttle: ThrottleConfig, sasl: SaslConfig) -> None:
        """Apply the settings of quotas, throttling and SASL to connections from now on."""
        self._quotas = quotas
        self._throttle = throttle
        self._demands_sasl = sasl.required
        self._relay_limits = self._new_relay_limits()
        self._sasl = SaslRules({known.mechanism: known.user for known in sasl.principals}, sasl.claims())
        self._facts = self._new_facts()

    def set_origin(self, config: ListenerConfig) -> None:
        """Apply the settings of the PROXY protocol and of server names to connections from now on."""
        self._origin.trusted = config.trusted_networks
        self._origin.required = config.proxy_protocol == "required"
        self.origin = None if config.proxy_protocol == "off" else self._origin_stage
        self._tls.demands_name = config.require_server_name

    def set_certified(self, certified: TlsMaterial | None) -> None:
        """Use this TLS material for connections from now on; None: connections are plain."""
        if certified is not None:
            self._tls.certify(certified)
        self.secure = None if certified is None else self._secure_stage

    @property
    def handshakes(self) -> int:
        """How many TLS handshakes are under way."""
        return self._secure_stage.under_way

    def set_caps(self, caps: CapsConfig) -> None:
        """Set the byte caps. Call it after the caps of the virtual cluster have been set."""
        self.caps.set(caps)
        for turnstile in self._turnstiles.values():
            turnstile.take_up()

    def set_connection_limits(self, limits: ConnectionLimitsConfig) -> None:
        """Set the connection limits, from the next connection on."""
        self._gate.set_listener_limits(self.key, limits_of(limits))

    def serve(self, sockets: dict[int, socket]) -> None:
        """Start to accept connections on these bound sockets, given by port."""
        for port, sock in sockets.items():
            self._sockets.append(sock)
            self._poller.add(sock.fileno(), READABLE, partial(self._accept_all, port, sock))

    def stop_accepting(self) -> None:
        """Close the listening sockets and the connections that are not open yet. Open connections go on."""
        alone = {sock for _, sock in self._left_alone}
        for sock in self._sockets:
            if sock not in self._resting and sock not in alone:
                self._poller.remove(sock.fileno())
            sock.close()
        self._sockets.clear()
        self._resting.clear()
        self._left_alone.clear()
        for stage in (self._origin_stage, self._secure_stage):
            stage.stop()
        for incoming in self._pool.take_all():
            self._turn_away(incoming, CloseReason.SHUTDOWN)

    @property
    def open_sockets(self) -> int:
        """How many client sockets this listener has: open, on the way in, or lingering."""
        return len(self.connections) + len(self.lingering) + len(self._on_the_way)

    def _accept_all(self, port: int, sock: socket, _events: int) -> None:
        """Accept the connections that have arrived, up to a limit: a storm must not block the event loop."""
        self._at_once = 0 if self._pool else _OPENED_AT_ONCE
        for _ in range(min(_ACCEPTS_AT_ONCE, _MOST_IN_TURN - len(self._pool))):
            if self._waits:
                self._poller.remove(sock.fileno())
                self._left_alone.append((port, sock))
                return
            try:
                client, peer = accept(sock)
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._rest(port, sock, error)
                return
            try:
                self._accept(port, client, peer)
            except Exception:
                self._log.exception("internal_error")
                client.close()

    def _rest(self, port: int, sock: socket, error: OSError) -> None:
        """Stop accepting at a port for a while: descriptors or memory have run out, and a retry at once would spin."""
        self._log.error("accept_failed", port=port, error=error.strerror)
        self._poller.remove(sock.fileno())
        self._resting.add(sock)
        asyncio.get_running_loop().call_later(_REST_S, self._accept_again, port, sock)

    def _accept_again(self, port: int, sock: socket) -> None:
        if sock in self._resting:
            self._resting.discard(sock)
            self._poller.add(sock.fileno(), READABLE, partial(self._accept_all, port, sock))

    def _accept(self, port: int, client: SocketType, peer: Sequence[Any]) -> None:
        """Start a new socket through the stages. A stage that waits for the client continues later by itself."""
        node_id = self.ports.node_of(port)
        address = peer[0] if len(peer) == 2 else plain_ip(peer[0])  # the kernel spells IPv4 plainly
        log = bound_later(partial(self._log_of, next(_connection_ids), address, peer[1], node_id))
        known = BOOTSTRAP_NODE_ID if node_id is None else node_id
        incoming = IncomingConnection(client, port, known, address, ANONYMOUS, log, peer[1])
        if not self._may_open():
            self._gate.note_full(self._limits.max_connections)
            self._refuse(incoming, CloseReason.TOO_MANY_CONNECTIONS)
        elif node_id is None:
            self._refuse(incoming, CloseReason.NODE_UNKNOWN, detail=f"no node has the spare port {port}")
        else:
            self._arrive(incoming)

    def _log_of(self, connection_id: int, host: str, port: int, node_id: int | None) -> "FilteringBoundLogger":
        client = str(HostPort(host, port))
        log: FilteringBoundLogger = self._log.bind(connection_id=connection_id, client=client, node_id=node_id)
        return log

    def _arrive(self, incoming: IncomingConnection) -> None:
        """Stage 1: the rates and slots of listener and instance. One connection of a listener waits at a time."""
        if self._gate.arrive(self.key, incoming):
            self._admit(incoming) if self.origin is None else self._find_origin(incoming)
        else:
            self._waits = True
            self._on_the_way.add(incoming)

    def _find_origin(self, incoming: IncomingConnection) -> None:
        """Stage 2, if there is one: finds the client's address in a PROXY header."""
        if self.origin is None:
            self._admit(incoming)
        else:
            self._wait(self.origin, incoming, self._admit, self._give_up)

    def _admit(self, incoming: IncomingConnection) -> None:
        """Stage 3: the rate and the count of the client's address."""
        match self._gate.admit(self.key, incoming):
            case ConnectionSlot() as place:
                incoming.place = place
                self._go_on_in_turn(incoming)
            case Refused(reason, reset):
                self._refuse(incoming, reason, reset)
            case _:
                self._on_the_way.add(incoming)

    def _go_on_in_turn(self, incoming: IncomingConnection) -> None:
        """Go on now, or when it is the turn of the client's address."""
        if self._at_once:
            self._at_once -= 1
            self._go_on(incoming)
            return
        if not self._pool:
            asyncio.get_running_loop().call_soon(self._take_turns)
        assert incoming.place is not None
        self._on_the_way.add(incoming)
        self._pool.put(incoming.place.origin, incoming)

    def _take_turns(self) -> None:
        for _ in range(min(_OPENED_AT_ONCE, len(self._pool))):
            incoming = self._pool.take()
            self._on_the_way.discard(incoming)
            self._go_on(incoming)
        if self._pool:
            asyncio.get_running_loop().call_soon(self._take_turns)

    def _go_on(self, incoming: IncomingConnection) -> None:
        """Go on to stage 4. A bug of the proxy in the later stages ends this connection and no other."""
        try:
            self._secure(incoming)
        except Exception:
            incoming.log.exception("internal_error")
            self._turn_away(incoming, CloseReason.INTERNAL_ERROR)

    def _secure(self, incoming: IncomingConnection) -> None:
        """Stage 4, if there is one: the TLS handshake."""
        if self.secure is None:
            self._open(incoming)
        else:
            self._wait(self.secure, incoming, self._open, self._turn_away)

    def _open(self, incoming: IncomingConnection) -> None:
        """Stage 5: make a relay and a connection, if the user may have one more connection."""
        place, node_id = _place_of(incoming), incoming.node_id
        if not self._demands_sasl and not self._gate.admission.user_became(place, incoming.user):
            self._refuse(incoming, CloseReason.TOO_MANY_OF_USER)
            return
        counters = self.tallies.get(node_id)
        if counters is None:
            counters = self.tallies[node_id] = RelayCounters()
        user = NOBODY if self._demands_sasl else incoming.user
        facts = ConnectionFacts(self._facts, node_id, user, *self._rights_of(user))
        usage_of = None if self._meter is None else partial(self._usage_of, facts)
        relay = Relay(self._quota_manager, counters, self._relay_limits, facts.bind, usage_of)
        connection = Connection(relay, facts, self, self._clock, incoming.log)
        facts.note_identity = partial(self._note_identity, connection, incoming.log)
        connection.client_connected(incoming.tls or incoming.socket)
        counters.connections_opened += 1
        counters.connections_open += 1
        self.connections.add(connection)
        self._all_incoming[connection] = incoming

    def _usage_of(self, facts: ConnectionFacts, raw_client_id: bytes) -> Client:
        """The usage counters of a client-id of this connection."""
        assert self._meter is not None
        client_id = measured_client_id(raw_client_id, self._quota_manager.table)
        return self._meter.hold(facts.node_id, facts.user, client_id)

    def _first_words(self, incoming: IncomingConnection) -> bytes:
        """The first bytes for the node: a PROXY header with the client's address, if `send_proxy_protocol` is set."""
        if not self._upstream.config.send_proxy_protocol:
            return b""
        host, port, *_ = incoming.socket.getsockname()
        destination = incoming.destination or Endpoint(plain_ip(host), port)
        return proxy_header_v2(Endpoint(incoming.address, incoming.client_port), destination)

    def user_became(self, connection: Connection, user: str) -> bool:
        """Whether a connection may stay now that its user is known or has changed. If so, it counts for that user."""
        incoming = self._all_incoming.get(connection)
        return incoming is None or self._gate.admission.user_became(_place_of(incoming), user)

    # ---------------------------------------------------------- ConnectionHost

    def connect(self, connection: Connection, reached: Reached) -> Cancellable:
        """Connect to the node of this connection."""
        incoming = self._all_incoming[connection]
        words, whose = self._first_words(incoming), _place_of(incoming).origin
        return self._upstream.open(incoming.node_id, words, whose, reached)

    def open_stream(self, sock: AnySocket, side: Side, owner: StreamListener) -> Stream:
        """A new stream, subject to the byte caps of the listener and the virtual cluster."""
        settings = self._streams[side]
        return TlsStream(settings, sock, owner) if isinstance(sock, TlsSocket) else Stream(settings, sock, owner)

    def alter_quotas(
        self, alteration_request: QuotaAlteration, log: "FilteringBoundLogger"
    ) -> Awaitable[Sequence[Exception | None]]:
        """Have the source of the quotas write these alterations."""
        return self._book.alter_quotas(alteration_request, log)

    def note_throttle(self, connection: Connection, throttled: Throttled, now_ms: int) -> None:
        """Remember the throttle, for the page and the command that explain throttles."""
        self._last_throttles.note(self._all_incoming[connection].address, throttled, connection.facts, now_ms)

    def is_worth_a_line(self, connection: Connection, reason: CloseReason, detail: str) -> bool:
        """Whether to log the end: the first time for each address and reason, and each time for a bug of the proxy."""
        return reason is CloseReason.INTERNAL_ERROR or self._is_news(self._all_incoming[connection], reason, detail)

    def closed(self, connection: Connection, reason: CloseReason) -> None:
        """The connection has ended and no longer counts."""
        incoming = self._all_incoming.pop(connection)
        self.connections.discard(connection)
        self.tallies[incoming.node_id].connections_open -= 1
        connection.facts.report_nothing()
        self._gate.left(_place_of(incoming))
        self._note_closed(reason)

    def lingers(self, connection: Connection) -> None:
        """A socket of the connection still has bytes to write out, or waits for its peer to close."""
        self.lingering.add(connection)

    def gone(self, connection: Connection) -> None:
        """Both sockets of the connection are closed."""
        self.lingering.discard(connection)

    # ------------------------------------------------------------ after a wait

    def _carry_on(self, what: Next[IncomingConnection]) -> None:
        """Carry out the gate's decision about a connection that has waited or was held."""
        incoming = what.ticket
        self._on_the_way.discard(incoming)
        try:
            match what.step:
                case Step.GO_ON:
                    self._accept_more()
                    self._find_origin(incoming)
                case Step.ADMITTED:
                    assert what.place is not None
                    incoming.place = what.place
                    self._go_on_in_turn(incoming)
                case Step.CLOSE:
                    assert what.reason is not None
                    self._refuse(incoming, what.reason)
        except Exception:
            incoming.log.exception("internal_error")
            self._turn_away(incoming, CloseReason.INTERNAL_ERROR)

    def _accept_more(self) -> None:
        self._waits = False
        for port, sock in self._left_alone:
            self._poller.add(sock.fileno(), READABLE, partial(self._accept_all, port, sock))
        self._left_alone.clear()

    def _wait(self, stage: SlowStage, incoming: IncomingConnection, then: GoOn, turn_away: TurnAway) -> None:
        """Begin a stage that waits for the client. A bug of the proxy in `then` ends this connection and no other."""

        def go_on(incoming: IncomingConnection) -> None:
            self._on_the_way.discard(incoming)
            try:
                then(incoming)
            except Exception:
                incoming.log.exception("internal_error")
                self._turn_away(incoming, CloseReason.INTERNAL_ERROR)

        self._on_the_way.add(incoming)
        stage.begin(incoming, go_on, turn_away)

    def _new_relay_limits(self) -> RelayLimits:
        limits = self._limits
        return RelayLimits(
            limits.max_frame_bytes,
            limits.max_response_bytes,
            limits.max_in_flight,
            limits.write_buffer_bytes,
            withholds=self._throttle.fetch == "empty",
            delays=self._throttle.mode == "delay",
            authenticates=self._demands_sasl,
        )

    def _new_streams(self) -> dict[Side, StreamSettings]:
        high_water_bytes, now_ms = self._limits.write_buffer_bytes, self._clock.now_ms
        return {
            side: StreamSettings(self._poller, side, high_water_bytes, turnstile, now_ms)
            for side, turnstile in self._turnstiles.items()
        }

    def _new_facts(self) -> ListenerFacts:
        return ListenerFacts(
            self.virtual_cluster,
            self.ports,
            self._quota_manager,
            carried,
            self._quotas_in_force,
            self._book.entities_of,
            recent_topics=self._upstream.recent_topics,
            default_partitions=self._upstream.default_partitions,
            note_mutations=self._note_mutations,
            charge_validate_only=self._throttle.charge_validate_only,
            rights_of=self._rights_of,
            sasl=self._sasl,
        )

    def _quotas_in_force(self) -> Quotas:
        return self._book.quotas

    def _note_mutations(self, user: str, client_id: str, partitions: float, shadow_ms: Sequence[int]) -> None:
        if self._meter is not None:
            now_us = self._clock.now_us()
            use = self._meter.client(WHOLE_CLUSTER, user, client_id).of(MUTATION)
            use.add(partitions, now_us)
            for throttle_ms in shadow_ms:
                use.note_shadow(throttle_ms, now_us)

    def _rights_of(self, user: str) -> tuple[bool, bool]:
        """Whether a user may alter, and whether it may describe, the quotas of others."""
        quotas = self._quotas
        may_alter = self.name in quotas.admin_listeners or user in quotas.admin_users
        return may_alter, may_alter or user in quotas.describe_users

    def _note_identity(self, connection: Connection, log: "FilteringBoundLogger", identity: Identity) -> None:
        """A client has logged in: check the limit of its user's connections, and log what an operator should know."""
        if not self.user_became(connection, identity.user):
            connection.give_up(CloseReason.TOO_MANY_OF_USER, identity.user)
        if not identity.visible and self._gate.note_shared(self.key, identity.user):
            log.warning("user_not_visible", user=identity.user, mechanism=identity.mechanism)
        if not self._demands_sasl and not self._reported_of_sasl:
            self._reported_of_sasl = True
            self._log.warning("sasl_not_required", mechanism=identity.mechanism, setting="sasl.required")

    def _note_unnamed(self, incoming: IncomingConnection) -> None:
        """A client of a listener with host names asked for no server name. It is served as a client that bootstraps."""
        if self._gate.note_unnamed(self.key, incoming.address):
            incoming.log.warning("server_name_missing", served_as="bootstrap", setting="require_server_name")

    def _let_go_of_port(self, port: int) -> None:
        """A port will stand for another node: close the connections that use it for the node that is gone."""
        for connection, incoming in list(self._all_incoming.items()):
            if incoming.port == port:
                connection.give_up(CloseReason.NODE_GONE, f"port {port} is given to another node")

    def _note_closed(self, reason: CloseReason) -> None:
        self._closed[reason] = self._closed.get(reason, 0) + 1

    def _give_up(self, incoming: IncomingConnection, reason: CloseReason, detail: str = "") -> None:
        """Turn away a connection before stage 3. A load balancer's health check, which sends nothing, uses no rate."""
        self._gate.give_up(self.key, measured=reason is not CloseReason.CLIENT_SENT_NOTHING)
        self._turn_away(incoming, reason, detail)

    def _turn_away(self, incoming: IncomingConnection, reason: CloseReason, detail: str = "") -> None:
        if reason in _REFUSED_AT_ONCE:
            self._refuse(incoming, reason, detail=detail)
            return
        self._let_go(incoming)
        incoming.socket.close()
        self._level_of(incoming, reason, detail)("connection_closed", reason=reason.value, detail=printable(detail))
        self._note_closed(reason)

    def _level_of(self, incoming: IncomingConnection, reason: CloseReason, detail: str) -> Callable[..., None]:
        """The log method for an incoming connection that ends: DEBUG if its address repeats the same mistake."""
        if reason in ORDINARY and reason not in _HUNG_UP:
            return incoming.log.debug if reason is CloseReason.CLIENT_SENT_NOTHING else incoming.log.info
        again = reason is not CloseReason.INTERNAL_ERROR and not self._is_news(incoming, reason, detail)
        if again:
            return incoming.log.debug
        return incoming.log.info if reason in _HUNG_UP else incoming.log.warning

    def _is_news(self, incoming: IncomingConnection, reason: CloseReason, detail: str) -> bool:
        return self._gate.note_fault(
            self.key, incoming.address, printable(f"{reason.value}: {detail}" if detail else reason.value)
        )

    def _refuse(self, incoming: IncomingConnection, reason: CloseReason, reset: bool = False, detail: str = "") -> None:
        """Close a connection that exceeds a limit. The first refusal of an address is logged, others are counted."""
        self._let_go(incoming)
        if reset:
            incoming.socket.setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
        incoming.socket.close()
        self._gate.note_refused(self.key, incoming, reason, detail)
        self._note_closed(reason)

    def _let_go(self, incoming: IncomingConnection) -> None:
        self._on_the_way.discard(incoming)
        if incoming.place is not None:
            self._gate.left(incoming.place)
            incoming.place = None
