"""The name under which a client id is measured."""

from hashlib import sha256

from kafka_throttle.proxy.relay.request import LONG_CLIENT_ID_BYTES
from kafka_throttle.quotas.quota_table import QuotaTable


def measured_client_id(raw: bytes, table: QuotaTable) -> str:
    """The name under which a client id is measured: a very long one by its digest, unless a quota names it."""
    client_id = raw.decode(errors="replace")
    if len(raw) <= LONG_CLIENT_ID_BYTES or table.names_long_client_id(client_id):
        return client_id
    return f"{client_id[:64]}… sha256 {sha256(raw).hexdigest()}"
