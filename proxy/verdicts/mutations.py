"""Controller mutations: which topics of a request pass, which are refused, and what that costs the client (KIP-599).

A topic costs the partitions that a controller would charge for it, which is nothing where a controller is certain to
refuse it before it looks at the quota. Strict versions have a topic refused when the bucket is overdrawn already; in
permissive ones every topic passes, and an overdraft mutes the client.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from protocol.errors import ProtocolError, TooManyElements
from protocol.topic_mutations import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    NO_TOPIC_ID,
    MutationRequest,
    TopicItem,
    TopicResult,
    read_mutation_answer,
    read_mutation_request,
    refusal,
    refusals_answer,
)
from protocol.topic_partitions import partitions_by_id_request, partitions_by_name_request, read_topic_partitions
from proxy.relay.actions import Ask, Close, CloseReason, Verdict
from proxy.verdicts.facts import ConnectionFacts
from proxy.verdicts.recent_topics import TopicKey
from quotas.ledger import Binding, Ledger
from quotas.rows import StaleSensor
from quotas.token_buckets import TokenBuckets

_ENQUIRY_ID = -0x6B74
"""The correlation id of the proxy's own requests. It need not differ from a client's: answers keep their order."""

_NO_ERROR = 0
_REQUEST_TIMED_OUT = 7
"""The node has not waited for the end: the topic may well come to be, or to go."""

_LONGEST_NAME_BYTES = 249
_NAME_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(frozen=True, slots=True)
class _Charge:
    """What one topic was charged to the quota and to its shadow, and what it costs either if it succeeds."""

    spent: float
    shadow: float
    due: int
    shadow_due: int


@dataclass(frozen=True, slots=True)
class _Note:
    """What the answer to a request needs: the topics that went to the node have charges, the others refusals."""

    items: tuple[TopicItem, ...]
    charges: dict[int, _Charge]
    refusals: dict[int, bytes]
    bucket: int | None
    shadow_bucket: int | None
    validate_only: bool
    client_id: str


class _Costs:
    """What each topic of a request costs now, and what it costs if it succeeds although that seems impossible.

    `same_as` is the number of an earlier item that names the same topic, where one may be carried out for both.
    """

    def __init__(self, count: int) -> None:
        self.now = [0] * count
        self.due = [0] * count
        self.same_as: dict[int, int] = {}


def judge(ask: Ask, binding: Binding, facts: ConnectionFacts, now_ms: int) -> Verdict:
    """The verdict on a request. Raises ProtocolError if it cannot be understood."""
    try:
        request = read_mutation_request(ask.frame, ask.api_key, ask.api_version)
    except TooManyElements as error:
        if not binding.limits_mutations:
            return Verdict()
        return Verdict(close=Close(CloseReason.REQUEST_TOO_LARGE, str(error)))
    if request.validate_only and not facts.listener.charge_validate_only:
        return Verdict()
    wanted = _wanted(request)
    enquiries = _enquiries(wanted)
    if enquiries and not ask.enquired:
        return Verdict(enquiries=enquiries)
    try:
        known = _Known(enquiries, ask.enquired, facts, now_ms)
    except ProtocolError as error:
        return Verdict(close=Close(CloseReason.ANSWER_MALFORMED, f"Metadata: {error}"))
    return _decided(ask, request, _COSTS[ask.api_key](request.items, known), binding, facts, now_ms)


def _decided(
    ask: Ask, request: MutationRequest, costs: _Costs, binding: Binding, facts: ConnectionFacts, now_ms: int
) -> Verdict:
    ledger = facts.listener.ledger
    spent, refused, throttle_time_ms = _spend(request, costs, ledger.buckets, binding.mutation, now_ms)
    passing = [0 if i in refused else cost for i, cost in enumerate(costs.now)]
    shadow, shadow_due, told_ms = _spend_in_shadow(
        request, passing, ledger.shadow_buckets, binding.shadow_mutation, now_ms
    )
    if told_ms and facts.listener.note_mutations is not None:
        facts.listener.note_mutations(facts.user, binding.client_id, 0.0, told_ms)
    refusals = {i: refusal(request, request.items[i]) for i in sorted(refused)}
    if refused and len(refused) == len(request.items):
        answer = refusals_answer(int.from_bytes(ask.frame[8:12], "big", signed=True), refusals.values())
        return Verdict(answer=answer, throttle_time_ms=throttle_time_ms, refused=len(refused))
    charges = {
        i: _Charge(spent[i], shadow[i], costs.due[i], shadow_due[i]) for i in range(len(passing)) if i not in refused
    }
    matters = refused or any(charge.due for charge in charges.values())
    note = _Note(
        request.items,
        charges,
        refusals,
        binding.mutation,
        binding.shadow_mutation,
        request.validate_only,
        binding.client_id,
    )
    return Verdict(
        splices=request.without(refused),
        note=note if matters else None,
        throttle_time_ms=throttle_time_ms,
        refused=len(refused),
    )


def _spend(
    request: MutationRequest, costs: _Costs, buckets: TokenBuckets, bucket: int | None, now_ms: int
) -> tuple[list[float], set[int], int]:
    """Charge topic by topic, as far as may be before it is done.

    What each was charged, the numbers of those refused, and the throttle time of the last that was too much.
    """
    spent: list[float] = list(costs.now)
    refused: set[int] = set()
    throttle_time_ms = 0
    if bucket is None:
        return spent, refused, 0
    spend = buckets.spend_strictly if request.strict else buckets.spend_permissively
    for i, cost in enumerate(costs.now):
        if costs.same_as.get(i) in refused:
            refused.add(i)
        elif cost:
            spent[i] = buckets.unconfirmed(bucket, cost, now_ms)
            told_ms = spend(bucket, spent[i], now_ms)
            if told_ms is not None:
                throttle_time_ms = told_ms
                if request.strict:
                    refused.add(i)
    return spent, refused, throttle_time_ms


def _spend_in_shadow(
    request: MutationRequest, passing: Sequence[int], buckets: TokenBuckets, bucket: int | None, now_ms: int
) -> tuple[list[float], list[int], list[int]]:
    """What is charged to the shadow quota of what passes. It refuses nothing, and counts what it would have refused.

    The second value is what each topic costs it if it succeeds, the third the times, in ms, for which it would have
    throttled.
    """
    charged: list[float] = [0] * len(passing)
    due = [0] * len(passing)
    throttles_ms: list[int] = []
    if bucket is None:
        return charged, due, throttles_ms
    spend = buckets.spend_strictly if request.strict else buckets.spend_permissively
    for i, cost in enumerate(passing):
        if cost:
            value = buckets.unconfirmed(bucket, cost, now_ms)
            told_ms = spend(bucket, value, now_ms)
            if told_ms is None or not request.strict:
                charged[i], due[i] = value, cost
            if told_ms:
                throttles_ms.append(told_ms)
    return charged, due, throttles_ms


# ------------------------------------------------------------------------------ the answer


def settle(ask: Ask, facts: ConnectionFacts, now_ms: int) -> Verdict:
    """The verdict on an answer: refusals are put in, and what failed is given back. Raises ProtocolError.

    Without a frame the request never went to the node, and all is given back.
    """
    note, ledger = ask.note, facts.listener.ledger
    assert isinstance(note, _Note)
    if not ask.frame:
        _give_all_back(note, ledger, now_ms)
        return Verdict()
    answer = read_mutation_answer(ask.frame, ask.api_key, ask.api_version)
    items = [note.items[i] for i in note.charges]
    used = 0.0
    for item, charge, result in zip(items, note.charges.values(), answer.matched(items), strict=True):
        used += _cost_in_the_end(charge.spent, charge.due, result)
        if result is not None:
            if result.error_code == _NO_ERROR and not note.validate_only:
                left = _left(ask, item, charge, result)
                facts.listener.recent_topics.note(item.name or result.name, result.topic_id, left, now_ms)
            with suppress(StaleSensor):
                _correct(ledger.buckets, note.bucket, charge.spent, charge.due, result, now_ms)
            with suppress(StaleSensor):
                _correct(ledger.shadow_buckets, note.shadow_bucket, charge.shadow, charge.shadow_due, result, now_ms)
    if used and facts.listener.note_mutations is not None:
        facts.listener.note_mutations(facts.user, note.client_id, used, ())
    splices = (answer.merged(ask.frame, note.items, note.refusals),) if note.refusals else ()
    return Verdict(splices=splices, throttle_at=answer.throttle_at)


def _give_all_back(note: _Note, ledger: Ledger, now_ms: int) -> None:
    for buckets, bucket, spent in (
        (ledger.buckets, note.bucket, sum(charge.spent for charge in note.charges.values())),
        (ledger.shadow_buckets, note.shadow_bucket, sum(charge.shadow for charge in note.charges.values())),
    ):
        if bucket is not None and spent:
            with suppress(StaleSensor):
                buckets.give_back(bucket, spent, now_ms)


def _left(ask: Ask, item: TopicItem, charge: _Charge, result: TopicResult) -> int:
    """How many partitions a topic has after what was done to it."""
    if ask.api_key == DELETE_TOPICS:
        return 0
    if ask.api_key == CREATE_PARTITIONS:
        return item.partitions
    return result.partitions if result.partitions >= 0 else charge.due


def _correct(
    buckets: TokenBuckets, bucket: int | None, spent: float, due: int, result: TopicResult, now_ms: int
) -> None:
    """Have a topic charged what it cost in the end."""
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


def _wanted(request: MutationRequest) -> list[TopicKey]:
    """The topics whose partitions must be known, each once: by name or by id."""
    return list(dict.fromkeys((item.name, item.topic_id) for item in request.items if _has_one_key(item)))


def _has_one_key(item: TopicItem) -> bool:
    """Whether it says which topic is meant, by a name that a topic may have or by an id."""
    if item.name is None:
        return item.topic_id != NO_TOPIC_ID
    return item.topic_id == NO_TOPIC_ID and _is_topic_name(item.name)


def _is_topic_name(name: bytes) -> bool:
    """As Kafka's `Topic.validate` has it."""
    return 0 < len(name) <= _LONGEST_NAME_BYTES and name not in (b".", b"..") and _NAME_BYTES.issuperset(name)


