"""Wait until something is so. A failure says what has not come: `what`, or the line with the condition."""

import asyncio
import inspect
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from tests.support.timeouts import TIMEOUT_S

_T = TypeVar("_T")


def wait_until(condition: Callable[[], _T], what: str = "", timeout_s: float = TIMEOUT_S, every_s: float = 0.02) -> _T:
    """What `condition` returns, as soon as that is true. AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, _failure(condition, what, timeout_s)
        time.sleep(every_s)
    return found


async def until(condition: Callable[[], _T], what: str = "", timeout_s: float = TIMEOUT_S) -> _T:
    """As `wait_until`, on the event loop and by its time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not (found := condition()):
        assert loop.time() < deadline, _failure(condition, what, timeout_s)
        await asyncio.sleep(0.001)
    return found


def _failure(condition: Callable[[], object], what: str, timeout_s: float) -> str:
    with suppress(OSError, TypeError):
        what = what or inspect.getsource(condition).strip()
    return f"waited {timeout_s:.0f} s for {what or condition}"
