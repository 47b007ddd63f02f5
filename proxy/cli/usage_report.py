"""`kafka-throttle usage report`: a report about the recorded use."""

from typing import Any

import click

from kafka_throttle.common.remote_path import AnyPath
from kafka_throttle.proxy.cli.file_path import FilePath
from kafka_throttle.proxy.cli.period import Moment, period_options
from kafka_throttle.proxy.cli.usage import run_job, spark_options, table_option


@click.command()
@table_option
@click.option("--out", required=True, metavar="DIRECTORY", help="The directory for report.html and tables/.")
@period_options
@click.option("--prices", type=FilePath(), help="A price sheet (YAML), for chargeback.")
@click.option(
    "--top",
    "top_n",
    type=click.IntRange(1, 1_000),
    default=20,
    show_default=True,
    help="The number of rows of each table.",
)
@click.option(
    "--as-of",
    "as_of_ms",
    type=Moment(),
    metavar="TIME",
    help="Read the records that the table had at this time (UTC), as far as `compact` has kept them.",
)
@spark_options
def report(prices: AnyPath | None, **arguments: Any) -> None:
    """Write a report, with its tables, about use, throttling, costs and trends.

    Exit status 0: done; 2: an argument or a file is invalid; 3: there are no records in this period.
    """
    run_job("report", prices=prices, **arguments)
