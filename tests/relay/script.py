"""Drives a relay by script: bytes and times in; what was sent, and whether each side is read, out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka_throttle.protocol.messages.api_versions import carried
from kafka_throttle.proxy.decisions.client_ids import measured_client_id
from kafka_throttle.proxy.decisions.decide import decide
from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts, NoPortForNode
from kafka_throttle.proxy.decisions.steps import SlowDecision
from kafka_throttle.proxy.relay.actions import (
    Action,
    Close,
    CloseReason,
    DecisionRequest,
    HangUp,
    OpenUpstream,
    Pause,
    RelayLimits,
    Resume,
    Send,
    Throttled,
    WakeAt,
)
from kafka_throttle.proxy.relay.relay_counters import RelayCounters
from kafka_throttle.proxy.relay.use import Client, Meter, WindowUsage
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.client_quotas import ClientQuotaManager, ClientSensors
from kafka_throttle.quotas.entities import Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.request_costs import RequestCosts
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from tests.support.whole_messages import finish

Quotas = Mapping[Entity, Mapping[QuotaType, float]]

NOW_MS = 1_000_000
NOW_US = 1000 * NOW_MS


def us(now_ms: float) -> int:
    """A time in ms as a relay wants it."""
    return round(1000 * now_ms)


class FixedNodes:
    """Advertises proxy.example with port 20000 + node id, except for the ids in `portless`."""

    def __init__(self, host: bytes = b"proxy.example", portless: Sequence[int] = ()) -> None:
        self.host = host
        self.portless = portless
        self.learned: dict[int, tuple[str, int]] = {}

    def learn(self, node_id: int, host: str, port: int) -> None:
        self.learned[node_id] = (host, port)

    def advertised(self, node_id: int) -> tuple[bytes, int]:
        if node_id in self.portless:
            raise NoPortForNode(f"node {node_id} has no port")
        return self.host, 20_000 + node_id % 1000


def quota_manager_with(
    produce: int | None = None, fetch: int | None = None, client_id: str = "etl", **caps: int
) -> ClientQuotaManager:
    """A quota manager with byte rates for one client-id."""
    return manager_of(table_with(produce, fetch, client_id), **caps)


def manager_of(
    quotas: Quotas | None = None, shadow: Quotas | None = None, costs: RequestCosts | None = None, **caps: int
) -> ClientQuotaManager:
    """A quota manager with these quotas, and these shadow quotas."""
    return ClientQuotaManager(Sensors(64, **caps), QuotaTable(quotas), QuotaTable(shadow), costs=costs)


def table_with(produce: int | None = None, fetch: int | None = None, client_id: str = "etl") -> QuotaTable:
    """A quota table with byte rates for one client-id."""
    rates = {QuotaType.PRODUCE: produce, QuotaType.FETCH: fetch}
    limits = {quota_type: float(rate) for quota_type, rate in rates.items() if rate is not None}
    return QuotaTable({Entity(client_id=client_id): limits} if limits else {})


class _Fed:
    """A relay; what it is fed with is counted by its script."""

    def __init__(self, relay: Any, script: "Script") -> None:
        self._relay = relay
        self._script = script

    def __getattr__(self, name: str) -> Any:
        return getattr(self._relay, name)

    def on_bytes(self, side: Side, data: bytes, now_us: int) -> list[Action]:
        if side is Side.CLIENT and self._script.closed is None:
            self._script.read_bytes += len(data)
        return self._relay.on_bytes(side, data, now_us)


class Script:
    """One relay with both its sides, for tests. Decisions come at once, except with `hold_decisions`.

    What is metered is checked after each step, or only when `check_usage` is called if there are very many.
    """

    def __init__(
        self,
        make: Callable,
        quota_manager: ClientQuotaManager | None = None,
        limits: RelayLimits | None = None,
        nodes: FixedNodes | None = None,
        checks_usage: bool = True,
    ) -> None:
        self.checks_usage = checks_usage
        self.quota_manager = quota_manager if quota_manager is not None else quota_manager_with()
        self.nodes = nodes or FixedNodes()
        self.counters = RelayCounters()
        self.meter = Meter("main", 10, 1000, RequestCosts())
        self.read_bytes = 0
        self.counted: list[WindowUsage] = []
        self.metered = [0, 0]
        self.relay = _Fed(
            make(self.quota_manager, self.counters, limits or RelayLimits(), self._bind, self._usage_of), self
        )
        self.facts = ConnectionFacts(ListenerFacts("main", self.nodes, self.quota_manager, carried), 1, "ANONYMOUS")
        self.sent: dict[Side, bytearray] = {Side.CLIENT: bytearray(), Side.NODE: bytearray()}
        self.reads: dict[Side, bool] = {Side.CLIENT: True, Side.NODE: True}
        self.opened = 0
        self.wake_at: int | None = None
        self.throttles: list[Throttled] = []
        self.closed: Close | None = None
        self.hung_up = 0
        self.asks: list[DecisionRequest] = []
        self.hold_decisions = False

    def connected(self) -> "Script":
        """Open the upstream connection as the first request would, and drop that request's traces."""
        self.do(self.relay.on_writable(Side.NODE, NOW_US))
        return self

    def _bind(self, raw_client_id: bytes, now_ms: int) -> ClientSensors:
        return self.facts.bind(raw_client_id, now_ms)

    def _usage_of(self, raw_client_id: bytes) -> Client:
        facts = self.facts
        return self.meter.hold(facts.node_id, facts.user, measured_client_id(raw_client_id, self.quota_manager.table))

    def usage(self) -> list[WindowUsage]:
        """What was metered so far: all windows are closed."""
        for window, use in self.meter.take_open():
            self.meter.settle(window, use, None)
        for counts in self.meter.closed:
            self.metered[0] += counts.in_bytes
            self.metered[1] += counts.out_bytes
        self.counted += self.meter.closed
        self.meter.closed.clear()
        return self.counted

    def check_usage(self) -> None:
        """Every byte that crossed the wire is metered once."""
        self.usage()
        unread_bytes = self.relay.unread_bytes
        assert self.metered == [self.read_bytes - unread_bytes, len(self.sent[Side.CLIENT])]

    def client(self, data: bytes, now_ms: float = NOW_MS) -> bytes:
        """Bytes from the client; what went to the node meanwhile."""
        return self._during(Side.NODE, lambda: self.relay.on_bytes(Side.CLIENT, data, us(now_ms)), now_ms)

    def node(self, data: bytes, now_ms: float = NOW_MS) -> bytes:
        """Bytes from the node; what went to the client meanwhile."""
        return self._during(Side.CLIENT, lambda: self.relay.on_bytes(Side.NODE, data, us(now_ms)), now_ms)

    def time(self, now_ms: float) -> bytes:
        """A wake-up; what went to the node."""
        return self._during(Side.NODE, lambda: self.relay.on_time(us(now_ms)), now_ms)

    def response_asks(self, now_ms: float = NOW_MS) -> None:
        """Give the decisions that were held."""
        held, self.asks = self.asks, []
        for ask in held:
            if self.closed is not None and not ask.settles:
                continue
            decision = decide(ask, self.facts, int(now_ms))
            outcome = finish(decision.steps) if isinstance(decision, SlowDecision) else decision
            self.do(self.relay.on_decision(ask.ticket, outcome, us(now_ms)), now_ms)

    def _during(self, side: Side, step: Callable[[], list[Action]], now_ms: float) -> bytes:
        before = len(self.sent[side])
        self.do(step(), now_ms)
        if self.checks_usage:
            self.check_usage()
        return bytes(self.sent[side][before:])

    def do(self, actions: list[Action], now_ms: float = NOW_MS) -> None:
        """Carry the actions out."""
        for action in actions:
            corrects = isinstance(action, HangUp) or (isinstance(action, DecisionRequest) and action.settles)
            assert self.closed is None or corrects, f"{action} after {self.closed}"
            match action:
                case Send(side, pieces):
                    assert pieces
                    self.sent[side] += b"".join(pieces)
                case DecisionRequest():
                    self.asks.append(action)
                case Pause(side):
                    assert self.reads[side], f"{side} is paused twice"
                    self.reads[side] = False
                case Resume(side):
                    assert not self.reads[side], f"{side} is resumed twice"
                    self.reads[side] = True
                case WakeAt(at_ms):
                    self.wake_at = at_ms
                case Throttled():
                    self.throttles.append(action)
                case OpenUpstream():
                    self.opened += 1
                case Close():
                    self.closed = action
                case HangUp():
                    self.hung_up += 1
        if not self.hold_decisions:
            self.response_asks(now_ms)

    @property
    def close_reason(self) -> CloseReason | None:
        return self.closed and self.closed.reason
