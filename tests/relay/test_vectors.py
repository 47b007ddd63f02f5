"""Every API and version of Kafka 3.9.2 and 4.3.1 passes a relay byte for byte, except for what a proxy must change.

The frames, and what they must become, are made by Kafka's own message classes.
"""

import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from multiprocessing import get_context
from struct import pack

import pytest

from kafka_throttle.protocol.api_key import API_VERSIONS
from kafka_throttle.protocol.messages.api_versions import UNSUPPORTED_VERSION
from kafka_throttle.protocol.primitives import Reader
from kafka_throttle.proxy.relay.actions import RelayLimits
from kafka_throttle.proxy.relay.plans import ASKED_REQUESTS
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from tests.relay.frames import heartbeat, heartbeaten
from tests.relay.script import NOW_MS, FixedNodes, Script, quota_manager_with
from tests.support.message_vectors import CEILING_BYTES, KAFKA_VERSIONS, LONG_HOST, THROTTLE_MS, Vector, message_vectors

A_FEW = 300
BYTE_BY_BYTE = 50
EDGE = 100
"""Frames of twice this size and more are cut in two at every byte of their first and last EDGE bytes only."""

UNLIMITED = quota_manager_with()
SAMPLES = 3
"""With three samples of a second a quota of CEILING_BYTES / 2 clamps fetches to CEILING_BYTES."""

every_kafka = pytest.mark.parametrize("kafka_version", KAFKA_VERSIONS)


class NodesAtHome:
    """Advertises every node where the response says it is, in wire order: nothing is to change."""

    def __init__(self, vector: Vector) -> None:
        self._addresses = iter(vector.endpoints)

    def learn(self, node_id: int, host: str, port: int) -> None: ...

    def advertised(self, node_id: int) -> tuple[bytes, int]:
        _, host, port = next(self._addresses)
        return host.encode(), port


@cache
def requests_by_api(kafka_version: str) -> dict[tuple[int, int], bytes]:
    """One request of each API and version that gets a response."""
    return {
        (vector.key, vector.version): vector.frame
        for vector in message_vectors(kafka_version)
        if not vector.is_response and vector.acks != 0
    }


def awaiting(
    make_relay, vector: Vector, nodes, quota_manager: ClientQuotaManager | None = None, before: bytes = b""
) -> Script:
    """A relay that has sent on `before`, and the request that the vector is the response to."""
    script = Script(make_relay, quota_manager or UNLIMITED, nodes=nodes, checks_usage=False).connected()
    script.facts.listener.offer = lambda api_key: (-(2**15), 2**15 - 1)
    script.facts.listener.answered = ()
    request = requests_by_api(vector.kafka_version)[vector.key, vector.version]
    request = request[:8] + pack(">i", vector.correlation_id) + request[12:]
    script.client(before + request)
    assert script.sent[Side.NODE] == before + request, vector
    return script


def cuts(frame: bytes, seed: int, exhaustive: bool) -> Iterator[list[bytes]]:
    """Ways to receive `frame`: at once, byte by byte, in random pieces, and in two parts cut at every byte."""
    yield [frame]
    rng = random.Random(seed)
    if exhaustive or rng.randrange(BYTE_BY_BYTE) == 0:
        yield [frame[i : i + 1] for i in range(len(frame))]
    for _ in range(2):
        at = sorted(rng.randrange(len(frame)) for _ in range(rng.randrange(1, 12)))
        yield [frame[a:b] for a, b in zip([0, *at], [*at, len(frame)], strict=True) if b > a]
    if exhaustive:
        places = range(1, len(frame))
        for i in places if len(frame) < 2 * EDGE else (*places[:EDGE], *places[-EDGE:]):
            yield [frame[:i], frame[i:]]


def check_request(
    make_relay,
    vector: Vector,
    expected: bytes,
    quota_manager: Callable[[], ClientQuotaManager],
    exhaustive: bool,
    limits: RelayLimits | None = None,
) -> None:
    for pieces in cuts(vector.frame, len(vector.frame), exhaustive):
        script = Script(make_relay, quota_manager(), limits, checks_usage=False).connected()
        for piece in pieces:
            script.client(piece)
        assert script.sent[Side.NODE] == expected, f"{vector} in {len(pieces)} pieces: {script.closed}"
        script.check_usage()


def check_response(make_relay, vector: Vector, expected: bytes, exhaustive: bool, **how) -> None:
    for pieces in cuts(vector.frame, len(vector.frame), exhaustive):
        nodes = how.get("nodes") or NodesAtHome(vector)
        script = awaiting(make_relay, vector, nodes)
        for piece in pieces:
            script.node(piece)
        assert script.sent[Side.CLIENT] == expected, f"{vector} in {len(pieces)} pieces: {script.closed}"
        assert script.relay.idle
        script.check_usage()


def chosen(kafka_version: str, is_response: bool) -> list[Vector]:
    """The vectors of one direction."""
    of_direction = (vector for vector in message_vectors(kafka_version) if vector.is_response is is_response)
    return [vector for vector in of_direction if not means_something_else(vector)]


def not_in_newer(kafka_version: str, is_response: bool) -> list[Vector]:
    """Those that no newer Kafka has, too, to the last byte: four of five are in both."""
    newer = KAFKA_VERSIONS[: KAFKA_VERSIONS.index(kafka_version)]
    known = {replace(vector, kafka_version="") for version in newer for vector in chosen(version, is_response)}
    return [vector for vector in chosen(kafka_version, is_response) if replace(vector, kafka_version="") not in known]


