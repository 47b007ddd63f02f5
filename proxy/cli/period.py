"""The options --since and --until."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any, TypeVar, cast

import click

from kafka_throttle.proxy.cli.config_file import refuse

Command = TypeVar("Command", bound=Callable[..., Any])


class Moment(click.ParamType[int]):
    """A type of option: a date or time in ISO 8601, as ms since 1970. Without a time zone it is UTC."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The time in ms since 1970; fails for text that is no time."""
        if isinstance(value, int):
            return value
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"expected a time as 2026-11-22 or 2026-11-22T14:00, got {value!r}", param, ctx)
        return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000)


_OPTIONS = (
    click.option("--since", "since_ms", type=Moment(), help="Only windows that began at this time or later (UTC)."),
    click.option("--until", "until_ms", type=Moment(), help="Only windows that began before this time (UTC)."),
)


def period_options(command: Command) -> Command:
    """Add --since and --until to a command, which takes `since_ms` and `until_ms`. --since must be before --until."""

    @wraps(command)
    def checked(*, since_ms: int | None, until_ms: int | None, **arguments: Any) -> Any:
        if since_ms is not None and until_ms is not None and since_ms >= until_ms:
            refuse("--since: expected a time before --until")
        return command(since_ms=since_ms, until_ms=until_ms, **arguments)

    for option in reversed(_OPTIONS):
        checked = option(checked)
    return cast(Command, checked)
