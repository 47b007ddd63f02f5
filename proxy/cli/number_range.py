"""A type of option: a number within a range."""

import math
from typing import Any

import click


class NumberRange(click.FloatRange):
    """As click.FloatRange, but refuses nan, which passes every comparison of click."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; fails for nan and for text that is no number."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"expected a number, got {value!r}", param, ctx)
        return number
