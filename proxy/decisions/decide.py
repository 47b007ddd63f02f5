"""Which function decides which kind of DecisionRequest."""

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

from kafka_throttle.protocol.api_key import DESCRIBE_CLIENT_QUOTAS, DESCRIBE_CLUSTER, FIND_COORDINATOR, METADATA
from kafka_throttle.protocol.errors import MalformedMessage, ProtocolError
from kafka_throttle.protocol.messages.addresses import (
    Address,
    address_splices,
    coordinators_away,
    leaderless_splices,
    leaving_out,
    rewritable,
    without_hints,
)
from kafka_throttle.protocol.messages.api_versions import Answered, intersect
from kafka_throttle.protocol.messages.client_quotas import AlterReader, read_describe_request
from kafka_throttle.protocol.splices import Splice, joined
from kafka_throttle.protocol.walk import Walk
from kafka_throttle.proxy.decisions import mutations, quota_api, scram_credentials
from kafka_throttle.proxy.decisions.facts import ConnectionFacts, Nodes, NoPortForNode
from kafka_throttle.proxy.decisions.steps import QuotaAlteration, SlowDecision, Steps, collected
from kafka_throttle.proxy.relay.actions import Close, CloseReason, Decision, DecisionKind, DecisionRequest
from kafka_throttle.proxy.relay.plans import PLANS, Plan, begin_walk, plan_key, rest_of_metadata, walk_response
from kafka_throttle.proxy.side import Side

_NO_HEADER = bytes(8)
_LONGEST_REMEMBERED_BYTES = 16 * 1024
_WALKED_AT_ONCE = 8 * 1024
"""How many bytes of a response are walked in one step: about two hundred addresses."""


def decide(ask: DecisionRequest, facts: ConnectionFacts, now_ms: int) -> Decision | QuotaAlteration | SlowDecision:
    """The decision about `ask`, or what must be done first. Bytes that are not understood close their connection."""
    try:
        return _DECIDERS[ask.kind](ask, facts, now_ms)
    except ProtocolError as error:
        return _close(ask, error)


def _close(ask: DecisionRequest, error: ProtocolError) -> Decision:
    from_client = ask.side is Side.CLIENT
    reason = CloseReason.REQUEST_MALFORMED if from_client else CloseReason.RESPONSE_MALFORMED
    return Decision(close=Close(reason, str(error)))


def _decide_addresses(
    ask: DecisionRequest, facts: ConnectionFacts, now_ms: int
) -> Decision | QuotaAlteration | SlowDecision:
    """Put the proxy's own address in place of each node's, and learn where the node really is.

    When no port is left for a node, only this node is left out, and the response is as from a broker that does not know
    where the node is. Nodes are at the beginning of a response, usually within the bytes that the first DecisionRequest
    has. Coordinators are in all of it.
    """
    plan = PLANS[plan_key(ask.api_key, ask.api_version)]
    frame_bytes = int.from_bytes(ask.frame[:4], "big") + 4
    if plan.lists_to_the_end:
        if len(ask.frame) < frame_bytes:
            return Decision(more=frame_bytes)
        return _in_steps(ask, _put_addresses(ask, plan, facts))
    walk = walk_response(plan, ask.frame)
    if not walk.done and len(ask.frame) < frame_bytes:
        return Decision(more=4 * len(ask.frame))
    _require_done(walk, plan, ask)
    return _with_addresses(walk, plan, ask.frame, facts.listener.nodes)


def _with_addresses(walk: Walk, plan: Plan, frame: bytes, nodes: Nodes) -> Decision:
    """The decision with splices for all addresses that a walk has found."""
    named = rewritable(walk)
    for endpoint in named:
        nodes.learn(endpoint.node_id, endpoint.host.decode(errors="replace"), endpoint.port)
    advertised = [_advertised(nodes, endpoint.node_id) for endpoint in named]
    splices = address_splices(walk, advertised)
    if None in advertised:
        pairs = zip(named, advertised, strict=True)
        without = frozenset(endpoint.node_id for endpoint, address in pairs if address is None)
        return _leave_out(without, plan, walk, frame, splices)
    return Decision(splices=tuple(splices), throttle_at=walk.throttle_at)


def _advertised(nodes: Nodes, node_id: int) -> Address | None:
    with suppress(NoPortForNode):
        return nodes.advertised(node_id)
    return None


def _leave_out(without: frozenset[int], plan: Plan, walk: Walk, frame: bytes, splices: list[Splice]) -> Decision:
    """The decision about a response that names nodes for which no port is left; `splices` are for all other nodes."""
    rest = None
    if plan.api_key in (METADATA, DESCRIBE_CLUSTER):
        splices += leaving_out(walk, without)
        splices += leaderless_splices(walk_response(plan, frame, without))
        rest = rest_of_metadata(plan.api_version, walk, without) if plan.api_key == METADATA else None
    elif plan.api_key == FIND_COORDINATOR:
        splices += coordinators_away(walk, without, _coordinators_error_at(plan, walk))
    else:
        splices = without_hints(walk, len(frame))
    splices.sort(key=lambda splice: splice.start)
    return Decision(splices=tuple(splices), throttle_at=walk.throttle_at, rest=rest)


def _coordinators_error_at(plan: Plan, walk: Walk) -> int | None:
    """Where the error code of a response to FindCoordinator is; None: each coordinator has one after its address."""
    if plan.api_version >= 4:
        return None
    return walk.throttle_at + 4 if walk.throttle_at >= 0 else len(_NO_HEADER)


