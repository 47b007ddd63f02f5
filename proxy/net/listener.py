"""One listener of a virtual cluster on the event loop: its ports, and the connections that came in through them."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from socket import socket
from typing import TYPE_CHECKING, Any

import structlog

from protocol.api_versions import carried
from protocol.proxy_header import Endpoint, proxy_header_v2
from proxy.acceptor.origin import Origin, origin_stage
from proxy.acceptor.stages import Arrival, GoOn, SlowStage
from proxy.clock import Clock
from proxy.config.settings import CapsConfig, LimitsConfig, ListenerConfig, QuotasConfig, SaslConfig, ThrottleConfig
from proxy.last_throttles import LastThrottles
from proxy.logs import shown
from proxy.net.caps import Caps
from proxy.net.connection import ORDINARY, Connection
from proxy.net.poller import READABLE, Poller
from proxy.net.stream import Owner, Stream
from proxy.net.upstream import Upstream
from proxy.quota_book import QuotaBook
from proxy.relay.actions import CloseReason, RelayLimits, Side
from proxy.relay.relay import Relay
from proxy.relay.tally import Tally
from proxy.verdicts.facts import ConnectionFacts
from proxy.verdicts.sasl import Identity, Login, SaslRules
from proxy.virtual_cluster import ListenerPorts
from quotas.byte_caps import Turnstile
from quotas.entities import plain_ip
from quotas.ledger import Ledger

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

ANONYMOUS = "ANONYMOUS"
"""The user of a listener without authentication, as Kafka names it."""

NOBODY = ""
"""In place of the user before an authentication that is demanded has succeeded."""

_ACCEPTS_AT_ONCE = 32
_REST_S = 1.0
"""How long no more is accepted when descriptors or memory have run out."""

_connection_ids = itertools.count(1)


class Listener:
    """Accepts clients of one virtual cluster and gives each a relay."""

    def __init__(
        self,
        virtual_cluster: str,
        config: ListenerConfig,
        upstream: Upstream,
        ledger: Ledger,
        book: QuotaBook,
        last_throttles: LastThrottles,
        poller: Poller,
        clock: Clock,
        may_open: Callable[[], bool],
        note_closed: Callable[[str, str, str], None],
        caps_of_cluster: Caps,
    ) -> None:
        self.virtual_cluster = virtual_cluster
        self.name = config.name
        self.ports = ListenerPorts(config, upstream.directory)
        self.connections: set[Connection] = set()
        self.lingering: set[Connection] = set()
        """Closed ones that still have a socket open."""
        self._origin = Origin(poller)
        self._origin_stage = origin_stage(self._origin)
        self.origin: SlowStage | None = None
        """Stage 2 of a socket's way in, for all that come from now on."""
        self.secure: SlowStage | None = None
        """Stage 4."""
        self._on_the_way: set[Arrival] = set()
        self.tallies: dict[int, Tally] = {}
        self._upstream = upstream
        self._ledger = ledger
        self._book = book
        self._last_throttles = last_throttles
        self._quotas = QuotasConfig()
        self._throttle = ThrottleConfig()
        self._demands_sasl = False
        self._sasl = SaslRules()
        self._told_of_sasl = False
        self._poller = poller
        self._clock = clock
        self._may_open = may_open
        self._note_closed = partial(note_closed, virtual_cluster, config.name)
        self.caps = Caps(clock)
        self._turnstiles = {
            Side.CLIENT: Turnstile((self.caps.ingress, caps_of_cluster.ingress)),
            Side.NODE: Turnstile((self.caps.egress, caps_of_cluster.egress)),
        }
        self._sockets: list[socket] = []
        self._resting: set[socket] = set()
        self._limits = LimitsConfig()
        self._write_buffer_bytes = 0
        self._log = structlog.get_logger().bind(virtual_cluster=virtual_cluster, listener=config.name)

    def set_limits(self, limits: LimitsConfig) -> None:
        """Bounds for connections that come from now on."""
        self._limits = limits
        self._write_buffer_bytes = limits.write_buffer_bytes
        self._origin_stage.timeout_ms = limits.proxy_header_timeout_ms
        self._origin_stage.most = limits.max_proxy_headers

    def set_rules(self, quotas: QuotasConfig, throttle: ThrottleConfig, sasl: SaslConfig) -> None:
        """Who may do what with quotas, what counts, how clients are throttled and known, on connections from now on."""
        self._quotas = quotas
        self._throttle = throttle
        self._demands_sasl = sasl.required
        self._sasl = SaslRules({known.mechanism: known.user for known in sasl.principals}, sasl.subject_claim)

    def set_origin(self, config: ListenerConfig) -> None:
        """Whose word about a client's address counts, for those that come from now on."""
        self._origin.trusted = config.trusted_networks
        self._origin.required = config.proxy_protocol == "required"
        self.origin = None if config.proxy_protocol == "off" else self._origin_stage

    def set_caps(self, caps: CapsConfig) -> None:
        """What may be moved from now on, after the caps of the cluster have been set."""
        self.caps.set(caps)
        for turnstile in self._turnstiles.values():
            turnstile.take_up()

    def serve(self, sockets: dict[int, socket]) -> None:
        """Accept on the bound sockets, by port."""
        for port, sock in sockets.items():
            self._sockets.append(sock)
            self._poller.add(sock.fileno(), READABLE, partial(self._accept_all, port, sock))

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections go on."""
        for sock in self._sockets:
            if sock not in self._resting:
                self._poller.remove(sock.fileno())
            sock.close()
        self._sockets.clear()
        self._resting.clear()
        for stage in (self._origin_stage, self.secure):
            if stage is not None:
                stage.stop()

    @property
    def open_sockets(self) -> int:
        """How many clients have a socket here, whether they are connected, on the way in, or on the way out."""
        return len(self.connections) + len(self.lingering) + len(self._on_the_way)

    def _accept_all(self, port: int, sock: socket, _events: int) -> None:
        """Take in who waits, but not all of a storm at once."""
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                client, peer = sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._rest(port, sock, error)
                return
            client.setblocking(False)
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

    def _accept(self, port: int, client: socket, peer: Sequence[Any]) -> None:
        """Take a socket through all stages; one that has to wait for the client goes on by itself."""
        node_id = self.ports.node_of(port)
        log = self._log.bind(connection_id=next(_connection_ids), client=f"{peer[0]}:{peer[1]}", node_id=node_id)
        if not self._may_open():
            self._close(client, log, CloseReason.TOO_MANY_CONNECTIONS)
        elif node_id is None:
            self._close(client, log, CloseReason.NODE_UNKNOWN, f"no node has the spare port {port}")
        else:
            self._arrive(Arrival(client, port, node_id, plain_ip(peer[0]), ANONYMOUS, log, peer[1]))

    def _arrive(self, arrival: Arrival) -> None:
        """Stage 1, for any socket: there is room for it. Stage 2, if there is one, says whose address counts."""
        if self.origin is None:
            self._admit(arrival)
        else:
            self._wait(self.origin, arrival, self._admit)

    def _admit(self, arrival: Arrival) -> None:
        """Stage 3: whether its address may have it. Stage 4, if there is one, proves who it is."""
        if self.secure is None:
            self._open(arrival)
        else:
            self._wait(self.secure, arrival, self._open)

    def _open(self, arrival: Arrival) -> None:
        """Stage 5: a relay has it."""
        node_id = arrival.node_id
        tally = self.tallies.setdefault(node_id, Tally())
        tally.connections_opened += 1
        tally.connections_open += 1
        facts = self._facts(node_id, NOBODY if self._demands_sasl else arrival.user)
        facts.login.note_identity = partial(self._note_identity, arrival)
        connection = Connection(
            Relay(self._ledger, tally, self._relay_limits()),
            facts,
            partial(self._upstream.connect, node_id, self._first_words(arrival)),
            partial(self._open_stream, self._write_buffer_bytes),
            self._book.run_errand,
            self._clock,
            arrival.log,
            partial(self._last_throttles.note, arrival.address),
            partial(self._let_linger, tally),
            self.lingering.discard,
        )
        self.connections.add(connection)
        connection.client_connected(arrival.socket)

    def _first_words(self, arrival: Arrival) -> bytes:
        """What is sent to the node before all else: whose connection this is, where it wants to know."""
        if not self._upstream.config.send_proxy_protocol:
            return b""
        host, port, *_ = arrival.socket.getsockname()
        destination = arrival.destination or Endpoint(plain_ip(host), port)
        return proxy_header_v2(Endpoint(arrival.address, arrival.client_port), destination)

    def _wait(self, stage: SlowStage, arrival: Arrival, then: GoOn) -> None:
        """Have a stage taken that waits for the client. A bug of ours behind it ends this connection and no other."""

        def go_on(arrival: Arrival) -> None:
            self._on_the_way.discard(arrival)
            try:
                then(arrival)
            except Exception:
                arrival.log.exception("internal_error")
                self._turn_away(arrival, CloseReason.INTERNAL_ERROR)

        self._on_the_way.add(arrival)
        stage.begin(arrival, go_on, self._turn_away)

    def _relay_limits(self) -> RelayLimits:
        limits = self._limits
        return RelayLimits(
            limits.max_frame_bytes,
            limits.max_answer_bytes,
            limits.max_in_flight,
            withholds=self._throttle.fetch == "empty",
            delays=self._throttle.mode == "delay",
            authenticates=self._demands_sasl,
        )

    def _facts(self, node_id: int, user: str) -> ConnectionFacts:
        may_alter, may_describe = self._rights_of(user)
        return ConnectionFacts(
            self.virtual_cluster,
            self.ports,
            self._ledger,
            node_id,
            user,
            carried,
            lambda: self._book.quotas,
            self._book.entities_of,
            may_alter=may_alter,
            may_describe=may_describe,
            recent_topics=self._upstream.recent_topics,
            default_partitions=self._upstream.default_partitions,
            charge_validate_only=self._throttle.charge_validate_only,
            rights_of=self._rights_of,
            login=Login(self._sasl),
        )

    def _rights_of(self, user: str) -> tuple[bool, bool]:
        """Whether a user may alter, and describe, the quotas of others."""
        quotas = self._quotas
        may_alter = self.name in quotas.admin_listeners or user in quotas.admin_users
        return may_alter, may_alter or user in quotas.describe_users

    def _note_identity(self, arrival: Arrival, identity: Identity) -> None:
        """Somebody has logged in; tell what an operator should know of it."""
        if not identity.visible:
            arrival.log.warning("user_not_visible", user=identity.user, mechanism=identity.mechanism)
        if not self._demands_sasl and not self._told_of_sasl:
            self._told_of_sasl = True
            self._log.warning("sasl_not_required", mechanism=identity.mechanism, setting="sasl.required")

    def _open_stream(self, write_buffer_bytes: int, sock: socket, side: Side, owner: Owner) -> Stream:
        turnstile, now_ms = self._turnstiles[side], self._clock.now_ms
        return Stream(self._poller, sock, side, owner, write_buffer_bytes, turnstile, now_ms)

    def _let_linger(self, tally: Tally, connection: Connection, reason: CloseReason) -> None:
        self.connections.discard(connection)
        self.lingering.add(connection)
        tally.connections_open -= 1
        self._note_closed(reason.value)

    def _turn_away(self, arrival: Arrival, reason: CloseReason, detail: str = "") -> None:
        self._on_the_way.discard(arrival)
        self._close(arrival.socket, arrival.log, reason, detail)

    def _close(self, client: socket, log: "FilteringBoundLogger", reason: CloseReason, detail: str = "") -> None:
        client.close()
        tell = log.info if reason in ORDINARY else log.warning
        tell("connection_closed", reason=reason.value, detail=shown(detail))
        self._note_closed(reason.value)
