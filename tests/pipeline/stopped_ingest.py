"""`kafka-throttle usage ingest` that stands still at a step, to be killed there.

python -m tests.pipeline.stopped_ingest STEP FILE usage ingest --from ...    FILE is made when it stands
"""

import sys
import threading
from pathlib import Path

from pipeline.table.files import LocalFiles
from proxy.cli.main import main

STEPS = ("written", "moved", "committed")
"""All is written aside; it is where it is to stay; the log names it, and Spark does not know."""


def stand_at(step: str, sign: Path) -> None:
    move, put_new = LocalFiles.move, LocalFiles.put_new

    def stand() -> None:
        sign.touch()
        threading.Event().wait()

    def moved(self: LocalFiles, path: str, to: str) -> None:
        if step == "written" and to.startswith("usage/"):
            stand()
        move(self, path, to)

    def put(self: LocalFiles, path: str, data: bytes) -> None:
        if step == "moved":
            stand()
        put_new(self, path, data)
        if step == "committed":
            stand()

    LocalFiles.move, LocalFiles.put_new = moved, put  # type: ignore[method-assign]


if __name__ == "__main__":
    stand_at(sys.argv[1], Path(sys.argv[2]))
    main(sys.argv[3:])