def _put_addresses(ask: DecisionRequest, plan: Plan, facts: ConnectionFacts) -> Steps[Decision | QuotaAlteration]:
    """Put addresses into a response that is here whole and has them in all its length.

    There may be a million of them: those of a step become one splice, and are forgotten.
    """
    frame, splices = memoryview(ask.frame), list[Splice]()
    walk, step_bytes = begin_walk(plan, ask.frame), _WALKED_AT_ONCE
    while not walk.done and walk.offset < len(frame):
        before = walk.offset
        walk.advance(frame[before : before + step_bytes], before)
        if walk.offset == before and before + step_bytes >= len(frame):
            break
        step_bytes = 2 * step_bytes if walk.offset == before else _WALKED_AT_ONCE
        found = _with_addresses(walk, plan, ask.frame, facts.listener.nodes)
        walk.endpoints.clear()
        splices += joined(frame, found.splices)
        if walk.offset < len(frame):
            yield
    _require_done(walk, plan, ask)
    return Decision(splices=tuple(splices), throttle_at=walk.throttle_at)


def _require_done(walk: Walk, plan: Plan, ask: DecisionRequest) -> None:
    if not walk.done:
        raise MalformedMessage(f"{plan.name} v{plan.api_version}: its addresses are not in {len(ask.frame)} bytes")


def _decide_api_versions(ask: DecisionRequest, facts: ConnectionFacts, now_ms: int) -> Decision:
    """Offer the APIs that the node offers and the proxy can carry, and those that the proxy responds to by itself."""
    frame = _NO_HEADER + ask.frame[len(_NO_HEADER) :]
    work_out = _offer if len(frame) > _LONGEST_REMEMBERED_BYTES else _remembered_offer
    return work_out(frame, ask.api_version, facts.listener.offer, facts.listener.answered)


def _offer(
    frame: bytes, api_version: int, offer: Callable[[int], tuple[int, int] | None], answered: Answered
) -> Decision:
    offered = intersect(frame, api_version, offer, answered)
    return Decision(splices=offered.splices, throttle_at=offered.throttle_at)


def _decide_quota_api(
    ask: DecisionRequest, facts: ConnectionFacts, now_ms: int
) -> Decision | QuotaAlteration | SlowDecision:
    """Describe or alter the quotas that are in force in the proxy."""
    return _in_steps(ask, _steps_of_quota_api(ask, facts))


def _in_steps(
    ask: DecisionRequest, steps: Steps[Decision | QuotaAlteration]
) -> Decision | QuotaAlteration | SlowDecision:
    """The decision, made at once if it takes one step; a SlowDecision if it takes more."""
    try:
        next(steps)
    except StopIteration as end:
        decision: Decision | QuotaAlteration = end.value
        return decision
    return SlowDecision(_rest(ask, steps))


def _rest(ask: DecisionRequest, steps: Steps[Decision | QuotaAlteration]) -> Steps[Decision | QuotaAlteration]:
    try:
        return (yield from steps)
    except ProtocolError as error:
        return _close(ask, error)


def _steps_of_quota_api(ask: DecisionRequest, facts: ConnectionFacts) -> Steps[Decision | QuotaAlteration]:
    if ask.api_key == DESCRIBE_CLIENT_QUOTAS:
        request = read_describe_request(ask.frame, ask.api_version, quota_api.DECISIVE_COMPONENTS)
        if not quota_api.may_ask(request, facts):
            facts.note_denied("DescribeClientQuotas", facts.user, ask.client_id)
            return Decision(response=quota_api.describe_refused(request))
        return Decision(response=(yield from quota_api.describe(request, facts)))
    reader = AlterReader(ask.frame, ask.api_version)
    if not facts.may_alter:
        facts.note_denied("AlterClientQuotas", facts.user, ask.client_id)
        return quota_api.refuse(reader)
    entries = yield from collected(reader.entries())
    return (yield from quota_api.alter(reader.request(tuple(entries)), facts))


def _decide_sasl(ask: DecisionRequest, facts: ConnectionFacts, now_ms: int) -> Decision:
    """Which user the client has proven to be, once the node has accepted it."""
    return facts.login.judge(ask, facts.become)


def _decide_mutation(
    ask: DecisionRequest, facts: ConnectionFacts, now_ms: int
) -> Decision | QuotaAlteration | SlowDecision:
    """Which topics may be created, deleted or extended, and what that costs; for a response, what was done."""
    if ask.side is Side.NODE:
        return _in_steps(ask, mutations.settle(ask, facts, now_ms))
    return _in_steps(ask, mutations.judge(ask, facts, now_ms))


def _decide_scram_credentials(ask: DecisionRequest, facts: ConnectionFacts, now_ms: int) -> Decision:
    """Let a client look at quotas of users even if the cluster does not have this API, or refuses it."""
    return scram_credentials.settle(ask) if ask.side is Side.NODE else scram_credentials.judge(ask, facts)


_remembered_offer = lru_cache(maxsize=64)(_offer)
"""The nodes of a cluster offer the same to all clients; only the correlation id differs."""

_DECIDERS: dict[
    DecisionKind, Callable[[DecisionRequest, ConnectionFacts, int], Decision | QuotaAlteration | SlowDecision]
] = {
    DecisionKind.ADDRESSES: _decide_addresses,
    DecisionKind.API_VERSIONS: _decide_api_versions,
    DecisionKind.QUOTA_API: _decide_quota_api,
    DecisionKind.MUTATION: _decide_mutation,
    DecisionKind.SCRAM_CREDENTIALS: _decide_scram_credentials,
    DecisionKind.SASL: _decide_sasl,
}
