"""Work that takes long, done on the event loop in turns with everything else."""

import asyncio
from collections.abc import Generator
from typing import TypeVar
from weakref import WeakKeyDictionary

Result = TypeVar("Result")

_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
"""Where all such work of an event loop waits for its next step."""


async def finish_in_turns(steps: Generator[None, None, Result]) -> Result:
    """Take all steps, the event loop's other work between any two of them; what they return.

    However much is under way, one step is taken between two turns of the loop: of a hundred clients that each have
    something decided, everybody else feels no more than of one.
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
