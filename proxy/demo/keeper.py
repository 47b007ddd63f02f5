"""Keeps the processes of a cluster, and ends them with it.

`python -m proxy.demo.keeper FOLDER` starts and signals processes as JSON lines on stdin tell it. When stdin ends, for
whatever reason (also because the one at its other end was killed), it kills them all and deletes the folder.

    {"start": NAME, "argv": [...], "log": PATH}  ->  {"pid": PID}
    {"signal": NAME, "number": N, "wait": true}  ->  {"status": EXIT STATUS or null}
    {"poll": NAME}                               ->  {"status": EXIT STATUS or null}
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Keeper:
    """The processes by name."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry one order out; return what is answered."""
        if "start" in order:
            with Path(order["log"]).open("ab") as log:
                process = subprocess.Popen(
                    order["argv"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=_die_with_parent,
                )
            self._processes[order["start"]] = process
            return {"pid": process.pid}
        process = self._processes[order.get("signal") or order["poll"]]
        if "signal" in order and process.poll() is None:
            os.kill(process.pid, order["number"])
            if order.get("wait"):
                process.wait()
        return {"status": process.poll()}

    def end(self) -> None:
        """Kill what still runs."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
        for process in self._processes.values():
            process.wait()


def main() -> None:
    """Obey until stdin ends, then clean up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    folder = sys.argv[1]
    keeper = Keeper()
    try:
        for line in sys.stdin:
            print(json.dumps(keeper.obey(json.loads(line))), flush=True)
    finally:
        keeper.end()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
