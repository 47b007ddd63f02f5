"""Measures how much memory the proxy takes: a stalled reader, idle clients, frames of 100 MiB.

    python tests/bench/memory.py [--stall-seconds 5] [--connections 2000] [--candidates NAME,NAME] [--json FILE]

Each figure comes from a process of its own, warmed up by one small exchange, and is the resident memory (of
it and of what it started) above what it had then. Peaks are the kernel's own (VmHWM, reset before each part),
so nothing falls between two samples. Every response is read and checked: order, size, error code. Prints a
Markdown table.
"""

import argparse
import contextlib
import json
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.bench.candidates import CANDIDATES, Candidate
from tests.bench.processes import Cores, allow_many_files, family_of, say, two_or_three_cores
from tests.bench.rig import backend, rig_program, serving

MIB = 1 << 20
TOPIC = b"bench"
LARGEST_REQUEST_BYTES = 104_857_600
"""Kafka's default for socket.request.max.bytes; the length prefix is not counted."""
TIMEOUT_S = 60
REQUEST_HEADER = struct.Struct(">hhih3s")
RESPONSE_HEADER = struct.Struct(">ii")
FETCH_RESPONSE = struct.Struct(f">ihiih{len(TOPIC)}siihqqqiii")
PRODUCE_RESPONSE = struct.Struct(f">ih{len(TOPIC)}siihqqqi")

