"""Work that takes long, done on the event loop in turns with everything else."""

import asyncio
from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")


async def finish_in_turns(steps: Generator[None, None, Result]) -> Result:
    """Take all steps, the event loop's other work between any two of them; what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        await asyncio.sleep(0)
