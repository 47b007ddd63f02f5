"""What can be wrong with settings beside each other.

The checks look at the raw data and take up each part that is valid by itself: one mistake hides no other.
"""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from itertools import combinations
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from proxy.config.kinds import MAX_PORT, is_advertisable, show_range
from proxy.config.problems import ConfigError, either, show
from proxy.config.sections import valid_settings
from proxy.config.settings import (
    AdminConfig,
    ListenerConfig,
    MetricsConfig,
    QuotaEntry,
    Settings,
    ThrottleConfig,
    UpstreamConfig,
)
from quotas.entities import Entity

Model = TypeVar("Model", bound=BaseModel)


def _valid(model: type[Model], data: Any) -> Model | None:
    try:
        return model.model_validate(data)
    except ValidationError:
        return None


def _items(data: Any, key: str) -> list[Any]:
    value = data.get(key) if isinstance(data, Mapping) else None
    return list(value) if isinstance(value, list | tuple) else []


def _listeners(data: Any) -> Iterator[tuple[str, ListenerConfig]]:
    """Each listener whose ports are valid, with its path."""
    for i, cluster in enumerate(_items(data, "virtual_clusters")):
        for k, raw in enumerate(_items(cluster, "listeners")):
            if listener := _listener_with_ports(raw):
                yield f"virtual_clusters[{i}].listeners[{k}]", listener


_ADDRESSING = ("bind", "port", "node_ids", "spare_ports", "advertised_node_host")


def _listener_with_ports(raw: Any) -> ListenerConfig | None:
    """The listener if its ports are valid; a wrong name or host is replaced by one that is nobody's."""
    if not isinstance(raw, Mapping):
        return None
    ports = {key: raw[key] for key in _ADDRESSING if key in raw}
    host = raw.get("advertised_host")
    known = isinstance(host, str) and is_advertisable(host)
    return _valid(ListenerConfig, {**ports, "name": "-", "advertised_host": host if known else "host.invalid"})


def _name_problems(data: Any) -> Iterator[ConfigError]:
    clusters = _items(data, "virtual_clusters")
    yield from _repeated(clusters, "virtual_clusters")
    for i, cluster in enumerate(clusters):
        yield from _repeated(_items(cluster, "listeners"), f"virtual_clusters[{i}].listeners")


def _repeated(items: Sequence[Any], path: str) -> Iterator[ConfigError]:
    seen: dict[str, int] = {}
    for i, item in enumerate(items):
        name = item.get("name") if isinstance(item, Mapping) else None
        if isinstance(name, str) and seen.setdefault(name, i) != i:
            problem = f"expected a name of its own, got {show(name)}, the name of {path}[{seen[name]}]"
            yield ConfigError(f"{path}[{i}].name", problem)


def _node_id_problems(data: Any) -> Iterator[ConfigError]:
    for path, listener in _listeners(data):
        by_name, by_port = listener.advertised_node_host, listener.node_ids or listener.spare_ports
        if not by_port and not by_name:
            yield ConfigError(f"{path}.node_ids", "expected node ids, or spare_ports, got nothing")
        if by_port and by_name:
            problem = "expected neither node_ids nor spare_ports beside it: every node has a name at the one port"
            yield ConfigError(f"{path}.advertised_node_host", problem)
        for (i, one), (k, other) in combinations(enumerate(listener.node_ids), 2):
            if both := common(one, other):
                problem = f"expected each node id once, got {show_range(both)}, also in {path}.node_ids[{i}]"
                yield ConfigError(f"{path}.node_ids[{k}]", problem)


class PortClaim(NamedTuple):
    """Ports that one setting takes."""

    path: str
    bind: str
    ports: range


def listener_ports(path: str, listener: ListenerConfig) -> list[PortClaim]:
    """All ports of a listener, setting by setting."""
    claims = [PortClaim(f"{path}.port", listener.bind, range(listener.port, listener.port + 1))]
    start = listener.port + 1
    for i, ids in enumerate(listener.node_ids):
        claims.append(PortClaim(f"{path}.node_ids[{i}]", listener.bind, range(start, start + len(ids))))
        start += len(ids)
    for i, ports in enumerate(listener.spare_ports):
        claims.append(PortClaim(f"{path}.spare_ports[{i}]", listener.bind, ports))
    return claims


