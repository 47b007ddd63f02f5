"""`kafka-throttle init`: writes a first configuration for a cluster, with comments that say what to do next."""

import asyncio
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click

from kafka_throttle.common.kinds import MAX_PORT
from kafka_throttle.common.problems import Problems
from kafka_throttle.common.yaml_file import parse_yaml
from kafka_throttle.protocol.messages.metadata import MetadataNode
from kafka_throttle.proxy.cli.config_file import REFUSED, refuse
from kafka_throttle.proxy.cli.live_check import Refusal, named_by_any
from kafka_throttle.proxy.cli.servers import servers_of
from kafka_throttle.proxy.config.kinds import HostPort, host_port, show_range
from kafka_throttle.proxy.config.load import config_of
from kafka_throttle.proxy.config.settings import Config, UpstreamConfig
from kafka_throttle.proxy.config.warnings import ephemeral_ports
from kafka_throttle.proxy.upstream.credentials import credentials_of
from kafka_throttle.quotas.sources.known_servers import address_of

BOOTSTRAP_PORT = 19_092
METRICS_PORT = 9_404
_SPARE_PORTS = 9
"""How many ports there are for nodes that the cluster does not have yet, or that are not known."""
_NODES_SHOWN = 10
_FILES = ("ca_file", "certificate_file", "key_file", "password_file", "token_file", "client_secret_file")
_OF_TOKEN_ENDPOINT = {"token_endpoint": "url", **{name: name for name in ("client_id", "client_secret_file", "scope")}}
"""The settings of `token_endpoint` by the options that give them."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """What a first configuration says. `admin` are settings of `upstream.admin`; `nodes` are the ids of the nodes.

    `servers` are those that were asked, and then all other nodes: the proxy starts while one of them answers.
    """

    out: Path
    servers: Sequence[str]
    admin: Mapping[str, Any]
    host: str
    state_file: str
    port: int = BOOTSTRAP_PORT
    metrics_port: int = METRICS_PORT
    nodes: Sequence[int] = ()

    @property
    def bind(self) -> str:
        """All addresses of this machine, of the IP version that clients use; of a host that only this machine reaches,
        just that.
        """
        with suppress(ValueError):
            if ip_address(self.host).is_loopback:
                return self.host
        return "::" if ":" in self.host else "0.0.0.0"

    @property
    def spare_ports(self) -> range:
        """The ports behind those of the nodes."""
        first = self.port + 1 + len(self.nodes)
        return range(first, first + _SPARE_PORTS)

    def config(self) -> Config:
        """The configuration as the proxy reads it. Raises Problems."""
        return config_of(parse_yaml("\n".join(_lines(self)), str(self.out)), self.out.absolute().parent)


@click.command()
@click.option("--bootstrap", required=True, metavar="HOST:PORT,...", help="Nodes of the cluster to ask first.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default="proxy.yaml",
    show_default=True,
    help="The file to write. It must not exist yet.",
)
@click.option(
    "--advertised-host",
    metavar="HOST",
    help="The name or address of the proxy that clients can reach. Default: the address of this machine in the "
    "direction of the cluster.",
)
@click.option(
    "--port",
    type=click.IntRange(1, MAX_PORT - 1),
    help="The port at which clients bootstrap; the ports of the nodes follow. Default: the first of "
    f"{BOOTSTRAP_PORT} and above that is free, as are those behind it.",
)
@click.option(
    "--state-file",
    type=click.Path(),
    help="Where quotas are kept that are changed while the proxy runs. Default: quotas.json beside the file.",
)
@click.option("--offline", is_flag=True, help="Do not ask the cluster: nodes get ports as they appear.")
@click.option(
    "--security-protocol",
    type=click.Choice(["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]),
    help="What the nodes speak, as in Kafka's clients.  [default: PLAINTEXT]",
)
@click.option("--ca-file", type=click.Path(), help="PEM certificates that the nodes' certificates must go back to.")
@click.option("--certificate-file", type=click.Path(), help="The proxy's own certificate, as PEM.")
@click.option("--key-file", type=click.Path(), help="Its key, as PEM.")
@click.option(
    "--sasl-mechanism",
    type=click.Choice(["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]),
    help="For its login. OAUTHBEARER needs --token-file or --token-endpoint, the others --username and "
    "--password-file.",
)
@click.option("--username", metavar="NAME", help="The user that the proxy logs in as.")
@click.option("--password-file", type=click.Path(), help="A file that holds the password and nothing else.")
@click.option("--token-file", type=click.Path(), help="A file that holds a token and nothing else.")
@click.option(
    "--token-endpoint",
    metavar="URL",
    help="Where the proxy gets its tokens, with --client-id and --client-secret-file.",
)
@click.option("--client-id", metavar="NAME", help="The client that the proxy is at the token endpoint.")
@click.option("--client-secret-file", type=click.Path(), help="A file that holds the client's secret and nothing else.")
@click.option("--scope", help="What the token is to be good for, where the token endpoint wants to know.")
def init(
    bootstrap: str,
    out: Path,
    advertised_host: str | None,
    port: int | None,
    state_file: str | None,
    offline: bool,
    **admin: str | None,
) -> None:
    """Write a first configuration for a cluster, with comments.

    Asks the cluster for its nodes, and gives each a port. Nothing is changed in the cluster. Exit status 0: the file is
    written; 1: the cluster cannot be reached; 2: an argument is invalid, or the file exists.
    """
    if out.exists():
        refuse(f"--out: expected a file that does not exist, got {out}")
    servers = servers_of(bootstrap, "--bootstrap")
    draft = _Draft(
        out,
        servers,
        _admin_of(admin),
        advertised_host or _own_address(servers),
        "quotas.json" if state_file is None else str(Path(state_file).absolute()),
        port or BOOTSTRAP_PORT,
    )
    try:
        upstream = draft.config().virtual_clusters[0].upstream
        found = [] if offline else _nodes_of(upstream)
        nodes = [node.node_id for node in found]
        draft = _with_ports(replace(draft, servers=_with_nodes(servers, found)), nodes, port)
        draft.config()
    except Problems as errors:
        refuse(str(errors))
    _write(draft)
    cluster = f"its nodes are {_shown(nodes)}" if nodes else "its nodes were not asked for"
    where = HostPort(draft.host, draft.port)
    click.echo(f"{out} is written: {', '.join(servers)}, {cluster}; clients bootstrap at {where}")
    click.echo(f"next: kafka-throttle check -c {out} --connect")


def _admin_of(options: Mapping[str, str | None]) -> dict[str, Any]:
    """The settings of `upstream.admin` that the options give."""
    given = {name: value for name, value in options.items() if value}
    given |= {name: str(Path(given[name]).absolute()) for name in _FILES if name in given}
    endpoint = {field: given.pop(option) for option, field in _OF_TOKEN_ENDPOINT.items() if option in given}
    return {**given, "token_endpoint": endpoint} if endpoint else {**given}


def _nodes_of(upstream: UpstreamConfig) -> list[MetadataNode]:
    """The nodes that the cluster names, by their ids. Ends the process if no server names them. Raises Problems."""
    servers = [str(server) for server in upstream.bootstrap_servers]
    look = named_by_any(servers, credentials_of(upstream), upstream.connect_timeout_ms / 1000)
    refusals, nodes = asyncio.run(look)
    for refusal in refusals:
        click.echo(f"{'warning: ' if nodes else ''}{_told(refusal)}", err=True)
    if not nodes:
        refuse("nothing is written (--offline writes a configuration without asking the cluster)", REFUSED)
    return sorted(nodes)


def _with_nodes(servers: Sequence[str], nodes: Sequence[MetadataNode]) -> list[str]:
    """The servers, and behind them the addresses of the other nodes, but for those that no configuration may have."""
    found = list(servers)
    for node in nodes:
        with suppress(ValueError):
            address = str(host_port(address_of(node)))
            found += [address] if address not in found else []
    return found


def _told(refusal: Refusal) -> str:
    """What is wrong at a server, with the options to look at in place of the settings."""
    names = (setting.rpartition(".")[2].partition("[")[0] for setting in refusal.settings)
    options = [f"--{name.replace('_', '-').replace('bootstrap-servers', 'bootstrap')}" for name in names]
    return f"{refusal.server}: {refusal.problem} (look at {', '.join(options)})"


# ------------------------------------------------------- addresses and ports


def _own_address(servers: Sequence[str]) -> str:
    """The address from which this machine reaches the first server that it can; else the name of this machine."""
    for server in servers:
        host, port = host_port(server)
        with suppress(OSError):
            found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
            family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
            with socket.socket(family, kind, protocol) as sock:
                sock.connect(address)
                return str(sock.getsockname()[0])
    return socket.gethostname()


def _with_ports(draft: _Draft, nodes: Sequence[int], port: int | None) -> _Draft:
    """The draft with these nodes, and with ports that are free on this machine; `port` is taken as it is."""
    port = port or _free_run(BOOTSTRAP_PORT, 1 + len(nodes) + _SPARE_PORTS, draft.bind)
    return replace(draft, nodes=nodes, port=port, metrics_port=_free_run(METRICS_PORT, 2, "127.0.0.1"))


def _free_run(first: int, count: int, bind: str) -> int:
    """The lowest port from `first` on with `count` free ones in a row, below those of outgoing connections."""
    free = 0
    for port in range(first, max(ephemeral_ports().start, first + count)):
        free = free + 1 if _is_free(bind, port) else 0
        if free == count:
            break
    else:
        refuse(f"--port: expected {count} free ports in a row from {first} on, got none: choose the first yourself")
    return port - count + 1


def _is_free(bind: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((bind, port))
        except OSError:
            return False
    return True


# --------------------------------------------------------------------- the text


def _write(draft: _Draft) -> None:
    """Write the file. Ends the process if it is there by now, or cannot be written."""
    try:
        with draft.out.open("x", encoding="utf-8") as file, _removed_if_it_fails(draft.out):
            file.write("\n".join(_lines(draft)) + "\n")
            file.flush()
    except OSError as error:
        refuse(f"--out: {draft.out} cannot be written: {error.strerror or error}")


@contextmanager
def _removed_if_it_fails(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _lines(draft: _Draft) -> Iterator[str]:
    yield f"""\
