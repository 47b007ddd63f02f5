"""Controller mutations: which topics of a request pass, which are refused, and what that costs the client (KIP-599).

A topic costs the partitions that a controller would charge for it. It costs nothing if a controller is certain to
refuse it before it looks at the quota. In strict versions a topic is refused if the bucket is overdrawn already. In
permissive ones every topic passes, and an overdraft mutes the client.

A request may name tens of thousands of topics, so everything is done in steps.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from protocol.api_key import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from protocol.errors import ProtocolError
from protocol.messages.topic_mutations import (
    NO_TOPIC_ID,
    MutationReader,
    MutationRequest,
    MutationResponseReader,
    TopicItem,
    TopicResult,
    refusal,
    refusals_response,
)
from protocol.messages.topic_partitions import (
    each_topic_partitions,
    partitions_by_id_request,
    partitions_by_name_request,
)
from proxy.decisions.facts import ConnectionFacts
from proxy.decisions.recent_topics import TopicKey
from proxy.decisions.steps import ITEMS_PER_STEP, Steps, collected
from proxy.relay.actions import OWN_REQUEST_ID, Close, CloseReason, Decision, DecisionRequest
from quotas.client_quotas import ClientQuotaManager, ClientSensors
from quotas.sensors.rows import StaleSensor
from quotas.sensors.token_buckets import TokenBuckets

_NO_ERROR = 0
_REQUEST_TIMED_OUT = 7
"""The node has not waited for the end: the topic may still be created or deleted."""

_PARTITIONS_AS_A_TOPIC = 50
"""So many partitions in a response take about as long to read as one topic without partitions."""

_LONGEST_NAME_BYTES = 249
_NAME_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(frozen=True, slots=True)
class _Charge:
    """What one topic was charged to the quota and to its shadow quota, and what it costs them if it succeeds."""

    spent: float
    shadow: float
    due: int
    shadow_due: int


@dataclass(frozen=True, slots=True)
class _Note:
    """What the response will need: the charges of topics that went to the node, the refusals of the others."""

    items: tuple[TopicItem, ...]
    charges: dict[int, _Charge]
    refusals: dict[int, bytes]
    bucket: int | None
    shadow_bucket: int | None
    validate_only: bool
    client_id: str


class _Costs:
    """What each topic of a request costs now, and what it costs if it succeeds although that seems impossible.

    `same_as` has the number of the first item that names the same topic, if one deletion may be done for both.
    """

    def __init__(self, count: int) -> None:
        self.now = [0] * count
        self.due = [0] * count
        self.same_as: dict[int, int] = {}


def judge(ask: DecisionRequest, facts: ConnectionFacts, now_ms: int) -> Steps[Decision]:
    """The decision about a request. Raises ProtocolError if the request is not understood."""
    reader = MutationReader(ask.frame, ask.api_key, ask.api_version)
    items = yield from collected(reader.items())
    request = reader.request(items)
    if request.validate_only and not facts.listener.charge_validate_only:
        return Decision()
    wanted = yield from _wanted(items)
    own_requests = _own_requests(wanted)
    if own_requests and not ask.own_responses:
        return Decision(own_requests=own_requests)
    known = _Known(facts, now_ms)
    try:
        yield from known.learn(own_requests, ask.own_responses)
    except ProtocolError as error:
        return Decision(close=Close(CloseReason.ANSWER_MALFORMED, f"Metadata: {error}"))
    costs = yield from _COSTS[ask.api_key](items, known)
    spending = _Spending(request, costs)
    client_sensors = facts.bind(ask.client_id, now_ms)
    for start in range(0, len(items), ITEMS_PER_STEP):
        if start:
            yield
            client_sensors = facts.bind(ask.client_id, now_ms)  # its quota may have changed by now
        spending.spend(start, facts.listener.quota_manager, client_sensors, now_ms)
    if spending.shadow_throttles_ms and facts.listener.note_mutations is not None:
        facts.listener.note_mutations(facts.user, client_sensors.client_id, 0.0, spending.shadow_throttles_ms)
    return (yield from _decision(ask, request, spending, known, client_sensors))


class _Spending:
    """Charges the topics of a request one after the other, and notes which of them are refused for it.

    `throttle_time_ms` is that of the last topic that exceeded the quota. A shadow quota refuses nothing:
    `shadow_throttles_ms` has the times for which it would have throttled. Until a topic is known to be done, it is
    charged no more than `TokenBuckets.unconfirmed` allows.
    """

    def __init__(self, request: MutationRequest, costs: _Costs) -> None:
        self._strict, self._costs = request.strict, costs
        self.refused: set[int] = set()
        self.throttle_time_ms = 0
        self.shadow_throttles_ms: list[int] = []
        self.charges: dict[int, _Charge] = {}

    def spend(self, start: int, quota_manager: ClientQuotaManager, client_sensors: ClientSensors, now_ms: int) -> None:
        """Charge the topics of one step, which begins with number `start`."""
        costs, refused = self._costs, self.refused
        for i in range(start, min(start + ITEMS_PER_STEP, len(costs.now))):
            cost, spent, reported_ms = costs.now[i], 0.0, None
            if costs.same_as.get(i) in refused:
                refused.add(i)
            elif cost and client_sensors.mutation is not None:
                spent, reported_ms = self._spend(quota_manager.buckets, client_sensors.mutation, cost, now_ms)
            if reported_ms is not None:
                self.throttle_time_ms = reported_ms
                if self._strict:
                    refused.add(i)
            if i not in refused:
                shadow, shadow_due = self._spend_in_shadow(quota_manager, client_sensors.shadow_mutation, cost, now_ms)
                self.charges[i] = _Charge(spent, shadow, costs.due[i], shadow_due)

    def _spend(self, buckets: TokenBuckets, bucket: int, cost: int, now_ms: int) -> tuple[float, int | None]:
        value = buckets.unconfirmed(bucket, cost, now_ms)
        spend = buckets.spend_strictly if self._strict else buckets.spend_permissively
        return value, spend(bucket, value, now_ms)

    def _spend_in_shadow(
        self, quota_manager: ClientQuotaManager, bucket: int | None, cost: int, now_ms: int
    ) -> tuple[float, int]:
        """What the shadow quota is charged for a topic that passes, and what the topic costs it if it succeeds."""
        if bucket is None or not cost:
            return 0, 0
        spent, reported_ms = self._spend(quota_manager.shadow_buckets, bucket, cost, now_ms)
        if reported_ms:
            self.shadow_throttles_ms.append(reported_ms)
        return (spent, cost) if reported_ms is None or not self._strict else (0, 0)


def _decision(
    ask: DecisionRequest, request: MutationRequest, spending: _Spending, known: "_Known", client_sensors: ClientSensors
) -> Steps[Decision]:
    """The decision about a request whose topics are all charged."""
    refused, throttle_time_ms = spending.refused, spending.throttle_time_ms
    refusals: dict[int, bytes] = {}
    for number, i in enumerate(sorted(refused), 1):
        item = request.items[i]
        refusals[i] = refusal(request, item, known.name(item))
        if not number % ITEMS_PER_STEP:
            yield
    if refused and len(refused) == len(request.items):
        response = refusals_response(int.from_bytes(ask.frame[8:12], "big", signed=True), refusals.values())
        return Decision(response=response, throttle_time_ms=throttle_time_ms, refused=len(refused))
    matters = refused or any(charge.due for charge in spending.charges.values())
    note = _Note(
        request.items,
        spending.charges,
        refusals,
        client_sensors.mutation,
        client_sensors.shadow_mutation,
        request.validate_only,
        client_sensors.client_id,
    )
    return Decision(
        splices=request.without(refused),
        note=note if matters else None,
        throttle_time_ms=throttle_time_ms,
        refused=len(refused),
    )


# ------------------------------------------------------------------------------ the response


def settle(ask: DecisionRequest, facts: ConnectionFacts, now_ms: int) -> Steps[Decision]:
    """The decision about a response: put the refusals in, and give back what was charged for failures.

    Without a frame the request was never sent to the node, and everything is given back. Raises ProtocolError.
    """
    note, quota_manager = ask.note, facts.listener.quota_manager
    assert isinstance(note, _Note)
    if not ask.frame:
        _give_all_back(note, quota_manager, now_ms)
        return Decision()
    reader = MutationResponseReader(ask.frame, ask.api_key, ask.api_version)
    results = yield from collected(reader.results())
    response = reader.response(results)
    items = [note.items[i] for i in note.charges]
    matched = yield from response.matching(items)
    used = 0.0
    for number, (item, charge, result) in enumerate(zip(items, note.charges.values(), matched, strict=True), 1):
        used += _cost_in_the_end(charge.spent, charge.due, result)
        if result is not None:
            if result.error_code == _NO_ERROR and not note.validate_only:
                left = _left(ask, item, charge, result)
                facts.listener.recent_topics.note(item.name or result.name, result.topic_id, left, now_ms)
            with suppress(StaleSensor):
                _correct(quota_manager.buckets, note.bucket, charge.spent, charge.due, result, now_ms)
            with suppress(StaleSensor):
                _correct(
                    quota_manager.shadow_buckets, note.shadow_bucket, charge.shadow, charge.shadow_due, result, now_ms
                )
        if not number % ITEMS_PER_STEP:
            yield
    if used and facts.listener.note_mutations is not None:
        facts.listener.note_mutations(facts.user, note.client_id, used, ())
    if not note.refusals:
        return Decision(throttle_at=response.throttle_at)
    merged = yield from response.merging(ask.frame, note.items, note.refusals)
    return Decision(splices=(merged,), throttle_at=response.throttle_at)


def _give_all_back(note: _Note, quota_manager: ClientQuotaManager, now_ms: int) -> None:
    for buckets, bucket, spent in (
        (quota_manager.buckets, note.bucket, sum(charge.spent for charge in note.charges.values())),
        (quota_manager.shadow_buckets, note.shadow_bucket, sum(charge.shadow for charge in note.charges.values())),
    ):
        if bucket is not None and spent:
            with suppress(StaleSensor):
                buckets.give_back(bucket, spent, now_ms)


def _left(ask: DecisionRequest, item: TopicItem, charge: _Charge, result: TopicResult) -> int:
    """How many partitions a topic has after the change."""
    if ask.api_key == DELETE_TOPICS:
        return 0
    if ask.api_key == CREATE_PARTITIONS:
        return item.partitions
    return result.partitions if result.partitions >= 0 else charge.due


def _correct(
    buckets: TokenBuckets, bucket: int | None, spent: float, due: int, result: TopicResult, now_ms: int
) -> None:
    """Correct the charge for a topic to what it cost in the end."""
    if bucket is None:
        return
    cost = _cost_in_the_end(spent, due, result)
    if cost < spent:
        buckets.give_back(bucket, spent - cost, now_ms)
    elif cost > spent:
        buckets.spend_permissively(bucket, cost - spent, now_ms)


def _cost_in_the_end(spent: float, due: int, result: TopicResult | None) -> float:
    if result is None or result.error_code == _REQUEST_TIMED_OUT:
        return spent
    if result.error_code != _NO_ERROR:
        return 0
    return result.partitions if result.partitions >= 0 and due else due


# ------------------------------------------------------------------------------ counts


def _wanted(items: Sequence[TopicItem]) -> Steps[list[TopicKey]]:
    """The topics whose partitions must be known, each once: by name or by id."""
    wanted: dict[TopicKey, None] = {}
    for number, item in enumerate(items, 1):
        if _has_one_key(item):
            wanted[item.name, item.topic_id] = None
        if not number % ITEMS_PER_STEP:
            yield
    return list(wanted)


def _has_one_key(item: TopicItem) -> bool:
    """Whether an item says which topic is meant: by a valid name or by an id, not both."""
    if item.name is None:
        return item.topic_id != NO_TOPIC_ID
    return item.topic_id == NO_TOPIC_ID and _is_topic_name(item.name)


def _is_topic_name(name: bytes) -> bool:
    """Whether Kafka's `Topic.validate` accepts the name."""
    return 0 < len(name) <= _LONGEST_NAME_BYTES and name not in (b".", b"..") and _NAME_BYTES.issuperset(name)


