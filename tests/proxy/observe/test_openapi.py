"""The description of the API: it is in step with the pages in docs, and complete; large responses hold nobody up."""

import json
from time import thread_time

import pytest
from pydantic import ValidationError

from kafka_throttle.protocol.api_table import APIS
from kafka_throttle.proxy.observe.api import ENDPOINTS, as_json, explained_by
from kafka_throttle.proxy.observe.api_page import api_page
from kafka_throttle.proxy.observe.explained import Origin, costs_form, quotas_form
from kafka_throttle.proxy.observe.openapi import openapi
from kafka_throttle.quotas.changes import Limit
from kafka_throttle.quotas.entities import Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.explain import Client
from kafka_throttle.quotas.request_costs import Cost, RequestCosts
from tests.fakes.clock import FakeClock
from tests.fakes.responses import checked
from tests.proxy.observe.test_admin_api import Cluster
from tests.support.places import ROOT

DOCS = ROOT / "docs/reference"
LONGEST_STEP_S = 0.02


def test_the_document_in_docs_is_up_to_date():
    made = json.dumps(openapi(ENDPOINTS), indent=1) + "\n"
    assert (DOCS / "openapi.json").read_text() == made, (
        "python -m kafka_throttle.proxy.observe.api_page --json > docs/reference/openapi.json"
    )


def test_the_page_in_docs_is_up_to_date():
    assert (DOCS / "api.md").read_text() == api_page(), (
        "python -m kafka_throttle.proxy.observe.api_page > docs/reference/api.md"
    )


def every(schema, key):
    """The values of a key, wherever it is in a schema."""
    if isinstance(schema, dict):
        yield from (value for name, value in schema.items() if name == key)
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from every(part, key)


def test_each_reference_leads_somewhere_and_each_field_is_described():
    document = openapi(ENDPOINTS)
    for reference in every(document, "$ref"):
        place = document
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]
    for name, schema in document["components"]["schemas"].items():
        assert schema["description"], name
        for field, described in schema["properties"].items():
            assert {"description", "$ref"} & described.keys() or "anyOf" in described, f"{name}.{field}"


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_each_endpoint_says_what_it_is_for_what_it_takes_and_which_right_it_needs(endpoint):
    operation = openapi(ENDPOINTS)["paths"][endpoint.path]["get"]
    assert operation["summary"].endswith(".")
    assert operation["x-right"] == "read"
    assert [parameter["name"] for parameter in operation["parameters"]] == list(endpoint.parameters.model_fields)
    assert all(parameter["description"] for parameter in operation["parameters"])
    assert {"200", "400", "401", "403", "404"} <= operation["responses"].keys()


def test_a_response_with_a_field_too_many_would_be_found():
    with pytest.raises(ValidationError):
        checked("/api/v1/caps", {"virtual_cluster": "main", "caps": [], "more": 1})
    with pytest.raises(ValidationError):
        checked("/api/v1/caps", {"virtual_cluster": "main"})


# ---------------------------------------------------------------------- large


def taken(steps):
    """The result of work in steps, and how long the longest of them took, in s of this thread's time."""
    longest = 0.0
    while True:
        began = thread_time()
        try:
            next(steps)
        except StopIteration as end:
            return end.value, max(longest, thread_time() - began)
        longest = max(longest, thread_time() - began)


def quotas_of_many():
    key = QuotaKey(QuotaType.PRODUCE), QuotaKey(QuotaType.FETCH)
    limits = {each: Limit(1_000_000.0, "proxy.yaml") for each in key}
    quotas = {Entity("alice", f"client-{number}"): limits for number in range(20_000)}
    return "/api/v1/quotas", lambda: quotas_form(Origin("main", "file", {}), quotas, 10_000, 5_000)


def costs_of_many():
    costs = RequestCosts({kind: Cost(60.0, 0.25) for kind in APIS})
    for node_id in range(300):
        costs.of_node(node_id)
    return "/api/v1/request-costs", lambda: costs_form("main", costs)


def nodes_of_many():
    clock = FakeClock()
    types = (QuotaType.PRODUCE, QuotaType.FETCH, QuotaType.REQUEST)
    quotas = {Entity("alice"): {QuotaKey(each): Limit(100.0, "proxy.yaml") for each in types}}
    cluster = Cluster("main", clock, quotas, capacity=10_000)
    cluster.node_ids = lambda: range(1_000)
    for node_id in range(1_000):
        sensors = cluster.quota_manager.bind("main", node_id, "alice", "etl", clock.now_ms())
        for sensor in (sensors.produce, sensors.fetch, sensors.request):
            cluster.quota_manager.sensors.charge(sensor, 1_500, clock.now_ms())
    return "/api/v1/explain", lambda: explained_by(cluster, Client("alice", "etl"), clock)


@pytest.mark.parametrize("many", [quotas_of_many, costs_of_many, nodes_of_many])
def test_no_step_of_a_large_response_is_long(many):
    path, steps_of = many()
    longest = []
    for _ in range(2):
        form, took = taken(steps_of())
        text, took_as_json = taken(as_json(form))
        longest.append(max(took, took_as_json))
    assert text.decode() == json.dumps(form)
    checked(path, json.loads(text))
    assert min(longest) < LONGEST_STEP_S