def _enquiries(wanted: Sequence[TopicKey]) -> tuple[bytes, ...]:
    names = [name for name, _ in wanted if name is not None]
    topic_ids = [topic_id for name, topic_id in wanted if name is None]
    by_name = (partitions_by_name_request(names, _ENQUIRY_ID),) if names else ()
    by_id = (partitions_by_id_request(topic_ids, _ENQUIRY_ID),) if topic_ids else ()
    return by_name + by_id


class _Known:
    """What is known of the cluster's topics. Raises ProtocolError where a node's answer cannot be understood."""

    def __init__(
        self, enquiries: Sequence[bytes], enquired: Sequence[bytes], facts: ConnectionFacts, now_ms: int
    ) -> None:
        self.default_partitions = facts.listener.default_partitions
        self._facts, self._now_ms = facts, now_ms
        self._found: dict[TopicKey, int] = {}
        for enquiry, answer in zip(enquiries, enquired, strict=True):
            for topic in read_topic_partitions(answer, int.from_bytes(enquiry[6:8], "big")):
                self._found[topic.name, NO_TOPIC_ID] = self._found[None, topic.topic_id] = topic.partitions

    def partitions(self, item: TopicItem) -> int:
        """How many partitions a topic has; 0 where the node does not know it, or may not tell."""
        key = (item.name, item.topic_id)
        return max(self._found.get(key, 0), self._facts.listener.recent_topics.partitions(key, self._now_ms) or 0)

    def exists(self, item: TopicItem) -> bool:
        """Whether a topic is there already."""
        key = (item.name, item.topic_id)
        recent = self._facts.listener.recent_topics.partitions(key, self._now_ms)
        return bool(self._found.get(key, 0) if recent is None else recent)