# A first configuration of kafka-throttle, for the cluster at {", ".join(draft.servers)}.
#
#   kafka-throttle check -c {draft.out} --connect   compares it with the cluster: do this now, and after changes
#   kafka-throttle run   -c {draft.out}             runs the proxy
#   kafka-throttle top   -c {draft.out}             shows which clients it throttles
#
# A running proxy takes up changes of this file by itself; those that need a restart it refuses and says so. All
# settings: docs/reference/configuration.md. As a service, in a container, in Kubernetes: docs/reference/deploy.md.

virtual_clusters:
  - name: main

    # The cluster behind the proxy. The proxy must be able to reach its nodes at the addresses that the cluster names.
    upstream:
      bootstrap_servers: {_quoted(draft.servers)}"""
    yield from _admin_lines(draft.admin)
    yield f"""\

    listeners:
      - name: plain
        # The addresses of this machine that it listens at; 0.0.0.0 and :: are all of them.
        bind: {_quoted(draft.bind)}
        # The bootstrap.servers of your clients: this port ...
        port: {draft.port}
        # ... of this host. The proxy names it to the clients as the host of every node: it must be a name that all
        # clients can resolve.
        advertised_host: {_quoted(draft.host)}"""
    if draft.nodes:
        yield f"""\
        # The nodes that the cluster has: {_node_ports(draft)}.
        node_ids: {_quoted([show_range(ids) for ids in _ranges(draft.nodes)])}
        # Ports for nodes that come later."""
    else:
        yield """\
        # The cluster was not asked for its nodes. Each gets one of these ports as it appears; there must be enough.
        # Better are fixed ports (`node_ids`), the same ones at all instances of the proxy.
        # node_ids: ["1-3"]"""
    yield f"""\
        spare_ports: [{_quoted(show_range(draft.spare_ports))}]
        # Without it, clients speak plaintext to the proxy; passwords, too.
        # tls: {{certificate_file: server.pem, key_file: server.key}}

    quotas:
      # Quotas that are changed while the proxy runs, for example by
      #   kafka-throttle quotas set -c {draft.out} --client-id etl producer_byte_rate=1048576
      # are kept in this file; the proxy must be able to write it and its folder.
      state_file: {_quoted(draft.state_file)}
      # Who may change quotas with Kafka's own kafka-configs: every client of these listeners, or these users.
      # admin_listeners: [plain]
      # admin_users: [admin]
      # The quotas to begin with, in bytes per second at each node; the most specific entry applies. With the
      # prefix shadow_ a quota is only measured, and nobody is slowed down: docs/reference/quotas.md.
      # entries:
      #   - {{client_id: etl, producer_byte_rate: 1048576}}
      #   - {{default_client_id: true, shadow_consumer_byte_rate: 5242880}}

# Prometheus and health probes: http://127.0.0.1:{draft.metrics_port}/metrics, /livez, /readyz. Other machines can reach
# them with bind: 0.0.0.0.
metrics:
  bind: 127.0.0.1
  port: {draft.metrics_port}

# `kafka-throttle top`, `explain` and `quotas` ask the running proxy here.
admin:
  bind: 127.0.0.1
  port: {draft.metrics_port + 1}

# Who was throttled in each second of the last 24 hours, by which quotas; times are in UTC:
#   kafka-throttle explain -c {draft.out} --client-id etl --at 03:12:07
#   kafka-throttle top     -c {draft.out} --at -1m
# The proxy must be able to make this directory, and to write to it.
history:
  directory: {_quoted(str(Path(draft.state_file).parent / "history"))}

# Behind a load balancer: for how many seconds the proxy still accepts connections after SIGTERM, while /readyz says
# that it is not ready. It should be longer than the load balancer needs to notice.
drain:
  lame_duck_s: 0"""


