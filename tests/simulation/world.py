"""One simulated world: an operator, a node, and clients that share a quota manager, until nothing is left to happen."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from kafka_throttle.protocol.messages.api_versions import carried
from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts
from kafka_throttle.proxy.decisions.recent_topics import RecentTopics
from kafka_throttle.proxy.decisions.sasl import Identity
from kafka_throttle.proxy.decisions.steps import QuotaAlteration
from kafka_throttle.proxy.gate.admission import ConnectionSlot
from kafka_throttle.proxy.relay.actions import CloseReason, DecisionRequest, RelayLimits
from kafka_throttle.proxy.relay.charging import Bind
from kafka_throttle.proxy.relay.connection_timeouts import TimeOuts
from kafka_throttle.proxy.relay.relay import Relay
from kafka_throttle.proxy.relay.relay_counters import RelayCounters
from kafka_throttle.proxy.relay.seam import ConnectionRelay
from kafka_throttle.quotas.changes import tables_of
from kafka_throttle.quotas.client_quotas import ClientQuotaManager, ClientSensors
from tests.simulation import wire
from tests.simulation.acceptor import Acceptor, IncomingClient, Storm
from tests.simulation.actors import Client, Node
from tests.simulation.exchange import WindowUsage
from tests.simulation.judge import NODE_ID, USER, VIRTUAL_CLUSTER, Judge
from tests.simulation.model import Model
from tests.simulation.network import Events, Link
from tests.simulation.oracle import Of, Violation, WatchedSensors, watched_manager
from tests.simulation.pacing import WatchedRooms
from tests.simulation.plan import AMPLE_SENSORS, Change, ConnectionPlan, Fault, Raw, RequestPlan, WorldPlan
from tests.simulation.quota_calls import Book, quotas_of
from tests.simulation.shell import Shell, SimulatedNodes, Trace
from tests.simulation.topics import Cluster

MakeRelay = Callable[[ClientQuotaManager, RelayCounters, RelayLimits, Bind], ConnectionRelay]

BEGIN_MS = 1_000_000
MOST_EVENTS = 2_000_000


@dataclass(slots=True)
class Outcome:
    """What has happened in a world, or in many."""

    worlds: int = 0
    simulated_ms: int = 0
    events: int = 0
    connections: int = 0
    requests: int = 0
    responses: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    throttles: int = 0
    as_empty_fetch: int = 0
    refused: int = 0
    own_requests: int = 0
    altered: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    closes: Counter[str] = field(default_factory=Counter)
    logins: int = 0
    logins_failed: int = 0
    timed_out: int = 0
    gate: Counter[str] = field(default_factory=Counter)
    worst_held: int = 0
    worst_held_bytes: int = 0
    worst_kept_bytes: int = 0
    trace_hash: int = 0
    failure: str = ""

    def add(self, other: "Outcome") -> None:
        """Take up what has happened elsewhere."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults.update(other.faults)
        self.closes.update(other.closes)
        self.gate.update(other.gate)
        self.worst_held = max(self.worst_held, other.worst_held)
        self.worst_held_bytes = max(self.worst_held_bytes, other.worst_held_bytes)
        self.worst_kept_bytes = max(self.worst_kept_bytes, other.worst_kept_bytes)
        self.trace_hash = self.trace_hash * 31 + other.trace_hash & 2**64 - 1


_SUMS = (
    "worlds",
    "simulated_ms",
    "events",
    "connections",
    "requests",
    "responses",
    "request_bytes",
    "response_bytes",
    "throttles",
    "refused",
    "own_requests",
    "altered",
    "as_empty_fetch",
    "logins",
    "logins_failed",
    "timed_out",
)

_TIME_OUTS = {"first_byte_timeout", "request_timeout", "idle_timeout", "client_reads_nothing"}
_LEAST_STEP_MS = 1000
_LOOKS_AT_REST = 15
"""So often clients are checked though nothing happens, a tenth of the longest time-out apart. Then nothing comes
of it until something happens, such as the end of a mute, which may be 25 days away."""


def run_world(plan: WorldPlan, make_relay: MakeRelay = Relay, trace_lines: list[str] | None = None) -> Outcome:
    """Let a world happen; a violation, or anything that is raised, is the outcome's `failure`."""
    world = _World(plan, make_relay, Trace(trace_lines))
    try:
        world.run()
    except Exception as error:  # whatever is raised is what the world was made to find
        world.outcome.failure = _reported(error)
    world.finish()
    return world.outcome


