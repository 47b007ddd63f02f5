"""What is allowed in a configuration but hardly meant."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from kafka_throttle.common.atomic_file import obstacle
from kafka_throttle.common.problems import Problem
from kafka_throttle.protocol.identity.principal_rules import principal_rules
from kafka_throttle.protocol.identity.sasl_names import PLAIN, SCRAM
from kafka_throttle.proxy.config.checks import common, listener_ports
from kafka_throttle.proxy.config.kinds import is_loopback, show_range
from kafka_throttle.proxy.config.settings import (
    Config,
    ListenerConfig,
    ListenerTlsConfig,
    QuotasConfig,
    SaslConfig,
    UsageConfig,
    VirtualClusterConfig,
)
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, is_ip
from kafka_throttle.quotas.explain import always_overridden_by
from kafka_throttle.quotas.sources.entries import QuotaEntry


def ephemeral_ports() -> range:
    """The ports that this system gives to outgoing connections; Linux's default where it does not say."""
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        first, last = map(int, text.split())
    except (OSError, ValueError):
        first, last = 32_768, 60_999
    return range(first, last + 1)


def warnings_of(config: Config, ephemeral: range) -> list[Problem]:
    """What is allowed but may surprise.

    That is: ports that outgoing connections may take first, no quotas, quotas that bind nobody, a token in plain text,
    addresses that are believed from too many.
    """
    warnings = []
    for i, cluster in enumerate(config.virtual_clusters):
        path = f"virtual_clusters[{i}]"
        for k, listener in enumerate(cluster.listeners):
            for claim in listener_ports(f"{path}.listeners[{k}]", listener):
                if both := common(claim.ports, ephemeral):
                    problem = f"expected ports outside of the system's ephemeral range {show_range(ephemeral)}"
                    warnings.append(Problem(claim.path, f"{problem}, got {show_range(both)}"))
            warnings += _reach_warnings(f"{path}.listeners[{k}]", listener, cluster)
            warnings += _trust_warnings(f"{path}.listeners[{k}]", listener)
            warnings += _server_name_warnings(f"{path}.listeners[{k}]", listener)
            warnings += _rule_warnings(f"{path}.listeners[{k}].tls.principal_mapping_rules", listener.tls)
        if not cluster.quotas.entries and cluster.quotas.source == "file" and not cluster.quotas.state_file:
            warnings.append(Problem(f"{path}.quotas.entries", "expected quotas, got none: nobody is throttled"))
        warnings += _overridden_entries(f"{path}.quotas.entries", cluster.quotas.entries)
        warnings += _entry_warnings(f"{path}.quotas.entries", cluster.quotas.entries)
        warnings += _several_warnings(path, cluster)
        warnings += _source_warnings(f"{path}.quotas", cluster.quotas)
        warnings += _own_connection_warnings(path, cluster)
        warnings += _user_name_warnings(f"{path}.sasl", cluster.sasl)
    if (config.connections.max_connections or 0) >= config.limits.max_connections:
        problem = f"expected less than limits.max_connections, {config.limits.max_connections}: beyond that they are"
        found = config.connections.max_connections
        warnings.append(Problem("connections.max_connections", f"{problem} closed and do not wait, got {found}"))
    warnings += _usage_warnings(config.usage)
    warnings += _http_warnings(config)
    return warnings


def written_file_warnings(config: Config) -> Iterator[Problem]:
    """Files that the proxy could not write. Looks at the disk, and may wait for it."""
    for i, cluster in enumerate(config.virtual_clusters):
        makes_changes = cluster.quotas.source == "file"
        lost = "changes of quotas are refused" if makes_changes else "the last good quotas are not saved"
        place = f"virtual_clusters[{i}].quotas.state_file"
        yield from _unwritten(place, cluster.quotas.state_file, lost, of_changes=makes_changes)
    lost = "after a restart each client begins with a full burst"
    yield from _unwritten("restart.sensors_file", config.restart.sensors_file, lost)


def _unwritten(setting: str, file: str | None, lost: str, *, of_changes: bool = False) -> Iterator[Problem]:
    """A file of changes is replaced behind a symbolic link, and its directories are made; of others, a link is."""
    if file is not None:
        path = Path(os.path.realpath(file)) if of_changes else Path(file)
        if (why := obstacle(path, makes_folders=of_changes)) is not None:
            yield Problem(setting, f"{file} {why}; {lost}")


