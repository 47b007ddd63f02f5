"""What can be wrong between sections: ports, names, sources, and what is to stand there once.

The checks look at a valid Config, or at what the file holds if something is wrong with it. Then they take up each part
that is valid by itself: one mistake hides no other.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from ipaddress import ip_address
from itertools import islice
from os.path import normpath
from typing import Any, NamedTuple

from kafka_throttle.common.destinations import Destinations
from kafka_throttle.common.kinds import MAX_PORT
from kafka_throttle.common.problems import Problem, either, show
from kafka_throttle.common.settings import Settings, found_at, items, part, repeated_names, valid
from kafka_throttle.proxy.config.kinds import host_port, is_advertisable, node_place, show_range, worker_count
from kafka_throttle.proxy.config.settings import (
    QUOTAS_TOPIC,
    AdminConfig,
    EnsembleConfig,
    ListenerAddress,
    MetricsConfig,
    ZooKeeperConfig,
)
from kafka_throttle.quotas.sources.entries import repeated_entities

_MOST_PAIRS = 1_000
"""How many pairs of ranges that overlap are looked for: more than problems are reported."""


def _listeners(data: Any) -> Iterator[tuple[str, ListenerAddress]]:
    """Each listener whose ports are valid, with its path."""
    for path, found in found_at(data, "virtual_clusters[].listeners[]"):
        if listener := found if isinstance(found, ListenerAddress) else _with_valid_ports(found):
            yield path, listener


def _with_valid_ports(raw: Any) -> ListenerAddress | None:
    """The listener if its ports are valid; a wrong name or host is replaced by one that is nobody's."""
    if not isinstance(raw, Mapping):
        return None
    host = raw.get("advertised_host")
    known = isinstance(host, str) and is_advertisable(host)
    ports = {key: raw[key] for key in ListenerAddress.model_fields if key in raw}
    return valid(ListenerAddress, {**ports, "name": "-", "advertised_host": host if known else "host.invalid"})


def _name_problems(data: Any) -> Iterator[Problem]:
    yield from repeated_names(items(data, "virtual_clusters"), "virtual_clusters")
    for path, cluster in found_at(data, "virtual_clusters[]"):
        yield from repeated_names(items(cluster, "listeners"), f"{path}.listeners")


def _node_id_problems(data: Any) -> Iterator[Problem]:
    for path, listener in _listeners(data):
        by_name, by_port = listener.advertised_node_host, listener.node_ids or listener.spare_ports
        if not by_port and not by_name:
            yield Problem(f"{path}.node_ids", "expected node ids, or spare_ports, got nothing")
        if by_port and by_name:
            problem = "expected neither node_ids nor spare_ports beside it: every node has a name at the one port"
            yield Problem(f"{path}.advertised_node_host", problem)
        for i, k in _overlapping([(None, ids) for ids in listener.node_ids]):
            both = common(listener.node_ids[i], listener.node_ids[k])
            problem = f"expected each node id once, got {show_range(both)}, also in {path}.node_ids[{i}]"
            yield Problem(f"{path}.node_ids[{k}]", problem)


class PortClaim(NamedTuple):
    """Ports that one setting takes."""

    path: str
    bind: str
    ports: range


def listener_ports(path: str, listener: ListenerAddress) -> list[PortClaim]:
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
        settings = valid(model, data.get(name, {}) if isinstance(data, Mapping) else part(data, name))
        if settings:
            claims.append(PortClaim(f"{name}.port", settings.bind, range(settings.port, settings.port + 1)))
    return claims


def _port_problems(data: Any) -> Iterator[Problem]:
    claims = _claims(data)
    for claim in claims:
        if claim.ports.stop - 1 > MAX_PORT:
            problem = f"expected ports up to {MAX_PORT}, got {show_range(claim.ports)}"
            yield Problem(claim.path, problem)
    for i, k in _overlapping([(_address(claim.bind), claim.ports) for claim in claims]):
        taken = f"{show_range(common(claims[i].ports, claims[k].ports))}, taken by {claims[i].path}"
        yield Problem(claims[k].path, f"expected ports that nothing else takes, got {taken}")


