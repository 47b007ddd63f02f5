#!/usr/bin/env python3
"""Makes the two dashboards beside this file: fleet.json, of all proxies, and tenant.json, of one user or client-id.

    python deploy/grafana/make_dashboards.py

They are written down here as tables, so that both look alike and every query stands in one line.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
_WIDTH = 24
_PROXY = 'job=~"$job", instance=~"$instance"'
_CLUSTER = f'{_PROXY}, virtual_cluster=~"$virtual_cluster"'
_CLIENT = f'{_CLUSTER}, user=~"$user", client_id=~"$client_id"'
_SUBSTITUTES = {"<proxy>": _PROXY, "<cluster>": _CLUSTER, "<client>": _CLIENT, "<step>": "$__rate_interval"}


class Query(NamedTuple):
    """A query and the legend of its series."""

    expression: str
    legend: str = ""


class Panel(NamedTuple):
    """A panel. `good` is what a number at a glance should be at least, `bad` from what on it is red."""

    title: str
    unit: str
    queries: Sequence[Query]
    about: str = ""
    kind: str = "timeseries"
    width: int = 8
    good: float | None = None
    bad: float | None = None


class Variable(NamedTuple):
    """A choice of the values of one label of a metric."""

    name: str
    metric: str
    label: str
    title: str


def glance(title: str, expression: str, *, unit: str = "short", **limits: Any) -> Panel:
    """One number."""
    return Panel(title, unit, [Query(expression)], kind="stat", width=3, **limits)


def chart(title: str, unit: str, *queries: tuple[str, str], about: str = "", width: int = 8) -> Panel:
    """Lines over time."""
    return Panel(title, unit, [Query(*query) for query in queries], about, width=width)


def _latency(quantile: float, by: str) -> str:
    """What so many requests or responses stay below."""
    buckets = "rate(kafka_throttle_added_latency_seconds_bucket{<cluster>}[<step>])"
    return f"histogram_quantile({quantile}, sum by (le, {by}) ({buckets}))"


FLEET = [
    (
        "At a glance",
        [
            glance("Proxies ready", "sum(kafka_throttle_ready{<proxy>})", good=1),
            glance("Proxies not ready", "sum(1 - kafka_throttle_ready{<proxy>}) or vector(0)", bad=1),
            glance("Clusters unreachable", "sum(1 - kafka_throttle_cluster_up{<cluster>}) or vector(0)", bad=1),
            glance("Quotas unknown", "sum(1 - kafka_throttle_quotas_known{<cluster>}) or vector(0)", bad=1),
            glance("Entities throttled now", "sum(kafka_throttle_throttled_entities{<cluster>}) or vector(0)"),
            glance("Connections muted now", "sum(kafka_throttle_connections_muted{<cluster>})"),
            glance("Connections", "sum(kafka_throttle_connections{<cluster>}) or vector(0)"),
            glance(
                "Certificates that expire soon",
                "sum(kafka_throttle_certificate_renewal_due_timestamp_seconds{<cluster>} < bool time()) or vector(0)",
                bad=1,
            ),
        ],
    ),
    (
        "Throttling",
        [
            chart(
                "Clients that are throttled most",
                "percentunit",
                (
                    "topk(10, sum by (user, client_id, quota_type) "
                    "(rate(kafka_throttle_entity_throttle_seconds_total{<cluster>}[<step>])) > 0)",
                    "{{user}} {{client_id}} {{quota_type}}",
                ),
                about="Throttle time of all connections of an entity together, as a share of the time.",
                width=12,
            ),
            chart(
                "Use of the quota",
                "percentunit",
                (
                    "topk(10, max by (user, client_id, quota_type) "
                    "(kafka_throttle_entity_rate{<cluster>} / kafka_throttle_entity_limit{<cluster>}))",
                    "{{user}} {{client_id}} {{quota_type}}",
                ),
                about="The entities that are nearest to their limits, at the node where each uses most.",
                width=12,
            ),
            chart(
                "Throttles",
                "ops",
                (
                    "sum by (quota_type) (rate(kafka_throttle_throttles_total{<cluster>}[<step>]))",
                    "{{quota_type}}",
                ),
                ("sum(rate(kafka_throttle_node_throttles_total{<cluster>}[<step>]))", "by the nodes themselves"),
            ),
            chart(
                "Time for which clients were muted",
                "percentunit",
                (
                    "sum by (quota_type) (rate(kafka_throttle_throttled_seconds_total{<cluster>}[<step>]))",
                    "{{quota_type}}",
                ),
                about="In seconds per second; 1 is one connection that is always muted.",
            ),
            chart(
                "What shadow quotas would do",
                "percentunit",
                (
                    "sum by (quota_type) (rate(kafka_throttle_shadow_throttled_seconds_total{<cluster>}[<step>]))",
                    "{{quota_type}}",
                ),
                about="Throttle time that nobody feels, in seconds per second.",
            ),
            chart(
                "Entities throttled now",
                "short",
                ("sum by (quota_type) (kafka_throttle_throttled_entities{<cluster>})", "{{quota_type}}"),
            ),
            chart(
                "Throttle time of entities without a series of their own",
                "s",
                (
                    "sum by (quota_type) (kafka_throttle_other_entities_throttle_seconds{<cluster>})",
                    "{{quota_type}}",
                ),
                about="More than metrics.top_entities are throttled if this grows.",
            ),
            chart(
                "Fetched data that was withheld",
                "Bps",
                ("sum by (listener) (rate(kafka_throttle_withheld_bytes_total{<cluster>}[<step>]))", "{{listener}}"),
                about="Sent by the nodes, and replaced by empty responses because the client was over its quota.",
            ),
        ],
    ),
    (
        "Traffic",
        [
            chart(
                "Requests",
                "reqps",
                ("sum by (api) (rate(kafka_throttle_requests_total{<cluster>}[<step>]))", "{{api}}"),
            ),
            chart(
                "Bytes",
                "Bps",
                ("sum(rate(kafka_throttle_request_bytes_total{<cluster>}[<step>]))", "from clients"),
                ("sum(rate(kafka_throttle_response_bytes_total{<cluster>}[<step>]))", "to clients"),
            ),
            chart(
                "Byte caps: reads that wait",
                "short",
                (
                    "sum by (virtual_cluster, listener, direction) (kafka_throttle_cap_waiting{<cluster>})",
                    "{{virtual_cluster}} {{listener}} {{direction}}",
                ),
            ),
            chart(
                "Latency that the proxy adds",
                "s",
                (_latency(0.5, "direction"), "half of the {{direction}}s"),
                (_latency(0.99, "direction"), "99 % of the {{direction}}s"),
                about="Of a sample, without what waits for a throttle: from when it can be read until it is written.",
                width=12,
            ),
            chart(
                "Latency that the proxy adds, by API",
                "s",
                (f"topk(10, {_latency(0.99, 'direction, api')})", "99 % of {{api}} {{direction}}s"),
                width=12,
            ),
        ],
    ),
    (
        "Connections",
        [
            chart(
                "Open connections",
                "short",
                (
                    "sum by (virtual_cluster, listener) (kafka_throttle_connections{<cluster>})",
                    "{{virtual_cluster}} {{listener}}",
                ),
                (
                    "sum by (virtual_cluster, listener) (kafka_throttle_connections_limit{<cluster>})",
                    "limit of {{virtual_cluster}} {{listener}}",
                ),
            ),
            chart(
                "New connections",
                "cps",
                (
                    "sum by (virtual_cluster, listener) (kafka_throttle_connection_accept_rate{<cluster>})",
                    "{{virtual_cluster}} {{listener}}",
                ),
                (
                    "sum by (virtual_cluster) (kafka_throttle_held_connections{<cluster>})",
                    "held of {{virtual_cluster}}",
                ),
            ),
            chart(
                "Ends of connections",
                "cps",
                (
                    "sum by (reason) (rate(kafka_throttle_connections_closed_total{<cluster>}[<step>])) > 0",
                    "{{reason}}",
                ),
                about="What each reason means: docs/reference/operations.md.",
            ),
            chart(
                "Failed connections to nodes",
                "cps",
                (
                    "sum by (virtual_cluster, node_id) "
                    "(rate(kafka_throttle_upstream_connect_failures_total{<cluster>}[<step>]))",
                    "{{virtual_cluster}} node {{node_id}}",
                ),
            ),
            chart(
                "Logins",
                "cps",
                (
                    "sum by (result) (rate(kafka_throttle_authentications_total{<cluster>}[<step>]))",
                    "{{result}}",
                ),
            ),
            chart(
                "Client sockets of each proxy",
                "percentunit",
                (
                    "kafka_throttle_client_sockets{<proxy>} / kafka_throttle_client_sockets_limit{<proxy>}",
                    "{{instance}}",
                ),
                about="As a share of what the process may have.",
            ),
        ],
    ),
    (
        "Quotas and sources",
        [
            chart(
                "Age of the quotas",
                "s",
                (
                    "max by (virtual_cluster, source) (kafka_throttle_quota_source_age_seconds{<cluster>})",
                    "{{virtual_cluster}} from {{source}}",
                ),
            ),
            chart(
                "Problems with quotas",
                "short",
                (
                    "sum by (virtual_cluster, source) "
                    "(increase(kafka_throttle_quota_problems_total{<cluster>}[<step>]))",
                    "{{virtual_cluster}} from {{source}}",
                ),
            ),
            chart(
                "Sensors in use",
                "percentunit",
                (
                    "max by (virtual_cluster) "
                    "(kafka_throttle_sensors{<cluster>} / kafka_throttle_sensors_capacity{<cluster>})",
                    "{{virtual_cluster}} clients",
                ),
                (
                    "max by (virtual_cluster) "
                    "(kafka_throttle_ip_sensors{<cluster>} / kafka_throttle_ip_sensors_capacity{<cluster>})",
                    "{{virtual_cluster}} addresses",
                ),
            ),
        ],
    ),
    (
        "Shares of the limits",
        [
            chart(
                "Instances of the fleet",
                "short",
                (
                    "max by (virtual_cluster) (kafka_throttle_fleet_members{<cluster>})",
                    "{{virtual_cluster}}",
                ),
                (
                    "sum by (virtual_cluster) (kafka_throttle_fleet_cut_off{<cluster>})",
                    "cut off: {{virtual_cluster}}",
                ),
            ),
            chart(
                "Claimed limits",
                "short",
                ("kafka_throttle_fleet_claimed_limits{<cluster>}", "{{virtual_cluster}} {{instance}}"),
                about="The sum of the shares that an instance claims: 1 is one whole limit.",
            ),
            chart(
                "Changes of shares",
                "ops",
                ("sum by (virtual_cluster) (rate(kafka_throttle_fleet_raises_total{<cluster>}[<step>]))", "raised"),
                ("sum by (virtual_cluster) (rate(kafka_throttle_fleet_lowers_total{<cluster>}[<step>]))", "lowered"),
                (
                    "sum by (virtual_cluster) (rate(kafka_throttle_fleet_conflicts_total{<cluster>}[<step>]))",
                    "taken back",
                ),
            ),
        ],
    ),
    (
        "The processes",
        [
            chart(
                "Processor",
                "percentunit",
                ("rate(process_cpu_seconds_total{<proxy>}[<step>])", "{{instance}}"),
                about="A proxy uses one core, or as many as it has workers.",
            ),
            chart("Memory", "bytes", ("process_resident_memory_bytes{<proxy>}", "{{instance}}")),
            chart(
                "Delay of the event loop",
                "s",
                ("kafka_throttle_event_loop_lag_seconds{<proxy>}", "{{instance}}"),
                about="The longest one in 15 seconds: for so long every client waited.",
            ),
            chart(
                "Configuration",
                "short",
                ("kafka_throttle_config_last_reload_successful{<proxy>}", "{{instance}}"),
                about="0: the file was rejected, and the configuration before it is in force.",
            ),
            chart(
                "Usage records",
                "ops",
                ("sum by (stream) (rate(kafka_throttle_usage_records_total{<proxy>}[<step>]))", "written: {{stream}}"),
                (
                    "sum by (reason) (rate(kafka_throttle_usage_records_dropped_total{<proxy>}[<step>]))",
                    "lost: {{reason}}",
                ),
            ),
            chart(
                "Usage files that are not in the topic yet",
                "short",
                ("kafka_throttle_usage_unshipped_files{<proxy>}", "{{instance}}"),
            ),
        ],
    ),
]


def _use(quota_type: str, unit: str) -> Panel:
    """What clients use of a quota at each node, beside the limit."""
    of = f'{{<client>, quota_type="{quota_type}"}}'
    by = "sum by (user, client_id, node_id)"
    return chart(
        f"Use of the quota: {quota_type}",
        unit,
        (f"{by} (kafka_throttle_entity_rate{of})", "{{user}} {{client_id}} at node {{node_id}}"),
        (f"max by (user, client_id) (kafka_throttle_entity_limit{of})", "limit of {{user}} {{client_id}}"),
        about="An entity has series while it uses most or is throttled most (metrics.top_entities).",
        width=12,
    )


TENANT = [
    (
        "At a glance",
        [
            glance(
                "Throttle time, of the time",
                "sum(rate(kafka_throttle_entity_throttle_seconds_total{<client>}[<step>])) or vector(0)",
                unit="percentunit",
                bad=0.5,
            ),
            glance(
                "Most of a limit that is used",
                "max(kafka_throttle_entity_rate{<client>} / kafka_throttle_entity_limit{<client>}) or vector(0)",
                unit="percentunit",
                bad=1,
            ),
            glance(
                "Throttled in the shown time",
                "sum(increase(kafka_throttle_entity_throttle_seconds_total{<client>}[$__range])) or vector(0)",
                unit="s",
            ),
            glance("Measured entities", "count(count by (user, client_id) (kafka_throttle_entity_limit{<client>}))"),
        ],
    ),
    (
        "Throttling",
        [
            chart(
                "Throttle time by quota",
                "percentunit",
                (
                    "sum by (quota_type) (rate(kafka_throttle_entity_throttle_seconds_total{<client>}[<step>]))",
                    "{{quota_type}}",
                ),
                about="Of all connections together, as a share of the time.",
                width=12,
            ),
            chart(
                "Throttle time by client and node",
                "percentunit",
                (
                    "sum by (user, client_id, node_id) "
                    "(rate(kafka_throttle_entity_throttle_seconds_total{<client>}[<step>]))",
                    "{{user}} {{client_id}} at node {{node_id}}",
                ),
                width=12,
            ),
        ],
    ),
    (
        "Use and limits",
        [
            _use("produce", "Bps"),
            _use("fetch", "Bps"),
            _use("request", "percent"),
            chart(
                "Tokens left: controller_mutation",
                "short",
                (
                    "sum by (user, client_id) (kafka_throttle_entity_tokens{<client>})",
                    "{{user}} {{client_id}}",
                ),
                about="Below 0, topics are refused or the client is throttled.",
                width=12,
            ),
        ],
    ),
    (
        "Shadow quotas: measured, and not felt",
        [
            chart(
                "Use of the quota",
                "percentunit",
                (
                    "max by (user, client_id, quota_type) "
                    "(kafka_throttle_shadow_entity_rate{<client>} / kafka_throttle_shadow_entity_limit{<client>})",
                    "{{user}} {{client_id}} {{quota_type}}",
                ),
                width=12,
            ),
            chart(
                "Throttle time that it would have caused",
                "percentunit",
                (
                    "sum by (user, client_id, quota_type) "
                    "(rate(kafka_throttle_shadow_entity_throttle_seconds_total{<client>}[<step>]))",
                    "{{user}} {{client_id}} {{quota_type}}",
                ),
                width=12,
            ),
        ],
    ),
]

_PLACE = [
    Variable("job", "kafka_throttle_ready", "job", "Job"),
    Variable("instance", 'kafka_throttle_ready{job=~"$job"}', "instance", "Proxy"),
    Variable("virtual_cluster", f"kafka_throttle_cluster_up{{{_PROXY}}}", "virtual_cluster", "Virtual cluster"),
]
_WHO = [
    Variable("user", f"kafka_throttle_entity_throttle_seconds_total{{{_CLUSTER}}}", "user", "User"),
    Variable(
        "client_id",
        f'kafka_throttle_entity_throttle_seconds_total{{{_CLUSTER}, user=~"$user"}}',
        "client_id",
        "Client-id",
    ),
]


def dashboards() -> dict[str, Any]:
    """The dashboards by the name of their file."""
    return {
        "fleet.json": _dashboard("kafka-throttle-fleet", "Kafka Throttle: fleet", FLEET, _PLACE),
        "tenant.json": _dashboard("kafka-throttle-tenant", "Kafka Throttle: one tenant", TENANT, _PLACE + _WHO),
    }


def _dashboard(uid: str, title: str, rows: Sequence[tuple[str, Sequence[Panel]]], choices: list[Variable]) -> Any:
    return {
        "uid": uid,
        "title": title,
        "tags": ["kafka-throttle"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [_LINK],
        "templating": {"list": [_DATA_SOURCE, *map(_variable, choices)]},
        "panels": list(_panels(rows)),
    }


_DATA_SOURCE = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
_FROM = {"type": "prometheus", "uid": "${datasource}"}
_LINK = {"type": "dashboards", "tags": ["kafka-throttle"], "title": "", "includeVars": True, "keepTime": True}


def _variable(variable: Variable) -> Any:
    query = f"label_values({variable.metric}, {variable.label})"
    return {
        "name": variable.name,
        "label": variable.title,
        "type": "query",
        "datasource": _FROM,
        "query": {"query": query, "refId": variable.name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels(rows: Sequence[tuple[str, Sequence[Panel]]]) -> Iterator[Any]:
    number, y = 0, 0
    for title, panels in rows:
        number += 1
        place = _at(0, y, _WIDTH, 1)
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": place}
        x, y = 0, y + 1
        height = 0
        for panel in panels:
            if x + panel.width > _WIDTH:
                x, y = 0, y + height
            number += 1
            height = 4 if panel.kind == "stat" else 8
            yield _panel(number, panel, _at(x, y, panel.width, height))
            x += panel.width
        y += height


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(number: int, panel: Panel, place: dict[str, int]) -> Any:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _FROM,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "datasource": _FROM,
                "expr": _expression(query.expression),
                "legendFormat": query.legend or "__auto",
                "instant": panel.kind == "stat",
                "range": panel.kind != "stat",
            }
            for i, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
    }


def _expression(text: str) -> str:
    for name, selector in _SUBSTITUTES.items():
        text = text.replace(name, selector)
    return text


def _defaults(panel: Panel) -> Any:
    steps: list[dict[str, Any]] = [{"color": "green" if panel.good is None else "red", "value": None}]
    if panel.good is not None:
        steps.append({"color": "green", "value": panel.good})
    if panel.bad is not None:
        steps.append({"color": "red", "value": panel.bad})
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "timeseries":
        defaults["custom"] = {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "axisSoftMin": 0}
    return defaults


_OPTIONS: dict[str, Any] = {
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"},
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
}


if __name__ == "__main__":
    for name, dashboard in dashboards().items():
        (FOLDER / name).write_text(json.dumps(dashboard, indent=1, ensure_ascii=False) + "\n")