def _claims(data: Any) -> list[PortClaim]:
    claims = [claim for path, listener in _listeners(data) for claim in listener_ports(path, listener)]
    sections: tuple[tuple[str, type[MetricsConfig | AdminConfig]], ...] = (
        ("metrics", MetricsConfig),
        ("admin", AdminConfig),
    )
    for name, model in sections:
        settings = _valid(model, data.get(name, {})) if isinstance(data, Mapping) else None
        if settings:
            claims.append(PortClaim(f"{name}.port", settings.bind, range(settings.port, settings.port + 1)))
    return claims


def _port_problems(data: Any) -> Iterator[ConfigError]:
    claims = _claims(data)
    for claim in claims:
        if claim.ports.stop - 1 > MAX_PORT:
            problem = f"expected ports up to {MAX_PORT}, got {show_range(claim.ports)}"
            yield ConfigError(claim.path, problem)
    for one, other in combinations(claims, 2):
        both = common(one.ports, other.ports)
        if both and _same_address(one.bind, other.bind):
            taken = f"{show_range(both)}, taken by {one.path}"
            yield ConfigError(other.path, f"expected ports that nothing else takes, got {taken}")


def common(one: range, other: range) -> range:
    """The numbers that are in both."""
    return range(max(one.start, other.start), min(one.stop, other.stop))


def _same_address(one: str, other: str) -> bool:
    """True if a port of one is a port of the other: the address of all interfaces meets every other."""
    a, b = ip_address(one), ip_address(other)
    return a == b or a.is_unspecified or b.is_unspecified


def _entry_problems(data: Any) -> Iterator[ConfigError]:
    for i, cluster in enumerate(_items(data, "virtual_clusters")):
        quotas = cluster.get("quotas") if isinstance(cluster, Mapping) else None
        seen: dict[Entity, str] = {}
        for k, raw in enumerate(_items(quotas, "entries")):
            path = f"virtual_clusters[{i}].quotas.entries[{k}]"
            if entry := _valid(QuotaEntry, raw):
                first = path if entry.problems() else seen.setdefault(entry.entity(), path)
                if first != path:
                    yield ConfigError(path, f"expected one entry for each entity, got the entity of {first}")


def _loop_problems(data: Any) -> Iterator[ConfigError]:
    """A bootstrap server that is a port of this proxy would have it connect to itself for ever."""
    own = {
        (host, listener.port): path
        for path, listener in _listeners(data)
        for host in (listener.bind, listener.advertised_host)
    }
    for i, cluster in enumerate(_items(data, "virtual_clusters")):
        upstream = _valid(UpstreamConfig, cluster.get("upstream")) if isinstance(cluster, Mapping) else None
        for k, server in enumerate(upstream.bootstrap_servers if upstream else ()):
            if listener_path := own.get((server.host, server.port)):
                path = f"virtual_clusters[{i}].upstream.bootstrap_servers[{k}]"
                problem = f"expected a node of the cluster, got '{server}', the address of {listener_path}"
                yield ConfigError(path, problem)


def _source_problems(data: Any) -> Iterator[ConfigError]:
    """Settings of one source beside another."""
    for i, cluster in enumerate(_items(data, "virtual_clusters")):
        if not isinstance(cluster, Mapping):
            continue
        path = f"virtual_clusters[{i}]"
        quotas = cluster.get("quotas")
        if isinstance(quotas, Mapping):
            yield from _settings_of_other_sources(f"{path}.quotas", quotas)


def _request_cost_problems(data: Any) -> Iterator[ConfigError]:
    return _repetitions(data, "quotas", "request_costs", "api", "one cost for each API")


def _principal_problems(data: Any) -> Iterator[ConfigError]:
    return _repetitions(data, "sasl", "principals", "mechanism", "one user for each mechanism")


