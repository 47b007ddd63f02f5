"""`kafka-throttle usage simulate`: what would these quotas have done?"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from proxy.commands.usage import run_job, spark_options, table_option


class _Instant(click.ParamType[int]):
    """A time as ISO 8601 writes it, UTC unless it says otherwise; given on as ms since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The ms since 1970."""
        try:
            instant = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"expected a time like 2026-11-17 or 2026-11-17T08:30:00Z, got {value!r}", param, ctx)
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=UTC)
        return round(instant.timestamp() * 1000)


@click.command()
@table_option
@click.option(
    "--candidate",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The quotas to try: a proxy's YAML file, its `quotas`, or `entries` by themselves.",
)
@click.option("--since", "since_ms", type=_Instant(), help="Windows that began then or later (UTC).")
@click.option("--until", "until_ms", type=_Instant(), help="Windows that began before.")
@click.option("--trace", is_flag=True, help="Replay traces, event by event, in place of usage records.")
@click.option("--json", "output", flag_value="json", help="Print one JSON object.")
@click.option("--csv", "output", flag_value="csv", help="Print a line for each client at each node.")
@spark_options
def simulate(candidate: Path, output: str | None, **arguments: Any) -> None:
    """What would these quotas have done to the recorded traffic?

    The throttling that was recorded is taken out first. The answer is an interval between a client that wants what was
    seen, and one that always wants more while it is throttled: docs/simulate.md.
    """
    run_job("simulate", candidate=str(candidate), output=output or "table", **arguments)
