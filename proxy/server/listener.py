"""One listener of a virtual cluster on the event loop: its ports, and the connections that came in through them."""

import asyncio
import itertools
import struct
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from socket import SO_LINGER, SOL_SOCKET, SocketType, socket
from typing import TYPE_CHECKING, Any

import structlog

from common.printable import shown
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
"""In place of the user before an authentication that is demanded has succeeded."""

_ACCEPTS_AT_ONCE = 64
_OPENED_AT_ONCE = 8
"""So many that are admitted go on in one turn of the event loop. That costs more than to accept and to admit them."""
_MOST_IN_TURN = 1024
"""While so many wait for their turn to go on, no more are accepted."""
_REST_S = 1.0
"""How long no more is accepted when descriptors or memory have run out."""

_RESET = struct.pack("ii", 1, 0)
"""Linger for 0 s: what the kernel has of the connection is dropped, and the peer told so."""

_REFUSED_AT_ONCE = frozenset(
    {
        CloseReason.PROXY_PEER_UNTRUSTED,
        CloseReason.PROXY_HEADER_MISSING,
        CloseReason.PROXY_HEADER_MALFORMED,
        CloseReason.TOO_MANY_PROXY_HEADERS,
        CloseReason.TOO_MANY_HANDSHAKES,
    }
)
"""What stages turn sockets away for as fast as they come: too fast for a line of the log each."""

_HUNG_UP = frozenset({CloseReason.CLIENT_CLOSED, CloseReason.CLIENT_LOST})


def _place_of(arrival: IncomingConnection) -> ConnectionSlot:
    """That of one that was admitted."""
    assert arrival.place is not None
    return arrival.place


_connection_ids = itertools.count(1)