def _own_requests(wanted: Sequence[TopicKey]) -> tuple[bytes, ...]:
    names = [name for name, _ in wanted if name is not None]
    topic_ids = [topic_id for name, topic_id in wanted if name is None]
    by_name = (partitions_by_name_request(names, OWN_REQUEST_ID),) if names else ()
    by_id = (partitions_by_id_request(topic_ids, OWN_REQUEST_ID),) if topic_ids else ()
    return by_name + by_id


class _Known:
    """What is known of the cluster's topics."""

    def __init__(self, facts: ConnectionFacts, now_ms: int) -> None:
        self.default_partitions = facts.listener.default_partitions
        self._facts, self._now_ms = facts, now_ms
        self._found: dict[TopicKey, int] = {}
        self._names: dict[bytes, bytes] = {}

    def learn(self, own_requests: Sequence[bytes], own_responses: Sequence[bytes]) -> Steps[None]:
        """Read the responses of a node. Raises ProtocolError if one is not understood."""
        looked_at = 0
        for is_own_request, response in zip(own_requests, own_responses, strict=True):
            for topic in each_topic_partitions(response, int.from_bytes(is_own_request[6:8], "big")):
                self._found[topic.name, NO_TOPIC_ID] = self._found[None, topic.topic_id] = topic.partitions
                if topic.name is not None and topic.topic_id != NO_TOPIC_ID:
                    self._names[topic.topic_id] = topic.name
                looked_at += 1 + topic.partitions // _PARTITIONS_AS_A_TOPIC
                if looked_at >= ITEMS_PER_STEP:
                    looked_at = 0
                    yield

    def name(self, item: TopicItem) -> bytes | None:
        """The name of a topic, if it is known."""
        return item.name if item.name is not None else self._names.get(item.topic_id)

    def partitions(self, item: TopicItem) -> int:
        """How many partitions a topic has; 0 if the node does not know it, or may not show it."""
        key = (item.name, item.topic_id)
        return max(self._found.get(key, 0), self._facts.listener.recent_topics.partitions(key, self._now_ms) or 0)

    def exists(self, item: TopicItem) -> bool:
        """Whether a topic exists already."""
        key = (item.name, item.topic_id)
        recent = self._facts.listener.recent_topics.partitions(key, self._now_ms)
        return bool(self._found.get(key, 0) if recent is None else recent)


