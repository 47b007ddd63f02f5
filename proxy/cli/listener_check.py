"""Whether clients can reach each node of a cluster through a listener: its ports, its names, its certificate."""

import asyncio
import ssl
import time
from collections.abc import Iterator, Sequence

from common.look_ups import look_up
from common.plain_words import words_of
from common.problems import Problem, listed
from common.tls_trust import trust
from proxy.cli.findings import Finding, ends_soon
from proxy.config.settings import ListenerConfig, ListenerTlsConfig
from proxy.server.tls_material import certify

_TURNS_OF_A_HANDSHAKE = 4
_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which Python has no name."""
_EXPIRED = "certificate has expired"
"""OpenSSL's words."""


def listener_findings(path: str, listener: ListenerConfig, node_ids: Sequence[int]) -> Iterator[Finding]:
    """What keeps clients from a node, or may do so. `node_ids` are the nodes that the cluster names."""
    hosts = {listener.advertised_host: f"{path}.advertised_host"}
    if (pattern := listener.advertised_node_host) is not None:
        hosts |= {pattern.replace("{node_id}", str(node_id)): f"{path}.advertised_node_host" for node_id in node_ids}
    elif node_ids:
        yield from _port_findings(f"{path}.node_ids", listener, node_ids)
    for host, place in hosts.items():
        try:
            asyncio.run(_look_up(host))
        except OSError as error:
            yield Finding(Problem(place, f"{host!r} is not known on this machine: {words_of(error)}"), is_warning=True)
    if listener.tls is not None:
        yield from _certificate_findings(f"{path}.tls", listener.tls, list(hosts))


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


def _certificate_findings(path: str, tls: ListenerTlsConfig, hosts: Sequence[str]) -> Iterator[Finding]:
    """Why clients would refuse the listener's certificate, whatever authorities they trust."""
    material = certify(path, tls)
    ended = material.ends_s is not None and material.ends_s < time.time()
    problems: dict[str, list[str]] = {}
    for host in hosts:
        problem = _refusal(material.context, tls.certificate_file, host)
        if problem == _EXPIRED and not ended:  # an authority that nobody needs
            problem = _refusal(material.context, tls.certificate_file, host, _NO_CHECK_TIME)
        if problem:
            problems.setdefault(problem.replace(f"'{host}'", "this name"), []).append(host)
    for problem, those in problems.items():
        text = f"clients refuse the certificate for {listed(those)}: {problem}"
        yield Finding(Problem(f"{path}.certificate_file", text))
    if material.ends_s is not None:
        yield from ends_soon(f"{path}.certificate_file", "the certificate", material.ends_s)


def _refusal(server: ssl.SSLContext, certificate_file: str, host: str, flags: int = 0) -> str | None:
    """Why a client that asks for `host` refuses a server's certificate, as a handshake in memory shows."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust(client, certificate_file)  # the certificate itself: its authority is not asked for
    client.verify_flags |= flags
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for end in ends * _TURNS_OF_A_HANDSHAKE:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        except ssl.SSLError:  # the server wants the client's certificate; by then the client has judged the server's
            return None
    return None
