"""What a proxy must make of requests about topics, found out beside it: refusals, costs, and what is reported.

A topic costs what a controller would charge for it; a refusal is for strict versions; what a node did not do is given
back. Every look at a token bucket is accounted for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import pack

from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import QuotaType
from kafka_throttle.quotas.limits import UNLIMITED
from tests.simulation import topics, wire
from tests.simulation.oracle import Spent, Violation, WatchedBuckets
from tests.simulation.plan import WorldPlan
from tests.simulation.topics import Call, Item, Result

VIRTUAL_CLUSTER, NODE_ID, USER = "main", 1, "ANONYMOUS"
MUTATION = QuotaType.CONTROLLER_MUTATION

REMEMBERED_MS = 10_000
"""For so long a proxy takes what it has seen done to a topic for what is so."""

Key = tuple[bytes | None, bytes]


@dataclass(slots=True)
class Passed:
    """A topic that went to the node: what it was charged, also to the shadow quota, and its cost once it is done."""

    spent: float
    shadow: float
    due: int
    shadow_due: int


@dataclass(slots=True)
class Settlement:
    """What the response to a request needs: by number, the topics that passed, and the bytes for those refused."""

    call: Call
    passed: dict[int, Passed]
    refusals: dict[int, bytes]
    bucket: int | None
    shadow_bucket: int | None
    own_responses_ms: int


@dataclass(slots=True)
class Decided:
    """What is to happen to a request, found at `at_ms`.

    One of: `close` for this reason, `send_own_requests` first, `response` by the proxy, or send `frame` to the node.
    """

    at_ms: int
    frame: bytes = b""
    response: bytes | None = None
    send_own_requests: list[bytes] = field(default_factory=list)
    close: str = ""
    throttle_ms: int = 0
    refused: int = 0
    spent: float = 0
    settlement: Settlement | None = None


class Judge:
    """One for all connections of a world, as the token buckets are."""

    def __init__(self, plan: WorldPlan, quota_manager: ClientQuotaManager, exact_keys: bool) -> None:
        self.refused = 0
        """Topics refused in all."""
        self.own_requests = 0
        """How often the proxy had to send own requests first."""
        self._plan = plan
        self._quota_manager = quota_manager
        self._exact = exact_keys
        self._recent: dict[Key, tuple[int, int]] = {}
        assert isinstance(quota_manager.buckets, WatchedBuckets)
        assert isinstance(quota_manager.shadow_buckets, WatchedBuckets)
        self._buckets = quota_manager.buckets
        self._shadows = quota_manager.shadow_buckets

    # ------------------------------------------------------------- which clients are decided about

    def is_limited(self, user: str, client_id: str) -> bool:
        """Whether a quota in force can hold this client back."""
        table = self._quota_manager.table
        return table.is_on(MUTATION) and table.tags_and_limit(MUTATION, user, client_id).limit < UNLIMITED

    def is_asked(self, user: str, client_id: str) -> bool | None:
        """Whether requests of this client are judged at all; None: it depends on what a full table has room for."""
        if self.is_limited(user, client_id):
            return True
        shadow = self._quota_manager.shadow
        if not shadow.is_on(MUTATION) or shadow.tags_and_limit(MUTATION, user, client_id).entity is None:
            return False
        return True if self._exact else None

    def looks(self) -> None:
        """Some looks at the buckets of clients without a quota, which have no effect."""
        spent = self._buckets.spent
        while spent and spent[0].value == 0 and self._buckets.limit(spent[0].handle) == UNLIMITED:
            spent.popleft()

    def require_all_accounted(self) -> None:
        """Nothing was spent or given back without a request."""
        if self._buckets.spent or self._shadows.spent:
            raise Violation(f"spent without a reason: {list(self._buckets.spent)}, {list(self._shadows.spent)}")

    # ----------------------------------------------------------------------- requests

    def judge(
        self,
        frame: bytes,
        head: wire.Head,
        user: str,
        client_id: str,
        reported: wire.Reported | None,
        reported_ms: int,
        now_ms: int,
    ) -> Decided:
        """What is to happen to a request; `reported` is what own requests for it have found, None if none were sent."""
        try:
            call = topics.read_call(frame, head.api_key, head.version, head.body_at)
        except topics.Unreadable:
            return Decided(now_ms, close="request_malformed")
        if call.validate_only and not self._plan.charge_validate_only:
            return Decided(now_ms, frame)
        own_requests = topics.own_requests(call)
        if own_requests and reported is None:
            self.own_requests += 1
            return Decided(now_ms, send_own_requests=own_requests)
        costs = _Costs(call, self._found(reported or ()), self._recently(now_ms), self._plan.default_partitions)
        client_sensors = self._quota_manager.bind(VIRTUAL_CLUSTER, NODE_ID, user, client_id, now_ms)
        bucket, shadow_bucket = client_sensors.mutation, client_sensors.shadow_mutation
        spent, refused, throttle_ms = self._spend(call, costs, bucket)
        in_shadow, shadow_due = self._spend_in_shadow(call, costs, refused, shadow_bucket)
        self.refused += len(refused)
        names = {topic_id: name for name, topic_id, _ in reported or () if topic_id != topics.NO_ID}
        refusals = {
            i: topics.refusal(call, item, names.get(item.topic_id) if item.name is None else item.name)
            for i, item in enumerate(call.items)
            if i in refused
        }
        if refused and len(refused) == len(call.items):
            results = wire.count(len(refusals), True) + b"".join(refusals.values())
            response = wire.framed(pack(">i", head.correlation_id) + b"\0" + bytes(4) + results + b"\0")
            return Decided(now_ms, response=response, throttle_ms=throttle_ms, refused=len(refused))
        passed = {
            i: Passed(spent[i], in_shadow[i], costs.due[i], shadow_due[i])
            for i in range(len(call.items))
            if i not in refused
        }
        found = Decided(now_ms, call.frame_without(frame, refused), throttle_ms=throttle_ms, refused=len(refused))
        found.spent = sum(one.spent for one in passed.values())
        if refused or any(one.due for one in passed.values()):
            found.settlement = Settlement(call, passed, refusals, bucket, shadow_bucket, reported_ms)
        return found

    def _spend(self, call: Call, costs: "_Costs", bucket: int | None) -> tuple[list[float], set[int], int]:
        spent: list[float] = list(costs.now)
        refused: set[int] = set()
        throttle_ms = 0
        how = "spent strictly" if call.strict else "spent permissively"
        for i, cost in enumerate(costs.now):
            if costs.same_as.get(i) in refused:
                refused.add(i)
            elif cost and bucket is not None:
                look = _looked(self._buckets, how, bucket, cost)
                spent[i] = look.value
                if look.reported_ms is not None:
                    throttle_ms = look.reported_ms
                    if call.strict:
                        refused.add(i)
        return spent, refused, throttle_ms

    def _spend_in_shadow(
        self, call: Call, costs: "_Costs", refused: set[int], bucket: int | None
    ) -> tuple[list[float], list[int]]:
        charged: list[float] = [0] * len(costs.now)
        due = [0] * len(costs.now)
        how = "spent strictly" if call.strict else "spent permissively"
        for i, cost in enumerate(costs.now):
            if cost and i not in refused and bucket is not None:
                look = _looked(self._shadows, how, bucket, cost)
                if look.reported_ms is None or not call.strict:
                    charged[i], due[i] = look.value, cost
        return charged, due

    def unspend(self, settlement: Settlement) -> None:
        """A request that was charged never went to the node: all is given back."""
        for buckets, bucket, spent in (
            (self._buckets, settlement.bucket, sum(one.spent for one in settlement.passed.values())),
            (self._shadows, settlement.shadow_bucket, sum(one.shadow for one in settlement.passed.values())),
        ):
            if bucket is not None and spent and buckets.is_open(bucket):
                _looked(buckets, "given back", bucket, spent)

    # ------------------------------------------------------------------------ responses

    def settle(self, settlement: Settlement, results: Sequence[Result], now_ms: int) -> None:
        """A response has come: what was not done is given back."""
        call = settlement.call
        items = [call.items[i] for i in settlement.passed]
        for item, one, result in zip(items, settlement.passed.values(), topics.matched(items, results), strict=True):
            if result is None:
                continue
            recent = self._recently(now_ms)
            if result.error == topics.OK and not call.validate_only:
                left = {topics.DELETE: 0, topics.GROW: item.partitions}.get(call.api_key, -1)
                if left < 0:
                    left = result.partitions if result.partitions >= 0 else one.due
                self._note(item.name or result.name, result.topic_id, left, now_ms)
            self._correct(self._buckets, settlement.bucket, one.spent, one.due, result)
            self._correct(self._shadows, settlement.shadow_bucket, one.shadow, one.shadow_due, result)
            self._check_conservation(call, item, one, result, settlement.own_responses_ms, item.key in recent)

    def _correct(self, buckets: WatchedBuckets, bucket: int | None, spent: float, due: int, result: Result) -> None:
        if bucket is None or result.error == topics.TIMED_OUT or not buckets.is_open(bucket):
            return
        cost = _cost_in_the_end(result, due)
        if cost < spent:
            _looked(buckets, "given back", bucket, spent - cost)
        elif cost > spent:
            _looked(buckets, "spent permissively", bucket, cost - spent)

    def _check_conservation(
        self, call: Call, item: Item, one: Passed, result: Result, own_responses_ms: int, recent: bool
    ) -> None:
        """What a topic costs in the end is what the node has done, unless that could not be known."""
        if result.error == topics.TIMED_OUT or call.validate_only:
            return
        known = call.api_key == topics.CREATE or (result.changed_ms < own_responses_ms - self._plan.metadata_lag_ms)
        cost = _cost_in_the_end(result, one.due)
        if known and not recent and cost != result.did:
            raise Violation(f"{item} costs {cost} partitions in the end, the node has done {result.did}")

    # ------------------------------------------------------------------ what is known

    def _note(self, name: bytes | None, topic_id: bytes, partitions: int, now_ms: int) -> None:
        if name is not None:
            self._recent[name, topics.NO_ID] = partitions, now_ms
        if topic_id != topics.NO_ID:
            self._recent[None, topic_id] = partitions, now_ms

    def _recently(self, now_ms: int) -> dict[Key, int]:
        return {key: left for key, (left, at_ms) in self._recent.items() if now_ms - at_ms < REMEMBERED_MS}

    def _found(self, reported: wire.Reported) -> dict[Key, int]:
        found: dict[Key, int] = {}
        for name, topic_id, partitions in reported:
            found[name, topics.NO_ID] = found[None, topic_id] = partitions
        return found


def _cost_in_the_end(result: Result, due: int) -> int:
    if result.error != topics.OK:
        return 0
    return result.partitions if result.partitions >= 0 and due else due


def _looked(buckets: WatchedBuckets, how: str, handle: int, value: float) -> Spent:
    """One look at a bucket is accounted for."""
    if not buckets.spent:
        raise Violation(f"{value} tokens are not {how}")
    spent = buckets.spent.popleft()
    asked = spent.value if spent.asked is None else spent.asked
    if (spent.how, asked) != (how, value) or handle != spent.handle:
        raise Violation(f"{spent}, {value} {how} at {handle} is right")
    return spent


class _Costs:
    """What each topic of a request costs, before it is done and once it is; see KIP-599 and the controllers."""

    def __init__(self, call: Call, found: dict[Key, int], recent: dict[Key, int], default_partitions: int) -> None:
        self.now = [0] * len(call.items)
        self.due = [0] * len(call.items)
        self.same_as: dict[int, int] = {}
        names = [item.name for item in call.items]
        first: dict[Key, int] = {}
        for i, item in enumerate(call.items):
            present = found.get(item.key, 0)
            if call.api_key == topics.DELETE:
                if topics.has_one_key(item):
                    self.same_as[i] = first.setdefault(item.key, i)
                    if self.same_as[i] == i:
                        self.now[i] = self.due[i] = max(present, recent.get(item.key, 0))
            elif names.count(item.name) > 1:
                continue
            elif call.api_key == topics.GROW:
                present = max(present, recent.get(item.key, 0))
                added = item.partitions - present
                if present and added > 0 and len(item.assigned or ()) in (0, added):
                    self.now[i] = self.due[i] = added
            elif topics.has_one_key(item):
                self.due[i] = _new(item, default_partitions)
                self.now[i] = 0 if recent.get(item.key, present) else self.due[i]


def _new(item: Item, default_partitions: int) -> int:
    if item.assigned:
        indexes = set(item.assigned)
        sound = item.partitions == -1 and item.replication == -1 and len(indexes) == max(indexes) + 1
        return len(indexes) if sound and min(indexes) == 0 else 0
    if item.replication == 0 or item.replication < -1:
        return 0
    return default_partitions if item.partitions == -1 else max(item.partitions, 0)
