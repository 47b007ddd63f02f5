"""What a target of fuzzing is."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A function to give any bytes, and what to begin with."""

    try_out: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