def _overlapping(ranges: Sequence[tuple[str | None, range]]) -> list[tuple[int, int]]:
    """The positions of ranges that have a number in common, in pairs: as many as problems are reported, and more.

    Each range is of an address, and only ranges of the same address count; None is the address of all interfaces, and
    meets every other. The time does not depend on the square of their number.
    """
    found = islice(_overlaps(ranges), _MOST_PAIRS)
    return sorted((min(pair), max(pair)) for pair in found)


def _overlaps(ranges: Sequence[tuple[str | None, range]]) -> Iterator[tuple[int, int]]:
    begun: dict[str | None, list[tuple[int, int]]] = {}
    """The ranges of each address that are not over, by their ends."""
    for start, i in sorted((numbers.start, i) for i, (_, numbers) in enumerate(ranges) if numbers):
        address, numbers = ranges[i]
        for other in list(begun) if address is None else [address, None]:
            heap = begun.get(other, [])
            while heap and heap[0][0] <= start:
                heappop(heap)
            yield from ((k, i) for _, k in heap)
        heappush(begun.setdefault(address, []), (numbers.stop, i))


def common(one: range, other: range) -> range:
    """The numbers that are in both."""
    return range(max(one.start, other.start), min(one.stop, other.stop))


def _address(bind: str) -> str | None:
    """The plain spelling of an address; None for that of all interfaces."""
    address = ip_address(bind)
    return None if address.is_unspecified else str(address)


def _entry_problems(data: Any) -> Iterator[Problem]:
    for path, entries in found_at(data, "virtual_clusters[].quotas.entries"):
        yield from repeated_entities(entries, path)


def _loop_problems(data: Any) -> Iterator[Problem]:
    """A bootstrap server that is a port of this proxy would have it connect to itself for ever."""
    listeners = [(path, listener, listener.port_ranges()) for path, listener in _listeners(data)]
    for path, server in found_at(data, "virtual_clusters[].upstream.bootstrap_servers[]"):
        with suppress(ValueError):
            host, port = host_port(server)
            for listener_path, listener, ranges in listeners:
                if any(port in ports for ports in ranges) and _is_host_of(listener, host):
                    problem = f"expected a node of the cluster, got '{server}', the address of {listener_path}"
                    yield Problem(path, problem)
                    break


def _is_host_of(listener: ListenerAddress, host: str) -> bool:
    if host in (listener.bind, listener.advertised_host):
        return True
    with suppress(ValueError):
        return ip_address(listener.bind).is_unspecified and ip_address(host).is_loopback
    return host == "localhost" and ip_address(listener.bind).is_unspecified


def _node_network_problems(data: Any) -> Iterator[Problem]:
    """Bootstrap servers at which no node may be, as far as this is known without looking up their names."""
    for path, upstream in found_at(data, "virtual_clusters[].upstream"):
        try:
            destinations = Destinations(places=map(node_place, items(upstream, "node_networks")))
        except ValueError:
            continue
        for k, server in enumerate(items(upstream, "bootstrap_servers")):
            with suppress(ValueError):
                if destinations.refusal_of_host(*host_port(server)):
                    problem = f"expected a server in {path}.node_networks, got '{host_port(server)}'"
                    yield Problem(f"{path}.bootstrap_servers[{k}]", problem)


def _request_cost_problems(data: Any) -> Iterator[Problem]:
    return _repetitions(data, "virtual_clusters[].quotas.request_costs", "api", "one cost for each API")


def _repetitions(data: Any, pattern: str, key: str, expected: str) -> Iterator[Problem]:
    """Entries of a list that say the same `key` as one before them."""
    for path, entries in found_at(data, pattern):
        seen: dict[str, int] = {}
        for k, entry in enumerate(entries if isinstance(entries, list | tuple) else ()):
            name = part(entry, key)
            if isinstance(name, str) and seen.setdefault(name, k) != k:
                yield Problem(f"{path}[{k}].{key}", f"expected {expected}, got that of {path}[{seen[name]}]")


