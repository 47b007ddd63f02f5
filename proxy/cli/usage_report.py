"""`kafka-throttle usage report`."""

from pathlib import Path
from typing import Any

import click

from proxy.cli.period import period_options
from proxy.cli.usage import run_job, spark_options, table_option


@click.command()
@table_option
@click.option("--out", required=True, metavar="DIRECTORY", help="Where report.html and tables/ are written.")
@period_options
@click.option("--prices", type=click.Path(path_type=Path, dir_okay=False), help="A price sheet (YAML), for chargeback.")
@click.option("--top", "top_n", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Rows of a table.")
@spark_options
def report(prices: Path | None, **arguments: Any) -> None:
    """Write a page on who used what, who was throttled, what it costs and where it goes; and its tables.

    Exit status 0: done; 2: something that was given cannot be used; 3: there are no records in this time.
    """
    run_job("report", prices=prices, **arguments)