def _several_warnings(path: str, cluster: VirtualClusterConfig) -> Iterator[Problem]:
    """What several instances of the proxy cannot keep, or do not know."""
    quotas = cluster.quotas
    if quotas.source == "file" and quotas.state_file and (quotas.instances > 1 or cluster.fleet is not None):
        problem = "expected nothing, as source 'file' of several instances takes no changes, got a file"
        yield Problem(f"{path}.quotas.state_file", problem)
    if cluster.fleet is not None and quotas.instances == 1:
        place = "ZooKeeper" if cluster.fleet.topic is None else "the topic"
        problem = f"expected the number of instances of the fleet, got 1: one that starts while {place} is away"
        yield Problem(f"{path}.quotas.instances", f"{problem} enforces whole limits")


def _http_warnings(config: Config) -> Iterator[Problem]:
    """Tokens and passwords that others can overhear."""
    expected = "expected a loopback address without tls, got"
    if config.admin.tls is None and not is_loopback(config.admin.bind):
        problem = f"{expected} {config.admin.bind!r}: the token and what is told can be overheard"
        yield Problem("admin.bind", problem)
    if config.metrics.tls is None and config.metrics.username and not is_loopback(config.metrics.bind):
        yield Problem("metrics.bind", f"{expected} {config.metrics.bind!r}: the password can be overheard")


def _usage_warnings(usage: UsageConfig) -> Iterator[Problem]:
    if usage.total_mib < usage.file_mib:
        problem = f"expected file_mib, {usage.file_mib}, at least: else all files but one go, got {usage.total_mib}"
        yield Problem("usage.total_mib", problem)
    if usage.trace.entities:
        problem = "expected nothing but for a while: each operation costs time and some 200 bytes, got {}"
        yield Problem("usage.trace.entities", problem.format(len(usage.trace.entities)))


def _own_connection_warnings(path: str, cluster: VirtualClusterConfig) -> Iterator[Problem]:
    """What the nodes want of clients' connections they want of the proxy's own, too."""
    admin = cluster.upstream.admin
    found = admin.security_protocol
    for setting in ("ca_file", "certificate_file"):
        if getattr(admin, setting) is not None and not found.endswith("SSL"):
            yield Problem(f"{path}.upstream.admin.{setting}", f"is without effect with security_protocol {found!r}")
    where = f"{path}.upstream.admin.security_protocol"
    if cluster.upstream.tls is not None and not found.endswith("SSL"):
        problem = "expected SSL or SASL_SSL, as clients' connections to the nodes speak TLS, got"
        yield Problem(where, f"{problem} {found!r}")
    if cluster.sasl.required and not found.startswith("SASL"):
        problem = (
            "expected SASL_PLAINTEXT or SASL_SSL, as the nodes demand SASL of the proxy's own connections, too, got"
        )
        yield Problem(where, f"{problem} {found!r}")


def _user_name_warnings(path: str, sasl: SaslConfig) -> Iterator[Problem]:
    """Users of mechanisms whose tokens say by themselves who logs in."""
    mechanisms = {f"{path}.user_names[{name!r}]": name[1:] for name in sasl.user_names if name.startswith("?")}
    for place, mechanism in mechanisms.items():
        if mechanism.upper() in (PLAIN, *SCRAM):
            problem = f"is without effect with {mechanism}: its tokens name their users"
            yield Problem(place, f"{problem}, who have quotas of their own")
        elif mechanism != mechanism.upper():
            problem = f"expected the mechanism as nodes call it, {mechanism.upper()}, got {mechanism}"
            yield Problem(place, problem)


def _reach_warnings(path: str, listener: ListenerConfig, cluster: VirtualClusterConfig) -> Iterator[Problem]:
    """Listeners that clients of other machines do not reach, or where their passwords are in plain text."""
    if is_loopback(listener.bind):
        return
    host = listener.advertised_host
    if host == "localhost" or (is_ip(host) and is_loopback(host)):
        problem = f"{host!r} is for each client its own machine: clients of other machines do not reach the nodes"
        yield Problem(f"{path}.advertised_host", problem)
    elif listener.tls is None and cluster.upstream.tls is not None and cluster.sasl.required:
        told = "passwords of SASL PLAIN can be overheard on the way to the proxy"
        yield Problem(f"{path}.tls", f"expected tls, as clients log in and the nodes speak TLS, got nothing: {told}")


