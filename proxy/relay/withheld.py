"""The empty answer in place of one that is over quota, by the plan of its API and version."""

from protocol import empty_fetch
from proxy.relay.plans import SHARE_FETCH, Plan


def decisive_bytes(plan: Plan) -> int:
    """How much of the body of an answer must be seen before the empty one can be made."""
    return empty_fetch.decisive_bytes(plan.api_version, plan.api_key == SHARE_FETCH)


def empty_answer(plan: Plan, head: memoryview, body_at: int, incremental: bool, throttle_time_ms: int) -> bytes:
    """The frame that goes out instead of the answer that begins with `head`; its body begins at `body_at`."""
    if plan.api_key == SHARE_FETCH:
        return empty_fetch.empty_share_fetch_answer(head, body_at, throttle_time_ms)
    return empty_fetch.empty_fetch_answer(head, body_at, plan.api_version, incremental, throttle_time_ms)