def _admin_lines(admin: Mapping[str, Any]) -> Iterator[str]:
    """Who the proxy is to the cluster. Clients' connections to the nodes speak TLS if those of the proxy itself do."""
    if not admin:
        return
    yield "      # The login of the proxy for the connection by which it asks the cluster for its nodes."
    yield "      admin:"
    yield from (f"        {name}: {_quoted(value)}" for name, value in admin.items())
    if admin.get("security_protocol", "").endswith("SSL"):
        files = {name: admin[name] for name in ("ca_file", "certificate_file", "key_file") if name in admin}
        yield "      # Connections of clients to the nodes. With a certificate, all clients are its user to the nodes."
        yield f"      tls: {_quoted(files)}"


def _node_ports(draft: _Draft) -> str:
    shown = [f"{node} at port {port}" for port, node in enumerate(draft.nodes[:_NODES_SHOWN], draft.port + 1)]
    return ", ".join(shown) + (" and so on" if len(draft.nodes) > _NODES_SHOWN else "")


def _shown(nodes: Sequence[int]) -> str:
    return ", ".join(map(show_range, _ranges(nodes)))


def _ranges(numbers: Sequence[int]) -> list[range]:
    """Ascending numbers as ranges."""
    ranges: list[range] = []
    for number in numbers:
        if ranges and ranges[-1].stop == number:
            ranges[-1] = range(ranges[-1].start, number + 1)
        else:
            ranges.append(range(number, number + 1))
    return ranges


def _quoted(value: Any) -> str:
    """A value in JSON, which is YAML."""
    return json.dumps(value, ensure_ascii=False)
