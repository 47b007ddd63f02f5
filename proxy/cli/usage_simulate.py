"""`kafka-throttle usage simulate`: what would these quotas have done?"""

from pathlib import Path
from typing import Any

import click

from proxy.cli.period import period_options
from proxy.cli.usage import run_job, spark_options, table_option


@click.command()
@table_option
@click.option(
    "--candidate",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The quotas to try: a proxy's YAML file, its `quotas`, or `entries` by themselves.",
)
@period_options
@click.option("--trace", is_flag=True, help="Replay traces, event by event, in place of usage records.")
@click.option("--json", "output", flag_value="json", help="Print one JSON object.")
@click.option("--csv", "output", flag_value="csv", help="Print a line for each client at each node.")
@spark_options
def simulate(candidate: Path, output: str | None, **arguments: Any) -> None:
    """What would these quotas have done to the recorded traffic?

    The throttling that was recorded is taken out first. The response is an interval between a client that wants what
    was seen, and one that always wants more while it is throttled: docs/simulate.md.
    """
    run_job("simulate", candidate=str(candidate), output=output or "table", **arguments)
