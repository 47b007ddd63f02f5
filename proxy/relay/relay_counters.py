"""What relays count: plain integers, which the collector of metrics exports when they are scraped."""

from dataclasses import dataclass, field
from typing import Final

from kafka_throttle.quotas.entities import QuotaType

MAX_API_KEYS: Final = 128


@dataclass(slots=True)
class RelayCounters:
    """Sums over the relays of one (virtual cluster, listener, node), open and closed ones.

    - `requests_by_api` is indexed by API key.
    - `throttles_by_node` counts responses whose own throttle time was larger than the proxy's.
    - `withheld_bytes` are those of Fetch responses over quota that were replaced by empty ones.
    - `throttled_ms` adds up by how much each throttle of the proxy prolonged a mute.
    - `mutations_refused` counts topics for which a creation, a deletion or new partitions were refused.
    - `exempt_us` is the request time, in us, of requests that are charged to no request quota.
    - `authentications` counts those by SASL that the node accepted, first ones and later ones.
    """

    connections_opened: int = 0
    connections_open: int = 0
    requests_by_api: list[int] = field(default_factory=lambda: [0] * MAX_API_KEYS)
    request_bytes: int = 0
    responses: int = 0
    response_bytes: int = 0
    throttles: dict[QuotaType, int] = field(default_factory=lambda: dict.fromkeys(QuotaType, 0))
    throttled_ms: dict[QuotaType, int] = field(default_factory=lambda: dict.fromkeys(QuotaType, 0))
    throttles_by_node: int = 0
    withheld_bytes: int = 0
    mutations_refused: int = 0
    exempt_us: float = 0.0
    authentications: int = 0
    authentications_failed: int = 0
