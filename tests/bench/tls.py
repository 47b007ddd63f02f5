"""Measures what TLS costs the proxy, beside HAProxy: handshakes, and bytes in either direction.

    python tests/bench/tls.py [--rounds 5] [--handshakes 300] [--mib 400] [--json FILE]

TLS from the clients, plain to the node, one certificate with a P-256 key, no session resumed. The proxy has one core,
node and clients share another. Figures are processor time of the proxy, so that how fast the clients are does not
matter: handshakes per second of it (each with one request and its response, as both connect to the node then), and
megabytes per second of it that come from clients (Produce of 1 MiB) and go to them (Fetch answers of 1 MiB). *Plain*
is the same without TLS. All take turns within a round; medians over the rounds, ratios of one round. Needs haproxy.
"""

import argparse
import contextlib
import json
import os
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from demo.proxy_process import free_port_run
from tests.bench.processes import Cores, cpu_seconds_of, need_tool, running, say, two_or_three_cores
from tests.relay.frames import fetch, fetched, heartbeat, heartbeaten, produce, produced
from tests.support.certificates import Authority, Issued, client_context

HOST = "127.0.0.1"
FRAME_BYTES = 1 << 20
COLUMNS = ("handshakes", "in", "out")
Side = tuple[str, bool]
"""(who, whether with TLS)."""


# ------------------------------------------------------------------ the sides


def haproxy(folder: Path, port: int, node: int, issued: Issued | None) -> Sequence[str]:
    """HAProxy on one thread; it wants certificate and key in one file."""
    speaks = ""
    if issued is not None:
        both = folder / "both.pem"
        both.write_text(issued.in_one_file())
        speaks = f"ssl crt {both} no-tls-tickets"
    file = folder / f"haproxy-{port}.cfg"
    file.write_text(
        "global\n  nbthread 1\n  maxconn 4096\n"
        "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n"
        f"frontend clients\n  bind {HOST}:{port} {speaks}\n  default_backend nodes\n"
        f"backend nodes\n  server node {HOST}:{node}\n"
    )
    return [need_tool("haproxy", "haproxy"), "-db", "-q", "-f", str(file)]


def kafka_throttle(folder: Path, port: int, node: int, issued: Issued | None) -> Sequence[str]:
    """This project's proxy, with byte quotas that nothing here exceeds."""
    listener: dict[str, object] = {"name": "clients", "bind": HOST, "port": port, "node_ids": [1]}
    if issued is not None:
        listener["tls"] = {"certificate_file": str(issued.certificate_file), "key_file": str(issued.key_file)}
    quota = {"default_client_id": True, "producer_byte_rate": 10**15, "consumer_byte_rate": 10**15}
    cluster = {"name": "bench", "upstream": {"bootstrap_servers": [f"{HOST}:{node}"]}, "listeners": [listener]}
    metrics, admin = free_port_run(2)
    file = folder / f"proxy-{port}.yaml"
    configuration = {"virtual_clusters": [cluster | {"quotas": {"entries": [quota]}}], "log": {"level": "error"}}
    file.write_text(json.dumps(configuration | {"metrics": {"port": metrics}, "admin": {"port": admin}}))
    return [sys.executable, "-m", "proxy", "run", "-c", str(file)]


SIDES: dict[str, Callable[[Path, int, int, Issued | None], Sequence[str]]] = {
    "HAProxy": haproxy,
    "kafka-throttle": kafka_throttle,
}


# ------------------------------------------------------------ node and clients


def _read_frame(sock: socket.socket | ssl.SSLSocket, buffer: bytearray) -> memoryview:
    """The next frame with its length; its bytes are good until the next call."""
    view, have, want = memoryview(buffer), 0, 4
    while have < want:
        got = sock.recv_into(view[have:want])
        if not got:
            raise EOFError
        have += got
        if have == 4:
            want = 4 + int.from_bytes(view[:4], "big")
    return view[:want]


def serve(server: socket.socket) -> None:
    """A node: answers Produce, Fetch and Heartbeat, nothing else."""
    responses = {0: produced(1), 1: fetched(1, size=FRAME_BYTES), 12: heartbeaten(1)}

    def response(sock: socket.socket) -> None:
        buffer = bytearray(FRAME_BYTES + 1000)
        with sock, contextlib.suppress(OSError, EOFError):
            while True:
                if reply := responses.get(_read_frame(sock, buffer)[5]):
                    sock.sendall(reply)

    with contextlib.suppress(OSError):  # until the server is closed
        while True:
            threading.Thread(target=response, args=(server.accept()[0],), daemon=True).start()


def connect(port: int, context: ssl.SSLContext | None) -> socket.socket:
    """A client, blocking."""
    sock = socket.create_connection((HOST, port), 60)
    return sock if context is None else context.wrap_socket(sock, server_hostname=HOST)


def shake_hands(port: int, context: ssl.SSLContext | None, count: int) -> None:
    """So many clients one after the other, each with one request."""
    buffer = bytearray(1000)
    for _ in range(count):
        with connect(port, context) as sock:
            sock.sendall(heartbeat(1))
            _read_frame(sock, buffer)


def move(request: bytes, port: int, context: ssl.SSLContext | None, count: int) -> None:
    """The same request so many times on one connection."""
    buffer = bytearray(FRAME_BYTES + 1000)
    with connect(port, context) as sock:
        for _ in range(count):
            sock.sendall(request)
            _read_frame(sock, buffer)


LOADS: dict[str, Callable[[int, ssl.SSLContext | None, int], None]] = {
    "handshakes": shake_hands,
    "in": partial(move, produce(1, size=FRAME_BYTES)),
    "out": partial(move, fetch(1)),
}


