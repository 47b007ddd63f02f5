"""Admin clients that describe and alter quotas: the same requests through each, their responses in one form.

A request is {"alter": [{"entity": {type: name}, "ops": {key: value}}], "validate_only": bool} or {"describe": [{"type":
type, "match": "exact"|"default"|"any", "name": name}], "strict": bool}; a name None is the default entity, a value None
removes the key.
"""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

from kafka_throttle.protocol.own_requests import OwnRequest
from kafka_throttle.quotas.sources.cluster_connection import ClusterConnection, Credentials
from tests.support.go_program import go_program
from tests.support.java_program import java_program

Entity = frozenset[tuple[str, str | None]]
Request = Mapping[str, Any]

_TIMEOUT_S = 120
_MATCH_TYPES = {"exact": 0, "default": 1, "any": 2}


class Altered(NamedTuple):
    """What became of each entity: error code and message."""

    results: dict[Entity, tuple[int, str | None]]


class Described(NamedTuple):
    """The quotas of each entity, or an error code."""

    code: int
    entries: dict[Entity, dict[str, float]]


Response = Altered | Described
DecisionRequest = Callable[[str, Sequence[Request]], list[Response]]
"""(bootstrap server, requests) -> their responses."""


def altering(entries: Mapping[Entity, Mapping[str, float | None]], validate_only: bool = False) -> Request:
    """The request that does this."""
    listed = [{"entity": dict(entity), "ops": dict(ops)} for entity, ops in entries.items()]
    return {"alter": listed, "validate_only": validate_only}


def describing(*components: tuple[str, str, str | None], strict: bool = False) -> Request:
    """A request to describe quotas, with the filter (type, match, name)."""
    return {"describe": [dict(zip(("type", "match", "name"), c, strict=True)) for c in components], "strict": strict}


# ------------------------------------------------------------------ the clients


def ask_with_kafka_python(bootstrap: str, requests: Sequence[Request]) -> list[Response]:
    """Message by message, in kafka-python's own classes."""
    connection = ClusterConnection(bootstrap, Credentials(), _TIMEOUT_S)
    try:
        return [ask_in_messages(connection, request) for request in requests]
    finally:
        connection.close()


def ask_with_java(kafka_version: str) -> DecisionRequest:
    """Kafka's Admin client of that version."""

    def ask(bootstrap: str, requests: Sequence[Request]) -> list[Response]:
        return _ask_program([*java_program("QuotaAdmin", kafka_version), bootstrap], requests)

    return ask


def ask_with_kadm(bootstrap: str, requests: Sequence[Request]) -> list[Response]:
    """franz-go's kadm."""
    return _ask_program([str(go_program("quotas")), bootstrap], requests)


def _ask_program(command: Sequence[str], requests: Sequence[Request]) -> list[Response]:
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    run = subprocess.run(command, input=lines, capture_output=True, encoding="utf-8", timeout=_TIMEOUT_S)
    assert run.returncode == 0, run.stdout + run.stderr
    return [_response(json.loads(line)) for line in run.stdout.splitlines()]


def _response(reported: Any) -> Response:
    if isinstance(reported, list):
        return Altered({_entity(one["entity"]): (one["code"], one["message"]) for one in reported})
    return Described(reported["code"], {_entity(one["entity"]): one["values"] for one in reported["entries"]})


def _entity(names: Mapping[str, str | None]) -> Entity:
    return frozenset(names.items())


def ask_in_messages(connection: ClusterConnection, request: Request) -> Response:
    """One request over a connection."""
    if "alter" in request:
        response = connection.ask(_as_own(_alter_message(request), AlterClientQuotasResponse))
        return Altered({_parts(e.entity): (e.error_code, e.error_message) for e in response.entries})
    response = connection.ask(_as_own(_describe_message(request), DescribeClientQuotasResponse))
    entries = {_parts(e.entity): {value.key: value.value for value in e.values} for e in response.entries or ()}
    return Described(response.error_code, entries)


def _as_own(message: Any, response: Any) -> OwnRequest[Any]:
    return OwnRequest(
        message.API_KEY,
        lambda _writer, version: bytes(message.encode(version=version)),
        lambda reader, version: response.decode(reader.rest(), version=version),
    )


def _parts(entity: Any) -> Entity:
    return frozenset((part.entity_type, part.entity_name) for part in entity)


def _alter_message(request: Request) -> Any:
    data = AlterClientQuotasRequest.EntryData
    entries = [
        data(
            entity=[data.EntityData(entity_type=part, entity_name=name) for part, name in entry["entity"].items()],
            ops=[
                data.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
                for key, value in entry["ops"].items()
            ],
        )
        for entry in request["alter"]
    ]
    return AlterClientQuotasRequest(entries=entries, validate_only=request["validate_only"])


def _describe_message(request: Request) -> Any:
    components = [
        DescribeClientQuotasRequest.ComponentData(
            entity_type=component["type"], match_type=_MATCH_TYPES[component["match"]], match=component["name"]
        )
        for component in request["describe"]
    ]
    return DescribeClientQuotasRequest(components=components, strict=request["strict"])
