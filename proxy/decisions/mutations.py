"""Controller mutations: which topics of a request pass, which are refused, and what that costs the client (KIP-599).

A topic costs the partitions that a controller would charge for it. It costs nothing if a controller is certain to
refuse it before it looks at the quota. In strict versions a topic is refused if the bucket is overdrawn already. In
permissive ones every topic passes, and an overdraft mutes the client.

A request may name a million topics, before anybody has asked what its user may do: everything is done in steps, and
what is remembered of a topic are a few numbers in flat arrays.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from kafka_throttle.protocol.api_key import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.protocol.messages.topic_mutations import (
    GAPS,
    NO_RESULT,
    NO_TOPIC_ID,
    MutationReader,
    MutationRequest,
    MutationResponseReader,
    RefusalsResponse,
    ResultPlaces,
    TopicItem,
    TopicPlaces,
    TopicResult,
    refusal,
)
from kafka_throttle.protocol.messages.topic_partitions import (
    BY_ID_VERSION,
    BY_NAME_VERSION,
    PartitionsRequest,
    each_topic_partitions,
)
from kafka_throttle.protocol.numbers_by_key import NumbersByKey
from kafka_throttle.proxy.decisions.facts import ConnectionFacts
from kafka_throttle.proxy.decisions.steps import ITEMS_PER_STEP, Steps
from kafka_throttle.proxy.relay.actions import OWN_REQUEST_ID, Close, CloseReason, Decision, DecisionRequest
from kafka_throttle.quotas.client_quotas import ClientQuotaManager, ClientSensors
from kafka_throttle.quotas.sensors.rows import StaleSensor
from kafka_throttle.quotas.sensors.token_buckets import TokenBuckets

_NO_ERROR = 0
_REQUEST_TIMED_OUT = 7
"""The node has not waited for the end: the topic may still be created or deleted."""

_PARTITIONS_AS_A_TOPIC = 50
"""So many partitions in a response take about as long to read as one topic without partitions."""

_LONGEST_NAME_BYTES = 249
_NAME_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(slots=True)
class _Charges:
    """What topics were charged: column by column, one entry for each topic that went to the node.

    `numbers` are those of the topics in the request; `spent`, `shadow` what was charged to the quota and to its shadow
    quota; `due`, `shadow_due` what the topic costs them if it succeeds.
    """

    numbers: "array[int]" = field(default_factory=lambda: array("I"))
    spent: "array[float]" = field(default_factory=lambda: array("d"))
    shadow: "array[float]" = field(default_factory=lambda: array("d"))
    due: "array[int]" = field(default_factory=lambda: array("i"))
    shadow_due: "array[int]" = field(default_factory=lambda: array("i"))

    def add(self, number: int, spent: float, shadow: float, due: int, shadow_due: int) -> None:
        self.numbers.append(number)
        self.spent.append(spent)
        self.shadow.append(shadow)
        self.due.append(due)
        self.shadow_due.append(shadow_due)


class _Refused:
    """The topics of a request that are refused, and the result that each of them gets."""

    def __init__(self, request: MutationRequest, names: dict[bytes, bytes]) -> None:
        self._request = request
        self._names = names
        """The names of topics that were asked for by their ids, as far as they are known."""
        self._numbers = array("I")
        self._flags = bytearray(len(request.items))

    def add(self, number: int) -> None:
        """Refuse the topic with this number, which is above the earlier ones."""
        self._numbers.append(number)
        self._flags[number] = 1

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self._flags[number] != 0

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __getitem__(self, number: int) -> bytes:
        item = self._request.items[number]
        name = item.name if item.name is not None else self._names.get(item.topic_id)
        return refusal(self._request, item, name)


@dataclass(frozen=True, slots=True)
class _Note:
    """What the response will need: the charges of topics that went to the node, the refusals of the others."""

    request: MutationRequest
    charges: _Charges
    refused: _Refused
    bucket: int | None
    shadow_bucket: int | None
    client_id: str


class _Costs:
    """What each topic of a request costs now, and what it costs if it succeeds although that seems impossible.

    `same_as` has the number of the first item that names the same topic, if one deletion may be done for both;
    otherwise its own. `any_due`: whether the response is needed at all.
    """

    def __init__(self) -> None:
        self.any_due = False
        self.now = array("i")
        self.due = array("i")
        self.same_as = array("I")

    def add(self, now: int, due: int, same_as: int) -> None:
        self.any_due = self.any_due or due > 0
        self.now.append(now)
        self.due.append(due)
        self.same_as.append(same_as)


def judge(ask: DecisionRequest, facts: ConnectionFacts, now_ms: int) -> Steps[Decision]:
    """The decision about a request. Raises ProtocolError if the request is not understood."""
    if not ask.own_responses:
        first = yield from _ask_first(ask, facts)
        if first is not None:
            return first
    known = _Known(facts, now_ms)
    try:
        yield from known.learn((yield from _versions_asked(ask)), ask.own_responses)
    except ProtocolError as error:
        return Decision(close=Close(CloseReason.RESPONSE_MALFORMED, f"Metadata: {error}"))
    request, costs = yield from _read(ask, known)
    client_sensors = facts.bind(ask.client_id, now_ms)
    spending = _Spending(request, costs, _Refused(request, known.names))
    for start in range(0, len(request.items), ITEMS_PER_STEP):
        if start:
            yield
            client_sensors = facts.bind(ask.client_id, now_ms)  # its quota may have changed by now
        spending.spend(start, facts.listener.quota_manager, client_sensors, now_ms)
    if spending.shadow_throttles_ms and facts.listener.note_mutations is not None:
        facts.listener.note_mutations(facts.user, client_sensors.client_id, 0.0, spending.shadow_throttles_ms)
    return (yield from _decision(ask, request, spending, client_sensors))


def _ask_first(ask: DecisionRequest, facts: ConnectionFacts) -> Steps[Decision | None]:
    """The decision to ask the node for the partitions of the topics, or to let the request pass; None: go on."""
    reader = MutationReader(ask.frame, ask.api_key, ask.api_version)
    wanted = _Wanted(ask, reader.count)
    for number, item in enumerate(reader.items(), 1):
        if item is not None:
            wanted.add(item)
        if item is None or not number % ITEMS_PER_STEP:
            yield
    request = reader.request(())
    if request.validate_only and not facts.listener.charge_validate_only:
        return Decision()
    own_requests = wanted.own_requests()
    return Decision(own_requests=own_requests) if own_requests else None


def _versions_asked(ask: DecisionRequest) -> Steps[Sequence[int]]:
    """The versions of the proxy's own requests that `ask` has the responses to."""
    if len(ask.own_responses) != 1:
        return (BY_NAME_VERSION, BY_ID_VERSION)[: len(ask.own_responses)]
    reader = MutationReader(ask.frame, ask.api_key, ask.api_version)
    for number, item in enumerate(reader.items(), 1):
        if item is not None and _has_one_key(item):
            return (BY_ID_VERSION if item.name is None else BY_NAME_VERSION,)
        if item is None or not number % ITEMS_PER_STEP:
            yield
    raise AssertionError("a response, but nothing was asked for")


