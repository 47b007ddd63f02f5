"""Decides about DescribeUserScramCredentials, which `kafka-configs` sends whenever it describes quotas of users.

When a cluster does not have this API (before Kafka 2.7) or refuses it, `kafka-configs` gives up, and does not show the
quotas that are in force in the proxy. So clients that may describe those quotas get a response without users then. Any
other response of a node passes.
"""

from kafka_throttle.protocol.api_key import DESCRIBE_USER_SCRAM_CREDENTIALS
from kafka_throttle.protocol.messages.api_versions import is_in_offer, is_whole_offer, versions_request
from kafka_throttle.protocol.messages.scram_credentials import (
    no_users_response,
    only_user,
    throttle_at,
    without_refusal,
)
from kafka_throttle.proxy.decisions.facts import ConnectionFacts
from kafka_throttle.proxy.relay.actions import OWN_REQUEST_ID, Decision, DecisionRequest


def judge(ask: DecisionRequest, facts: ConnectionFacts) -> Decision:
    """The decision about a request: the node is first asked which APIs it offers. Raises ProtocolError."""
    if not ask.own_responses:
        return Decision(own_requests=(versions_request(OWN_REQUEST_ID),))
    [offer] = ask.own_responses
    if is_whole_offer(offer) and not is_in_offer(offer, DESCRIBE_USER_SCRAM_CREDENTIALS):
        return Decision(response=no_users_response(ask.frame))
    may_describe = facts.may_describe or only_user(ask.frame, ask.body_at) == facts.user.encode()
    return Decision(note=True if may_describe else None)


def settle(ask: DecisionRequest) -> Decision:
    """The decision about a response to a client that may describe quotas. Raises ProtocolError."""
    return Decision(splices=without_refusal(ask.frame), throttle_at=throttle_at(ask.frame))
