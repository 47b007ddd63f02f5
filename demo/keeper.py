"""A keeper owns processes and their folder, and removes them when the process that started the keeper ends.

`python -m demo.keeper FOLDER` makes the folder, and starts and signals processes on orders: JSON lines on stdin. When
stdin ends or the parent is gone, for whatever reason (SIGKILL too, and while an order is carried out), it kills all
processes and deletes the folder. When the keeper itself is killed, the kernel kills what it started.

    {"folder": true}                             ->  {"folder": PATH}, when the folder exists
    {"start": NAME, "argv": [...], "log": PATH}  ->  {"pid": PID} or {"error": TEXT}
      ("errors": PATH is a separate file for stderr, "input": PATH is stdin)
    {"signal": NAME, "number": N, "wait": true}  ->  {"status": EXIT STATUS or null}; SIGKILL goes to its whole group
    {"poll": NAME}                               ->  {"status": EXIT STATUS or null}
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kafka_throttle.common.child_process import die_with_parent

_STDIN, _STDOUT = 0, 1
_STANDSTILL_S = 10.0


def start(folder: Path) -> subprocess.Popen[str]:
    """A keeper of `folder` in a separate session, which gets orders on stdin and responds on stdout."""
    return subprocess.Popen(
        [sys.executable, "-m", "demo.keeper", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[1],
    )


class ParentGone(Exception):
    """The parent, which gives the orders, has ended."""


def await_standstill(pid: int) -> None:
    """Return when all threads of a process that was sent SIGSTOP have stopped; on a busy machine that takes a while."""
    deadline = time.monotonic() + _STANDSTILL_S
    while any(_is_awake(task) for task in Path(f"/proc/{pid}/task").glob("*/stat")) and time.monotonic() < deadline:
        time.sleep(0.002)


def _is_awake(task: Path) -> bool:
    try:
        return task.read_text().rpartition(")")[2].split()[0] not in "TtZX"
    except OSError:  # it has ended
        return False


class Keeper:
    """The processes by name. Each leads a process group, so that what a wrapper has started is killed with it."""

    def __init__(self, parent: int) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._parent = os.pidfd_open(parent)

    def orders(self) -> Iterator[dict[str, Any]]:
        """The orders, until stdin ends or the parent is gone (a fork of it may still hold the pipe open)."""
        poll = select.poll()
        poll.register(_STDIN, select.POLLIN)
        poll.register(self._parent, select.POLLIN)
        pending = b""
        while self._parent not in (ready := dict(poll.poll())):
            if _STDIN not in ready or not (more := os.read(_STDIN, 65536)):
                return
            *lines, pending = (pending + more).split(b"\n")
            yield from map(json.loads, lines)

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out one order; returns the response. Raises ParentGone if the parent ends during a wait."""
        if "start" in order:
            try:
                return {"pid": self._start(order)}
            except OSError as error:
                return {"error": str(error)}
        process = self._processes[order.get("signal") or order["poll"]]
        if "signal" in order and _status(process) is None:
            send = os.killpg if order["number"] == signal.SIGKILL else os.kill
            send(process.pid, order["number"])
            if order["number"] == signal.SIGSTOP:
                await_standstill(process.pid)
            if order.get("wait"):
                self._wait(process)
        return {"status": _status(process)}

    def _start(self, order: dict[str, Any]) -> int:
        with contextlib.ExitStack() as files:
            log = files.enter_context(Path(order["log"]).open("ab"))
            errors = files.enter_context(Path(order["errors"]).open("ab")) if "errors" in order else log
            process = subprocess.Popen(
                order["argv"],
                stdin=files.enter_context(Path(order.get("input", os.devnull)).open("rb")),
                stdout=log,
                stderr=errors,
                process_group=0,
                preexec_fn=die_with_parent,
            )
        self._processes[order["start"]] = process
        return process.pid

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a process, but not longer than the parent waits for the keeper."""
        ended = os.pidfd_open(process.pid)
        try:
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            poll.register(self._parent, select.POLLIN)
            poll.register(_STDIN, 0)  # for its hang-up only, which poll always reports
            if ended not in dict(poll.poll()):
                raise ParentGone
        finally:
            os.close(ended)

    def end(self) -> None:
        """Kill all processes that still run."""
        running = [process for process in self._processes.values() if _status(process) is None]
        for process in running:
            os.killpg(process.pid, signal.SIGKILL)
        for process in running:
            process.wait()


def _status(process: subprocess.Popen[bytes]) -> int | None:
    """The exit status, None while it runs. Processes that an ended process has left in its group are killed."""
    if process.returncode is None and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        # Before the process is reaped: after that its number, and so the number of its group, may belong to another
        # process.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode


def main() -> None:
    """Carry out orders until the parent is gone, then clean up."""
    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM):
        # A handler and not SIG_IGN, which the processes would inherit: a JVM then ignores SIGTERM for good.
        signal.signal(number, lambda *_: None)
    folder = Path(sys.argv[1])
    folder.mkdir(mode=0o700, exist_ok=True)
    keeper = Keeper(parent)
    try:
        with contextlib.suppress(ParentGone, BrokenPipeError):
            for order in keeper.orders():
                response = {"folder": str(folder)} if "folder" in order else keeper.obey(order)
                os.write(_STDOUT, json.dumps(response).encode() + b"\n")
    finally:
        keeper.end()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
