"""What stands between client and node: this project's proxy, HAProxy and nginx as TCP proxies, or any command."""

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.proxy_process import free_port_run
from tests.bench.columns import WITHOUT_QUOTA
from tests.bench.processes import need_tool

LARGE_BUFFER_BYTES = 256 << 10
NGINX_STREAM_MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")

Command = Callable[[int, int, Path], Sequence[str]]
"""Makes a command line out of the port to listen on, the node's port and a directory of its own for files."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that is measured. `columns` are the keys of those it takes part in; empty: all."""

    name: str
    command: Command | None
    columns: tuple[str, ...] = ()


def haproxy(buffer_bytes: int | None = None, threads: int = 1) -> Command:
    """HAProxy as a TCP proxy; `buffer_bytes` None: its default of 16 KiB."""

    def command(listen_port: int, upstream_port: int, directory: Path) -> Sequence[str]:
        file = directory / "haproxy.cfg"
        file.write_text(f"""
global
  nbthread {threads}
  maxconn 4096
  {f"tune.bufsize {buffer_bytes}" if buffer_bytes else ""}
defaults
  mode tcp
  timeout connect 5s
  timeout client 1h
  timeout server 1h
frontend clients
  bind 127.0.0.1:{listen_port}
  default_backend nodes
backend nodes
  server node 127.0.0.1:{upstream_port}
""")
        return [need_tool("haproxy", "haproxy"), "-db", "-q", "-f", str(file)]

    return command


def nginx(buffer_bytes: int | None = None) -> Command:
    """nginx's stream module in one process; `buffer_bytes` None: its default of 16 KiB."""

    def command(listen_port: int, upstream_port: int, directory: Path) -> Sequence[str]:
        program = need_tool("nginx", "nginx libnginx-mod-stream")
        if not NGINX_STREAM_MODULE.exists():
            raise SystemExit(
                f"{NGINX_STREAM_MODULE} is missing. Install it with: apt-get install -y libnginx-mod-stream"
            )
        file = directory / "nginx.conf"
        file.write_text(f"""
load_module {NGINX_STREAM_MODULE};
daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 8192; }}
stream {{
  server {{
    listen 127.0.0.1:{listen_port} backlog=4096;
    proxy_pass 127.0.0.1:{upstream_port};
    {f"proxy_buffer_size {buffer_bytes};" if buffer_bytes else ""}
    tcp_nodelay on;
    proxy_timeout 1h;
  }}
}}
""")
        return [program, "-p", str(directory), "-e", "stderr", "-c", str(file)]

    return command


def kafka_throttle(
    quotas: bool, pure: bool = False, workers: int = 1, fleet: Mapping[str, Any] | None = None
) -> Command:
    """This project's proxy, with quotas that nothing here can exceed, or with none; `fleet` is a section of that name.

    It is the build that the environment asks for, or the `pure` one.
    """

    def command(listen_port: int, upstream_port: int, directory: Path) -> Sequence[str]:
        # Far above what can be reached here: charged, never exceeded.
        quota = {"default_client_id": True, "producer_byte_rate": 10**15, "consumer_byte_rate": 10**15}
        of_addresses = {"default_ip": True, "connection_creation_rate": 10**9}
        entries = [quota, of_addresses] if quotas else []
        metrics_port, admin_port = free_port_run(2)
        listener = {"name": "clients", "bind": "127.0.0.1", "port": listen_port, "node_ids": ["1"]}
        configuration = {
            "workers": workers,
            "virtual_clusters": [
                {
                    "name": "bench",
                    "upstream": {"bootstrap_servers": [f"127.0.0.1:{upstream_port}"]},
                    "listeners": [listener],
                    "quotas": {"source": "file", "entries": entries},
                    **({"fleet": fleet} if fleet else {}),
                }
            ],
            "metrics": {"bind": "127.0.0.1", "port": metrics_port},
            "admin": {"bind": "127.0.0.1", "port": admin_port},
            "log": {"level": "warning"},
        }
        file = directory / "proxy.yaml"
        file.write_text(json.dumps(configuration))  # JSON is YAML
        environment = ["env", "KAFKA_THROTTLE_PURE=1"] if pure else []
        return [*environment, sys.executable, "-m", "proxy", "run", "-c", str(file)]

    return command


def bare(listen_port: int, upstream_port: int, directory: Path) -> Sequence[str]:
    """A relay in Python that does nothing but carry: see bare_relay.py."""
    return [sys.executable, str(Path(__file__).with_name("bare_relay.py")), str(listen_port), str(upstream_port)]


def other(definition: str) -> Candidate:
    """The candidate of an `--other` option: a name; a command with `{listen}`, `{upstream}` (host:port)."""
    name, _, template = definition.partition("=")
    if not name or "{listen}" not in template or "{upstream}" not in template:
        raise SystemExit(f"--other: expected name=command with {{listen}} and {{upstream}}, got {definition!r}")

    def command(listen_port: int, upstream_port: int, directory: Path) -> Sequence[str]:
        filled = template.replace("{listen}", f"127.0.0.1:{listen_port}")
        return shlex.split(filled.replace("{upstream}", f"127.0.0.1:{upstream_port}"))

    return Candidate(name, command)


DIRECT = Candidate("direct", None)
HAPROXY = Candidate("HAProxy", haproxy())
NGINX = Candidate("nginx", nginx())
OURS = Candidate("kafka-throttle", kafka_throttle(quotas=True))
CANDIDATES = (
    DIRECT,
    HAPROXY,
    Candidate("HAProxy, 256 KiB buffers", haproxy(LARGE_BUFFER_BYTES)),
    NGINX,
    Candidate("nginx, 256 KiB buffers", nginx(LARGE_BUFFER_BYTES), ("produce-16k", "fetch-64k", "fetch-1m", "idle")),
    OURS,
    Candidate("kafka-throttle, pure", kafka_throttle(quotas=True, pure=True), ("produce-1", "produce-16", "fetch-4k")),
    Candidate("bare Python", bare, ("accept",)),
    Candidate(WITHOUT_QUOTA, kafka_throttle(quotas=False), ("produce-1", "produce-16", "accept")),
)