class Listener:
    """Accepts clients of one virtual cluster and gives each a relay."""

    def __init__(  # noqa: PLR0915 what a listener holds
        self,
        virtual_cluster: str,
        config: ListenerConfig,
        upstream: Upstream,
        ledger: ClientQuotaManager,
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
        """Closed ones that still have a socket open."""
        self._origin = Origin(poller)
        self._origin_stage = origin_stage(self._origin)
        self.origin: SlowStage | None = None
        """Stage 2 of a socket's way in, for all that come from now on."""
        names = self.ports if isinstance(self.ports, ListenerNames) else None
        self._tls = TlsStage(poller, clock, names, upstream.find, self._note_unnamed)
        self._secure_stage = secure_stage(self._tls)
        self.secure: SlowStage | None = None
        """Stage 4."""
        self._gate = gate
        gate.add_listener(self.key, self._carry_on)
        self._on_the_way: set[IncomingConnection] = set()
        """Those that wait, or are held, or are in a stage that waits for the client."""
        self._at_once = 0
        """So many more may go on as soon as they are admitted."""
        self._pool: FairQueue[IncomingConnection] = FairQueue()
        """Admitted ones that come behind these: addresses take turns, so that a good one overtakes a storm."""
        self._arrivals: dict[Connection, IncomingConnection] = {}
        """How those came in that are open."""
        self._waits = False
        """One connection waits for the rate, or for a slot: no other is accepted."""
        self._left_alone: list[tuple[int, socket]] = []
        """Listening sockets where meanwhile somebody has come."""
        self.tallies: dict[int, RelayCounters] = {}
        self._upstream = upstream
        self._ledger = ledger
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
        """How many ended, by why."""
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
        """Bounds for connections that come from now on."""
        self._limits = limits
        self._relay_limits = self._new_relay_limits()
        self._streams = self._new_streams()
        self._origin_stage.timeout_ms = limits.proxy_header_timeout_ms
        self._origin_stage.most = limits.max_proxy_headers
        self._secure_stage.timeout_ms = limits.handshake_timeout_ms
        self._secure_stage.most = limits.max_handshakes

    def set_rules(self, quotas: QuotasConfig, throttle: ThrottleConfig, sasl: SaslConfig) -> None:
        """Who may do what with quotas, what counts, how clients are throttled and known, on connections from now on."""
        self._quotas = quotas
        self._throttle = throttle
        self._demands_sasl = sasl.required
        self._relay_limits = self._new_relay_limits()
        self._sasl = SaslRules({known.mechanism: known.user for known in sasl.principals}, sasl.claims())
        self._facts = self._new_facts()

    def set_origin(self, config: ListenerConfig) -> None:
        """Whose word about a client's address counts, and who must say which node it wants, for those that come from
        now on.
        """
        self._origin.trusted = config.trusted_networks
        self._origin.required = config.proxy_protocol == "required"
        self.origin = None if config.proxy_protocol == "off" else self._origin_stage
        self._tls.demands_name = config.require_server_name

    def set_certified(self, certified: TlsMaterial | None) -> None:
        """What TLS shows and wants, for those that come from now on; None: it is not spoken."""
        if certified is not None:
            self._tls.certify(certified)
        self.secure = None if certified is None else self._secure_stage

    @property
    def handshakes(self) -> int:
        """How many TLS handshakes are under way."""
        return self._secure_stage.under_way

    def set_caps(self, caps: CapsConfig) -> None:
        """What may be moved from now on, after the caps of the cluster have been set."""
        self.caps.set(caps)
        for turnstile in self._turnstiles.values():
            turnstile.take_up()

    def set_connection_limits(self, limits: ConnectionLimitsConfig) -> None:
        """How fast connections may come from now on, and how many."""
        self._gate.set_listener_limits(self.key, limits_of(limits))

    def serve(self, sockets: dict[int, socket]) -> None:
        """Accept on the bound sockets, by port."""
        for port, sock in sockets.items():
            self._sockets.append(sock)
            self._poller.add(sock.fileno(), READABLE, partial(self._accept_all, port, sock))

    def stop_accepting(self) -> None:
        """Close the listening sockets, and those on the way in; connections go on."""
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
        for arrival in self._pool.take_all():
            self._turn_away(arrival, CloseReason.SHUTDOWN)

    @property
    def open_sockets(self) -> int:
        """How many clients have a socket here, whether they are connected, on the way in, or on the way out."""
        return len(self.connections) + len(self.lingering) + len(self._on_the_way)

    def _accept_all(self, port: int, sock: socket, _events: int) -> None:
        """Take in who waits, but not all of a storm at once."""
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
        """Out of descriptors or memory: trying again at once would only burn the processor."""
        self._log.error("accept_failed", port=port, error=error.strerror)
        self._poller.remove(sock.fileno())
        self._resting.add(sock)
        asyncio.get_running_loop().call_later(_REST_S, self._accept_again, port, sock)

    def _accept_again(self, port: int, sock: socket) -> None:
        if sock in self._resting:
            self._resting.discard(sock)
            self._poller.add(sock.fileno(), READABLE, partial(self._accept_all, port, sock))

    def _accept(self, port: int, client: SocketType, peer: Sequence[Any]) -> None:
        """Take a socket through all stages; one that has to wait for the client goes on by itself."""
        node_id = self.ports.node_of(port)
        address = peer[0] if len(peer) == 2 else plain_ip(peer[0])  # of IPv4, the kernel's spelling is plain
        log = bound_later(partial(self._log_of, next(_connection_ids), address, peer[1], node_id))
        known = BOOTSTRAP_NODE_ID if node_id is None else node_id
        arrival = IncomingConnection(client, port, known, address, ANONYMOUS, log, peer[1])
        if not self._may_open():
            self._gate.note_full(self._limits.max_connections)
            self._refuse(arrival, CloseReason.TOO_MANY_CONNECTIONS)
        elif node_id is None:
            self._refuse(arrival, CloseReason.NODE_UNKNOWN, detail=f"no node has the spare port {port}")
        else:
            self._arrive(arrival)

    def _log_of(self, connection_id: int, host: str, port: int, node_id: int | None) -> "FilteringBoundLogger":
        client = str(HostPort(host, port))
        log: FilteringBoundLogger = self._log.bind(connection_id=connection_id, client=client, node_id=node_id)
        return log

    def _arrive(self, arrival: IncomingConnection) -> None:
        """Stage 1: the rates and slots of listener and instance, for which one connection waits at a time."""
        if self._gate.arrive(self.key, arrival):
            self._admit(arrival) if self.origin is None else self._find_origin(arrival)
        else:
            self._waits = True
            self._on_the_way.add(arrival)

    def _find_origin(self, arrival: IncomingConnection) -> None:
        """Stage 2, if there is one, says whose address counts."""
        if self.origin is None:
            self._admit(arrival)
        else:
            self._wait(self.origin, arrival, self._admit, self._give_up)

    def _admit(self, arrival: IncomingConnection) -> None:
        """Stage 3: whether its address may have it."""
        match self._gate.admit(self.key, arrival):
            case ConnectionSlot() as place:
                arrival.place = place
                self._go_on_in_turn(arrival)
            case Refused(reason, reset):
                self._refuse(arrival, reason, reset)
            case _:
                self._on_the_way.add(arrival)

    def _go_on_in_turn(self, arrival: IncomingConnection) -> None:
        """At once, or when it is the turn of its address."""
        if self._at_once:
            self._at_once -= 1
            self._go_on(arrival)
            return
        if not self._pool:
            asyncio.get_running_loop().call_soon(self._take_turns)
        assert arrival.place is not None
        self._on_the_way.add(arrival)
        self._pool.put(arrival.place.origin, arrival)

    def _take_turns(self) -> None:
        for _ in range(min(_OPENED_AT_ONCE, len(self._pool))):
            arrival = self._pool.take()
            self._on_the_way.discard(arrival)
            self._go_on(arrival)
        if self._pool:
            asyncio.get_running_loop().call_soon(self._take_turns)

    def _go_on(self, arrival: IncomingConnection) -> None:
        """A bug of ours behind this ends one connection and no other."""
        try:
            self._secure(arrival)
        except Exception:
            arrival.log.exception("internal_error")
            self._turn_away(arrival, CloseReason.INTERNAL_ERROR)

    def _secure(self, arrival: IncomingConnection) -> None:
        """Stage 4, if there is one, proves who it is."""
        if self.secure is None:
            self._open(arrival)
        else:
            self._wait(self.secure, arrival, self._open, self._turn_away)

    def _open(self, arrival: IncomingConnection) -> None:
        """Stage 5: a relay has it, if its user may have one more."""
        place, node_id = _place_of(arrival), arrival.node_id
        if not self._demands_sasl and not self._gate.admission.user_became(place, arrival.user):
            self._refuse(arrival, CloseReason.TOO_MANY_OF_USER)
            return
        counters = self.tallies.get(node_id)
        if counters is None:
            counters = self.tallies[node_id] = RelayCounters()
        user = NOBODY if self._demands_sasl else arrival.user
        facts = ConnectionFacts(self._facts, node_id, user, *self._rights_of(user))
        usage_of = None if self._meter is None else partial(self._meet, facts)
        relay = Relay(self._ledger, counters, self._relay_limits, facts.bind, usage_of)
        connection = Connection(relay, facts, self, self._clock, arrival.log)
        facts.note_identity = partial(self._note_identity, connection, arrival.log)
        connection.client_connected(arrival.tls or arrival.socket)
        counters.connections_opened += 1
        counters.connections_open += 1
        self.connections.add(connection)
        self._arrivals[connection] = arrival

    def _meet(self, facts: ConnectionFacts, raw_client_id: bytes) -> Client:
        """Whose use it is that a relay counts."""
        assert self._meter is not None
        client_id = measured_client_id(raw_client_id, self._ledger.table)
        return self._meter.hold(facts.node_id, facts.user, client_id)

    def _first_words(self, arrival: IncomingConnection) -> bytes:
        """What is sent to the node before all else: whose connection this is, where it wants to know."""
        if not self._upstream.config.send_proxy_protocol:
            return b""
        host, port, *_ = arrival.socket.getsockname()
        destination = arrival.destination or Endpoint(plain_ip(host), port)
        return proxy_header_v2(Endpoint(arrival.address, arrival.client_port), destination)

    def user_became(self, connection: Connection, user: str) -> bool:
        """Whether a connection may stay now that its user is known, or is another; then it counts for that user."""
        arrival = self._arrivals.get(connection)
        return arrival is None or self._gate.admission.user_became(_place_of(arrival), user)

    # ------------------------------------------------- the home of connections

    def connect(self, connection: Connection, reached: Reached) -> Cancellable:
        """Connect to the node that it is for."""
        arrival = self._arrivals[connection]
        words, whose = self._first_words(arrival), _place_of(arrival).origin
        return self._upstream.open(arrival.node_id, words, whose, reached)

    def open_stream(self, sock: AnySocket, side: Side, owner: StreamListener) -> Stream:
        """A stream within the caps of listener and virtual cluster."""
        settings = self._streams[side]
        return TlsStream(settings, sock, owner) if isinstance(sock, TlsSocket) else Stream(settings, sock, owner)

    def alter_quotas(
        self, alteration_request: QuotaAlteration, log: "FilteringBoundLogger"
    ) -> Awaitable[Sequence[Exception | None]]:
        """Have alterations written to where the quotas come from."""
        return self._book.alter_quotas(alteration_request, log)

    def note_throttle(self, connection: Connection, throttled: Throttled, now_ms: int) -> None:
        """Remember it for whoever asks why."""
        self._last_throttles.note(self._arrivals[connection].address, throttled, connection.facts, now_ms)

    def is_worth_a_line(self, connection: Connection, reason: CloseReason, detail: str) -> bool:
        """What may come again and again is told once of each address; but each bug of ours."""
        return reason is CloseReason.INTERNAL_ERROR or self._is_news(self._arrivals[connection], reason, detail)

    def closed(self, connection: Connection, reason: CloseReason) -> None:
        """It counts no longer."""
        arrival = self._arrivals.pop(connection)
        self.connections.discard(connection)
        self.tallies[arrival.node_id].connections_open -= 1
        connection.facts.tell_nobody()
        self._gate.left(_place_of(arrival))
        self._note_closed(reason)

    def lingers(self, connection: Connection) -> None:
        """A socket of it has something to write out, or waits for its peer to close."""
        self.lingering.add(connection)

    def gone(self, connection: Connection) -> None:
        """Nothing is left of it."""
        self.lingering.discard(connection)

    # ---------------------------------------------------------- who has waited

    def _carry_on(self, what: Next[IncomingConnection]) -> None:
        """Go on with one that has waited, or was held."""
        arrival = what.ticket
        self._on_the_way.discard(arrival)
        try:
            match what.step:
                case Step.GO_ON:
                    self._accept_more()
                    self._find_origin(arrival)
                case Step.ADMITTED:
                    assert what.place is not None
                    arrival.place = what.place
                    self._go_on_in_turn(arrival)
                case Step.CLOSE:
                    assert what.reason is not None
                    self._refuse(arrival, what.reason)
        except Exception:
            arrival.log.exception("internal_error")
            self._turn_away(arrival, CloseReason.INTERNAL_ERROR)

    def _accept_more(self) -> None:
        self._waits = False
        for port, sock in self._left_alone:
            self._poller.add(sock.fileno(), READABLE, partial(self._accept_all, port, sock))
        self._left_alone.clear()

    def _wait(self, stage: SlowStage, arrival: IncomingConnection, then: GoOn, turn_away: TurnAway) -> None:
        """Have a stage taken that waits for the client. A bug of ours behind it ends this connection and no other."""

        def go_on(arrival: IncomingConnection) -> None:
            self._on_the_way.discard(arrival)
            try:
                then(arrival)
            except Exception:
                arrival.log.exception("internal_error")
                self._turn_away(arrival, CloseReason.INTERNAL_ERROR)

        self._on_the_way.add(arrival)
        stage.begin(arrival, go_on, turn_away)

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
            self._ledger,
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
        """Whether a user may alter, and describe, the quotas of others."""
        quotas = self._quotas
        may_alter = self.name in quotas.admin_listeners or user in quotas.admin_users
        return may_alter, may_alter or user in quotas.describe_users

    def _note_identity(self, connection: Connection, log: "FilteringBoundLogger", identity: Identity) -> None:
        """Somebody has logged in, and may be one too many; tell what an operator should know of it."""
        if not self.user_became(connection, identity.user):
            connection.give_up(CloseReason.TOO_MANY_OF_USER, identity.user)
        if not identity.visible and self._gate.note_shared(self.key, identity.user):
            log.warning("user_not_visible", user=identity.user, mechanism=identity.mechanism)
        if not self._demands_sasl and not self._reported_of_sasl:
            self._reported_of_sasl = True
            self._log.warning("sasl_not_required", mechanism=identity.mechanism, setting="sasl.required")

    def _note_unnamed(self, arrival: IncomingConnection) -> None:
        """A client of a listener with names has asked for none: it is served as if it would bootstrap."""
        if self._gate.note_unnamed(self.key, arrival.address):
            arrival.log.warning("server_name_missing", served_as="bootstrap", setting="require_server_name")

    def _let_go_of_port(self, port: int) -> None:
        """A port is to stand for another node: nobody may go on with the one that is gone."""
        for connection, arrival in list(self._arrivals.items()):
            if arrival.port == port:
                connection.give_up(CloseReason.NODE_GONE, f"port {port} is given to another node")

    def _note_closed(self, reason: CloseReason) -> None:
        self._closed[reason] = self._closed.get(reason, 0) + 1

    def _give_up(self, arrival: IncomingConnection, reason: CloseReason, detail: str = "") -> None:
        """One is turned away before it was asked whether its address may have it.

        A load balancer that only looks whether somebody is here spends no rate.
        """
        self._gate.give_up(self.key, measured=reason is not CloseReason.CLIENT_SENT_NOTHING)
        self._turn_away(arrival, reason, detail)

    def _turn_away(self, arrival: IncomingConnection, reason: CloseReason, detail: str = "") -> None:
        if reason in _REFUSED_AT_ONCE:
            self._refuse(arrival, reason, detail=detail)
            return
        self._let_go(arrival)
        arrival.socket.close()
        self._level_of(arrival, reason, detail)("connection_closed", reason=reason.value, detail=shown(detail))
        self._note_closed(reason)

    def _level_of(self, arrival: IncomingConnection, reason: CloseReason, detail: str) -> Callable[..., None]:
        """How loud the end of one on its way in is told: the same mistake of the same address once, then at DEBUG."""
        if reason in ORDINARY and reason not in _HUNG_UP:
            return arrival.log.debug if reason is CloseReason.CLIENT_SENT_NOTHING else arrival.log.info
        again = reason is not CloseReason.INTERNAL_ERROR and not self._is_news(arrival, reason, detail)
        if again:
            return arrival.log.debug
        return arrival.log.info if reason in _HUNG_UP else arrival.log.warning

    def _is_news(self, arrival: IncomingConnection, reason: CloseReason, detail: str) -> bool:
        return self._gate.note_fault(
            self.key, arrival.address, shown(f"{reason.value}: {detail}" if detail else reason.value)
        )

    def _refuse(self, arrival: IncomingConnection, reason: CloseReason, reset: bool = False, detail: str = "") -> None:
        """Close one that is too many, or too fast: the log is told of the first, the others are counted."""
        self._let_go(arrival)
        if reset:
            arrival.socket.setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
        arrival.socket.close()
        self._gate.note_refused(self.key, arrival, reason, detail)
        self._note_closed(reason)

    def _let_go(self, arrival: IncomingConnection) -> None:
        self._on_the_way.discard(arrival)
        if arrival.place is not None:
            self._gate.left(arrival.place)
            arrival.place = None
