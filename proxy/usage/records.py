"""Makes usage records from the counters of relays and the quotas in force."""

from typing import NamedTuple

from kafka_throttle.proxy.relay.use import WindowUsage
from kafka_throttle.quotas.client_quotas import ClientQuotaManager, SensorKey, measured_at
from kafka_throttle.quotas.connection_quotas import ConnectionQuotas
from kafka_throttle.quotas.entities import Entity, QuotaType, Scope, SensorTags
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.records.usage_record import UsageRecord, profile_text


def record_of(
    counts: WindowUsage,
    quota_manager: ClientQuotaManager,
    connections: ConnectionQuotas,
    instance: str,
    epoch: int,
    sequence: int,
    end_ms: int,
    virtual_cluster: str,
) -> UsageRecord:
    """The usage record of one client and quota type in a window that ended at `end_ms`."""
    client = counts.client
    quota = _quota_of(quota_manager.table, counts)
    shadow = _quota_of(quota_manager.shadow, counts)
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
        limit=quota.limit,
        rule=quota.rule,
        shadow_limit=shadow.limit,
        shadow_rule=shadow.rule,
        shadow_throttles=counts.shadow_throttles,
        shadow_throttled_ms=counts.shadow_throttled_ms,
        unsent_bytes=counts.unsent_bytes,
        muted_ms=counts.muted_ms,
        profile=profile_text(counts.seconds),
        scope=quota.scope.value,
        share=_share(quota_manager, connections, quota, virtual_cluster, counts),
    )


class _Quota(NamedTuple):
    """The quota in force for a client, and the tags that it is measured under: None for an address, or no limit."""

    tags: SensorTags | None
    entity: Entity | None
    limit: float | None
    scope: Scope

    @property
    def rule(self) -> str:
        """The entity that the limit is set on; "" if there is none."""
        return "" if self.limit is None else str(self.entity)


def _quota_of(table: QuotaTable, counts: WindowUsage) -> _Quota:
    client, quota_type = counts.client, counts.quota_type
    tags: SensorTags | None = None
    entity: Entity | None
    if quota_type is QuotaType.CONNECTION:
        limit, entity = table.ip_limit(client.ip)
    else:
        tags, limit, entity = table.tags_and_limit(quota_type, client.user, client.client_id)
    scope = table.scope_of(quota_type, entity)
    if entity is None or limit >= UNLIMITED:
        return _Quota(None, None, None, scope)
    return _Quota(tags, entity, limit, scope)


def _share(
    manager: ClientQuotaManager,
    connections: ConnectionQuotas,
    quota: _Quota,
    virtual_cluster: str,
    counts: WindowUsage,
) -> float:
    """The part of the client's limit that this process enforces."""
    if quota.limit is None:
        return 1.0
    if quota.tags is None:
        return connections.share_of(virtual_cluster, counts.client.ip)
    if manager.share_of is None:
        return 1.0
    node_id = measured_at(counts.client.node_id, quota.scope)
    key = SensorKey(virtual_cluster, node_id, counts.quota_type, quota.tags)
    return manager.share_of(manager.find(key, quota.entity) or key)