def _source_problems(data: Any) -> Iterator[Problem]:
    """Settings of one source beside another."""
    for path, quotas in found_at(data, "virtual_clusters[].quotas"):
        source, zookeeper = part(quotas, "source") or "file", part(quotas, "zookeeper")
        if source != "file" and part(quotas, "entries"):
            problem = f"expected none, as quotas come from the source {source!r}, got a list"
            yield Problem(f"{path}.entries", problem)
        if source == "zookeeper" and not items(zookeeper, "servers"):
            problem = "expected at least one with the source 'zookeeper', got nothing"
            yield Problem(f"{path}.zookeeper.servers", problem)
        if source != "zookeeper" and zookeeper and zookeeper != ZooKeeperConfig():
            yield Problem(f"{path}.zookeeper", f"expected nothing with the source {source!r}, got a mapping")
        if source != "topic" and (topic := part(quotas, "topic")):
            yield Problem(f"{path}.topic", f"expected nothing with the source {source!r}, got {show(topic)}")


def _own_connection_problems(data: Any) -> Iterator[Problem]:
    """Nodes that speak TLS to the proxy itself, at the same ports, but not to clients."""
    for path, upstream in found_at(data, "virtual_clusters[].upstream"):
        protocol = part(part(upstream, "admin"), "security_protocol")
        if protocol in ("SSL", "SASL_SSL") and part(upstream, "tls") is None:
            problem = "expected tls, as the nodes speak TLS with upstream.admin, got nothing: clients would speak plain"
            yield Problem(f"{path}.tls", f"{problem} TCP to them; {{}} is tls with all its defaults")


def _written_file_problems(data: Any) -> Iterator[Problem]:
    """Files that the proxy writes, and that something else has, too: one would overwrite the other."""
    named = list(_files_named(data, ""))
    places: dict[str, list[str]] = {}
    for path, file in named:
        places.setdefault(file, []).append(path)
    for path, file in named:
        others = [other for other in places[file] if other != path]
        if _is_written(path) and others and (not _is_written(others[0]) or places[file][0] != path):
            yield Problem(path, f"expected a file that nothing else has, got that of {others[0]}")


def _is_written(path: str) -> bool:
    return path.endswith((".state_file", ".sensors_file"))


def _files_named(data: Any, path: str) -> Iterator[tuple[str, str]]:
    """Each setting that names a file, with the file."""
    if isinstance(data, list | tuple):
        for i, item in enumerate(data):
            yield from _files_named(item, f"{path}[{i}]")
    elif isinstance(data, Mapping | Settings):
        for key in data if isinstance(data, Mapping) else type(data).model_fields:
            value, at = part(data, str(key)), f"{path}.{key}" if path else str(key)
            if isinstance(value, str) and str(key).endswith("_file"):
                yield at, normpath(value)
            else:
                yield from _files_named(value, at)


def _fleet_problems(data: Any) -> Iterator[Problem]:
    """Fleets without an ensemble, and two at one place: each would count the instances of the other."""
    taken: dict[tuple[str, ...], str] = {}
    for path, cluster in found_at(data, "virtual_clusters[]"):
        fleet, quotas = part(cluster, "fleet"), part(cluster, "quotas")
        if fleet is None:
            continue
        if topic := part(fleet, "topic"):
            yield from _topic_fleet_problems(path, cluster, topic, taken)
            continue
        ensemble, of_quotas = part(fleet, "zookeeper"), part(quotas, "zookeeper")
        servers, where = items(ensemble, "servers"), f"{path}.fleet.zookeeper.servers"
        if not servers and ensemble and ensemble != EnsembleConfig():
            yield Problem(where, "expected at least one beside other settings of the ensemble, got nothing")
        elif not servers and not items(of_quotas, "servers"):
            yield Problem(where, "expected at least one, as quotas do not come from ZooKeeper, got nothing")
        place = (_fleet_path(cluster), *sorted(map(str, servers or items(of_quotas, "servers"))))
        if (first := taken.setdefault(place, path)) != path:
            yield Problem(f"{path}.fleet.path", f"expected a path that no other fleet has, got that of {first}.fleet")


