"""Recommended limits in the form of the proxy's YAML, `virtual_clusters[].quotas.entries`: a quota source of kind
`file` reads it, `usage simulate` tries it and `usage plan` compares it.
"""

from collections.abc import Iterable
from typing import Any

from ruamel.yaml.comments import CommentedMap

from kafka_throttle.common.yaml_file import yaml_scalar
from kafka_throttle.quotas.entities import SCOPE, SCOPED, Entity, QuotaType, Scope

Limits = Iterable[tuple[str, Entity, QuotaType, float, Scope, str]]
"""Virtual cluster, entity, quota type, the limit in units/s, where it is to hold, and a comment; "" for none."""


def document(limits: Limits) -> dict[str, Any]:
    """The file's content as dicts and lists; entities stay in the order of `limits`.

    An entity has one scope: CLUSTER if all of its limits that have a scope are to hold over all nodes.
    """
    clusters: dict[str, dict[Entity, CommentedMap]] = {}
    at_nodes: set[tuple[str, Entity]] = set()
    of_cluster: set[tuple[str, Entity]] = set()
    for virtual_cluster, entity, quota_type, limit, scope, comment in limits:
        entry = clusters.setdefault(virtual_cluster, {}).setdefault(entity, _parts(entity))
        entry[quota_type.value] = int(limit) if limit == int(limit) else limit
        if comment:
            entry.yaml_add_eol_comment(comment, quota_type.value, column=0)
        if quota_type in SCOPED:
            (of_cluster if scope is Scope.CLUSTER else at_nodes).add((virtual_cluster, entity))
    for virtual_cluster, entity in of_cluster - at_nodes:
        clusters[virtual_cluster][entity][SCOPE] = Scope.CLUSTER.value
    return {
        "virtual_clusters": [
            {"name": name, "quotas": {"entries": list(entries.values())}} for name, entries in clusters.items()
        ]
    }


def _parts(entity: Entity) -> CommentedMap:
    named = {"user": entity.user, "client_id": entity.client_id, "ip": entity.ip}
    return CommentedMap({part: yaml_scalar(name) for part, name in named.items() if isinstance(name, str)})
