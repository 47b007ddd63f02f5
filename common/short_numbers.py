"""Numbers as people read them: three digits, and larger units rather than more digits."""

from collections.abc import Sequence


def three_digits(value: float) -> str:
    """The number with three digits; with more, if it is 1,000 or larger."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def in_thousands(value: float, units: Sequence[str]) -> str:
    """The number in the unit that fits it; each unit is 1,000 of the one before, and the first one has no decimals."""
    step = 0
    while abs(value) >= 999.5 and step < len(units) - 1:
        value, step = value / 1_000, step + 1
    return f"{three_digits(value) if step else f'{value:.0f}'} {units[step]}"
