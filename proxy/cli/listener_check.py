"""Whether clients can reach each node of a cluster through a listener: its ports, and its names."""

import asyncio
from collections.abc import Iterator, Sequence

from kafka_throttle.common.look_ups import look_up
from kafka_throttle.common.plain_words import words_of
from kafka_throttle.common.problems import Problem, listed
from kafka_throttle.proxy.cli.certificate_check import name_findings
from kafka_throttle.proxy.cli.findings import Finding
from kafka_throttle.proxy.config.settings import ListenerConfig


def listener_findings(path: str, listener: ListenerConfig, node_ids: Sequence[int]) -> Iterator[Finding]:
    """What keeps clients from a node, or may do so. `node_ids` are the nodes that the cluster names."""
    hosts = {listener.advertised_host: f"{path}.advertised_host"}
    if (pattern := listener.advertised_node_host) is not None:
        names = [pattern.replace("{node_id}", str(node_id)) for node_id in node_ids]
        hosts |= dict.fromkeys(names, f"{path}.advertised_node_host")
        yield from name_findings(path, listener, names)
    elif node_ids:
        yield from _port_findings(f"{path}.node_ids", listener, node_ids)
    for host, place in hosts.items():
        try:
            asyncio.run(_look_up(host))
        except OSError as error:
            yield Finding(Problem(place, f"{host!r} is not known on this machine: {words_of(error)}"), is_warning=True)


async def _look_up(host: str) -> None:
    await look_up(host)


def _port_findings(path: str, listener: ListenerConfig, node_ids: Sequence[int]) -> Iterator[Finding]:
    """Nodes without a port, and ports without a node."""
    declared = listener.ports()
    others = [node_id for node_id in node_ids if node_id not in declared]
    if without := others[len(listener.spares()) :]:
        problem = "expected a port in node_ids or spare_ports for each node of the cluster, got none for"
        yield Finding(Problem(path, f"{problem} {listed(without)}"))
    if absent := [node_id for node_id in declared if node_id not in node_ids]:
        yield Finding(Problem(path, f"the cluster does not have the nodes {listed(absent)} now"), is_warning=True)
