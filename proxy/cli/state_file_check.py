"""What `check` finds in the files that the proxy itself has written: changes of quotas, and the last good ones."""

from collections.abc import Iterator
from pathlib import Path

from kafka_throttle.common.problems import Problem
from kafka_throttle.proxy.cli.findings import Finding
from kafka_throttle.proxy.config.settings import Config, QuotasConfig
from kafka_throttle.quotas.sources import file, last_good


def state_file_findings(config: Config) -> Iterator[Finding]:
    """Files of another source, and damaged ones: a running proxy would leave them alone, or put them aside."""
    for i, cluster in enumerate(config.virtual_clusters):
        name = cluster.quotas.state_file
        if name is not None and (problem := _problem_in(Path(name), cluster.quotas)) is not None:
            expected = "changes of the source 'file'"
            if cluster.quotas.source != "file":
                expected = f"the last good quotas of the source {cluster.quotas.source!r}"
            path = f"virtual_clusters[{i}].quotas.state_file"
            yield Finding(Problem(path, f"expected {expected}, got {name}: {problem}"))


def _problem_in(path: Path, quotas: QuotasConfig) -> str | None:
    if quotas.source == "file":
        return file.problem_in(path)
    return last_good.problem_in(path, quotas.source)
