"""The source of a virtual cluster's quotas, for a command."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from kafka_throttle.common.printable import printable
from kafka_throttle.proxy.cli.config_file import refuse
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.config.settings import VirtualClusterConfig
from kafka_throttle.quotas.sources.source import Source


@contextmanager
def opened_source(cluster: VirtualClusterConfig, path: Path) -> Iterator[Source]:
    """The source of a virtual cluster, started. Ends the process if its configuration is invalid."""
    from kafka_throttle.proxy.server.quota_sources import source_of

    logging.getLogger().setLevel(logging.CRITICAL)  # errors of libraries are also in the problems of the source
    try:
        source = source_of(cluster, path, remembers=False)
    except ConfigErrors as problems:
        refuse(str(problems))
    source.start(lambda: None)
    try:
        yield source
    finally:
        source.stop()


def warn_of_problems(source: Source, cluster: VirtualClusterConfig, path: Path) -> bool:
    """Print the problems of a source on standard error. Returns True if its quotas may not be those in force."""
    state_file = cluster.quotas.state_file
    print_problems(source.problems)
    return any(
        place.startswith(source.name) or (state_file and place.startswith(str(path.parent / state_file)))
        for place in source.problems
    )


def print_problems(problems: Mapping[str, str]) -> None:
    """Print what is wrong with a source on standard error, a line for each problem."""
    for place, problem in problems.items():
        click.echo(f"warning: {printable(place, 1_000)}: {printable(problem, 1_000)}", err=True)