def _costs_of_creation(items: Sequence[TopicItem], known: _Known) -> _Costs:
    costs = _Costs(len(items))
    twice = _named_twice(items)
    for i, item in enumerate(items):
        if _has_one_key(item) and item.name not in twice:
            costs.due[i] = _new_partitions(item, known)
            costs.now[i] = 0 if known.exists(item) else costs.due[i]
    return costs


def _new_partitions(item: TopicItem, known: _Known) -> int:
    """How many partitions a new topic would have; 0 where it cannot be."""
    if item.assigned:
        indexes = set(item.assigned)
        whole = indexes == set(range(len(indexes))) and item.partitions == item.replication_factor == -1
        return len(indexes) if whole else 0
    if item.replication_factor < -1 or item.replication_factor == 0:
        return 0
    return known.default_partitions() if item.partitions == -1 else max(item.partitions, 0)


def _costs_of_deletion(items: Sequence[TopicItem], known: _Known) -> _Costs:
    """A topic named twice is deleted once by a node in ZooKeeper mode, and refused by others."""
    costs = _Costs(len(items))
    first: dict[TopicKey, int] = {}
    for i, item in enumerate(items):
        if _has_one_key(item):
            costs.same_as[i] = first.setdefault((item.name, item.topic_id), i)
            if costs.same_as[i] == i:
                costs.now[i] = costs.due[i] = known.partitions(item)
    return costs


def _costs_of_growth(items: Sequence[TopicItem], known: _Known) -> _Costs:
    costs = _Costs(len(items))
    twice = _named_twice(items)
    for i, item in enumerate(items):
        present = known.partitions(item)
        added = item.partitions - present
        unfit = item.assigned and len(item.assigned) != added
        if present and added > 0 and not unfit and item.name not in twice:
            costs.now[i] = costs.due[i] = added
    return costs


def _named_twice(items: Sequence[TopicItem]) -> set[bytes | None]:
    return {name for name, count in Counter(item.name for item in items).items() if count > 1}


_COSTS: dict[int, Callable[[Sequence[TopicItem], _Known], _Costs]] = {
    CREATE_TOPICS: _costs_of_creation,
    DELETE_TOPICS: _costs_of_deletion,
    CREATE_PARTITIONS: _costs_of_growth,
}
