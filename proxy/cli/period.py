"""The options --since and --until."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, TypeVar, cast

import click

from kafka_throttle.proxy.cli.config_file import refuse

Command = TypeVar("Command", bound=Callable[..., Any])


_AGO = re.compile(r"-(\d{1,5})([mhdw])")
_DAYS = {"today": 0, "yesterday": 1}


class Moment(click.ParamType[int]):
    """A type of option: a time, as ms since 1970.

    A date or time in ISO 8601, without a time zone in UTC; or how long ago: `-90m`, `-12h`; `today`, `yesterday`,
    `-30d` and `-4w` are begins of days in UTC.
    """

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The time in ms since 1970; fails for text that is no time."""
        if isinstance(value, int):
            return value
        try:
            at = _ago(value, datetime.now(UTC)) or datetime.fromisoformat(value)
        except (ValueError, OverflowError):
            self.fail(f"expected a time as 2026-11-22, 2026-11-22T14:00, -30d or -12h, got {value!r}", param, ctx)
        return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000)


def _ago(text: str, now: datetime) -> datetime | None:
    """The time that is so long before `now`; None for other texts. OverflowError if it is before all times."""
    if text in _DAYS:
        number, unit = _DAYS[text], "d"
    elif found := _AGO.fullmatch(text):
        number, unit = int(found[1]), found[2]
    else:
        return None
    if unit in "mh":
        return now - timedelta(minutes=number * (60 if unit == "h" else 1))
    return now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=number * (7 if unit == "w" else 1))


_OPTIONS = (
    click.option(
        "--since",
        "since_ms",
        type=Moment(),
        help="Only windows that began at this time or later, as 2026-11-22 (UTC) or -30d.",
    ),
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
