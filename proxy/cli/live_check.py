"""Compares a configuration with the live clusters: `kafka-throttle check --connect`."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kafka_throttle.common.destinations import Destinations
from kafka_throttle.common.look_ups import at_port, look_up
from kafka_throttle.common.problems import Problem, listed
from kafka_throttle.protocol.identity.distinguished_names import Validity
from kafka_throttle.protocol.messages.metadata import MetadataNode, nodes_request
from kafka_throttle.proxy.cli.findings import Finding, validity_findings
from kafka_throttle.proxy.cli.listener_check import listener_findings
from kafka_throttle.proxy.cli.node_check import reach
from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.config.settings import Config, UsageTopicConfig, VirtualClusterConfig
from kafka_throttle.proxy.server.quota_sources import source_of
from kafka_throttle.proxy.server.tls_material import certify
from kafka_throttle.proxy.upstream.credentials import credentials_of, topic_credentials
from kafka_throttle.quotas.changes import Alteration, SourceUnavailable
from kafka_throttle.quotas.entities import Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.sources.cluster_connection import Credentials
from kafka_throttle.quotas.sources.cluster_faults import ADDRESSES, LOGIN_EXPECTED, ConnectionFault
from kafka_throttle.quotas.sources.cluster_nodes import nodes_named_by, response_of
from kafka_throttle.quotas.sources.topic import TopicSource
from kafka_throttle.quotas.sources.upstream import UpstreamSource

_OF_UPSTREAM = re.compile(r"^upstream\.(?:admin\.)?")
"""What settings of a cluster begin with. Those of `usage.kafka` have the same names behind that."""
_SOURCES_ELSEWHERE = ("file", "zookeeper")
"""Sources of quotas that need no connection to the cluster."""
_TOPIC_TIMEOUT_S = 10.0
_NOBODY = Entity(client_id="kafka-throttle-check")
"""An entity without quotas. That the cluster would remove one from it shows that the proxy may write quotas."""


class Refusal(NamedTuple):
    """What is wrong at one server, and the settings that it concerns: the first is its place in the file.

    It is a warning where the proxy serves clients all the same.
    """

    server: str
    problem: str
    settings: Sequence[str]
    is_warning: bool = False


def findings_at(config: Config, config_path: Path) -> Iterator[Finding]:
    """What does not fit between a valid configuration and the clusters that it names."""
    for i, cluster in enumerate(config.virtual_clusters):
        path = f"virtual_clusters[{i}]"
        found, nodes = asyncio.run(_look_at(path, cluster))
        yield from found
        for k, listener in enumerate(cluster.listeners):
            yield from listener_findings(f"{path}.listeners[{k}]", listener, sorted(node.node_id for node in nodes))
        if nodes or cluster.quotas.source == "zookeeper":
            yield from _source_findings(f"{path}.quotas", cluster, config_path)
    if (topic := config.usage.kafka) is not None:
        yield from asyncio.run(_look_at_topic(topic))


# ------------------------------------------------------------------ the cluster


async def _look_at(path: str, cluster: VirtualClusterConfig) -> tuple[list[Finding], Sequence[MetadataNode]]:
    """What is wrong on the way to the cluster, and its nodes; none if no bootstrap server names them."""
    upstream, timeout_s = cluster.upstream, cluster.upstream.connect_timeout_ms / 1000
    credentials = credentials_of(upstream)
    servers = [str(server) for server in upstream.bootstrap_servers]
    refusals, nodes = await named_by_any(servers, credentials, timeout_s)
    if cluster.quotas.source in _SOURCES_ELSEWHERE and (cluster.fleet is None or cluster.fleet.topic is None):
        refusals = list(map(_left_to_clients, refusals))
    unfit = {node.node_id: why for node in nodes if (why := await _unfit(node, credentials.destinations)) is not None}
    refusals += [Refusal(_shown(node), unfit[node.node_id], ["upstream"]) for node in nodes if node.node_id in unfit]
    reached = [node for node in nodes if node.node_id not in unfit]
    others = [node for node in reached if _address(node) not in servers]
    refusals += filter(None, await asyncio.gather(*(_asked(node, credentials, timeout_s) for node in others)))
    lost = {refusal.server for refusal in refusals}
    context = None if upstream.tls is None else certify(f"{path}.upstream.tls", upstream.tls).context
    places = {server: str(server) for server in upstream.bootstrap_servers}
    places |= {HostPort(node.host, node.port): _shown(node) for node in reached}
    outcomes = await asyncio.gather(*(reach(place, upstream, context) for place in places))
    found: list[Finding] = []
    for (place, shown), outcome in zip(places.items(), outcomes, strict=True):
        if isinstance(outcome, Validity):
            found += validity_findings(f"{path}.upstream.tls", f"the certificate of {shown}", outcome)
        elif outcome is not None and (outcome.is_connected or not lost & {shown, str(place)}):
            refusals.append(Refusal(shown, f"a client's connection: {outcome.problem}", [outcome.setting]))
    if nodes and cluster.sasl.required and not upstream.admin.security_protocol.startswith("SASL"):
        problem = "expected false, as the nodes serve the proxy without SASL: they refuse clients that log in, got true"
        found.append(Finding(Problem(f"{path}.sasl.required", problem)))
    return [*_findings_of(path, refusals), *found], nodes


async def _look_at_topic(topic: UsageTopicConfig) -> Iterator[Finding]:
    """What is wrong on the way to the cluster that gets usage records. Whether it has the topic is not looked at."""
    servers = [str(server) for server in topic.bootstrap_servers]
    refusals, _ = await named_by_any(servers, topic_credentials(topic), _TOPIC_TIMEOUT_S)
    of_topic = [
        refusal._replace(settings=[_OF_UPSTREAM.sub("kafka.", setting) for setting in refusal.settings])
        for refusal in refusals
    ]
    return _findings_of("usage", of_topic)


async def named_by_any(
    servers: Sequence[str], credentials: Credentials, timeout_s: float
) -> tuple[list[Refusal], Sequence[MetadataNode]]:
    """What is wrong with each bootstrap server, and the nodes that one of the others names."""
    looks = await asyncio.gather(*(_named_by(k, server, credentials, timeout_s) for k, server in enumerate(servers)))
    nodes = next((look for look in looks if not isinstance(look, Refusal)), ())
    return [look for look in looks if isinstance(look, Refusal)], nodes


async def _named_by(
    number: int, server: str, credentials: Credentials, timeout_s: float
) -> Sequence[MetadataNode] | Refusal:
    """The nodes that a bootstrap server names."""
    place = f"{ADDRESSES}[{number}]"
    try:
        return await nodes_named_by(server, credentials, timeout_s)
    except ConnectionFault as error:
        settings = error.fault.setting.split(", ")
        return Refusal(server, error.fault.problem, [place if each == ADDRESSES else each for each in settings])
    except SourceUnavailable as error:
        return Refusal(server, str(error).removeprefix(f"{server}: "), [place])


def _left_to_clients(refusal: Refusal) -> Refusal:
    """The same, or a warning if only a login is missing: then the proxy learns the nodes from responses to clients."""
    if refusal.problem != LOGIN_EXPECTED:
        return refusal
    more = "and the proxy has none: it learns the nodes from responses to clients only, and nothing else was compared"
    return refusal._replace(problem=f"{refusal.problem}, {more}", is_warning=True)


async def _unfit(node: MetadataNode, destinations: Destinations) -> str | None:
    """Why a running proxy would not connect to a node where the cluster says that it is."""
    with suppress(OSError):  # it has no address
        found = [at_port(each, node.port) for each in await look_up(node.host)]
        refusals = [destinations.refusal(node.host, where[0], where[1]) for _, where in found]
        return refusals[0] if all(refusals) else None
    return None


async def _asked(node: MetadataNode, credentials: Credentials, timeout_s: float) -> Refusal | None:
    """What is wrong with a node at the address where the cluster says that it is."""
    try:
        await response_of(_address(node), credentials, timeout_s, nodes_request())
    except ConnectionFault as error:
        settings = error.fault.setting.replace(ADDRESSES, "upstream").split(", ")
        return Refusal(_shown(node), error.fault.problem, settings)
    return None


def _findings_of(path: str, refusals: Sequence[Refusal]) -> Iterator[Finding]:
    """One finding for each problem, with all servers that have it.

    A password that one server has refused is held back from the others: what is said of them begins with the refusal.
    """
    servers: dict[tuple[str, tuple[str, ...], bool], list[str]] = {}
    for refusal in refusals:
        alike = (each.problem for each in refusals if each.settings == refusal.settings)
        problem = min((each for each in alike if refusal.problem.startswith(each)), key=len)
        servers.setdefault((problem, tuple(refusal.settings), refusal.is_warning), []).append(refusal.server)
    for (problem, (place, *others), is_warning), those in servers.items():
        see = f" (see also {', '.join(others)})" if others else ""
        yield Finding(Problem(f"{path}.{place}", f"{listed(those)}: {problem}{see}"), is_warning)


def _address(node: MetadataNode) -> str:
    return str(HostPort(node.host, node.port))


def _shown(node: MetadataNode) -> str:
    return f"node {node.node_id} at {_address(node)} (as the cluster says)"


# ------------------------------------------------------------------- its quotas


def _source_findings(path: str, cluster: VirtualClusterConfig, config_path: Path) -> Iterator[Finding]:
    """Whether the quotas can be read from their source, and written to the cluster where the proxy is to do that."""
    quotas = cluster.quotas
    if quotas.source == "file":
        return
    source = source_of(cluster, config_path, remembers=False)
    writers = "admin_users" if quotas.admin_users else "admin_listeners" if quotas.admin_listeners else None
    refused = None
    source.start(lambda: None)
    try:
        problems, is_read = dict(source.problems), source.state.up
        is_to_be_created = isinstance(source, TopicSource) and source.is_missing
        if is_read and writers is not None and isinstance(source, UpstreamSource):
            [refused] = source.judge([Alteration(_NOBODY, {QuotaKey(QuotaType.PRODUCE): None})])
    finally:
        source.stop()
    where = f"{path}.zookeeper.servers" if quotas.source == "zookeeper" else f"{path}.source"
    if not is_read and not problems:
        yield Finding(Problem(where, "the quotas could not be read in time"))
    for place, problem in problems.items():
        yield Finding(Problem(where, f"{place}: {problem}"), is_warning=is_read or is_to_be_created)
    if refused is not None:
        yield Finding(Problem(f"{path}.{writers}", f"the cluster refuses to alter quotas: {refused}"))
