"""Long work, done on the event loop in steps that take turns with everything else."""

import asyncio
from collections.abc import Generator
from typing import TypeVar
from weakref import WeakKeyDictionary

Result = TypeVar("Result")

_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
"""The lock of each event loop, at which all long work waits for its next step."""


def finish_at_once(steps: Generator[None, None, Result]) -> Result:
    """Take all steps, and return the result: for commands, which have nothing else to do."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


async def finish_in_turns(steps: Generator[None, None, Result]) -> Result:
    """Take all steps, with the event loop's other work between any two of them; return the result.

    One step at most is taken between two turns of the loop, however much long work there is. So a hundred clients that
    wait for long decisions delay other clients no more than one does.
    """
    line = _lines.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    while True:
        async with line:
            try:
                next(steps)
            except StopIteration as end:
                result: Result = end.value
                return result
            await asyncio.sleep(0)
