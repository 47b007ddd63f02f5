"""The configuration file that commands are given, and what ends them when it cannot be used."""

import sys
from pathlib import Path
from typing import NoReturn

import click

from proxy.config.load import load_config
from proxy.config.problems import ConfigErrors
from proxy.config.settings import Config, VirtualClusterConfig

BAD_INPUT = 2
"""The exit status for a configuration or a command line that cannot be used."""

REFUSED = 1
"""The exit status when a source, or a proxy, refuses or is away."""

config_option = click.option(
    "-c",
    "--config",
    "path",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The YAML file, see deploy/proxy.example.yaml.",
)

virtual_cluster_option = click.option(
    "--virtual-cluster", "virtual_cluster", metavar="NAME", help="Which one, where the file has several."
)


def load(path: Path) -> Config:
    """The configuration; ends the process with every problem on standard error if it cannot be used."""
    try:
        return load_config(path)
    except ConfigErrors as problems:
        refuse(str(problems))


def cluster_of(config: Config, name: str | None) -> VirtualClusterConfig:
    """The virtual cluster that is meant; ends the process where that is not plain."""
    clusters = {cluster.name: cluster for cluster in config.virtual_clusters}
    if name is None and len(clusters) == 1:
        return config.virtual_clusters[0]
    if name is None or name not in clusters:
        got = "nothing" if name is None else repr(name)
        refuse(f"--virtual-cluster: expected {' or '.join(clusters)}, got {got}")
    return clusters[name]


def refuse(problem: str, status: int = BAD_INPUT) -> NoReturn:
    """End the process with `problem` on standard error."""
    click.echo(problem, err=True)
    sys.exit(status)
