"""What the clients of kafka-python and aiokafka are told alike: both libraries give these settings the same names."""

from typing import Any

from tests.conservation.orders import Orders
from tests.conservation.pace import Plan
from tests.conservation.records import LARGE_BYTES

FLUSH_S = 180.0

_TIMEOUTS = {"request_timeout_ms": 15_000, "metadata_max_age_ms": 5000}


def producer_settings(plan: Plan, bootstrap: str) -> dict[str, Any]:
    """An idempotent producer."""
    return {
        "bootstrap_servers": bootstrap,
        "client_id": plan.client_id,
        "enable_idempotence": True,
        "acks": "all",
        "linger_ms": 20,
        "compression_type": None if plan.compression == "none" else plan.compression,
        "max_request_size": 2 * LARGE_BYTES,
        **_TIMEOUTS,
    }


def consumer_settings(orders: Orders) -> dict[str, Any]:
    """A consumer without a group, from the beginning."""
    return {
        "bootstrap_servers": orders.given["bootstrap"],
        "client_id": orders.given["group"],
        "group_id": None,
        "auto_offset_reset": "earliest",
        "max_partition_fetch_bytes": 2 * LARGE_BYTES,
        **_TIMEOUTS,
    }