def _trust_warnings(path: str, listener: ListenerConfig) -> Iterator[Problem]:
    """Whoever may tell the address of a client may choose whose quota is spent."""
    if listener.proxy_protocol == "off" and listener.trusted_networks:
        problem = "is without effect while proxy_protocol is 'off': every client counts as the address it connects from"
        yield Problem(f"{path}.trusted_networks", problem)
    if listener.proxy_protocol == "optional":
        problem = "counts a load balancer that sends no header as one client: once all of them do, set 'required'"
        yield Problem(f"{path}.proxy_protocol", problem)
    for i, network in enumerate(listener.trusted_networks):
        if listener.proxy_protocol != "off" and network.prefixlen == 0:
            problem = f"{network} is everybody: every client may claim to be at any address"
            yield Problem(f"{path}.trusted_networks[{i}]", problem)


def _server_name_warnings(path: str, listener: ListenerConfig) -> Iterator[Problem]:
    """Names for which Java's clients send no SNI (`javax.net.ssl.SNIHostName`): they would all come to one node."""
    pattern, demands = listener.advertised_node_host, listener.require_server_name
    if pattern is None:
        if demands:
            yield Problem(f"{path}.require_server_name", "is without effect without advertised_node_host")
        return
    names = {"advertised_node_host": pattern} | ({"advertised_host": listener.advertised_host} if demands else {})
    for setting, name in names.items():
        if why := _why_java_sends_none(name):
            outcome = "it is closed" if demands else "it comes to whichever node bootstraps"
            problem = f"{name!r} {why}: a Java client sends no server name for it, so {outcome}"
            yield Problem(f"{path}.{setting}", problem)


def _why_java_sends_none(name: str) -> str | None:
    if name.endswith("."):
        return "ends with a dot"
    if "_" in name.replace("{node_id}", "0"):
        return "has an underscore"
    if is_ip(name):
        return "is an IP address"
    return None if "." in name else "has no dot"


def _rule_warnings(path: str, tls: ListenerTlsConfig | None) -> Iterator[Problem]:
    """Patterns that try a subject in more ways than there is time for."""
    for number in principal_rules(tls.principal_mapping_rules).slow_rules() if tls else ():
        problem = f"the pattern of rule {number} takes very long for some subjects, which it can divide in many ways"
        yield Problem(path, f"{problem}: clients with such a certificate are closed")


def _entry_warnings(path: str, entries: Sequence[QuotaEntry]) -> Iterator[Problem]:
    """Names that look like a default."""
    for i, entry in enumerate(entries):
        for part in ("user", "client_id"):
            if getattr(entry, part) == DEFAULT.value:
                problem = f"is the {part} of that name, for all others it is default_{part}: true"
                yield Problem(f"{path}[{i}].{part}", problem)


def _source_warnings(path: str, quotas: QuotasConfig) -> Iterator[Problem]:
    if quotas.zookeeper.chroot == "/":
        problem = "is Kafka's own root: brokers in ZooKeeper mode enforce the same quotas, clients are throttled twice"
        yield Problem(f"{path}.zookeeper.chroot", problem)
    admins = bool(quotas.admin_users or quotas.admin_listeners)
    if quotas.state_file is None and (quotas.source != "file" or admins):
        lost = "if the source is down at the next start, there are no quotas"
        if quotas.source == "file":
            lost = "changes through Kafka's API are refused"
        yield Problem(f"{path}.state_file", f"no state_file: {lost}")


def _overridden_entries(path: str, entries: Sequence[QuotaEntry]) -> Iterator[Problem]:
    """Quotas that bind nobody, or nearly nobody, because another entry always comes first."""
    places: dict[QuotaKey, dict[Entity, int]] = {}
    for i, entry in enumerate(entries):
        for key in entry.limits():
            places.setdefault(key, {})[entry.entity()] = i
    for i, entry in enumerate(entries):
        for key in entry.limits():
            if first := always_overridden_by(entry.entity(), places[key]):
                warning = first.warning(f"entries[{places[key][first.entity]}] of ")
                yield Problem(f"{path}[{i}].{key.text}", warning)