def _read(ask: DecisionRequest, known: "_Known") -> Steps[tuple[MutationRequest, _Costs]]:
    """The request, and what its topics cost."""
    reader = MutationReader(ask.frame, ask.api_key, ask.api_version)
    places = TopicPlaces(ask.frame, ask.api_key, ask.api_version)
    costing = _COSTING[ask.api_key](known, NumbersByKey(reader.count, places.key))
    for number, item in enumerate(reader.items(), 1):
        if item is not None:
            places.add(item)
            costing.add(item)
        if item is None or not number % ITEMS_PER_STEP:
            yield
    return reader.request(places), costing.costs


class _Spending:
    """Charges the topics of a request one after the other, and notes which of them are refused for it.

    `throttle_time_ms` is that of the last topic that exceeded the quota. A shadow quota refuses nothing:
    `shadow_throttles_ms` has the times for which it would have throttled. Until a topic is known to be done, it is
    charged no more than `TokenBuckets.unconfirmed` allows.
    """

    def __init__(self, request: MutationRequest, costs: _Costs, refused: _Refused) -> None:
        self._strict, self._costs = request.strict, costs
        self.refused = refused
        self.throttle_time_ms = 0
        self.shadow_throttles_ms = array("q")
        self.charges = _Charges()

    def spend(self, start: int, quota_manager: ClientQuotaManager, client_sensors: ClientSensors, now_ms: int) -> None:
        """Charge the topics of one step, which begins with number `start`."""
        costs, refused = self._costs, self.refused
        for i in range(start, min(start + ITEMS_PER_STEP, len(costs.now))):
            cost, spent, reported_ms = costs.now[i], 0.0, None
            is_refused = costs.same_as[i] in refused
            if not is_refused and cost and client_sensors.mutation is not None:
                spent, reported_ms = self._spend(quota_manager.buckets, client_sensors.mutation, cost, now_ms)
            if reported_ms is not None:
                self.throttle_time_ms = reported_ms
                is_refused = self._strict
            if is_refused:
                refused.add(i)
            elif costs.any_due:  # those that cost nothing, too: what becomes of them is remembered
                shadow, shadow_due = self._spend_in_shadow(quota_manager, client_sensors.shadow_mutation, cost, now_ms)
                self.charges.add(i, spent, shadow, costs.due[i], shadow_due)

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
    ask: DecisionRequest, request: MutationRequest, spending: _Spending, client_sensors: ClientSensors
) -> Steps[Decision]:
    """The decision about a request whose topics are all charged."""
    refused, throttle_time_ms = spending.refused, spending.throttle_time_ms
    if refused and len(refused) == len(request.items):
        response = yield from _all_refused(ask, refused)
        return Decision(response=response, throttle_time_ms=throttle_time_ms, refused=len(refused))
    matters = refused or any(spending.charges.due)
    note = _Note(
        request,
        spending.charges,
        refused,
        client_sensors.mutation,
        client_sensors.shadow_mutation,
        client_sensors.client_id,
    )
    return Decision(
        splices=(yield from request.without(ask.frame, refused)),
        note=note if matters else None,
        throttle_time_ms=throttle_time_ms,
        refused=len(refused),
    )


