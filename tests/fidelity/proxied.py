"""The proxy before the broker that is measured, with the same request quota, and what it has charged."""

import json
import urllib.request
from typing import Any

from tests.fidelity.broker import LIMIT_PERCENT, Broker
from tests.integration.proxy_process import HOST, ProxyProcess

_ENTITIES = 1000


class FidelityProxy(ProxyProcess):
    """A proxy whose request quota for each client-id throttles nobody, with series for as many as there are."""

    def __init__(self, broker: Broker) -> None:
        quota = {"default_client_id": True, "request_percentage": LIMIT_PERCENT}
        super().__init__(broker.cluster, [quota], metrics={"top_entities": _ENTITIES})

    def node_address(self, node_id: int) -> tuple[str, int]:
        """Where clients find a node."""
        return HOST, self.node_ports[node_id]

    def rate(self, client_id: str) -> float:
        """Request time of a client-id now, in per cent of one thread."""
        return self.metric("entity_rate", quota_type="request", client_id=client_id)

    def exempt_us(self) -> float:
        """Request time that nobody was charged for, so far."""
        return self.metric("exempt_request_seconds_total") * 1e6

    def costs(self, node_id: int) -> dict[str, Any]:
        """The model of what requests cost a node, by API, as the admin API shows it."""
        with urllib.request.urlopen(f"http://{HOST}:{self.admin_port}/api/v1/request-costs", timeout=10) as response:
            nodes = json.load(response)["nodes"]
        return next((node for node in nodes if node["node_id"] == node_id), {})
