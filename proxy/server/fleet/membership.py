"""Makes the fleet of a virtual cluster from its configuration."""

from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.config.settings import UpstreamConfig, VirtualClusterConfig, fleet_path
from kafka_throttle.proxy.server.fleet.fleet import WRITE_AMONG_WORKERS_MS, WRITE_MS, Fleet
from kafka_throttle.proxy.server.fleet.member_id import member_id
from kafka_throttle.proxy.server.fleet.topic import TopicTransport
from kafka_throttle.proxy.server.fleet.transport import FleetTransport
from kafka_throttle.proxy.server.fleet.zookeeper import ZooKeeperTransport
from kafka_throttle.proxy.server.quota_sources import ensemble_of
from kafka_throttle.proxy.upstream.credentials import credentials_of
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.connection_quotas import ConnectionQuotas
from kafka_throttle.quotas.share_rows import SharedRows, is_count
from kafka_throttle.quotas.shares.member import Member


def transport_of(config: VirtualClusterConfig, clock: Clock) -> FleetTransport | None:
    """What carries the claims of a virtual cluster's fleet, not started; None if it has no fleet.

    Raises ConfigErrors if a password file cannot be read.
    """
    fleet, quotas = config.fleet, config.quotas
    if fleet is None:
        return None
    if fleet.topic is not None:
        credentials = credentials_of(config.upstream)
        servers, timeout_s = _servers(config.upstream)
        return TopicTransport(fleet.topic, servers, credentials, fleet.session_timeout_ms, clock, timeout_s)
    found, section = fleet.zookeeper, "fleet.zookeeper"
    if not found.servers:
        found, section = quotas.zookeeper, "quotas.zookeeper"
    return ZooKeeperTransport(ensemble_of(found, section, fleet.session_timeout_ms), fleet_path(config), clock.now_ms)


def renew(transport: FleetTransport | None, config: VirtualClusterConfig) -> None:
    """Pass to the transport what it uses of a changed configuration file, as far as that may change without a
    restart."""
    if isinstance(transport, TopicTransport):
        transport.replace_servers(*_servers(config.upstream))


def _servers(upstream: UpstreamConfig) -> tuple[list[str], float]:
    return list(map(str, upstream.bootstrap_servers)), upstream.connect_timeout_ms / 1000


def fleet_of(
    config: VirtualClusterConfig,
    transport: FleetTransport,
    quota_manager: ClientQuotaManager,
    connections: ConnectionQuotas,
    instance: str,
    clock: Clock,
) -> Fleet:
    """The fleet of a virtual cluster, not started.

    `instance` is the name of this one; the member is called after it, and another one each time the process starts.
    """
    windows = config.quotas.windows
    member = Member(
        member_id(instance),
        windows.quota_window_num,
        windows.quota_window_size_seconds * 1000,
        clock.now_ms(),
        cut_off_ms=transport.cut_off_ms,
        assumed=config.quotas.instances,
        is_count=is_count,
    )
    rows = SharedRows(quota_manager, connections, config.name, member)
    write_ms = WRITE_AMONG_WORKERS_MS if config.fleet is None else WRITE_MS
    return Fleet(config.name, transport, member, rows, clock, write_ms)