Result = dict[str, float]


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much is done in each part."""

    stalled_mib: int = 1024
    stall_seconds: float = 5.0
    connections: int = 2000


FULL_AMOUNTS = Amounts()


@dataclass(frozen=True, slots=True)
class Served:
    """A proxy that answers, under measurement."""

    target: tuple[str, int]
    pid: int

    def resident_bytes(self, field: str = "VmRSS") -> int:
        """Resident memory now, or its peak since `reset_peak` ("VmHWM"; of several processes, summed)."""
        total = 0
        for process in family_of(self.pid):
            for line in Path(f"/proc/{process}/status").read_text().splitlines():
                if line.startswith(field + ":"):
                    total += int(line.split()[1]) * 1024
        return total

    def reset_peak(self) -> None:
        """Let VmHWM begin anew from what is resident now."""
        for process in family_of(self.pid):
            Path(f"/proc/{process}/clear_refs").write_text("5")


# ---- requests and answers ------------------------------------------------------------------------


def request(api_key: int, version: int, correlation_id: int, body: bytes, records_bytes: int = 0) -> bytes:
    """A frame up to its records, of which `records_bytes` are to follow."""
    head = REQUEST_HEADER.pack(api_key, version, correlation_id, 3, b"rig") + body
    return struct.pack(">i", len(head) + records_bytes) + head


def fetch_request(correlation_id: int, max_bytes: int) -> bytes:
    """Fetch v11 of one partition, without a session."""
    body = struct.pack(">iiiibii", -1, 500, 1, max_bytes, 0, 0, -1)
    body += struct.pack(f">ih{len(TOPIC)}si", 1, len(TOPIC), TOPIC, 1)
    body += struct.pack(">iiqqi", 0, -1, 0, -1, max_bytes)
    return request(1, 11, correlation_id, body + struct.pack(">ih", 0, 0))


def produce_head(correlation_id: int, records_bytes: int) -> bytes:
    """Produce v7 with acks=1 to one partition, up to its records."""
    body = struct.pack(">hhi", -1, 1, 30_000)
    body += struct.pack(f">ih{len(TOPIC)}siii", 1, len(TOPIC), TOPIC, 1, 0, records_bytes)
    return request(0, 7, correlation_id, body, records_bytes)


class Client:
    """One blocking connection that checks what it reads."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.socket = socket.create_connection(target, timeout=TIMEOUT_S)
        self._buffer = bytearray(MIB)

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes, at most 1 MiB."""
        view = memoryview(self._buffer)[:size]
        got = 0
        while got < size:
            if not (count := self.socket.recv_into(view[got:])):
                raise RuntimeError("the connection was closed in the middle of an answer")
            got += count
        return bytes(view)

    def skip(self, size: int) -> None:
        """Read `size` bytes and forget them."""
        while size:
            if not (count := self.socket.recv_into(self._buffer, min(size, MIB))):
                raise RuntimeError("the connection was closed in the middle of an answer")
            size -= count

    def begin_fetch_response(self, correlation_id: int) -> int:
        """Read a Fetch response up to its records; their length."""
        size, answered = RESPONSE_HEADER.unpack(self.read(RESPONSE_HEADER.size))
        fields = FETCH_RESPONSE.unpack(self.read(FETCH_RESPONSE.size))
        throttle_time_ms, error_code, partition_error, records_bytes = (
            fields[0],
            fields[1],
            fields[8],
            fields[-1],
        )
        assert answered == correlation_id, f"answer {answered} where {correlation_id} was due"
        assert (throttle_time_ms, error_code, partition_error) == (0, 0, 0), fields
        assert size == 4 + FETCH_RESPONSE.size + records_bytes, f"{size} bytes with {records_bytes} of records"
        return int(records_bytes)

    def fetch(self, correlation_id: int, max_bytes: int) -> None:
        """One Fetch, read in full."""
        self.socket.sendall(fetch_request(correlation_id, max_bytes))
        records_bytes = self.begin_fetch_response(correlation_id)
        assert records_bytes == max_bytes, f"{records_bytes} bytes where {max_bytes} were asked for"
        self.skip(records_bytes)

    def produce(self, correlation_id: int, frame_bytes: int) -> None:
        """One Produce whose length prefix says `frame_bytes`, and its response."""
        records_bytes = frame_bytes - (len(produce_head(0, 0)) - 4)
        self.socket.sendall(produce_head(correlation_id, records_bytes))
        for offset in range(0, records_bytes, MIB):
            self.socket.sendall(bytes(min(MIB, records_bytes - offset)))
        size, answered = RESPONSE_HEADER.unpack(self.read(RESPONSE_HEADER.size))
        fields = PRODUCE_RESPONSE.unpack(self.read(size - 4))
        assert (answered, fields[5], fields[-1]) == (correlation_id, 0, 0), fields


# ---- the parts -----------------------------------------------------------------------------------


@contextlib.contextmanager
def warm_client(served: Served) -> Iterator[Client]:
    """A client that has produced and fetched once, so that what is loaded lazily is not counted."""
    client = Client(served.target)
    with client.socket:
        client.produce(1, 1000)
        client.fetch(2, 1000)
        time.sleep(0.5)
        yield client


def stalled_reader(served: Served, amounts: Amounts) -> Result:
    """1 GiB in pipelined fetches of 1 MiB: the reader takes one, stalls, then takes the rest."""
    responses = amounts.stalled_mib
    with warm_client(served) as client:
        baseline = served.resident_bytes()
        served.reset_peak()
        requests = b"".join(fetch_request(10 + i, MIB) for i in range(responses))
        # A proxy may stop taking requests while nothing is read: that must not stop us from reading.
        sender = threading.Thread(target=client.socket.sendall, args=(requests,))
        sender.start()
        received = client.begin_fetch_response(10)
        client.skip(received)
        time.sleep(amounts.stall_seconds)
        stalled = served.resident_bytes("VmHWM") - baseline
        for i in range(1, responses):
            records_bytes = client.begin_fetch_response(10 + i)
            client.skip(records_bytes)
            received += records_bytes
        sender.join()
        assert received == responses * MIB, f"{received} bytes came, {responses * MIB} were asked for"
        peak = served.resident_bytes("VmHWM") - baseline
    return {"stalled_bytes": stalled, "stalled_then_read_bytes": peak, "received_bytes": received}


def idle_connections(served: Served, amounts: Amounts) -> Result:
    """Connections that have done one ApiVersions exchange and then nothing."""
    with warm_client(served):
        baseline = served.resident_bytes()
        host, port = served.target
        command = [str(rig_program()), "idle", "--target", f"{host}:{port}", "--connections", str(amounts.connections)]
        idle = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert idle.stdin
        assert idle.stdout
        with idle:
            if json.loads(idle.stdout.readline() or "null") != {"connections": amounts.connections}:
                raise RuntimeError("the idle connections were not taken")
            time.sleep(2)
            used = served.resident_bytes() - baseline
            assert idle.poll() is None, "an idle connection was closed"
            idle.stdin.close()
        assert idle.returncode == 0, "an idle connection was closed"
    return {"idle_connections_bytes": used, "bytes_per_idle_connection": used / amounts.connections}


def large_frames(served: Served, amounts: Amounts) -> Result:
    """The largest Produce that a broker takes, then a Fetch response with as many bytes of records."""
    with warm_client(served) as client:
        baseline = served.resident_bytes()
        served.reset_peak()
        client.produce(10, LARGEST_REQUEST_BYTES)
        produce = served.resident_bytes("VmHWM") - baseline
        served.reset_peak()
        client.fetch(11, LARGEST_REQUEST_BYTES)
        fetch = served.resident_bytes("VmHWM") - baseline
    return {"produce_100_mib_bytes": produce, "fetch_100_mib_bytes": fetch}


Part = Callable[[Served, Amounts], Result]
PARTS: tuple[Part, ...] = (stalled_reader, idle_connections, large_frames)


def measure_part(part: Part, candidate: Candidate, cores: Cores, amounts: Amounts = FULL_AMOUNTS) -> Result:
    """One part's figures with a fresh process, bytes."""
    rig = rig_program()
    with (
        tempfile.TemporaryDirectory() as name,
        backend(rig, cores.backend, Path(name)) as (node, _),
        serving(rig, candidate, cores, node, Path(name)) as (target, pid),
    ):
        assert pid, "a direct connection has no process to look at"
        host, port = target.split(":")
        return part(Served((host, int(port)), pid), amounts)


