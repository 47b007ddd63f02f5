"""Alerts and dashboards: of metrics that there are, with a page for each alert; what promtool says of the rules."""

import json
import re
import runpy

import pytest

from kafka_throttle.common.yaml_file import read_yaml_file
from tests.deploy.tools import DEPLOY, passes, promtool
from tests.support.places import ROOT
from tests.test_docs import anchors

ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
ALERT_TESTS = ROOT / "tests" / "deploy" / "alerts_test.yaml"
GRAFANA = DEPLOY / "grafana"
SIGNALS = ROOT / "docs" / "reference" / "signals.md"
DASHBOARDS = ["fleet.json", "tenant.json"]
_OF_PROMETHEUS = {"up"}
_SUFFIXES = {"histogram": ["_bucket", "_count", "_sum"]}
_FAMILY = re.compile(r"^\| `(\w+)` \| (\w+) \|", re.M)
_EVENT = re.compile(r"^\| `(\w+)` \| (?:debug|info|warning|error)(?:, \w+)* \|", re.M)
_NAME = re.compile(r"\b(?:kafka_throttle|process)_\w+|\bup\b")


def alert_rules():
    [group] = read_yaml_file(ALERTS)["groups"]
    return group["rules"]


def expressions(dashboard):
    """The queries of all panels, and the metrics that the choices of a dashboard are from."""
    content = json.loads((GRAFANA / dashboard).read_text())
    for panel in content["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for choice in content["templating"]["list"]:
        if choice["type"] == "query":
            yield choice["definition"]


def metric_names():
    """The names of all series that a proxy can have, from the page that is generated from the code."""
    families = _FAMILY.findall(SIGNALS.read_text())
    return {name + suffix for name, kind in families for suffix in _SUFFIXES.get(kind, [""])}


@pytest.mark.parametrize(
    "text",
    [*(rule["expr"] for rule in alert_rules()), *(text for name in DASHBOARDS for text in expressions(name))],
)
def test_a_query_is_about_metrics_that_there_are(text):
    named = set(_NAME.findall(text))
    assert named
    assert named <= metric_names() | _OF_PROMETHEUS


def test_every_alert_has_a_runbook():
    there = anchors(ROOT / "docs" / "reference" / "operations.md")
    for rule in alert_rules():
        page, anchor = rule["annotations"]["runbook"].split("#")
        assert (page, anchor) == ("docs/reference/operations.md", rule["alert"].lower())
        assert anchor in there
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_log_events_that_alerts_name_are_there():
    named = {
        name for rule in alert_rules() for name in re.findall(r"log event (\w+)", rule["annotations"]["description"])
    }
    assert len(named) > 5
    assert named <= set(_EVENT.findall(SIGNALS.read_text()))


def test_every_alert_has_a_test_of_what_makes_it_fire():
    tested = read_yaml_file(ALERT_TESTS)["tests"]
    fires = {
        name
        for test in tested
        for query in test["promql_expr_test"]
        for sample in query["exp_samples"]
        for name in re.findall(r"KafkaThrottle\w+", sample["labels"])
    }
    assert fires == {rule["alert"] for rule in alert_rules()}


@pytest.mark.nightly
def test_promtool_takes_the_rules_and_they_do_as_their_tests_say():
    assert f"SUCCESS: {len(alert_rules())} rules found" in passes(promtool(), "check", "rules", ALERTS)
    passes(promtool(), "check", "config", DEPLOY / "prometheus" / "prometheus.yaml")
    assert "SUCCESS" in passes(promtool(), "test", "rules", ALERT_TESTS)


def test_the_dashboards_are_those_that_their_program_makes():
    made = runpy.run_path(str(GRAFANA / "make_dashboards.py"))["dashboards"]()
    assert made == {name: json.loads((GRAFANA / name).read_text()) for name in DASHBOARDS}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_of_a_dashboard_do_not_overlap(name):
    taken = set()
    for panel in json.loads((GRAFANA / name).read_text())["panels"]:
        x, y, width, height = (panel["gridPos"][name] for name in "xywh")
        cells = {(x + i, y + k) for i in range(width) for k in range(height)}
        assert not cells & taken, panel["title"]
        assert x + width <= 24
        taken |= cells