def _reported(error: Exception) -> str:
    if isinstance(error, Violation):
        return str(error)
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f"{frame.tb_frame.f_code.co_filename.rpartition('/')[2]}:{frame.tb_lineno}" if frame else "?"
    return f"{type(error).__name__} at {place}: {error}"


class _Party:
    """One client with its relay, its node and the network between them."""

    def __init__(self, number: int, plan: ConnectionPlan, world: "_World") -> None:
        self.plan = plan
        self.broken = False
        self.node: Node | None = None
        self.began = False
        self.refused: CloseReason | None = None
        self._number = number
        self._world = world
        self._rng = Random(plan.seed)
        self._events = world.events
        self._node_link: Link | None = None

    def begin(self) -> None:
        """The client connects, and sends before it is admitted."""
        world, plan = self._world, self.plan
        self.began = True
        self._client_link = self._link()
        self.model: Model | None = None
        self.client = Client(plan, self._events, self._client_link, world.cluster)
        for fault in plan.faults:
            self._events.at(self._events.now_ms + fault.at_ms, partial(self._break, fault))
        self.client.begin()
        world.acceptor.connect(plan.listener, self._incoming())

    def _incoming(self) -> IncomingClient:
        return IncomingClient(
            self.plan.address,
            self.plan.address,
            self.plan.header_ms,
            self.plan.handshake_ms,
            self._open,
            self._turned_away,
        )

    def _turned_away(self, reason: CloseReason) -> None:
        self.refused = reason
        self._client_link.refuse()

    def _open(self, place: ConnectionSlot) -> None:
        """The client is let in: a relay has it."""
        world, plan = self._world, self.plan
        limits = RelayLimits(
            world.plan.max_frame_bytes,
            world.plan.max_response_bytes,
            world.plan.max_in_flight,
            world.plan.write_buffer_bytes,
            withholds=world.plan.withholds,
            delays=world.plan.delays,
            authenticates=world.plan.demands_sasl,
        )
        self.nodes = SimulatedNodes(world.around)
        facts = self._facts(place)
        self.relay = world.make_relay(world.quota_manager, world.counters, limits, partial(self._bind, facts))
        self.model = Model(
            world.plan,
            plan,
            self.relay,
            world.quota_manager,
            world.around,
            world.counts,
            world.judge,
            world.book,
            self._plan_at,
            world.exact_keys,
            self._events.now_ms,
        )
        self.shell = Shell(
            self._number,
            self.relay,
            self.model,
            facts,
            self._events,
            self._client_link,
            world.plan.write_buffer_bytes,
            plan.decision_ms,
            plan.early_decisions,
            world.plan.timers_early,
            self._connect,
            self._alter_quotas,
            partial(world.acceptor.gate.left, place),
            world.trace,
        )
        self.client.model = self.model

    def _facts(self, place: ConnectionSlot) -> ConnectionFacts:
        world = self._world
        listener = ListenerFacts(
            VIRTUAL_CLUSTER,
            self.nodes,
            world.quota_manager,
            carried,
            quotas=lambda: world.book.quotas,
            recent_topics=world.recent_topics,
            default_partitions=lambda: world.plan.default_partitions,
            charge_validate_only=world.plan.charge_validate_only,
        )
        user = "" if world.plan.demands_sasl else USER
        reported = partial(self._note_identity, place)
        return ConnectionFacts(listener, NODE_ID, user, self.plan.may_alter, self.plan.may_describe, reported)

    def _bind(self, facts: ConnectionFacts, raw_client_id: bytes, now_ms: int) -> ClientSensors:
        client_sensors = facts.bind(raw_client_id, now_ms)
        self.model.reported_sensors(raw_client_id, client_sensors)
        return client_sensors

    def _note_identity(self, place: ConnectionSlot, identity: Identity) -> None:
        """The client has logged in, and may be one too many of its user."""
        if not self._world.acceptor.gate.admission.change_user(place, identity.user):
            self.shell.give_up(CloseReason.TOO_MANY_OF_USER)

    def _plan_at(self, at: int) -> RequestPlan | None:
        return self.client.plans_by_place.get(at)

    def _alter_quotas(self, shell: Shell, ask: DecisionRequest, alteration_request: QuotaAlteration) -> None:
        """Have alterations written in their time, whether the client stays or not."""
        world, request = self._world, self.client.plans_by_place.get(self.model.next_at)
        if request is not None and request.flipped_bit >= 0:
            request = None
        world.book.alterations_begun += 1

        def done() -> None:
            results = world.book.write(alteration_request, request, world.quota_manager, self._events.now_ms)
            world.outcome.faults["alterations_fail"] += sum(result is not None for result in results)
            world.outcome.faults["alterations_without_a_client"] += shell.closing
            shell.alteration_done(ask, alteration_request.reply(results))

        alteration_ms = request.alteration_ms if request is not None else 0
        if alteration_ms:
            self._events.at(self._events.now_ms + alteration_ms, done)
        else:
            self._events.soon(done)

    def _link(self) -> Link:
        plan = self.plan
        return Link(self._events, self._rng, plan.capacity, plan.delay_ms, plan.cuts)

    def _connect(self) -> None:
        self._events.at(self._events.now_ms + self.plan.connect_ms, self._connected)

    def _connected(self) -> None:
        plan, outcome = self.plan, self._world.outcome
        if plan.connect in ("refused", "unknown"):
            outcome.faults[f"connect_{plan.connect}"] += 1
            reasons = {"refused": CloseReason.NODE_UNREACHABLE, "unknown": CloseReason.NODE_UNKNOWN}
            self.shell.give_up(reasons[plan.connect])
            return
        self._node_link = self._link()
        around, cluster = self._world.around, self._world.cluster
        self.node = Node(plan, self._events, self._node_link, self.model, self.client, around, cluster)
        self.shell.node_linked(self._node_link)
        if plan.connect == "babbles":
            outcome.faults["babbles"] += 1
            self.broken = True
            self.node.babble()
        self._events.at(
            self._events.now_ms + (plan.delay_ms if plan.connect == "babbles" else 0), self.shell.node_connected
        )

    def _break(self, fault: Fault) -> None:
        link = self._client_link if fault.kind.startswith("client") else self._node_link
        if link is None or self.refused is not None or (self.is_open and self.shell.closing):
            return
        self._world.outcome.faults[fault.kind] += 1
        until_ms = self._events.now_ms + fault.ms
        match fault.kind:
            case "client_reset" | "node_reset":
                self.broken = True
                link.reset()
            case "node_end":
                self.broken = True
                link.to_proxy.close()
            case "node_close":
                self.broken = True
                if self.node is not None:
                    self.node.endpoint.close()
            case "client_hold" | "node_hold":
                link.to_proxy.hold(until_ms)
                link.from_proxy.hold(until_ms)
            case "node_stall":
                if self.node is not None:
                    self.node.endpoint.stall(fault.ms)
            case _:
                self.client.endpoint.stall(fault.ms)

    # ------------------------------------------------------------ at the end

    def check_rest(self) -> None:
        """Nothing is left to happen: a connection that waits must wait for something that will not come."""
        if not self.is_open or self.shell.closing:
            return
        waits_for = self.model.waits_for
        if not waits_for:
            raise Violation("a relay rests with something to do")
        silent = self.node.silent if self.node is not None else ""
        if waits_for == "node" and silent != "never" and not (silent == "wrong" and self.model.empty_fetch_wrong):
            raise Violation("a request waits for a response that was sent")
        if waits_for == "client" and self.client.endpoint.unsent:
            raise Violation("a client cannot write though it is waited for")
        if waits_for == "idle" and self.client.due > 0 and not self.plan_is_odd:
            raise Violation("a client waits for a response though its relay is idle")

    @property
    def is_open(self) -> bool:
        """Whether the client has been let in."""
        return self.began and self.model is not None

    @property
    def plan_is_odd(self) -> bool:
        """Whether the client's stream holds more than whole, sound requests."""
        flipped = any(request.flipped_bit >= 0 for request in self.plan.requests())
        return flipped or any(isinstance(step, Raw) for step in self.plan.steps)

    def check_learned(self) -> None:
        """Of each address that the client has got, the proxy knows the real one."""
        for node_id, address in self.model.learned.items():
            if self.nodes.learned.get(node_id) != address:
                raise Violation(f"node {node_id} is at {self.nodes.learned.get(node_id)}, not at {address}")

    def check_all_delivered(self) -> None:
        """If nothing went wrong, everything has arrived."""
        if self.model.closed is None or self.model.closed.reason is not CloseReason.CLIENT_CLOSED:
            return
        client, node = self.client, self.node
        if self.model.closed.detail:
            return
        if self.broken or self.shell.aborted or self.plan_is_odd or client.left_unread or client.gone == "reset":
            return
        requests = len(client.plans_by_place)
        if node is None or node.silent in ("wrong", "closed"):
            return
        if self.model.requests != requests:
            raise Violation(f"{self.model.requests} of {requests} requests were taken though nothing was wrong")
        if self.model.for_node:
            raise Violation(f"{len(self.model.for_node)} requests have not reached the node though nothing was wrong")


