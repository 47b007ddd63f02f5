"""The generated table against the schemas it is made from and against frames of Kafka's own message classes."""

import subprocess
import sys
from pathlib import Path
from struct import Struct

import pytest

from kafka_throttle.common.jars import kafka_jars
from kafka_throttle.protocol import api_key, api_table
from kafka_throttle.protocol.api import (
    COMPACT_ENDPOINT,
    ENDPOINT,
    THROTTLE,
    Shape,
    request_header_version,
    response_header_version,
)
from kafka_throttle.protocol.api_table import APIS
from kafka_throttle.protocol.primitives import Reader
from kafka_throttle.protocol.walk import Walk
from tests.support.message_vectors import KAFKA_VERSIONS, Vector, message_vectors
from tests.support.places import ROOT

INT32 = Struct(">i")
CORRELATION_ID_END = 8

every_kafka = pytest.mark.parametrize("kafka_version", KAFKA_VERSIONS)


def body_at(vector: Vector) -> int:
    reader = Reader(vector.frame, CORRELATION_ID_END)
    if response_header_version(APIS[vector.key], vector.version):
        reader.tags()
    return reader.offset


def shape_of(vector: Vector) -> Shape | None:
    api = APIS[vector.key]
    return api.shapes[vector.version - api.min_version]


def clients_jar(kafka_version: str) -> Path:
    return kafka_jars(kafka_version) / f"kafka-clients-{kafka_version}.jar"


def make_table(out: Path, *jars: Path) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, ROOT / "deploy" / "make_api_table.py", "--out", out, *jars]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_making_the_table_anew_gives_the_committed_bytes(tmp_path: Path) -> None:
    made = make_table(tmp_path, *map(clients_jar, KAFKA_VERSIONS))
    assert made.returncode == 0, made.stderr
    for module in (api_table, api_key):
        committed = Path(module.__file__)
        assert (tmp_path / committed.name).read_bytes() == committed.read_bytes()


def test_a_kafka_without_the_known_addresses_is_refused(tmp_path: Path) -> None:
    """3.9.2 alone has no stable ShareFetch: a change in who names addresses must not pass silently."""
    made = make_table(tmp_path, clients_jar("3.9.2"))
    assert made.returncode != 0
    assert "responses with addresses have changed" in made.stderr
    assert "ShareFetch" in made.stderr
    assert not list(tmp_path.iterdir())


def test_the_table_has_exactly_the_versions_that_brokers_serve() -> None:
    served = {(v.key, v.version) for kafka in KAFKA_VERSIONS for v in message_vectors(kafka)}
    carried = {(api.key, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)}
    assert carried == served


@every_kafka
def test_header_versions_are_those_of_kafka(kafka_version: str) -> None:
    for vector in message_vectors(kafka_version):
        header_version = response_header_version if vector.is_response else request_header_version
        assert header_version(APIS[vector.key], vector.version) == vector.header_version, vector


def test_header_versions_hold_for_versions_that_are_not_known() -> None:
    assert request_header_version(APIS[18], 99) == 2
    assert response_header_version(APIS[18], 99) == 0
    assert (request_header_version(APIS[0], 99), response_header_version(APIS[0], 99)) == (2, 1)
    assert (request_header_version(APIS[17], 99), response_header_version(APIS[17], 99)) == (1, 0)


@every_kafka
def test_names_are_those_of_kafka(kafka_version: str) -> None:
    renamed = {74: {"ListClientMetricsResources", "ListConfigResources"}}
    for vector in message_vectors(kafka_version):
        assert APIS[vector.key].name in renamed.get(vector.key, {vector.name}), vector


@every_kafka
def test_the_throttle_time_is_where_the_table_says_and_nowhere_else(kafka_version: str) -> None:
    for vector in message_vectors(kafka_version):
        if not vector.is_response:
            continue
        api = APIS[vector.key]
        assert (vector.version >= api.throttle_since) == (vector.throttle is not None), vector
        if vector.throttle is None or api.throttle_offset < 0:
            continue
        at = body_at(vector) + api.throttle_offset
        assert INT32.unpack_from(vector.frame, at) == (vector.throttle,), vector
        patched = bytearray(vector.frame)
        INT32.pack_into(patched, at, max(vector.throttle, 1_234_567))
        assert bytes(patched) == vector.throttled, vector


@every_kafka
def test_a_throttle_time_without_a_fixed_place_has_a_shape_that_finds_it(kafka_version: str) -> None:
    walked = 0
    for vector in message_vectors(kafka_version):
        if vector.throttle is None or APIS[vector.key].throttle_offset >= 0:
            continue
        shape = shape_of(vector)
        assert shape is not None, vector
        walk = Walk(shape, body_at(vector))
        walk.advance(vector.frame, 0)
        assert walk.done, vector
        assert INT32.unpack_from(vector.frame, walk.throttle_at) == (vector.throttle,), vector
        walked += 1
    assert walked > 300


@every_kafka
def test_walking_by_shape_finds_every_address_that_kafka_wrote(kafka_version: str) -> None:
    found = set()
    for vector in message_vectors(kafka_version):
        shape = shape_of(vector)
        if not vector.is_response or shape is None:
            assert not vector.endpoints, vector
            continue
        walk = Walk(shape, body_at(vector))
        walk.advance(vector.frame, 0)
        assert walk.done, vector
        endpoints = [(e.node_id, e.host.decode(), e.port) for e in walk.endpoints if e.node_id != -1]
        assert endpoints == list(vector.endpoints) or walk.endpoint_type != 1, vector
        if endpoints:
            found.add(vector.name)
    share = {"ShareFetch", "ShareAcknowledge"} if kafka_version.startswith("4.") else set()
    assert found == {"Produce", "Fetch", "Metadata", "FindCoordinator", "DescribeCluster"} | share


@every_kafka
def test_walks_with_their_matter_at_the_end_reach_the_end_of_the_frame(kafka_version: str) -> None:
    for vector in message_vectors(kafka_version):
        shape = shape_of(vector)
        if vector.is_response and vector.key in (0, 1, 78, 79) and shape is not None:
            walk = Walk(shape, body_at(vector))
            walk.advance(vector.frame, 0)
            assert walk.offset == len(vector.frame), vector


def test_only_shapes_that_find_something_are_in_the_table() -> None:
    for api in APIS.values():
        assert len(api.shapes) == api.max_version - api.min_version + 1
        for shape in filter(None, api.shapes):
            text = repr(shape)
            assert any(f"({code},)" in text for code in (THROTTLE, ENDPOINT, COMPACT_ENDPOINT))
