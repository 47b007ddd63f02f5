"""Loads the configuration file of a command, and ends the process if it cannot be used."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from kafka_throttle.common.places import placed
from kafka_throttle.common.private_directory import DirectoryUnusable, look_at_directory
from kafka_throttle.common.problems import Problem
from kafka_throttle.proxy.cli.certificate_check import tls_of
from kafka_throttle.proxy.config.load import config_in, content_of, load_config
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.config.secret_file import secret
from kafka_throttle.proxy.config.sections import valid_sections
from kafka_throttle.proxy.config.settings import (
    AdminConfig,
    Config,
    CredentialsConfig,
    EnsembleConfig,
    HistoryConfig,
    MetricsConfig,
    ServerTlsConfig,
    UpstreamTlsConfig,
    UsageConfig,
    VirtualClusterConfig,
)
from kafka_throttle.proxy.observe.http_secrets import admin_access, metrics_access
from kafka_throttle.proxy.server.tls_material import certify
from kafka_throttle.proxy.upstream.credentials import look_at_secrets

_SECTIONS_WITH_FILES = (
    ServerTlsConfig,
    UpstreamTlsConfig,
    CredentialsConfig,
    EnsembleConfig,
    AdminConfig,
    MetricsConfig,
    UsageConfig,
    HistoryConfig,
)

BAD_INPUT = 2
"""The exit status for a configuration or a command line that cannot be used."""

REFUSED = 1
"""The exit status if a source or a proxy refuses a request or is unreachable."""

CONFIG: Final = "KAFKA_THROTTLE_CONFIG"
PLACES: Final = (Path("proxy.yaml"), Path("/etc/kafka-throttle/proxy.yaml"))
"""Where the file is looked for if neither the option nor the environment variable names one."""


def _found(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """The file of a command."""
    if path is None and not context.resilient_parsing:
        path = next(filter(Path.is_file, PLACES), None)
        if path is None:
            refuse(f"expected a configuration file (-c FILE, {CONFIG}, {' or '.join(map(str, PLACES))}), got none")
    return path


config_option = click.option(
    "-c",
    "--config",
    "path",
    envvar=CONFIG,
    show_envvar=True,
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_found,
    help=f"The YAML file, see deploy/proxy.example.yaml. Without it: {', then '.join(map(str, PLACES))}.",
)

virtual_cluster_option = click.option(
    "--virtual-cluster", "virtual_cluster", metavar="NAME", help="The virtual cluster, if the file has several."
)


def load(path: Path) -> Config:
    """The configuration. If it is invalid, prints all problems on standard error and ends the process."""
    try:
        return load_config(path)
    except ConfigErrors as problems:
        refuse(str(problems))


def load_with_files(path: Path) -> Config:
    """As `load`, but also checks the files that the configuration names."""
    problems: list[Problem] = []
    try:
        data = content_of(path)
    except ConfigErrors as errors:
        refuse(str(errors))
    try:
        data = config = config_in(path, data)
    except ConfigErrors as errors:
        problems += errors.problems
    problems += placed(list(_problems_of_files(data, path)), path)
    if problems:
        refuse(str(ConfigErrors(problems)))
    return config


def _problems_of_files(data: Any, path: Path) -> Iterator[Problem]:
    """The problems of files that the configuration at `path` names: certificates, keys, secrets, directories.

    `data` is a Config, or the plain content of the file if that is invalid; each section that is valid by itself is
    checked.
    """
    for place, section in valid_sections(data, path.absolute().parent, _SECTIONS_WITH_FILES):
        try:
            match section:
                case ServerTlsConfig() | UpstreamTlsConfig():
                    certify(place, section)
                case AdminConfig():
                    admin_access(section, path)
                case MetricsConfig():
                    metrics_access(section)
                case CredentialsConfig() | EnsembleConfig():
                    yield from _problems_of_own(place, section)
                case UsageConfig(directory=str(directory)):
                    yield from _problems_of_directory("usage.directory", Path(directory))
                case HistoryConfig(directory=str(directory)):
                    yield from _problems_of_directory("history.directory", Path(directory))
        except ConfigErrors as errors:
            yield from errors.problems


def _problems_of_directory(setting: str, directory: Path) -> Iterator[Problem]:
    """The problems that the proxy would have with a directory of its own. Root may check that of another user."""
    try:
        look_at_directory(directory, os.geteuid() or None)
    except DirectoryUnusable as error:
        yield Problem(setting, str(error))


def _problems_of_own(path: str, own: CredentialsConfig | EnsembleConfig) -> Iterator[Problem]:
    """The problems of the files for connections of the proxy's own."""
    try:
        if isinstance(own, CredentialsConfig):
            look_at_secrets(own, path)
        else:
            secret(own.password_file, f"{path}.password_file")
    except ConfigErrors as errors:
        yield from errors.problems
    if (tls := tls_of(own)) is not None:
        certify(path, tls)
    endpoint = own.token_endpoint if isinstance(own, CredentialsConfig) else None
    if endpoint is not None and endpoint.ca_file is not None:
        certify(f"{path}.token_endpoint", UpstreamTlsConfig(ca_file=endpoint.ca_file))


def cluster_of(config: Config, name: str | None) -> VirtualClusterConfig:
    """The virtual cluster with this name, or without a name the only one. Ends the process if that is not one."""
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
