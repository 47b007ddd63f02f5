"""Sets of whole numbers as sorted, disjoint, non-adjacent intervals; both ends belong to them."""

from collections.abc import Iterable, Iterator

Interval = tuple[int, int]
"""First and last."""
Intervals = tuple[Interval, ...]


def union(intervals: Iterable[Interval]) -> Intervals:
    """The numbers in any of them, in whatever order they come."""
    merged: list[Interval] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return tuple(merged)


def without(intervals: Intervals, taken: Intervals) -> Intervals:
    """The numbers of the one that are not in the other."""
    return tuple(_without(intervals, taken))


def _without(intervals: Intervals, taken: Intervals) -> Iterator[Interval]:
    at = 0
    for first, last in intervals:
        while at < len(taken) and taken[at][1] < first:
            at += 1
        step = at
        while step < len(taken) and taken[step][0] <= last:
            if first < taken[step][0]:
                yield first, taken[step][0] - 1
            first = taken[step][1] + 1
            step += 1
        if first <= last:
            yield first, last


def size(intervals: Iterable[Interval]) -> int:
    """How many numbers."""
    return sum(last - first + 1 for first, last in intervals)
