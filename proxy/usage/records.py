"""Makes usage records from the counters of relays and the quotas in force."""

from proxy.relay.use import WindowUsage
from quotas.client_quotas import ClientQuotaManager
from quotas.entities import Entity, QuotaType
from quotas.limits import UNLIMITED
from quotas.quota_table import QuotaTable
from quotas.records.usage_record import UsageRecord, profile_text


def record_of(
    counts: WindowUsage,
    quota_manager: ClientQuotaManager,
    instance: str,
    epoch: int,
    sequence: int,
    end_ms: int,
    virtual_cluster: str,
) -> UsageRecord:
    """The usage record of one client and quota type in a window that ended at `end_ms`."""
    client = counts.client
    limit, rule = _standing(quota_manager.table, counts)
    shadow_limit, shadow_rule = _standing(quota_manager.shadow, counts)
    return UsageRecord(
        instance=instance,
        epoch=epoch,
        sequence=sequence,
        begin_ms=counts.begin_ms,
        end_ms=end_ms,
        virtual_cluster=virtual_cluster,
        node_id=client.node_id,
        user=client.user,
        client_id=client.client_id,
        ip=client.ip,
        quota_type=counts.quota_type.name.lower(),
        used=float(counts.used),
        peak=float(counts.peak),
        requests=counts.requests,
        in_bytes=counts.in_bytes,
        out_bytes=counts.out_bytes,
        throttles=counts.throttles,
        throttled_ms=counts.throttled_ms,
        backlogged_ms=counts.backlogged_ms,
        limit=limit,
        rule=rule,
        shadow_limit=shadow_limit,
        shadow_rule=shadow_rule,
        shadow_throttles=counts.shadow_throttles,
        shadow_throttled_ms=counts.shadow_throttled_ms,
        unsent_bytes=counts.unsent_bytes,
        muted_ms=counts.muted_ms,
        profile=profile_text(counts.seconds),
    )


def _standing(table: QuotaTable, counts: WindowUsage) -> tuple[float | None, str]:
    """The limit in force for a client, and the entity that it is set on; None and "" if there is none."""
    client, quota_type = counts.client, counts.quota_type
    entity: Entity | None
    if quota_type is QuotaType.CONNECTION:
        limit, entity = table.ip_limit(client.ip)
    else:
        _, limit, entity = table.tags_and_limit(quota_type, client.user, client.client_id)
    if entity is None or limit >= UNLIMITED:
        return None, ""
    return limit, str(entity)
