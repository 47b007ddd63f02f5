"""`kafka-throttle usage`: commands that process usage records, on Spark. The work is done in pipeline/jobs/."""

import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, NoReturn, TypeVar

import click

from kafka_throttle.proxy.cli.config_file import BAD_INPUT, refuse
from kafka_throttle.proxy.cli.key_values import key_values, with_files
from kafka_throttle.proxy.cli.period import Moment

Command = TypeVar("Command", bound=Callable[..., Any])

_OF_THE_EXTRA = {"pyspark", "py4j", "pandas", "pyarrow", "jinja2", "numpy", "rich"}

FAILED = 70
"""The exit status after an error that nobody expected, as sysexits.h has it: 1 is an answer of `usage gaps`."""

_SPARK_OPTIONS = (
    click.option(
        "--master",
        help="Spark's master, as spark://host:7077, or a Spark Connect server, as sc://host:15002; without it that of "
        "spark-submit or SPARK_REMOTE, or this machine.",
    ),
    click.option("--memory", default="2g", show_default=True, help="Memory of Spark's driver."),
    click.option("--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark."),
)

table_option = click.option(
    "--table", required=True, metavar="DIRECTORY", help="The table: a path, or hdfs://... or s3a://..."
)


def spark_options(command: Command) -> Command:
    """Add the options of Spark to a command, which passes them to `run_job`."""
    for option in reversed(_SPARK_OPTIONS):
        command = option(command)
    return command


@click.group()
def usage() -> None:
    """Reports and quotas from the usage records of the proxy, on Spark."""


def run_job(name: str, **arguments: Any) -> NoReturn:
    """Run `main` of pipeline/jobs/<name>.py and end the process with its exit status.

    The status is 2 (bad input) if the job raises ValueError or cannot read or write a file, and FAILED after any other
    error.
    Spark is imported only here: other commands work without it.
    """
    if "settings" in arguments:
        given = key_values(arguments["settings"], "--conf", r"spark\..+", "spark.SOMETHING=VALUE")
        arguments["settings"] = given
    try:
        job = import_module(f"kafka_throttle.pipeline.jobs.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_THE_EXTRA:
            raise
        package = (error.name or "").partition(".")[0]
        refuse(f"usage {name} needs {package}, which the extra brings: pip install '.[pipeline]' in the repository")
    try:
        sys.exit(job.main(**arguments))
    except ValueError as error:
        refuse(str(error), BAD_INPUT)
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            refuse(f"{error.filename}: {error.strerror}", BAD_INPUT)
        if problem := import_module("kafka_throttle.pipeline.spark.unreadable").problem_of(error):
            refuse(problem, BAD_INPUT)
        traceback.print_exc()
        sys.exit(FAILED)


@usage.command()
@click.option(
    "--from",
    "spools",
    multiple=True,
    metavar="DIRECTORY",
    help="A spool, as a proxy writes it; several with one --from each, or as '/spools/*'.",
)
@click.option("--from-topic", "topic", metavar="TOPIC", help="A Kafka topic with the lines of spools.")
@click.option("--bootstrap-server", "servers", metavar="HOST:PORT[,...]", help="The cluster of the topic.")
@click.option(
    "--kafka-conf",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of Kafka's Java consumer, as security.protocol=SSL; a VALUE of @FILE is read from the file.",
)
@table_option
@click.option("--once", is_flag=True, help="Take what is there and end. This is the default without --every.")
@click.option(
    "--every",
    "every_s",
    type=click.IntRange(1, 86_400),
    metavar="S",
    help="Continue, and look for new records every S seconds.",
)
@click.option(
    "--future-tolerance",
    "future_tolerance_s",
    type=click.IntRange(0),
    default=3_600,
    show_default=True,
    metavar="S",
    help="How far ahead of this machine's clock a record may be, in seconds.",
)
@spark_options
def ingest(
    spools: tuple[str, ...],
    topic: str | None,
    servers: str | None,
    pairs: tuple[str, ...],
    once: bool,
    every_s: int | None,
    settings: tuple[str, ...],
    **arguments: Any,
) -> None:
    """Add the files of a spool, or the messages of a topic, to the table: each record once, even if the job is killed.

    Broken lines go to the table's quarantine, and missing records are reported.
    """
    if once and every_s is not None:
        refuse("expected either --once or --every, got both")
    if bool(spools) == (topic is not None):
        refuse(f"expected either --from or --from-topic, got {'both' if spools else 'neither'}")
    if topic is None and (servers is not None or pairs):
        refuse("expected --bootstrap-server and --kafka-conf with --from-topic only")
    if every_s is not None:
        arguments["every_s"] = every_s
    if topic is not None:
        if servers is None:
            refuse("--bootstrap-server: expected host:port with --from-topic, got nothing")
        expected = "KEY=VALUE with a setting of Kafka's consumer"
        given = key_values(pairs, "--kafka-conf", r"[a-z0-9.]+", expected)
        arguments["topic"] = (topic, servers, with_files(given, "--kafka-conf"))
        settings = _with_kafka_source(settings)
    run_job("ingest", spools=spools, once=every_s is None, settings=settings, **arguments)


def _with_kafka_source(settings: tuple[str, ...]) -> tuple[str, ...]:
    """The settings with the jars of Spark's Kafka source, unless they name jars themselves."""
    if any(setting.startswith(("spark.jars=", "spark.jars.packages=")) for setting in settings):
        return settings
    from kafka_throttle.common.jars import kafka_source_package, spark_kafka_jars

    try:
        jars = spark_kafka_jars(lambda line: click.echo(line, err=True))
    except ValueError as error:
        refuse(str(error))
    except RuntimeError as error:
        packages = f"--conf spark.jars.packages={kafka_source_package()}"
        raise click.ClickException(f"{error}\nOr have Spark fetch its Kafka source: {packages}") from error
    return (*settings, f"spark.jars={','.join(map(str, jars))}")


@usage.command()
@table_option
@click.option(
    "--keep-hours",
    type=click.IntRange(24),
    default=168,
    show_default=True,
    metavar="H",
    help="How long files stay that are not part of the table, for those who read an earlier version or still write.",
)
@spark_options
def compact(**arguments: Any) -> None:
    """Merge the small files of a table, and remove old ones. Other jobs may read and write it meanwhile."""
    run_job("compact", **arguments)


@usage.command()
@table_option
@click.option(
    "--before",
    required=True,
    type=Moment(),
    metavar="DATE",
    help="Delete the records of all days before this one, as 2026-11-22 or -400d, in UTC.",
)
@click.option("--user", metavar="NAME", help="Delete the records of this user only.")
@spark_options
def expire(before: int, **arguments: Any) -> None:
    """Delete old records from a table. They are not missing afterwards, and are not taken again.

    Other jobs may read the table and write to it meanwhile. `compact` removes the files later.
    """
    run_job("expire", before=f"{datetime.fromtimestamp(before / 1000, UTC):%Y-%m-%d}", **arguments)


@usage.command()
@table_option
@spark_options
def gaps(**arguments: Any) -> None:
    """List the records that are missing, by their numbers, and those that proxies dropped.

    Exit status 1: records are missing.
    """
    run_job("gaps", **arguments)
