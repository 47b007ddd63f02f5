"""From which version of an API on clients wait by themselves for the throttle time of a response (KIP-219).

Below it they take it that an old broker has delayed the response already. Source: `shouldClientThrottle` of Kafka 3.9's
response classes; APIs that are not here are never waited for.
"""

from collections.abc import Mapping
from typing import Final

CLIENT_WAITS_SINCE: Final[Mapping[int, int]] = {
    **dict.fromkeys((43, 44, 45, 46, 47, 50, 51, 62, 63, 64, 75), 0),
    **dict.fromkeys((21, 22, 24, 25, 26, 28, 29, 30, 31, 33, 34, 35, 37, 38, 39, 40, 41, 42), 1),
    **dict.fromkeys((10, 12, 13, 14, 15, 16, 18, 20, 32), 2),
    **dict.fromkeys((2, 11, 19), 3),
    **dict.fromkeys((8, 9), 4),
    **dict.fromkeys((0, 3), 6),
    1: 8,
}


def client_waits(api_key: int, api_version: int) -> bool:
    """Whether a client holds back for the throttle time that a response of this version tells."""
    since = CLIENT_WAITS_SINCE.get(api_key)
    return since is not None and api_version >= since
