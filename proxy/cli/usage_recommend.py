"""`kafka-throttle usage recommend`: quotas that fit the recorded use."""

from typing import Any

import click

from kafka_throttle.common.remote_path import AnyPath
from kafka_throttle.proxy.cli.file_path import FilePath
from kafka_throttle.proxy.cli.number_range import NumberRange
from kafka_throttle.proxy.cli.period import period_options
from kafka_throttle.proxy.cli.usage import run_job, spark_options, table_option
from kafka_throttle.quotas.entities import QuotaType

_TYPES = tuple(quota_type.name.lower() for quota_type in QuotaType)


class _Types(click.ParamType[tuple[str, ...]]):
    """A type of option: quota types by their names in usage records, separated by commas."""

    name = "types"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The quota types, each once, in the order of QuotaType."""
        asked = [text.strip() for text in value.split(",")]
        for text in asked:
            if text not in _TYPES:
                self.fail(f"expected some of {', '.join(_TYPES)}, got {text!r}", param, ctx)
        return tuple(text for text in _TYPES if text in asked)


@click.command()
@table_option
@click.option("--out", required=True, metavar="DIRECTORY", help="The directory for quotas, stages and evidence.")
@period_options
@click.option(
    "--by",
    type=click.Choice(["user", "client-id", "user+client-id"]),
    default="user",
    show_default=True,
    help="The kind of entity. Connection rates are always by address.",
)
@click.option(
    "--types",
    "quota_types",
    type=_Types(),
    default="produce,fetch,request",
    show_default=True,
    help=f"Some of {','.join(_TYPES)}.",
)
@click.option(
    "--percentile",
    type=NumberRange(0.5, 1),
    default=0.99,
    show_default=True,
    help="The percentile of the use in windows with use, at the node where it is largest.",
)
@click.option(
    "--headroom", type=NumberRange(1, 100), default=1.3, show_default=True, help="The factor for the percentile."
)
@click.option(
    "--capacity",
    type=FilePath(),
    help="The capacity of the cluster (YAML): the sum of the limits is fitted to it.",
)
@click.option(
    "--raise-throttled",
    type=NumberRange(0, 10),
    default=0.0,
    show_default=True,
    metavar="PART",
    help="Limits of today's that throttle may be raised, all together by this part of all limits of today.",
)
@click.option(
    "--least-days",
    type=click.IntRange(1),
    default=7,
    show_default=True,
    metavar="N",
    help="Nothing is recommended for entities with use on fewer days.",
)
@click.option(
    "--least-windows",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    metavar="N",
    help="Nothing is recommended for entities with fewer windows with use at each node.",
)
@click.option(
    "--stages",
    type=click.IntRange(1, 20),
    default=3,
    show_default=True,
    help="The number of stages of the roll-out, if these are enough.",
)
@click.option(
    "--step",
    "factor",
    type=NumberRange(1.05, 100),
    default=2.0,
    show_default=True,
    metavar="F",
    help="From one stage to the next, no limit is lowered to less than 1/F.",
)
@click.option(
    "--simulate/--no-simulate", default=True, show_default=True, help="Simulate what these quotas would have done."
)
@spark_options
def recommend(capacity: AnyPath | None, **arguments: Any) -> None:
    """Recommend quotas: percentile x headroom of what was used, fitted to the capacity, in stages, with evidence.

    Writes quotas.yaml and stage-1.yaml, stage-2.yaml, ... as `usage plan` takes them, and recommendation.json, .csv and
    .txt: docs/reference/recommend.md. Exit status 0: done; 2: an argument or a file is invalid; 3: nothing is
    recommended.
    """
    given = None if capacity is None else str(capacity)
    run_job("recommend", capacity=given, **arguments)