def _all_refused(ask: DecisionRequest, refused: _Refused) -> Steps[bytes]:
    """The response to a request whose topics are all refused."""
    correlation_id = int.from_bytes(ask.frame[8:12], "big", signed=True)
    response = RefusalsResponse(correlation_id, len(refused))
    for number, i in enumerate(refused, 1):
        response.add(refused[i])
        if not number % ITEMS_PER_STEP:
            yield
    return response.frame()


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
    places = ResultPlaces(ask.frame, ask.api_key, ask.api_version)
    for number, one in enumerate(reader.results(), 1):
        places.add(one)
        if not number % ITEMS_PER_STEP:
            yield
    response = reader.response(places)
    request, charges = note.request, note.charges
    matched = yield from response.matching(request.items, charges.numbers)
    used = 0.0
    for i, found in enumerate(matched):
        result = None if found == NO_RESULT else places[found]
        spent, due = charges.spent[i], charges.due[i]
        used += _cost_in_the_end(spent, due, result)
        if result is not None:
            if result.error_code == _NO_ERROR and not request.validate_only:
                item = request.items[charges.numbers[i]]
                left = _left(ask, item, due, result)
                facts.listener.recent_topics.note(item.name or result.name, result.topic_id, left, now_ms)
            shadow, shadow_due = charges.shadow[i], charges.shadow_due[i]
            with suppress(StaleSensor):
                _correct(quota_manager.buckets, note.bucket, spent, due, result, now_ms)
            with suppress(StaleSensor):
                _correct(quota_manager.shadow_buckets, note.shadow_bucket, shadow, shadow_due, result, now_ms)
        if not (i + 1) % ITEMS_PER_STEP:
            yield
    if used and facts.listener.note_mutations is not None:
        facts.listener.note_mutations(facts.user, note.client_id, used, ())
    if not note.refused:
        return Decision(throttle_at=response.throttle_at)
    merged = yield from response.merging(ask.frame, request.items, note.refused)
    return Decision(splices=(merged,), throttle_at=response.throttle_at)


