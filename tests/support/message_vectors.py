"""Frames made by Kafka's own message classes, and what Kafka makes of them when one thing is changed.

`tests/java/MessageVectors.java` writes them from the kafka-clients jar; the result is kept in the cache.
"""

import fcntl
import hashlib
import json
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kafka_throttle.common.jars import cache_dir
from tests.support.java_program import java_program, java_source

KAFKA_VERSIONS = ("4.3.1", "3.9.2")
"""Newest first: together they have every version of every API."""

THROTTLE_MS = 1_234_567
"""`Vector.throttled` has at least this throttle_time_ms."""

CEILING_BYTES = 4096
"""`Vector.clamped` has no max_bytes above this."""

SHORT_HOST = b"proxy.example"
LONG_HOST = b"h" * 130

_PROGRAM = "MessageVectors"


@dataclass(frozen=True, slots=True)
class Vector:
    """One frame, length prefix included. What a kind of message does not have is None.

    The frames `throttled`, `readdressed`, `readdressed_long` and `clamped` are the same object serialised anew by the
    message classes, after nothing but the named change.
    """

    kafka_version: str
    key: int
    name: str
    version: int
    is_response: bool
    variant: str
    header_version: int
    frame: bytes
    correlation_id: int
    client_id: str | None
    """Of requests; None also stands for null and for header v0."""
    acks: int | None
    """Of Produce requests."""
    max_bytes: int | None
    """Of Fetch requests, from v3 on, and of ShareFetch requests."""
    min_bytes: int | None
    clamped: bytes | None
    """That request with max_bytes at most CEILING_BYTES and min_bytes at most max_bytes (Fetch v0-2: the ceiling)."""
    throttle: int | None
    """throttle_time_ms of the response, None if the version has none."""
    throttled: bytes | None
    """The response with throttle_time_ms raised to THROTTLE_MS."""
    endpoints: tuple[tuple[int, str, int], ...]
    """Node id, host and port of each address that clients will dial, in wire order; not those of failed look-ups."""
    readdressed: bytes | None
    """The response with each of `endpoints` at SHORT_HOST and `port_of(node_id)`."""
    readdressed_long: bytes | None
    """The same at LONG_HOST, whose compact length takes two bytes."""
    charged_bytes: int | None
    """What a broker charges to the fetch quota for this Fetch or ShareFetch response."""
    topics: int | None
    """How many topics a CreateTopics, DeleteTopics or CreatePartitions request names."""
    left_out: tuple[int, ...]
    """Numbers of some of them, at least one if there are any."""
    without: bytes | None
    """The request without those."""
    refused_at: tuple[int, ...]
    """Of responses to these three that may carry error 89: places of further results with it, as `merged` has them.

    Their names say `refused-` and the place; of DeleteTopics from v6 on those at odd places have an id of twice that
    number, each as eight bytes, in place of a name.
    """
    merged: bytes | None
    """The response with those results."""

    def __str__(self) -> str:
        kind = "response" if self.is_response else "request"
        return f"{self.name} v{self.version} {kind} of Kafka {self.kafka_version}, {self.variant}"


def port_of(node_id: int) -> int:
    """The port that readdressed vectors give to a node."""
    return 20000 + node_id % 1000


@cache
def message_vectors(kafka_version: str) -> list[Vector]:
    """All vectors of a Kafka version. The first call on a machine makes them, which takes some 10 s."""
    source_hash = hashlib.sha256(java_source(_PROGRAM).read_bytes()).hexdigest()[:16]
    vectors_file = cache_dir() / f"message-vectors-{kafka_version}-{source_hash}.jsonl"
    if not vectors_file.exists():
        _make(kafka_version, vectors_file)
    with vectors_file.open(encoding="ascii") as lines:
        return [_vector(kafka_version, json.loads(line)) for line in lines]


def _make(kafka_version: str, vectors_file: Path) -> None:
    command = java_program(_PROGRAM, kafka_version)
    with vectors_file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if vectors_file.exists():
            return
        aside = vectors_file.with_suffix(".part")
        run = subprocess.run([*command, str(aside)], capture_output=True, text=True, timeout=600)
        assert run.returncode == 0, run.stderr[-3000:]
        made_with = run.stdout.strip()
        assert made_with == kafka_version, f"jars of {made_with}, not of {kafka_version}"
        aside.rename(vectors_file)


def _vector(kafka_version: str, line: dict[str, Any]) -> Vector:
    frame = bytes.fromhex(line["frame"])
    get = line.get
    return Vector(
        kafka_version,
        line["key"],
        line["name"],
        line["version"],
        line["kind"] == "response",
        line["variant"],
        line["header_version"],
        frame,
        line["correlation_id"],
        get("client_id"),
        get("acks"),
        get("max_bytes"),
        get("min_bytes"),
        _changed(frame, get("clamped")),
        get("throttle"),
        _changed(frame, get("throttled")),
        tuple((node_id, host, port) for node_id, host, port in get("endpoints", ())),
        _changed(frame, get("readdressed")),
        _changed(frame, get("readdressed_long")),
        get("charged_bytes"),
        get("topics"),
        tuple(get("left_out", ())),
        _changed(frame, get("without")),
        tuple(get("refused_at", ())),
        _changed(frame, get("merged")),
    )


def _changed(frame: bytes, change: tuple[int, str, int] | None) -> bytes | None:
    """`frame` with what is between its first and its last bytes replaced."""
    if change is None:
        return None
    start, between, end = change
    return frame[:start] + bytes.fromhex(between) + frame[len(frame) - end :]