class _World:
    def __init__(self, plan: WorldPlan, make_relay: MakeRelay, trace: Trace) -> None:
        self.plan = plan
        self.make_relay = make_relay
        self.trace = trace
        self.outcome = Outcome(worlds=1)
        self.events = Events(BEGIN_MS)
        sensors = WatchedSensors(plan.sensors, plan.max_throttle_ms, plan.max_debt_ms, Of.BYTES, deque())
        self.book = Book(quotas_of(plan.quotas, plan.shadows))
        tables = tables_of(self.book.quotas)
        self.quota_manager = watched_manager(sensors, tables.enforced, tables.shadow, plan.cost_us)
        self.quota_manager.fetch_rooms = WatchedRooms(sensors, lambda: self.events.now_ms)
        self.exact_keys = plan.sensors >= AMPLE_SENSORS
        self.judge = Judge(plan, self.quota_manager, self.exact_keys)
        self.recent_topics = RecentTopics()
        self.cluster = Cluster(plan.topics, plan.metadata_lag_ms, plan.default_partitions, lambda: self.events.now_ms)
        self.counters = RelayCounters()
        self.counts = WindowUsage()
        host = (b"proxy.example" + b"h" * 200)[: plan.advertised_host_bytes]
        self.around = wire.Surroundings(host, plan.portless, plan.max_response_bytes, plan.max_frame_bytes)
        self.acceptor = Acceptor(
            self.events,
            plan.gate,
            plan.gate_samples,
            plan.max_addresses,
            plan.timers_early,
            plan.demands_sasl,
            make_relay,
        )
        self.time_outs = TimeOuts(*plan.time_outs)
        self._swept_ms = BEGIN_MS
        self._looks_at_rest = -1
        self._happened = 0
        """Until the last look."""
        self.parties = [_Party(number, connection, self) for number, connection in enumerate(plan.connections)]

    def run(self) -> None:
        """Until nothing is left to happen, then until all connections have ended."""
        for party in self.parties:
            self.events.at(BEGIN_MS + party.plan.start_ms, party.begin)
        for change in self.plan.changes:
            self.events.at(BEGIN_MS + change.at_ms, partial(self._change, change))
        for storm in self.plan.storms:
            self.events.at(BEGIN_MS + storm.at_ms, Storm(storm, self.acceptor, self.events).begin)
        self._look_after_clients()
        self._until_rest()
        for party in self.parties:
            party.check_rest()
        self.acceptor.check_rest()
        self.acceptor.close()
        for party in self.parties:
            if party.is_open:
                party.shell.give_up(CloseReason.SHUTDOWN)
        self._until_rest()
        self.acceptor.judge.check_end()
        for party in self.parties:
            if not party.is_open:
                continue
            if not party.shell.closing:
                raise Violation("a relay is open after its end")
            party.check_all_delivered()
            party.check_learned()
            party.model.require_all_charged()
        self._check_counters()
        if len(self.quota_manager.fetch_rooms):
            raise Violation(f"room is kept for Fetches that are over, of {len(self.quota_manager.fetch_rooms)} sensors")
        if self.quota_manager.time_in_flight:
            raise Violation(f"room is reserved for what is no longer in flight: {self.quota_manager.time_in_flight}")
        if self.book.alterations_begun != self.book.alterations_done:
            raise Violation(f"{self.book.alterations_begun} alterations were begun, {self.book.alterations_done} done")

    def _until_rest(self) -> None:
        if not self.events.run(MOST_EVENTS):
            raise Violation(f"{MOST_EVENTS} events and no rest")

    def _change(self, change: Change) -> None:
        now_ms = self.events.now_ms
        self.outcome.faults[f"operator_{change.kind}"] += 1
        match change.kind:
            case "quotas":
                self.book.put(quotas_of(change.quotas, self.plan.shadows))
                tables = tables_of(self.book.quotas)
                self.quota_manager.replace(tables.enforced, now_ms, tables.shadow)
            case "caps":
                self.quota_manager.sensors.set_caps(change.max_throttle_ms, change.max_debt_ms)
            case "sweep":
                self.quota_manager.expire(now_ms)
            case "gate":
                self.acceptor.set(change.gate)
            case "time_outs":
                self.time_outs = TimeOuts(*change.time_outs)
                self._look_after_clients()
            case _:
                self._drain(now_ms + change.drain_ms, change.takes_no_more)

    def _look_after_clients(self) -> None:
        """From now on, if they are not already: as long as there are time-outs and something may come of it."""
        if self._looks_at_rest < 0 and self._longest_ms:
            self._looks_at_rest, self._swept_ms = 0, self.events.now_ms
            self.events.at(self.events.now_ms + _LEAST_STEP_MS, self._sweep)

    @property
    def _longest_ms(self) -> int:
        limits = self.time_outs
        return max(limits.first_byte_ms, limits.request_ms, limits.idle_ms, limits.unread_ms)

    def _sweep(self) -> None:
        """As often as the service does; while nothing happens for long, now and then."""
        now_ms = self.events.now_ms
        step_ms, self._swept_ms = now_ms - self._swept_ms, now_ms
        for party in self.parties:
            if party.is_open:
                party.shell.look_after(step_ms, self.time_outs)
        only_looks = self.events.happened == self._happened + 1
        self._happened = self.events.happened
        self._looks_at_rest = self._looks_at_rest + 1 if only_looks else 0
        self._sweep_again(now_ms)

    def _sweep_again(self, now_ms: int) -> None:
        next_ms, gap_ms = self.events.next_ms, max(self._longest_ms // 10, _LEAST_STEP_MS)
        at_rest = self._looks_at_rest > _LOOKS_AT_REST
        if not self._longest_ms or (at_rest and next_ms is None):
            self._looks_at_rest = -1
        elif next_ms is None:
            self.events.at(now_ms + gap_ms, self._sweep)
        else:
            until_next_ms = max(next_ms - now_ms, _LEAST_STEP_MS)
            self.events.at(now_ms + (until_next_ms if at_rest else min(until_next_ms, gap_ms)), self._sweep)

    def _drain(self, until_ms: int, takes_no_more: bool) -> None:
        for party in self.parties:
            if party.is_open and (party.relay.idle or self.events.now_ms >= until_ms):
                party.shell.give_up(CloseReason.SHUTDOWN)
            elif party.is_open and takes_no_more:
                party.shell.finish()
        if self.events.now_ms < until_ms:
            next_ms = min(self.events.now_ms + 20, until_ms)
            self.events.at(next_ms, lambda: self._drain(until_ms, takes_no_more))

    def _check_counters(self) -> None:
        counters, counts = self.counters, self.counts
        by_api = {key: requests for key, requests in enumerate(counters.requests_by_api) if requests}
        reported = (by_api, counters.request_bytes, counters.responses, counters.response_bytes)
        reported += (counters.authentications, counters.authentications_failed, counters.withheld_bytes)
        right = (counts.requests_by_api, counts.request_bytes, counts.responses, counts.response_bytes)
        right += (counts.logins, counts.logins_failed, counts.withheld_bytes)
        reported += (counters.throttles, counters.throttled_ms, counters.throttles_by_node, counters.mutations_refused)
        right += (counts.throttles, counts.throttled_ms, counts.throttles_by_node, counts.mutations_refused)
        if reported != right:
            raise Violation(f"the counters are {reported}, {right} is right")

    def finish(self) -> None:
        """Sum up."""
        outcome, counts = self.outcome, self.counts
        outcome.simulated_ms = self.events.now_ms - BEGIN_MS
        outcome.events = self.events.happened
        outcome.requests = sum(counts.requests_by_api.values())
        outcome.request_bytes = counts.request_bytes
        outcome.responses, outcome.response_bytes = counts.responses, counts.response_bytes
        outcome.throttles = sum(counts.throttles.values()) + counts.throttles_by_node
        outcome.as_empty_fetch = counts.as_empty_fetch
        outcome.refused, outcome.own_requests = self.judge.refused, self.judge.own_requests
        outcome.altered = self.book.altered
        outcome.trace_hash = self.trace.hash
        outcome.logins, outcome.logins_failed = counts.logins, counts.logins_failed
        outcome.gate, outcome.worst_held = Counter(self.acceptor.judge.counts), self.acceptor.judge.worst_held
        outcome.gate.update(self.acceptor.refused)
        for party in self.parties:
            if party.is_open and party.model is not None:
                outcome.connections += 1
                outcome.worst_held_bytes = max(outcome.worst_held_bytes, party.shell.worst_held_bytes)
                outcome.worst_kept_bytes = max(outcome.worst_kept_bytes, party.shell.worst_kept_bytes)
                if party.model.closed is not None:
                    reason = party.model.closed.reason.value
                    outcome.closes[reason] += 1
                    outcome.timed_out += reason in _TIME_OUTS