def _give_all_back(note: _Note, quota_manager: ClientQuotaManager, now_ms: int) -> None:
    for buckets, bucket, spent in (
        (quota_manager.buckets, note.bucket, sum(note.charges.spent)),
        (quota_manager.shadow_buckets, note.shadow_bucket, sum(note.charges.shadow)),
    ):
        if bucket is not None and spent:
            with suppress(StaleSensor):
                buckets.give_back(bucket, spent, now_ms)


def _left(ask: DecisionRequest, item: TopicItem, due: int, result: TopicResult) -> int:
    """How many partitions a topic has after the change."""
    if ask.api_key == DELETE_TOPICS:
        return 0
    if ask.api_key == CREATE_PARTITIONS:
        return item.partitions
    return result.partitions if result.partitions >= 0 else due


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


class _Wanted:
    """The topics whose partitions must be known, each once: by name or by id."""

    def __init__(self, ask: DecisionRequest, most: int) -> None:
        self._places = TopicPlaces(ask.frame, ask.api_key, ask.api_version)
        self._first = NumbersByKey(most, self._places.key)
        self._by_name = PartitionsRequest(BY_NAME_VERSION)
        self._by_id = PartitionsRequest(BY_ID_VERSION)

    def add(self, item: TopicItem) -> None:
        """Ask for a topic of the request, if it says which one is meant."""
        if not _has_one_key(item):
            return
        number = len(self._places)
        self._places.add(item)
        if self._first.first(item.key(), number) != number:
            return
        if item.name is None:
            self._by_id.add(item.topic_id)
        else:
            self._by_name.add(item.name)

    def own_requests(self) -> tuple[bytes, ...]:
        """The requests, whole frames: one about names and one about ids, as far as there are any."""
        return tuple(one.frame(OWN_REQUEST_ID) for one in (self._by_name, self._by_id) if one.count)


def _has_one_key(item: TopicItem) -> bool:
    """Whether an item says which topic is meant: by a valid name or by an id, not both."""
    if item.name is None:
        return item.topic_id != NO_TOPIC_ID
    return item.topic_id == NO_TOPIC_ID and _is_topic_name(item.name)


def _is_topic_name(name: bytes) -> bool:
    """Whether Kafka's `Topic.validate` accepts the name."""
    return 0 < len(name) <= _LONGEST_NAME_BYTES and name not in (b".", b"..") and _NAME_BYTES.issuperset(name)