def requests_pass(make_relay, vectors: Sequence[Vector], every: int) -> int:
    """Check them, and cut each of so many at every byte; how many there are."""
    for i, vector in enumerate(vectors):
        check_request(make_relay, vector, vector.frame, lambda: UNLIMITED, i % every == 0)
    return len(vectors)


def responses_pass(make_relay, vectors: Sequence[Vector], every: int) -> int:
    """The same for responses, with addresses that stay, and with others that are as long, or longer."""
    for i, vector in enumerate(vectors):
        every_byte = i % every == 0
        check_response(make_relay, vector, vector.frame, every_byte)
        if vector.endpoints:
            check_response(make_relay, vector, vector.readdressed, every_byte, nodes=FixedNodes())
            check_response(make_relay, vector, vector.readdressed_long, every_byte, nodes=FixedNodes(LONG_HOST))
    return len(vectors)


@pytest.mark.rule("unchanged")
@every_kafka
def test_requests_pass_byte_for_byte(make_relay, kafka_version):
    assert requests_pass(make_relay, chosen(kafka_version, is_response=False), A_FEW) > 1000


@pytest.mark.rule("unchanged")
@every_kafka
def test_responses_pass_byte_for_byte_except_for_addresses(make_relay, kafka_version):
    assert responses_pass(make_relay, chosen(kafka_version, is_response=True), A_FEW) > 1000


@pytest.mark.nightly
@pytest.mark.timeout(2400)
@every_kafka
@pytest.mark.parametrize("pass_through", [requests_pass, responses_pass], ids=["requests", "responses"])
def test_messages_pass_cut_at_every_byte(make_relay, kafka_version, pass_through):
    """On all cores: it would take one of them ten minutes."""
    vectors, processes = not_in_newer(kafka_version, is_response=pass_through is responses_pass), os.cpu_count() or 1
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        parts = [vectors[at :: 8 * processes] for at in range(8 * processes)]
        assert sum(pool.map(partial(pass_through, make_relay, every=1), parts)) == len(vectors) > 500
    assert len(chosen(kafka_version, is_response=pass_through is responses_pass)) > 1000


@pytest.mark.rule("throttle time")
@every_kafka
def test_the_throttle_time_is_written_where_the_version_has_it(make_relay, kafka_version):
    """An earlier response has muted the client: what is left of that is reported by every later response."""
    for vector in message_vectors(kafka_version):
        if not vector.is_response or means_something_else(vector):
            continue
        script = awaiting(make_relay, vector, NodesAtHome(vector), before=heartbeat(7))
        script.node(heartbeaten(7, throttle_time_ms=THROTTLE_MS))
        expected = vector.frame if vector.throttled is None else vector.throttled
        assert script.node(vector.frame) == expected, f"{vector}: {script.closed}"


def is_version_error(vector: Vector) -> bool:
    """A response to ApiVersions with error 35 has body version 0, which the message classes cannot know."""
    return vector.key == API_VERSIONS and vector.frame[8:10] == pack(">h", UNSUPPORTED_VERSION)


def means_something_else(vector: Vector) -> bool:
    """Requests that the proxy responds to by itself, and responses to ApiVersions that it reads otherwise.

    Those are the ones with error 35, or that offer an API of no version at all.
    """
    if vector.key in ASKED_REQUESTS:
        return True
    if vector.key != API_VERSIONS or not vector.is_response:
        return False
    if is_version_error(vector):
        return True
    reader = Reader(vector.frame, 10)
    compact = vector.version >= 3
    for _ in range(reader.uvarint() - 1 if compact else reader.int32()):
        _, lowest, highest = reader.int16(), reader.int16(), reader.int16()
        if compact:
            reader.tags()
        if lowest > highest:
            return True
    return False


@pytest.mark.rule("fetch")
@every_kafka
def test_a_fetch_is_clamped_in_every_version(make_relay, kafka_version):
    checked = 0
    for vector in message_vectors(kafka_version):
        if vector.clamped is None:
            continue
        limit = {QuotaType.FETCH: CEILING_BYTES / 2}
        everybody = QuotaTable({Entity(client_id=name): limit for name in {vector.client_id} - {None, ""}})
        if not everybody:
            continue

        def quota_manager(everybody=everybody):
            return ClientQuotaManager(Sensors(64, SAMPLES), everybody)

        exhaustive = len(vector.frame) < 300
        check_request(make_relay, vector, vector.clamped, quota_manager, exhaustive, RelayLimits(withholds=True))
        checked += 1
    assert checked > 20


@every_kafka
def test_a_fetch_is_charged_as_a_broker_charges_it(make_relay, kafka_version):
    checked = 0
    for vector in message_vectors(kafka_version):
        if vector.charged_bytes is None or re.search("unknown|mixed", vector.variant):
            continue  # a broker sends no tags that it does not know
        sensors = Sensors(64)
        quota_manager = ClientQuotaManager(sensors, QuotaTable({Entity(user="ANONYMOUS"): {QuotaType.FETCH: 1e12}}))
        script = awaiting(make_relay, vector, NodesAtHome(vector), quota_manager)
        script.node(vector.frame)
        (_, reading), *others = quota_manager.readings(NOW_MS)
        assert not others
        assert reading.total == vector.charged_bytes, vector
        checked += 1
    assert checked > 20
