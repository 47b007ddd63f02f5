"""A number that an option takes."""

import math
from typing import Any

import click


class NumberRange(click.FloatRange):
    """As click's, which lets nan through: no bound is above or below it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """What click asks for; fails for what is no number."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"expected a number, got {value!r}", param, ctx)
        return number
