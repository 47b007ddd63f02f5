"""The id of a member. It tells another process on the same machine whether its own process has ended."""

import os
import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_ID: Final = re.compile(r"(?P<name>.*)#(?P<pid>\d+)-(?P<started>\d+)-(?P<machine>[0-9a-f]{8})", re.DOTALL)
_STATE: Final = 0
_STARTED: Final = 19
"""Which value behind the name of a process in proc(5)'s stat is its start, in clock ticks since the machine's."""


def member_id(name: str) -> str:
    """The id of this process as a member: `name#pid-start-machine`, another one for each process.

    The machine is a start of it, with the namespace in which process ids are counted.
    """
    pid = os.getpid()
    return f"{name}#{pid}-{_started(pid) or 0}-{_machine()}"


def ended_before(member: str, others: Iterable[str]) -> list[str]:
    """Which of the others have the name of `member`, and were processes on this machine that have ended.

    Of processes on other machines, and in other containers, nothing is known.
    """
    mine = _ID.fullmatch(member)
    if mine is None:
        return []
    found = [_ID.fullmatch(other) for other in others]
    same = [one for one in found if one and one["name"] == mine["name"] and one["machine"] == mine["machine"]]
    return [one.string for one in same if _started(int(one["pid"])) != int(one["started"])]


def _started(pid: int) -> int | None:
    """When a process was started; None if there is none with this id, or it has ended and nobody has taken note."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    values = stat.rpartition(")")[2].split()
    return None if values[_STATE] in "ZX" else int(values[_STARTED])


def _machine() -> str:
    boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespace = (_PROC / "self/ns/pid").readlink()
    return sha256(f"{boot} {namespace}".encode()).hexdigest()[:8]
