"""Measures how much memory of the proxy hostile clients take, and the latency of a good client beside them.

    python tests/bench/hostile_memory.py [--seconds 20] [--json FILE]

Starts the proxy in front of a node of its own, in which every topic is unknown. A good client produces at a steady
pace, first alone, then beside each attack: requests of 1 MiB about 170,000 topics, and requests of three kinds that
never end. For each attack it prints the memory above that at rest, and the 99th percentile of the latency of the good
client, alone and beside the attack. The good client and the attacks have different addresses. The node has its long
responses ready. The figures of memory hold on any machine; those of latency only if each process has a core to itself.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from demo.proxy_process import free_port_run
from kafka_throttle.protocol.primitives import compact_string, string, uvarint
from tests.bench.processes import end_group, say
from tests.relay.frames import frame, produce, produced, request
from tests.support.places import ROOT
from tests.support.topic_frames import metadata_by_name, new_topic

_API_KEYS: Final = {0: (7, 7), 3: (1, 4), 17: (0, 1), 18: (0, 2), 19: (2, 6), 20: (1, 5), 36: (0, 1), 48: (0, 1)}
_PACE_S: Final = 0.004
_MIB: Final = 1 << 20
_DELETED, _CREATED = 170_000, 70_000
_HOSTILE, _GOOD = "127.0.0.3", "127.0.0.2"


def _topics(count: int) -> Iterator[bytes]:
    return (b"%x" % number for number in range(count))


def _whole(api_key: int, version: int, topic: bytes | None, count: int) -> bytes:
    """A request about so many topics, each written as `topic` with its number in place of the name."""
    topics = b"".join(
        compact_string(name) if topic is None else topic.replace(compact_string(b"#"), compact_string(name))
        for name in _topics(count)
    )
    rest = struct.pack(">i", 1000) + (b"" if topic is None else b"\0") + b"\0"
    return request(api_key, version, uvarint(count + 1) + topics + rest, client_id=b"hostile", tags=True)


def _endless(api_key: int, version: int, size_bytes: int) -> bytes:
    """A request of which the last byte never comes."""
    head = request(api_key, version, client_id=b"hostile")[4:]
    return (struct.pack(">i", size_bytes) + head).ljust(size_bytes + 3, b"\0")


def attacks() -> dict[str, tuple[int, bytes]]:
    """Each attack: on how many connections it sends what."""
    return {
        f"DeleteTopics, {_DELETED:,} names": (20, _whole(20, 5, None, _DELETED)),
        f"CreateTopics, {_CREATED:,} names": (20, _whole(19, 6, new_topic(6, b"#", 1), _CREATED)),
        "SaslHandshake without an end": (150, _endless(17, 1, _MIB // 2)),
        "DescribeClientQuotas without an end": (150, _endless(48, 0, _MIB - 8)),
        "DeleteTopics without an end": (150, _endless(20, 1, _MIB - 8)),
    }


# ------------------------------------------------------------------------------ the node


@cache
def _unknown(topics: bytes) -> bytes:
    """The response to Metadata, after its correlation id, about these topics as a request has them: all are unknown."""
    names, at = [], 4
    while at < len(topics):
        end = at + 2 + struct.unpack_from(">h", topics, at)[0]
        names.append(topics[at + 2 : end])
        at = end
    return metadata_by_name(0, dict.fromkeys(names, -1), brokers=1)[8:]


def _node(server: socket.socket) -> None:
    """Respond to clients, each in a process of its own: as at a broker, a large request delays no other client."""
    for count in (_DELETED, _CREATED):  # kept before the measuring: to make these takes a core from the others
        _unknown(struct.pack(">i", count) + b"".join(map(string, _topics(count))))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for its parent when it has ended
    while True:
        client, _ = server.accept()
        if os.fork():
            client.close()
        else:
            _serve(client, server.getsockname()[1])
            os._exit(0)


def _serve(client: socket.socket, port: int) -> None:
    with contextlib.suppress(OSError, EOFError):
        while True:
            client.sendall(_response(_frame_of(client), port))


def _frame_of(sock: socket.socket) -> bytes:
    return _exactly(sock, struct.unpack(">i", _exactly(sock, 4))[0])


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(min(size - len(data), 262_144))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _response(payload: bytes, port: int) -> bytes:
    api_key, version, corr = struct.unpack_from(">hhi", payload)
    if api_key == 0:
        return produced(corr)
    if api_key == 18:
        offered = b"".join(struct.pack(">hhh", key, *versions) for key, versions in _API_KEYS.items())
        body = struct.pack(">hi", 0, len(_API_KEYS)) + offered + (struct.pack(">i", 0) if version else b"")
        return frame(struct.pack(">i", corr) + body)
    if api_key == 3 and version == 4:
        return frame(struct.pack(">i", corr) + _unknown(_topics_in(payload)))
    host = b"127.0.0.1"
    node = struct.pack(">ii", 1, 1) + struct.pack(">h", len(host)) + host + struct.pack(">ih", port, -1)
    return frame(struct.pack(">i", corr) + node + struct.pack(">ii", 1, 0))


def _topics_in(payload: bytes) -> bytes:
    """The topics in a Metadata request of version 4, as they are written there."""
    return payload[10 + max(struct.unpack_from(">h", payload, 8)[0], 0) : -1]


# ------------------------------------------------------------------------------ the clients


def _attack(port: int, connections: int, data: bytes) -> None:
    """Send the same once on all connections, as far as they are read; a connection that is closed is made anew."""
    open_ones: list[tuple[socket.socket, int]] = []
    while True:
        while len(open_ones) < connections:
            one = socket.create_connection(("127.0.0.1", port), 10, (_HOSTILE, 0))
            one.setblocking(False)
            open_ones.append((one, 0))
        open_ones = [(one, sent) for one, at in open_ones if (sent := _send_on(one, data, at)) >= 0]
        time.sleep(0.02)


def _send_on(sock: socket.socket, data: bytes, at: int) -> int:
    """Send more; return how much is sent, -1 when the connection is closed."""
    try:
        with contextlib.suppress(BlockingIOError):
            if at < len(data):
                at += sock.send(data[at : at + 262_144])
        with contextlib.suppress(BlockingIOError):
            if not sock.recv(262_144):
                raise ConnectionResetError
    except OSError:
        sock.close()
        return -1
    return at


def _latencies(port: int, seconds: float) -> list[float]:
    """How long each request of the good client takes, in ms."""
    found = []
    with socket.create_connection(("127.0.0.1", port), 60, (_GOOD, 0)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.perf_counter() + seconds
        corr = 1
        while time.perf_counter() < end:
            began = time.perf_counter()
            sock.sendall(produce(corr, size=1000, client_id=b"good"))
            _frame_of(sock)
            found.append(1000 * (time.perf_counter() - began))
            time.sleep(_PACE_S)
            corr += 1
    return sorted(found)


# ------------------------------------------------------------------------------ the proxy


@contextlib.contextmanager
def _proxy(node_port: int, folder: Path) -> Iterator[tuple[int, int]]:
    """The proxy as a process: its number and its port."""
    port, _, metrics, admin = free_port_run(4)
    listener = {"name": "plain", "bind": "127.0.0.1", "port": port, "node_ids": [1]}
    entries = [{"default_client_id": True, "controller_mutation_rate": 5}]
    cluster = {
        "name": "main",
        "upstream": {"bootstrap_servers": [f"127.0.0.1:{node_port}"]},
        "listeners": [listener],
        "quotas": {"entries": entries},
    }
    at = {"metrics": {"bind": "127.0.0.1", "port": metrics}, "admin": {"bind": "127.0.0.1", "port": admin}}
    path = folder / "proxy.yaml"
    path.write_text(json.dumps({"virtual_clusters": [cluster], **at}))
    command = [sys.executable, "-m", "proxy", "run", "-c", str(path)]
    with (folder / "proxy.log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stderr=log, start_new_session=True)
    try:
        _until_served(port)
        yield process.pid, port
    finally:
        end_group(process, 10)


def _until_served(port: int) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            _latencies(port, 0.5)
        except (OSError, EOFError):
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
        else:
            return


def _memory_kib(pid: int, name: str) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


def _reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _measure(pid: int, port: int, seconds: float) -> dict[str, float]:
    """The good client's latency, and the most memory meanwhile."""
    _reset_peak(pid)
    found = _latencies(port, seconds)
    return {
        "peak_mib": _memory_kib(pid, "VmHWM") / 1024,
        "p50_ms": found[len(found) // 2],
        "p99_ms": found[len(found) * 99 // 100],
        "requests": len(found),
    }


def measure(seconds: float, chosen: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """The figures alone, and beside each attack; each in a new process."""
    results = {}
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as server, tempfile.TemporaryDirectory() as folder:
        node = multiprocessing.get_context("fork").Process(target=_node, args=(server,), daemon=True)
        node.start()
        for name, (connections, data) in attacks().items():
            if chosen is not None and name not in chosen:
                continue
            with _proxy(server.getsockname()[1], Path(folder)) as (pid, port):
                rest_mib = _memory_kib(pid, "VmRSS") / 1024
                alone = _measure(pid, port, seconds)
                hostile = multiprocessing.get_context("fork").Process(
                    target=_attack, args=(port, connections, data), daemon=True
                )
                hostile.start()
                time.sleep(1)
                beside = _measure(pid, port, seconds)
                hostile.kill()
                hostile.join()
            results[name] = {
                "memory_above_rest_mib": beside["peak_mib"] - rest_mib,
                "p50_ms": beside["p50_ms"],
                "p99_alone_ms": alone["p99_ms"],
                "p99_beside_ms": beside["p99_ms"],
                "times": beside["p99_ms"] / alone["p99_ms"],
            }
        node.kill()
        node.join()
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--attack", action="append", help="only this one")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    results = measure(options.seconds, options.attack)
    say("| attack | memory above rest | p99 alone | p99 beside | times |")
    say("|---|---|---|---|---|")
    for name, one in results.items():
        say(
            f"| {name} | {one['memory_above_rest_mib']:.0f} MiB | {one['p99_alone_ms']:.2f} ms "
            f"| {one['p99_beside_ms']:.2f} ms | {one['times']:.1f} |"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
