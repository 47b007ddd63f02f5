"""Makes the source of a virtual cluster's quotas from its configuration, for the service and the CLI."""

from collections.abc import Collection
from pathlib import Path

from kafka_throttle.common.login_secrets import PasswordFile
from kafka_throttle.common.zookeeper import Ensemble, Login, Tls
from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.config.secret_file import secret
from kafka_throttle.proxy.config.settings import (
    QUOTAS_TOPIC,
    EnsembleConfig,
    UpstreamConfig,
    VirtualClusterConfig,
    chroot_of,
    quota_entries,
)
from kafka_throttle.proxy.upstream.credentials import credentials_of
from kafka_throttle.quotas.changes import Alteration
from kafka_throttle.quotas.entities import Entity, QuotaKey, Scope
from kafka_throttle.quotas.sources.file import FileSource
from kafka_throttle.quotas.sources.last_good import LastGood
from kafka_throttle.quotas.sources.source import Source
from kafka_throttle.quotas.sources.topic import TopicSettings, TopicSource
from kafka_throttle.quotas.sources.upstream import UpstreamSettings, UpstreamSource
from kafka_throttle.quotas.sources.zookeeper import ZooKeeperSettings, ZooKeeperSource


def source_of(config: VirtualClusterConfig, config_path: Path, *, remembers: bool = True) -> Source:
    """The source of a virtual cluster's quotas, not started. Raises ConfigErrors if a password file cannot be read.

    With `remembers` it is the source of a running proxy: it stores the last good quotas on disk, which only one process
    may do at a time, and a topic that is missing is created at once.
    """
    quotas = config.quotas
    state_file = Path(quotas.state_file) if quotas.state_file else None
    if quotas.source == "file":
        return FileSource(quota_entries(config), config_path.name, state_file, shared_by=_others_of(config))
    source: Source
    if quotas.source == "zookeeper":
        source = ZooKeeperSource(zookeeper_settings(config))
    elif quotas.source == "topic":
        source = TopicSource(topic_settings(config, creates=remembers))
    else:
        source = UpstreamSource(upstream_settings(config))
    return LastGood(source, state_file) if state_file and remembers else source


def _others_of(config: VirtualClusterConfig) -> str:
    """Who else has quotas of this file, in words; "" if only this instance has."""
    instances = config.quotas.instances
    return f"{instances} instances" if instances > 1 else "a fleet" if config.fleet is not None else ""


def upstream_settings(config: VirtualClusterConfig) -> UpstreamSettings:
    """The settings of the upstream source. Raises ConfigErrors if a password file cannot be read."""
    upstream = config.upstream
    return UpstreamSettings(
        bootstrap_servers=_host_ports(upstream.bootstrap_servers),
        credentials=credentials_of(upstream),
        interval_s=config.quotas.poll_interval_ms / 1000,
        timeout_s=_timeout_s(upstream),
    )


def topic_settings(config: VirtualClusterConfig, *, creates: bool) -> TopicSettings:
    """The settings of the topic source. Raises ConfigErrors if a password file cannot be read."""
    upstream = config.upstream
    return TopicSettings(
        topic=config.quotas.topic or f"{QUOTAS_TOPIC}{config.name}",
        bootstrap_servers=_host_ports(upstream.bootstrap_servers),
        credentials=credentials_of(upstream),
        creates=creates,
        timeout_s=_timeout_s(upstream),
    )


def zookeeper_settings(config: VirtualClusterConfig) -> ZooKeeperSettings:
    """The settings of the ZooKeeper source. Raises ConfigErrors if a password file cannot be read."""
    found = config.quotas.zookeeper
    ensemble = ensemble_of(found, "quotas.zookeeper", found.session_timeout_ms)
    return ZooKeeperSettings(ensemble, chroot_of(config), found.resync_s * 1000)


def ensemble_of(config: EnsembleConfig, section: str, session_timeout_ms: int) -> Ensemble:
    """The ensemble of a section. ConfigErrors if its password cannot be read now; it is read for each login."""
    secret(config.password_file, f"{section}.password_file")
    login = None
    if config.username and config.password_file:
        account = f"{config.username} at {','.join(map(str, config.servers))}"
        login = Login(config.username, PasswordFile(config.password_file, account))
    return Ensemble(
        servers=_host_ports(config.servers),
        session_timeout_ms=session_timeout_ms,
        digest=None if config.sasl else login,
        sasl=login if config.sasl else None,
        tls=Tls(config.ca_file, config.certificate_file, config.key_file) if config.tls else None,
        acl="creator" if config.creator_only else "open",
    )


def _host_ports(servers: Collection[HostPort]) -> tuple[str, ...]:
    return tuple(str(server) for server in servers)


def _timeout_s(upstream: UpstreamConfig) -> float:
    return upstream.connect_timeout_ms / 1000


def renew(source: Source, config: VirtualClusterConfig) -> None:
    """Pass to the source what it uses of a changed configuration file, as far as that may change without a restart."""
    if isinstance(source, LastGood):
        source = source.source
    if isinstance(source, FileSource):
        source.replace(quota_entries(config))
    elif isinstance(source, UpstreamSource | TopicSource):
        source.replace_servers(_host_ports(config.upstream.bootstrap_servers), _timeout_s(config.upstream))


def leave_to_another(source: Source) -> None:
    """Have another process store the last good quotas from now on."""
    if isinstance(source, LastGood):
        source.leave_to_another()


def unset(source: Source, entity: Entity, keys: Collection[QuotaKey], *, scope: bool = False) -> None:
    """Remove quotas, and with `scope` the scope.

    In a file source, remove their alterations, so that the operator's file is in force again.

    Raises AlterationRefused or SourceUnavailable; then nothing has changed.
    """
    if isinstance(source, FileSource):
        source.unset(entity, keys, scope=scope)
        return
    [problem] = source.alter([Alteration(entity, dict.fromkeys(keys), Scope.NODE if scope else None)])
    if problem is not None:
        raise problem
