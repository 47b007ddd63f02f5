"""Commands that are killed, with all that they have started."""

import os
import signal
import time
from pathlib import Path

from tests.support.timeouts import TIMEOUT_S


def wait_for(condition, process, every_s=0.001):
    deadline = time.monotonic() + 4 * TIMEOUT_S
    while not condition():
        assert process.poll() is None, "the command has ended by itself"
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(every_s)


def members(session):
    """All that run in a session, with their names: the command, Spark's Java, Spark's Python."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        state, _, _, its_session = rest.split()[:4]
        if int(its_session) == session and state not in "ZX":
            found[int(folder.name)] = name
    return found


def kill(process, chance, only=None):
    """SIGKILL to all of them in any order; or first to those of one name only."""
    first = [pid for pid, name in members(process.pid).items() if name == only]
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    if first:
        # Who has lost its Java ends by itself.
        process.wait(TIMEOUT_S)
    while found := list(members(process.pid)):
        chance.shuffle(found)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.001)
    process.wait()
