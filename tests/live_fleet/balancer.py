"""HAProxy before the instances: clients see one address, and the run says where new connections go."""

import csv
import io
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from demo.kafka_cluster import accepts
from kafka_throttle.common.child_process import die_with_parent
from tests.bench.processes import need_tool

_SETTINGS = """
global
  nbthread 1
  maxconn 8000
  stats socket {socket} mode 600 level admin
defaults
  mode tcp
  timeout connect 2s
  timeout client 1h
  timeout server 1h
  retries 3
  option redispatch 1
  option contstats
  balance roundrobin
  default-server check inter 500ms fall 1 rise 1 on-marked-down shutdown-sessions
"""


@dataclass(frozen=True)
class Front:
    """One address of clients, with ports, and the hosts of the servers behind it by their names, at the same ports."""

    name: str
    address: str
    ports: Sequence[int]
    servers: Mapping[str, str]

    def section(self, port: int) -> str:
        """What the configuration has of a port."""
        servers = "".join(f"  server {name} {host}:{port}\n" for name, host in self.servers.items())
        return f"listen {self.name}-{port}\n  bind {self.address}:{port}\n{servers}"


class Balancer:
    """HAProxy as a process; use it as a context manager."""

    def __init__(self, fronts: Sequence[Front], folder: Path) -> None:
        self._fronts = {front.name: front for front in fronts}
        self._socket = folder / "haproxy.socket"
        self._file = folder / "haproxy.cfg"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        sections = [front.section(port) for front in self._fronts.values() for port in front.ports]
        self._file.write_text("\n".join([_SETTINGS.format(socket=self._socket).lstrip(), *sections]))
        command = [need_tool("haproxy", "haproxy"), "-db", "-q", "-f", str(self._file)]
        self._process = subprocess.Popen(command, preexec_fn=die_with_parent)
        for front in self._fronts.values():
            while not accepts(front.address, front.ports[0]):
                if self._process.poll() is not None:
                    raise RuntimeError("HAProxy does not start")
                time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def open(self, front: str, servers: Iterable[str]) -> None:
        """New connections go to these servers only, in turn."""
        chosen = set(servers)
        self._order(
            f"set server {place} state {'ready' if place.rpartition('/')[2] in chosen else 'drain'}"
            for place in self._places(front)
        )

    def cut_connections(self, front: str) -> None:
        """End all connections of a front; its clients connect again."""
        self._order(f"shutdown sessions server {place}" for place in self._places(front))

    def carried_bytes(self) -> dict[tuple[str, str], tuple[int, int]]:
        """What each server was sent and has sent so far, by front and server, over all ports."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for row in csv.DictReader(io.StringIO(self._ask("show stat").lstrip("# "))):
            if row["svname"] not in ("FRONTEND", "BACKEND"):
                key = row["pxname"].rpartition("-")[0], row["svname"]
                sent, received = found.get(key, (0, 0))
                found[key] = sent + int(row["bin"]), received + int(row["bout"])
        return found

    def _places(self, front: str) -> list[str]:
        one = self._fronts[front]
        return [f"{front}-{port}/{server}" for port in one.ports for server in one.servers]

    def _order(self, lines: Iterable[str]) -> None:
        for line in lines:
            if complaint := self._ask(line).strip():
                raise RuntimeError(f"HAProxy on {line!r}: {complaint}")

    def _ask(self, line: str) -> str:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(str(self._socket))
            sock.sendall(f"{line}\n".encode())
            return sock.makefile("rb").read().decode()
