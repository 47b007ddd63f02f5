"""`kafka-throttle usage plan` and `usage apply`: put the quotas of a file in force. They do not start Spark."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kafka_throttle.common.problems import Problems
from kafka_throttle.common.remote_path import AnyPath
from kafka_throttle.proxy.cli.config_file import cluster_of, load, refuse, virtual_cluster_option
from kafka_throttle.proxy.cli.file_path import FilePath
from kafka_throttle.proxy.cli.number_range import NumberRange
from kafka_throttle.proxy.cli.servers import servers_of
from kafka_throttle.proxy.cli.usage import run_job
from kafka_throttle.proxy.config.problems import ConfigErrors

if TYPE_CHECKING:
    from kafka_throttle.pipeline.rollout.place import Place

Command = TypeVar("Command", bound=Callable[..., Any])

_PLACE_OPTIONS = (
    click.option("--bootstrap-server", metavar="HOST:PORT,...", help="A proxy or a cluster, by Kafka's API."),
    click.option(
        "--command-config",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Properties for the connection, as for Kafka's tools, with PEM files.",
    ),
    click.option("--zookeeper", metavar="HOST:PORT,...[/CHROOT]", help="Kafka's znodes below a chroot."),
    click.option(
        "-c",
        "--config",
        "config_path",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A proxy's YAML file: the source that it configures, with or without a running proxy.",
    ),
    virtual_cluster_option,
)


ACTOR: Final = "KAFKA_THROTTLE_ACTOR"
_MOST_NAME_CHARS: Final = 256


def _author(context: click.Context, option: click.Parameter, name: str | None) -> str | None:
    """The value of --by or of the environment variable, if a person can read it in one line."""
    if name is not None and not (name.strip() and name.isprintable() and len(name) <= _MOST_NAME_CHARS):
        expected = f"a name of 1 to {_MOST_NAME_CHARS} printable characters"
        refuse(f"--by (or {ACTOR}): expected {expected}, got {name[:_MOST_NAME_CHARS]!r}")
    return name


by_option = click.option(
    "--by",
    envvar=ACTOR,
    show_envvar=True,
    metavar="NAME",
    callback=_author,
    help="The author who is written down; by default the user of this process, with its machine.",
)


def place_options(command: Command) -> Command:
    """Add the options that say where quotas are in force to a command, which takes them as `**where`."""
    for option in reversed(_PLACE_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.option(
    "--quotas",
    required=True,
    type=FilePath(),
    help="The wanted quotas: a file of `usage recommend`, a proxy's YAML file, or a list `entries`.",
)
@place_options
@click.option("--out", type=FilePath(), help="The file for the plan, for `apply`.")
@click.option(
    "--most-change",
    type=NumberRange(1.01),
    default=2.0,
    show_default=True,
    metavar="FACTOR",
    help="The factor by which a limit may change in one run, down or up; inf: any.",
)
@click.option("--most-entities", type=click.IntRange(1), metavar="N", help="How many entities one run may change.")
@click.option("--prune", is_flag=True, help="Remove quotas that are in force and not in the file.")
@by_option
def plan(virtual_cluster: str | None, **arguments: Any) -> None:
    """Show the changes from the quotas in force to those of a file, in steps of bounded size. Changes nothing.

    Exit status 0: done; 1: the quotas in force cannot be read; 2: an argument or a file is invalid.
    """
    where = {name: arguments.pop(name) for name in ("bootstrap_server", "command_config", "zookeeper", "config_path")}
    place = place_of(virtual_cluster=virtual_cluster, **where)
    run_job("plan", place=place, virtual_cluster=virtual_cluster, **arguments)


@click.command()
@click.argument("plan", metavar="PLAN", type=FilePath())
@place_options
@click.option("--dry-run", is_flag=True, help="Check whether each change would be accepted, and change nothing.")
@click.option(
    "--audit",
    type=FilePath(),
    help="The file to record every change in; by default quota-audit.jsonl beside the plan.",
)
@click.option(
    "--rollback-out",
    type=FilePath(),
    help="The file for the plan that reverts this one; by default PLAN.rollback.json beside the plan.",
)
@click.option("--elsewhere", is_flag=True, help="Apply a plan that was made at another place, too.")
@by_option
def apply(
    plan: AnyPath,
    dry_run: bool,
    audit: AnyPath | None,
    rollback_out: AnyPath | None,
    by: str | None,
    elsewhere: bool,
    **where: Any,
) -> None:
    """Carry out a plan, unless the quotas in force have changed since it was made. A second run does nothing.

    Exit status 0: the whole plan is in force; 1: a part of it is not; 2: an argument or a file is invalid.
    """
    place = place_of(**where)
    options = {"dry_run": dry_run, "audit": audit, "rollback_out": rollback_out, "by": by, "elsewhere": elsewhere}
    run_job("apply", plan=plan, place=place, **options)


def place_of(
    bootstrap_server: str | None,
    command_config: Path | None,
    zookeeper: str | None,
    config_path: Path | None,
    virtual_cluster: str | None,
) -> "Place":
    """The place where quotas are in force. Ends the process if the options are missing or contradict each other."""
    from kafka_throttle.pipeline.rollout import place
    from kafka_throttle.pipeline.rollout.command_config import read_command_config
    from kafka_throttle.quotas.sources.cluster_connection import Credentials

    given = [one for one in (bootstrap_server, zookeeper, config_path) if one is not None]
    if len(given) != 1:
        got = f"{len(given)} of them" if given else "none"
        refuse(f"expected one of --bootstrap-server, --zookeeper and --config, got {got}")
    if command_config is not None and bootstrap_server is None:
        refuse("--command-config: expected with --bootstrap-server only")
    logging.getLogger().setLevel(logging.CRITICAL)  # errors of libraries are also in the problems of the source
    if config_path is not None:
        return _configured(config_path, virtual_cluster)
    if zookeeper is not None:
        servers, slash, chroot = zookeeper.partition("/")
        return place.in_zookeeper(servers_of(servers, "--zookeeper"), f"{slash}{chroot}".rstrip("/"))
    try:
        credentials = Credentials() if command_config is None else read_command_config(command_config)
    except Problems as problems:
        refuse(str(problems))
    return place.by_kafkas_api(servers_of(bootstrap_server or "", "--bootstrap-server"), credentials)


def _configured(config_path: Path, virtual_cluster: str | None) -> "Place":
    from kafka_throttle.pipeline.rollout.place import Place
    from kafka_throttle.proxy.server.quota_sources import source_of

    cluster = cluster_of(load(config_path), virtual_cluster)
    state_file = cluster.quotas.state_file
    try:
        source = source_of(cluster, config_path, remembers=False)
    except ConfigErrors as problems:
        refuse(str(problems))
    itself = (source.name, state_file) if state_file else (source.name,)
    name = f"{config_path.resolve()}, virtual cluster {cluster.name}"
    return Place(name, lambda: source_of(cluster, config_path, remembers=False), itself)