def _repetitions(data: Any, section: str, entries: str, key: str, expected: str) -> Iterator[ConfigError]:
    """Entries of a section of a virtual cluster that say the same `key` as one before them."""
    for i, cluster in enumerate(_items(data, "virtual_clusters")):
        settings = cluster.get(section) if isinstance(cluster, Mapping) else None
        path = f"virtual_clusters[{i}].{section}.{entries}"
        seen: dict[str, int] = {}
        for k, entry in enumerate(_items(settings, entries)):
            name = entry.get(key) if isinstance(entry, Mapping) else None
            if isinstance(name, str) and seen.setdefault(name, k) != k:
                yield ConfigError(f"{path}[{k}].{key}", f"expected {expected}, got that of {path}[{seen[name]}]")


def _settings_of_other_sources(path: str, quotas: Mapping[str, Any]) -> Iterator[ConfigError]:
    source = quotas.get("source", "file")
    if source != "file" and quotas.get("entries"):
        yield ConfigError(f"{path}.entries", f"expected none, as quotas come from the source {source!r}, got a list")
    if source == "zookeeper" and not _items(quotas.get("zookeeper"), "servers"):
        yield ConfigError(f"{path}.zookeeper.servers", "expected at least one with the source 'zookeeper', got nothing")
    if source != "zookeeper" and quotas.get("zookeeper"):
        yield ConfigError(f"{path}.zookeeper", f"expected nothing with the source {source!r}, got a mapping")


def _admin_listener_problems(data: Any) -> Iterator[ConfigError]:
    """Listeners whose clients may alter quotas have to be there."""
    for i, cluster in enumerate(_items(data, "virtual_clusters")):
        names = [item.get("name") for item in _items(cluster, "listeners") if isinstance(item, Mapping)]
        quotas = cluster.get("quotas") if isinstance(cluster, Mapping) else None
        for k, name in enumerate(_items(quotas, "admin_listeners")):
            if isinstance(name, str) and name not in names:
                path = f"virtual_clusters[{i}].quotas.admin_listeners[{k}]"
                yield ConfigError(path, f"expected {either([show(known) for known in names])}, got {show(name)}")


def _throttle_problems(data: Any) -> Iterator[ConfigError]:
    for i, cluster in enumerate(_items(data, "virtual_clusters")):
        throttle = _valid(ThrottleConfig, cluster.get("throttle")) if isinstance(cluster, Mapping) else None
        if throttle and 0 < throttle.max_debt_ms < throttle.max_throttle_ms:
            expected = f"0 or at least max_throttle_ms, {throttle.max_throttle_ms}"
            problem = f"expected {expected}, got {throttle.max_debt_ms}"
            yield ConfigError(f"virtual_clusters[{i}].throttle.max_debt_ms", problem)


def _node_name_problems(data: Any) -> Iterator[ConfigError]:
    for i, cluster in enumerate(_items(data, "virtual_clusters")):
        for k, listener in enumerate(_items(cluster, "listeners")):
            path = f"virtual_clusters[{i}].listeners[{k}]"
            if isinstance(listener, Mapping) and listener.get("advertised_node_host") and not listener.get("tls"):
                problem = "expected tls beside it, as only its clients say which name they want, got nothing"
                yield ConfigError(f"{path}.advertised_node_host", problem)


def _proxy_protocol_problems(data: Any) -> Iterator[ConfigError]:
    """A header that anybody may send would have anybody be whom they like."""
    for i, cluster in enumerate(_items(data, "virtual_clusters")):
        for k, listener in enumerate(_items(cluster, "listeners")):
            mode = listener.get("proxy_protocol") if isinstance(listener, Mapping) else None
            if mode in ("optional", "required") and not listener.get("trusted_networks"):
                path = f"virtual_clusters[{i}].listeners[{k}].trusted_networks"
                problem = f"expected the networks of load balancers with proxy_protocol {mode!r}, got nothing"
                yield ConfigError(path, problem)


def _section_problems(data: Any) -> Iterator[ConfigError]:
    """What is wrong with the settings of each section together, as its model says."""
    for path, settings in valid_settings(data, lambda model: model.problems is not Settings.problems):
        for problem in settings.problems():
            yield ConfigError(path, problem)


CHECKS = (
    _name_problems,
    _request_cost_problems,
    _principal_problems,
    _node_id_problems,
    _port_problems,
    _section_problems,
    _entry_problems,
    _loop_problems,
    _source_problems,
    _admin_listener_problems,
    _throttle_problems,
    _proxy_protocol_problems,
    _node_name_problems,
)