def measure(candidate: Candidate, cores: Cores, amounts: Amounts, rounds: int) -> Result:
    """The figures of all parts, each measured `rounds` times: medians, bytes."""
    values: dict[str, list[float]] = {}
    for part in PARTS * rounds:
        say(f"{candidate.name}: {part.__name__}")
        for key, value in measure_part(part, candidate, cores, amounts).items():
            values.setdefault(key, []).append(value)
    return {key: statistics.median(of_key) for key, of_key in values.items()}


def table(results: dict[str, Result], amounts: Amounts) -> str:
    """The figures as Markdown: a line for each, a column for each candidate."""
    rows = (
        (f"{amounts.stalled_mib:,} MiB in 1 MiB fetches, reader stalled: peak", "stalled_bytes", MIB, "MiB"),
        ("the same, then read to the end: peak", "stalled_then_read_bytes", MIB, "MiB"),
        (f"{amounts.connections:,} idle connections: each", "bytes_per_idle_connection", 1024, "KiB"),
        ("produce of 100 MiB: peak", "produce_100_mib_bytes", MIB, "MiB"),
        ("fetch answer of 100 MiB: peak", "fetch_100_mib_bytes", MIB, "MiB"),
    )
    lines = ["| memory above a warm start | " + " | ".join(results) + " |", "|---" * (len(results) + 1) + "|"]
    for title, key, unit, unit_name in rows:
        cells = [f"{result[key] / unit:,.1f} {unit_name}" for result in results.values()]
        lines.append("| " + " | ".join([title, *cells]) + " |")
    return "\n".join(lines)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", default="HAProxy,kafka-throttle", help="names as speed.py prints them")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--stalled-mib", type=int, default=FULL_AMOUNTS.stalled_mib)
    parser.add_argument("--stall-seconds", type=float, default=FULL_AMOUNTS.stall_seconds)
    parser.add_argument("--connections", type=int, default=FULL_AMOUNTS.connections)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse_options()
    named = {candidate.name: candidate for candidate in CANDIDATES if candidate.command}
    if unknown := set(options.candidates.split(",")) - set(named):
        raise SystemExit(f"--candidates: unknown: {', '.join(sorted(unknown))}")
    amounts = Amounts(options.stalled_mib, options.stall_seconds, options.connections)
    allow_many_files()
    cores = two_or_three_cores()
    names = options.candidates.split(",")
    results = {name: measure(named[name], cores, amounts, options.rounds) for name in names}
    print(table(results, amounts))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