def _topic_fleet_problems(path: str, cluster: Any, topic: Any, taken: dict[tuple[str, ...], str]) -> Iterator[Problem]:
    """A topic of claims beside an ensemble, or that has something else, too."""
    fleet, where = part(cluster, "fleet"), f"{path}.fleet.topic"
    if part(fleet, "path") or part(fleet, "zookeeper") not in (None, EnsembleConfig()):
        yield Problem(where, f"expected either a topic or path and zookeeper, got both, {show(topic)}")
    if topic == (part(part(cluster, "quotas"), "topic") or f"{QUOTAS_TOPIC}{part(cluster, 'name')}"):
        yield Problem(where, f"expected another topic than that of the quotas, got {show(topic)}")
    place = ("", str(topic), *sorted(map(str, items(part(cluster, "upstream"), "bootstrap_servers"))))
    if (first := taken.setdefault(place, path)) != path:
        yield Problem(where, f"expected a topic that no other fleet has, got that of {first}.fleet")


def _fleet_path(cluster: Any) -> str:
    """Where a fleet has its znodes, as `kafka_throttle.proxy.config.settings.fleet_path` says of one that is valid."""
    path, chroot = part(part(cluster, "fleet"), "path"), part(part(part(cluster, "quotas"), "zookeeper"), "chroot")
    below = f"/kafka-throttle/{part(cluster, 'name')}" if chroot is None else str(chroot).rstrip("/")
    return f"{below}/fleet" if path is None else str(path).rstrip("/")


def _node_name_problems(data: Any) -> Iterator[Problem]:
    for path, listener in found_at(data, "virtual_clusters[].listeners[]"):
        if part(listener, "advertised_node_host") and not part(listener, "tls"):
            problem = "expected tls beside it, as only its clients say which name they want, got nothing"
            yield Problem(f"{path}.advertised_node_host", problem)


def _admin_listener_problems(data: Any) -> Iterator[Problem]:
    """Listeners whose clients may alter quotas have to be there."""
    for path, cluster in found_at(data, "virtual_clusters[]"):
        names = [part(listener, "name") for listener in items(cluster, "listeners")]
        for k, name in enumerate(items(part(cluster, "quotas"), "admin_listeners")):
            if isinstance(name, str) and name not in names:
                expected = either([show(known) for known in names])
                yield Problem(f"{path}.quotas.admin_listeners[{k}]", f"expected {expected}, got {show(name)}")


def _worker_problems(data: Any) -> Iterator[Problem]:
    """With several workers each has a part of the limits of the whole process, and a part of one is one at least."""
    workers = part(data, "workers")
    if workers is None or workers == 1 or (workers == "auto" and worker_count("auto") == 1):
        return
    if part(part(data, "history"), "directory"):
        yield Problem("history.directory", f"with workers: {workers} there is no history: remove this setting")
    if type(workers) is not int:
        return
    sections = [("limits", part(data, "limits")), ("connections", part(data, "connections"))]
    sections += [
        (f"{path}.connections", part(listener, "connections"))
        for path, listener in found_at(data, "virtual_clusters[].listeners[]")
    ]
    for path, section in sections:
        most = part(section, "max_connections")
        if type(most) is int and 0 < most < workers:
            yield Problem(f"{path}.max_connections", f"expected at least one for each of {workers} workers, got {most}")


CHECKS = (
    _name_problems,
    _request_cost_problems,
    _node_id_problems,
    _port_problems,
    _entry_problems,
    _loop_problems,
    _node_network_problems,
    _source_problems,
    _own_connection_problems,
    _written_file_problems,
    _fleet_problems,
    _node_name_problems,
    _admin_listener_problems,
    _worker_problems,
)
