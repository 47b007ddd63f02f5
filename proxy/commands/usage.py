"""`kafka-throttle usage`: what becomes of usage records, on Spark. The work is in `pipeline.jobs`."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn, TypeVar

import click

from proxy.commands.config_file import BAD_INPUT, refuse

Command = TypeVar("Command", bound=Callable[..., Any])

_OF_THE_EXTRA = {"pyspark", "py4j", "pandas", "pyarrow", "jinja2", "numpy", "rich"}

_SPARK_OPTIONS = (
    click.option("--master", default="local[*]", show_default=True, help="Spark's master, as spark://host:7077."),
    click.option("--memory", default="2g", show_default=True, help="Memory of Spark's driver."),
    click.option("--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark's own."),
)

table_option = click.option("--table", required=True, metavar="DIRECTORY", help="The table: a path, or hdfs://...")


def spark_options(command: Command) -> Command:
    """Give a command what says where Spark runs; `run_job` takes it as it is."""
    for option in reversed(_SPARK_OPTIONS):
        command = option(command)
    return command


@click.group()
def usage() -> None:
    """From what the proxy wrote down to reports and quotas, on Spark."""


def run_job(name: str, **arguments: Any) -> NoReturn:
    """Run `pipeline.jobs.<name>.main` and end with its exit status, 2 if it raises ValueError: bad input.

    Only here is Spark imported, so who uses other commands needs none.
    """
    if "settings" in arguments:
        arguments["settings"] = dict(map(_setting, arguments["settings"]))
    try:
        job = import_module(f"pipeline.jobs.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_THE_EXTRA:
            raise
        package = (error.name or "").partition(".")[0]
        message = f"usage {name} needs {package}: pip install 'kafka-throttle[pipeline]'"
        raise click.ClickException(message) from error
    try:
        sys.exit(job.main(**arguments))
    except ValueError as error:
        refuse(str(error), BAD_INPUT)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        refuse(f"--conf: expected spark.SOMETHING=VALUE, got {text!r}")
    return key, value


@usage.command()
@click.option("--from", "spool", required=True, metavar="DIRECTORY", help="The spool, as the proxy writes it.")
@table_option
@click.option("--once", is_flag=True, help="Take what is there and end. This is what happens without --every, too.")
@click.option(
    "--every", "every_s", type=click.IntRange(1, 86_400), metavar="S", help="Go on, and look every S seconds."
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
def ingest(once: bool, every_s: int | None, **arguments: Any) -> None:
    """Take the files of a spool into the table: each record once, whatever is killed when.

    What is broken goes to the table's quarantine, and what is missing is told.
    """
    if once and every_s is not None:
        refuse("expected either --once or --every, got both")
    run_job("ingest", once=every_s is None, **({} if every_s is None else {"every_s": every_s}), **arguments)


@usage.command()
@table_option
@click.option("--at-least", type=click.IntRange(2), default=8, show_default=True, help="Small parts of one day.")
@spark_options
def compact(**arguments: Any) -> None:
    """Merge the small files of a table, while others read it and write to it."""
    run_job("compact", **arguments)


@usage.command()
@table_option
def gaps(table: str) -> None:
    """Tell which records are missing, by their numbers, and which the proxies dropped. Exit status 1 if any is missing.

    Asks the table's log alone and starts no Spark; so the table must be a path of this machine.
    """
    run_job("gaps", table=table)