def _costs_of_creation(items: Sequence[TopicItem], known: _Known) -> Steps[_Costs]:
    costs = _Costs(len(items))
    twice = _named_twice(items)
    for i, item in enumerate(items):
        if _has_one_key(item) and item.name not in twice:
            costs.due[i] = _new_partitions(item, known)
            costs.now[i] = 0 if known.exists(item) else costs.due[i]
        if not (i + 1) % ITEMS_PER_STEP:
            yield
    return costs


def _new_partitions(item: TopicItem, known: _Known) -> int:
    """How many partitions a new topic would have; 0 if it cannot be created."""
    if item.assigned:
        indexes = set(item.assigned)
        whole = indexes == set(range(len(indexes))) and item.partitions == item.replication_factor == -1
        return len(indexes) if whole else 0
    if item.replication_factor < -1 or item.replication_factor == 0:
        return 0
    return known.default_partitions() if item.partitions == -1 else max(item.partitions, 0)


def _costs_of_deletion(items: Sequence[TopicItem], known: _Known) -> Steps[_Costs]:
    """The costs of deletions. A topic named twice is deleted once by a node in ZooKeeper mode; others refuse it."""
    costs = _Costs(len(items))
    first: dict[TopicKey, int] = {}
    for i, item in enumerate(items):
        if _has_one_key(item):
            costs.same_as[i] = first.setdefault((item.name, item.topic_id), i)
            if costs.same_as[i] == i:
                costs.now[i] = costs.due[i] = known.partitions(item)
        if not (i + 1) % ITEMS_PER_STEP:
            yield
    return costs


def _costs_of_growth(items: Sequence[TopicItem], known: _Known) -> Steps[_Costs]:
    costs = _Costs(len(items))
    twice = _named_twice(items)
    for i, item in enumerate(items):
        present = known.partitions(item)
        added = item.partitions - present
        unfit = item.assigned and len(item.assigned) != added
        if present and added > 0 and not unfit and item.name not in twice:
            costs.now[i] = costs.due[i] = added
        if not (i + 1) % ITEMS_PER_STEP:
            yield
    return costs


def _named_twice(items: Sequence[TopicItem]) -> set[bytes | None]:
    return {name for name, count in Counter(item.name for item in items).items() if count > 1}


_COSTS: dict[int, Callable[[Sequence[TopicItem], _Known], Steps[_Costs]]] = {
    CREATE_TOPICS: _costs_of_creation,
    DELETE_TOPICS: _costs_of_deletion,
    CREATE_PARTITIONS: _costs_of_growth,
}
