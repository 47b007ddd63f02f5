"""What is measured: one load is one API in one shape, the connections that send it, and what has to be there before."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from tests.fidelity import frames
from tests.fidelity.clients import Connection, ResponseRefused
from tests.fidelity.frames import Call
from tests.support.timeouts import TIMEOUT_S

KIB = 1024
SIZES = (100, KIB, 16 * KIB, 256 * KIB)
"""Of a Produce's batch, and of a Fetch's response."""
WRITTEN, REPLICATED, READ, EMPTY = "fidelity-written", "fidelity-replicated", "fidelity-read", "fidelity-empty"
PARTITIONS = 8
_MEMBER_ID_REQUIRED = 79
_GROUPS = count()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a load goes: the node's own address or the proxy's, and the node's id."""

    address: tuple[str, int]
    node_id: int

    def new_group(self, connection: Connection) -> str:
        """A group that nobody has used, whose coordinator is the node."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            group = f"group-{next(_GROUPS)}"
            if frames.coordinator(connection.exchange(frames.find_coordinator(group))) == self.node_id:
                return group
        raise TimeoutError(f"node {self.node_id} coordinates no group")


Prepare = Callable[[Connection, Place, int], Call]
"""What connection number n sends; it may ask for what it needs first."""


@dataclass(frozen=True, slots=True)
class Load:
    """`connections` have at most `depth` requests under way each; `most_rate` bounds the half load, in requests/s.

    The rate of a load that `waits` is by the number of its connections: at half load there are `connections`. Requests
    of an `exempt` one have no response, and count for nobody.
    """

    name: str
    prepare: Prepare
    connections: int = 8
    depth: int = 1
    waits: bool = False
    exempt: bool = False
    size_bytes: int = 0
    most_rate: float = float("inf")

    def calls(self, place: Place, connections: int) -> list[Call]:
        """What each connection sends."""
        found = []
        for number in range(connections):
            with Connection(place.address) as connection:
                found.append(self.prepare(connection, place, number))
        return found


def _produce(topic: str, acks: int, size_bytes: int) -> Prepare:
    return lambda connection, place, number: frames.produce(topic, number % PARTITIONS, acks, size_bytes)


def _fetch(size_bytes: int) -> Prepare:
    partition = SIZES.index(size_bytes)
    return lambda connection, place, number: frames.fetch(READ, partition, size_bytes, 500)


def _waiting_fetch(connection: Connection, place: Place, number: int) -> Call:
    return frames.fetch(EMPTY, 0, KIB, 500)


def _with_a_group(prepare: Callable[[Connection, str], Call]) -> Prepare:
    """Once more with another group when it is refused: who coordinates may just be loading, or have moved."""

    def prepare_patiently(connection: Connection, place: Place, number: int) -> Call:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return prepare(connection, place.new_group(connection))
            except ResponseRefused:
                if time.monotonic() > deadline:
                    raise

    return prepare_patiently


@_with_a_group
def _offset_commit(connection: Connection, group: str) -> Call:
    return frames.offset_commit(group, WRITTEN)


@_with_a_group
def _join_group(connection: Connection, group: str) -> Call:
    return frames.join_group(group, _joined(connection, group)[1])


@_with_a_group
def _heartbeat(connection: Connection, group: str) -> Call:
    generation, member_id = _joined(connection, group)
    _response(connection, frames.sync_group(group, generation, member_id))
    return frames.heartbeat(group, generation, member_id)


def _joined(connection: Connection, group: str) -> tuple[int, bytes]:
    """Make a connection's member the only one of its group: generation and member id."""
    first = _response(connection, frames.join_group(group, b""), _MEMBER_ID_REQUIRED)
    second = frames.join_group(group, frames.generation_and_member(first)[1])
    return frames.generation_and_member(_response(connection, second))


def _response(connection: Connection, call: Call, expected: int = 0) -> bytes:
    """AnswerRefused if it has another error code."""
    response = connection.exchange(call)
    if (found := call.error_code(response)) != expected:
        raise ResponseRefused(f"API {call.api_key}: error {found} in place of {expected}")
    return response


def _label(size_bytes: int) -> str:
    return f"{size_bytes} B" if size_bytes < KIB else f"{size_bytes // KIB} KiB"


LOADS = (
    Load("ApiVersions", lambda connection, place, number: frames.api_versions()),
    Load("Produce acks=0, 1 KiB", _produce(WRITTEN, 0, KIB), exempt=True, size_bytes=KIB, connections=1),
    *(Load(f"Produce acks=1, {_label(size)}", _produce(WRITTEN, 1, size), size_bytes=size) for size in SIZES),
    Load("Produce acks=1, 1 KiB, pipelined", _produce(WRITTEN, 1, KIB), depth=5, connections=4, size_bytes=KIB),
    Load("Produce acks=all, 1 KiB", _produce(REPLICATED, -1, KIB), size_bytes=KIB),
    *(Load(f"Fetch, {_label(size)}", _fetch(size), size_bytes=size) for size in SIZES),
    Load("Fetch that waits", _waiting_fetch, waits=True, connections=25),
    Load("Metadata", lambda connection, place, number: frames.metadata(WRITTEN)),
    Load("OffsetCommit", _offset_commit),
    Load("JoinGroup", _join_group),
    Load("Heartbeat", _heartbeat),
    Load("CreateTopics", lambda connection, place, number: frames.create_topic("made-", False), connections=2),
    Load("CreateTopics, validated only", lambda connection, place, number: frames.create_topic("made-", True)),
)


def chosen(names: Sequence[str]) -> list[Load]:
    """The loads with one of `names` in theirs, all for none. ValueError if a name finds nothing."""
    if unknown := [name for name in names if not any(name.lower() in load.name.lower() for load in LOADS)]:
        raise ValueError(f"no load has {', '.join(unknown)} in its name")
    return [load for load in LOADS if not names or any(name.lower() in load.name.lower() for name in names)]
