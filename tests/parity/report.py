"""What a run comes to: rates, their ratio, throttle times; as a table and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tests.parity.cells import Cell
from tests.parity.clients import Seen
from tests.parity.pulse import median_and_most

LOWEST_RATIO, HIGHEST_RATIO = 0.95, 1.05
MOST_UNHELD_MS = 50.0
"""If more than 5 of 100 requests that no quota holds take longer, the machine was busy, whatever the ratios are: at its
quota one connection has a request every 130 ms, and what is lost beyond that is never made up for."""
WINDOW_S = 11
"""Kafka's quota windows together: over multiples of this a client that is held has a steady rate."""


@dataclass(frozen=True, slots=True)
class SideOfCell:
    """What all clients of a cell have seen on one side in `seconds`; bytes are those of record values."""

    seconds: int
    bytes_in_second: Sequence[int]
    throttles: Sequence[tuple[float, float]]
    """When, in seconds since the start, and for how many; in order of time."""
    errors: Sequence[str]

    @classmethod
    def of(cls, seen: Sequence[Seen]) -> "SideOfCell":
        """The connections of a cell taken together."""
        seconds = len(seen[0].bytes_in_second)
        return cls(
            seconds,
            [sum(of_one) for of_one in zip(*(one.bytes_in_second for one in seen), strict=True)],
            sorted((t.at_s, t.throttle_s) for one in seen for t in one.throttles if t.at_s < seconds),
            [error for one in seen for error in one.errors],
        )

    @property
    def rate(self) -> float:
        """The mean, in bytes per second."""
        return sum(self.bytes_in_second) / self.seconds

    @property
    def rates_by_window(self) -> list[float]:
        """The means over `WINDOW_S` each; what is left at the end has no part."""
        firsts = range(0, self.seconds - WINDOW_S + 1, WINDOW_S)
        return [sum(self.bytes_in_second[first : first + WINDOW_S]) / WINDOW_S for first in firsts]

    @property
    def mean_throttle_s(self) -> float:
        """Of the responses that had a throttle time; 0 without any."""
        return sum(length for _, length in self.throttles) / max(len(self.throttles), 1)

    @property
    def longest_throttle_s(self) -> float:
        """0 without any."""
        return max((length for _, length in self.throttles), default=0.0)

    def throttles_by(self, step_s: int) -> Iterator[tuple[int, float, float]]:
        """For each stretch of `step_s` with throttles: its begin, their mean, the longest; in seconds."""
        for number, stretch in groupby(self.throttles, key=lambda throttle: int(throttle[0] // step_s)):
            lengths = [length for _, length in stretch]
            yield number * step_s, sum(lengths) / len(lengths), max(lengths)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One cell on both sides."""

    cell: Cell
    broker: SideOfCell
    proxy: SideOfCell

    @property
    def ratio(self) -> float:
        """Our mean rate by the broker's; infinite if the broker let nothing through."""
        return self.proxy.rate / self.broker.rate if self.broker.rate else float("inf")

    @property
    def problems(self) -> list[str]:
        """Why this cell is no proof of parity; empty if it is."""
        found = []
        if not LOWEST_RATIO <= self.ratio <= HIGHEST_RATIO:
            found.append(f"ratio {self.ratio:.3f}")
        for name, side in (("broker", self.broker), ("proxy", self.proxy)):
            if not side.throttles:
                found.append(f"never throttled by the {name}")
            if side.errors:
                found.append(f"{len(side.errors)} errors with the {name}, the first: {side.errors[0]}")
        return found


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a run, and how: `rate` is the quota of each cell in bytes/s, `took_ms` are pulses by their place."""

    comparisons: Sequence[Comparison]
    rate: int
    seconds: int
    fetch_bytes: int
    took_ms: Mapping[str, Sequence[float]]

    @property
    def good(self) -> bool:
        """Whether every cell proves parity."""
        return not any(found.problems for found in self.comparisons)


def table(run: Run) -> str:
    """All cells as a Markdown table."""
    lines = [
        "| role | quota of | connections | API versions | broker, KB/s | proxy, KB/s | ratio "
        "| throttles by broker: mean, longest | by proxy |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for found in run.comparisons:
        cell = found.cell
        throttles = [
            f"{len(side.throttles)}: {side.mean_throttle_s:.2f} s, {side.longest_throttle_s:.2f} s"
            for side in (found.broker, found.proxy)
        ]
        lines.append(
            f"| {cell.role} | {cell.quota} | {cell.connections} | {cell.versions} | {found.broker.rate / 1000:.1f} "
            f"| {found.proxy.rate / 1000:.1f} | {found.ratio:.3f} | {throttles[0]} | {throttles[1]} |"
        )
    return "\n".join(lines)


def decision(run: Run) -> str:
    """How many cells prove parity, and one line for each that does not."""
    ratios = [found.ratio for found in run.comparisons]
    outside = [f"{found.cell}: {'; '.join(found.problems)}" for found in run.comparisons if found.problems]
    lines = [
        f"{len(ratios) - len(outside)} of {len(ratios)} cells within {LOWEST_RATIO} - {HIGHEST_RATIO}; "
        f"ratios from {min(ratios):.3f} to {max(ratios):.3f}.",
        *outside,
    ]
    for place, took_ms in run.took_ms.items():
        median_ms, most_ms = median_and_most(took_ms)
        busy = ": the machine was busy" if most_ms > MOST_UNHELD_MS else ""
        lines.append(f"A request that no quota holds took {median_ms:.1f} ms (95 %: {most_ms:.1f}) at {place}{busy}.")
    return "\n".join(lines)


def as_json(run: Run) -> dict[str, Any]:
    """Everything but the single throttles: those are given as mean and longest of each second."""
    return {
        "rate": run.rate,
        "seconds": run.seconds,
        "fetch_bytes": run.fetch_bytes,
        "unheld_ms": {
            place: [round(value, 2) for value in median_and_most(took_ms)] for place, took_ms in run.took_ms.items()
        },
        "within": [LOWEST_RATIO, HIGHEST_RATIO],
        "cells": [
            {
                "role": found.cell.role,
                "quota": found.cell.quota,
                "connections": found.cell.connections,
                "versions": found.cell.versions,
                "ratio": round(found.ratio, 4),
                "problems": found.problems,
                "broker": _side_as_json(found.broker),
                "proxy": _side_as_json(found.proxy),
            }
            for found in run.comparisons
        ],
    }


def _side_as_json(side: SideOfCell) -> dict[str, Any]:
    return {
        "rate": round(side.rate),
        "rates_by_window": [round(rate) for rate in side.rates_by_window],
        "throttles": len(side.throttles),
        "mean_throttle_s": round(side.mean_throttle_s, 3),
        "longest_throttle_s": round(side.longest_throttle_s, 3),
        "throttles_by_second": [[at, round(mean, 3), round(longest, 3)] for at, mean, longest in side.throttles_by(1)],
        "errors": side.errors[:10],
    }
