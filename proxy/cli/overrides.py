"""Quotas of the configuration file that changes in the state file override."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kafka_throttle.common.problems import Problem
from kafka_throttle.proxy.cli.opened_source import opened_source
from kafka_throttle.proxy.config.settings import Config, VirtualClusterConfig
from kafka_throttle.proxy.observe.explained import Form
from kafka_throttle.quotas.limits import limit_text
from kafka_throttle.quotas.sources.entry_forms import entity_form
from kafka_throttle.quotas.sources.file import FileSource
from kafka_throttle.quotas.sources.overlay import Overridden


class OverriddenQuota(NamedTuple):
    """A limit of the configuration file that is not in force, and the layers: of the file, and of what overrides it."""

    quota: Overridden
    layer: str
    by_layer: str

    def form(self) -> Form:
        """As JSON; the limit in `by` is null if the quota was removed."""
        entity, key, limit, by = self.quota
        return {
            "entity": entity_form(entity),
            "quota": key.text,
            "limit": limit,
            "layer": self.layer,
            "by": {"limit": by, "layer": self.by_layer},
        }


def overridden_in(cluster: VirtualClusterConfig, config_path: Path) -> Sequence[OverriddenQuota]:
    """The quotas of a virtual cluster in the file that are not in force because a change overrides them."""
    if cluster.quotas.source != "file" or cluster.quotas.state_file is None:
        return ()
    with opened_source(cluster, config_path) as source:
        found = source.overridden if isinstance(source, FileSource) else ()
        return [OverriddenQuota(each, config_path.name, Path(cluster.quotas.state_file).name) for each in found]


def override_warnings(config: Config, config_path: Path) -> Iterator[Problem]:
    """A warning for each quota in the file that is not in force because a change overrides it."""
    for i, cluster in enumerate(config.virtual_clusters):
        positions = {entry.entity(): k for k, entry in enumerate(cluster.quotas.entries)}
        for (entity, key, _, by), _, layer in overridden_in(cluster, config_path):
            place = f"virtual_clusters[{i}].quotas.entries[{positions[entity]}].{key.text}"
            said = "removed" if by is None else limit_text(by)
            problem = f"is overridden in {layer}: {said}; `kafka-throttle quotas unset` puts it in force again"
            yield Problem(place, problem)