# --------------------------------------------------------------- measurements


def measure(load: str, pid: int, port: int, context: ssl.SSLContext | None, count: int) -> float:
    """Handshakes, or MB, per second of the proxy's processor time."""
    LOADS[load](port, context, max(count // 20, 1))
    before = cpu_seconds_of(pid)
    LOADS[load](port, context, count)
    spent = cpu_seconds_of(pid) - before
    return count * (1 if load == "handshakes" else FRAME_BYTES / 1e6) / spent


@contextlib.contextmanager
def sides(folder: Path, node: int, issued: Issued, core: int) -> Iterator[dict[Side, tuple[int, int]]]:
    """All that are compared, running on one core: process id and port."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name, command in SIDES.items():
            for with_tls in (False, True):
                [port] = free_port_run(1)
                argv = command(folder, port, node, issued if with_tls else None)
                process = stack.enter_context(running(argv, core, folder / f"{name}.log"))
                found[name, with_tls] = process.pid, port
        for _, port in found.values():
            _await_listening(port)
        yield found


def _await_listening(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1):
            return
        time.sleep(0.1)
    raise SystemExit(f"nothing listens at port {port}")


def rounds(count: int, handshakes: int, mib: int) -> dict[str, dict[str, list[float]]]:
    """Every figure of every round: by column, then by side."""
    with tempfile.TemporaryDirectory(prefix="kafka-throttle-tls-") as name:
        folder = Path(name)
        authority = Authority(folder)
        context = client_context(authority)
        server = socket.create_server((HOST, 0), backlog=1000)
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        cores, before = two_or_three_cores(), os.sched_getaffinity(0)
        os.sched_setaffinity(0, {cores.client})
        figures: dict[str, dict[str, list[float]]] = {column: {} for column in COLUMNS}
        with sides(folder, server.getsockname()[1], authority.issue(HOST), cores.proxy) as running_sides:
            for number in range(count):
                say(f"round {number + 1} of {count}")
                for column in COLUMNS:
                    for (who, with_tls), (pid, port) in running_sides.items():
                        tls = context if with_tls else None
                        found = measure(column, pid, port, tls, handshakes if column == "handshakes" else mib)
                        figures[column].setdefault(f"{who}{'' if with_tls else ', plain'}", []).append(found)
        os.sched_setaffinity(0, before)
        return figures


Load = Callable[[str], dict[str, float]]
"""Runs one of the LOADS; what was done, in the words of rig.c."""


@contextlib.contextmanager
def loads(wanted: Collection[str], cores: Cores, seconds: float) -> Iterator[dict[str, tuple[Load, int]]]:
    """For speed.py: each of the SIDES that is wanted, with TLS, as a load of some seconds, and the proxy's process."""
    with tempfile.TemporaryDirectory(prefix="kafka-throttle-tls-") as name, contextlib.ExitStack() as stack:
        folder, found = Path(name), {}
        authority = Authority(folder)
        context = client_context(authority)
        server = stack.enter_context(socket.create_server((HOST, 0), backlog=1000))
        _on_core(cores.backend, threading.Thread(target=serve, args=(server,), daemon=True))
        issued = authority.issue(HOST)
        for side, command in SIDES.items():
            if side in wanted:
                [port] = free_port_run(1)
                argv = command(folder, port, server.getsockname()[1], issued)
                process = stack.enter_context(running(argv, cores.proxy, folder / f"{side}.log"))
                _await_listening(port)
                found[side] = partial(_timed, port, context, cores.client, seconds), process.pid
        yield found


def _timed(port: int, context: ssl.SSLContext, core: int, seconds: float, load: str) -> dict[str, float]:
    """So much at a time that it takes a tenth of a second or so, until the time is over."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    at_once = 20 if load == "handshakes" else 50
    begin, begin_cpu_s, done = time.monotonic(), time.process_time(), 0
    while time.monotonic() < begin + seconds:
        LOADS[load](port, context, at_once)
        done += at_once
    took = time.monotonic() - begin
    os.sched_setaffinity(0, before)
    moved_mb = 0 if load == "handshakes" else done * FRAME_BYTES / 1e6
    return {
        "requests": done,
        "requests_in_all": done,
        "seconds": took,
        "requests_per_second": done / took,
        "megabytes_per_second": moved_mb / took,
        "cpu_seconds": time.process_time() - begin_cpu_s,
    }


def _on_core(core: int, thread: threading.Thread) -> None:
    """Start a thread whose threads stay on that core, too."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    thread.start()
    os.sched_setaffinity(0, before)


TITLES = {
    "handshakes": "connections with a request, per s of processor time",
    "in": "MB from clients, per s of processor time",
    "out": "MB to clients, per s of processor time",
}


def table(figures: dict[str, dict[str, list[float]]]) -> str:
    """Markdown: medians, and ours by HAProxy's."""
    names = list(next(iter(figures.values())))
    lines = [f"| | {' | '.join(names)} | with TLS, relative to HAProxy |", "| --- |" + " ---: |" * (len(names) + 1)]
    for column, by_side in figures.items():
        cells = [f"{median(by_side[name]):,.0f}" for name in names]
        ratios = [ours / theirs for ours, theirs in zip(by_side["kafka-throttle"], by_side["HAProxy"], strict=True)]
        lines.append(f"| {TITLES[column]} | {' | '.join(cells)} | {median(ratios):.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--handshakes", type=int, default=300)
    parser.add_argument("--mib", type=int, default=400)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = rounds(options.rounds, options.handshakes, options.mib)
    print(table(figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
