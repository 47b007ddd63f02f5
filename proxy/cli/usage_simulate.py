"""`kafka-throttle usage simulate`: what quotas would have done to the recorded use."""

from typing import Any

import click

from kafka_throttle.common.remote_path import AnyPath
from kafka_throttle.proxy.cli.file_path import FilePath
from kafka_throttle.proxy.cli.period import period_options
from kafka_throttle.proxy.cli.usage import run_job, spark_options, table_option


@click.command()
@table_option
@click.option(
    "--candidate",
    required=True,
    type=FilePath(),
    help="The quotas to try: a proxy's YAML file, its section `quotas`, or its list `entries`.",
)
@period_options
@click.option("--json", "output", flag_value="json", help="Print one JSON object.")
@click.option("--csv", "output", flag_value="csv", help="Print CSV, one line for each client at each node.")
@spark_options
def simulate(candidate: AnyPath, output: str | None, **arguments: Any) -> None:
    """Show what these quotas would have done to the recorded traffic.

    The recorded throttling is removed first. The result is an interval: between a client that wants exactly what was
    recorded, and one that always wants more while it is throttled (docs/reference/simulate.md).
    """
    run_job("simulate", candidate=str(candidate), output=output or "table", **arguments)