class _Known:
    """What is known of the cluster's topics."""

    def __init__(self, facts: ConnectionFacts, now_ms: int) -> None:
        self.default_partitions = facts.listener.default_partitions
        self._facts, self._now_ms = facts, now_ms
        self._found: dict[bytes, int] = {}
        self._found_by_id: dict[bytes, int] = {}
        self.names: dict[bytes, bytes] = {}
        """The names of topics that were asked for by their ids."""

    def learn(self, versions: Sequence[int], own_responses: Sequence[bytes]) -> Steps[None]:
        """Read the responses of a node to requests of these versions. Raises ProtocolError if one is not understood."""
        looked_at = 0
        for version, response in zip(versions, own_responses, strict=True):
            for topic in each_topic_partitions(response, version):
                if topic.partitions and version == BY_ID_VERSION:
                    self._found_by_id[topic.topic_id] = topic.partitions
                elif topic.partitions and topic.name is not None:
                    self._found[topic.name] = topic.partitions
                if topic.name is not None and topic.topic_id != NO_TOPIC_ID:
                    self.names[topic.topic_id] = topic.name
                looked_at += 1 + topic.partitions // _PARTITIONS_AS_A_TOPIC
                if looked_at >= ITEMS_PER_STEP:
                    looked_at = 0
                    yield

    def _in_cluster(self, item: TopicItem) -> int:
        """How many partitions the node has reported, for a topic that is named in one way."""
        if item.name is None:
            return self._found_by_id.get(item.topic_id, 0)
        return self._found.get(item.name, 0) if item.topic_id == NO_TOPIC_ID else 0

    def partitions(self, item: TopicItem) -> int:
        """How many partitions a topic has; 0 if the node does not know it, or may not show it."""
        key = (item.name, item.topic_id)
        return max(self._in_cluster(item), self._facts.listener.recent_topics.partitions(key, self._now_ms) or 0)

    def exists(self, item: TopicItem) -> bool:
        """Whether a topic exists already."""
        key = (item.name, item.topic_id)
        recent = self._facts.listener.recent_topics.partitions(key, self._now_ms)
        return bool(self._in_cluster(item) if recent is None else recent)


class _Costing:
    """Finds what the topics of a request cost, one after the other. Those that are named twice cost nothing."""

    def __init__(self, known: _Known, first: NumbersByKey) -> None:
        self.costs = _Costs()
        self._known = known
        self._first = first

    def add(self, item: TopicItem) -> None:
        """Take up the next topic."""
        costs, number = self.costs, len(self.costs.now)
        first = self._first.first(item.key(), number)
        if first == number:
            costs.add(*self._cost(item), number)
        else:
            costs.now[first] = costs.due[first] = 0
            costs.add(0, 0, number)

    def _cost(self, item: TopicItem) -> tuple[int, int]:
        """What a topic costs now, and what it costs if it succeeds."""
        raise NotImplementedError


class _CostingOfCreation(_Costing):
    def _cost(self, item: TopicItem) -> tuple[int, int]:
        if not _has_one_key(item):
            return 0, 0
        due = _new_partitions(item, self._known)
        return 0 if self._known.exists(item) else due, due


class _CostingOfGrowth(_Costing):
    def _cost(self, item: TopicItem) -> tuple[int, int]:
        present = self._known.partitions(item)
        added = item.partitions - present
        unfit = item.assigned and item.assigned != added
        return (added, added) if present and added > 0 and not unfit else (0, 0)


class _CostingOfDeletion(_Costing):
    """A topic named twice is deleted once by a node in ZooKeeper mode; others refuse it."""

    def add(self, item: TopicItem) -> None:
        number = first = len(self.costs.now)
        cost = 0
        if _has_one_key(item):
            first = self._first.first(item.key(), number)
            cost = self._known.partitions(item) if first == number else 0
        self.costs.add(cost, cost, first)


def _new_partitions(item: TopicItem, known: _Known) -> int:
    """How many partitions a new topic would have; 0 if it cannot be created."""
    if item.assigned:
        whole = item.assigned != GAPS and item.partitions == item.replication_factor == -1
        return item.assigned if whole else 0
    if item.replication_factor < -1 or item.replication_factor == 0:
        return 0
    return known.default_partitions() if item.partitions == -1 else max(item.partitions, 0)


_COSTING: dict[int, Callable[[_Known, NumbersByKey], _Costing]] = {
    CREATE_TOPICS: _CostingOfCreation,
    DELETE_TOPICS: _CostingOfDeletion,
    CREATE_PARTITIONS: _CostingOfGrowth,
}
