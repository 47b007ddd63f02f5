"""DescribeUserScramCredentials, which Kafka's `kafka-configs` sends with each look at the quotas of users.

It gives up where a cluster has no such API (before Kafka 2.7), or refuses it, and with it the look at the quotas that
are in force here. So there are no users then, for whoever may describe those quotas. What a node tells, passes.
"""

from protocol.api_key import DESCRIBE_USER_SCRAM_CREDENTIALS
from protocol.messages.api_versions import is_in_offer, is_whole_offer, versions_request
from protocol.messages.scram_credentials import no_users_response, only_user, throttle_at, without_refusal
from proxy.decisions.facts import ConnectionFacts
from proxy.relay.actions import OWN_REQUEST_ID, Decision, DecisionRequest


def judge(ask: DecisionRequest, facts: ConnectionFacts) -> Decision:
    """The decision on a request: the node is asked first what it offers. Raises ProtocolError."""
    if not ask.own_responses:
        return Decision(own_requests=(versions_request(OWN_REQUEST_ID),))
    [offer] = ask.own_responses
    if is_whole_offer(offer) and not is_in_offer(offer, DESCRIBE_USER_SCRAM_CREDENTIALS):
        return Decision(response=no_users_response(ask.frame))
    may_describe = facts.may_describe or only_user(ask.frame, ask.body_at) == facts.user.encode()
    return Decision(note=True if may_describe else None)


def settle(ask: DecisionRequest) -> Decision:
    """The decision on a response to somebody who may describe quotas. Raises ProtocolError."""
    return Decision(splices=without_refusal(ask.frame), throttle_at=throttle_at(ask.frame))
