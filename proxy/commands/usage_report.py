"""`kafka-throttle usage report`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from proxy.commands.config_file import refuse
from proxy.commands.usage import run_job, spark_options, table_option
from quotas.sources.yaml_file import YamlFileError, read_yaml_file


class Moment(click.ParamType[int]):
    """A day or a moment, in ISO 8601, as ms since 1970; UTC where no zone is given."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """What click asks for; fails for what is no time."""
        if isinstance(value, int):
            return value
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"expected a time as 2026-11-22 or 2026-11-22T14:00, got {value!r}", param, ctx)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000)


@click.command()
@table_option
@click.option("--out", required=True, metavar="DIRECTORY", help="Where report.html and tables/ are written.")
@click.option("--since", "since_ms", type=Moment(), help="Only windows that began then or later (UTC).")
@click.option("--until", "until_ms", type=Moment(), help="Only windows that began before.")
@click.option("--prices", type=click.Path(path_type=Path, dir_okay=False), help="A price sheet (YAML), for chargeback.")
@click.option("--top", "top_n", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Rows of a table.")
@spark_options
def report(prices: Path | None, since_ms: int | None, until_ms: int | None, **arguments: Any) -> None:
    """Write a page on who used what, who was throttled, what it costs and where it goes; and its tables.

    Exit status 0: done; 2: something that was given cannot be used; 3: there are no records in this time.
    """
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        refuse("--since: expected a time before --until")
    sheet = None if prices is None else _document(prices)
    run_job("report", prices=sheet, since_ms=since_ms, until_ms=until_ms, **arguments)


def _document(path: Path) -> Any:
    try:
        document = read_yaml_file(path)
    except YamlFileError as error:
        refuse(f"{path}: {error}")
    return {} if document is None else document
