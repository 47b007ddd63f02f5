"""`kafka-throttle usage ingest` that stands still at a step, to be killed there.

python -m tests.pipeline.stopped_ingest STEP FILE usage ingest --from ...    FILE is made when it stands
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafka_throttle.pipeline.ingest.ingest import _Batch
from kafka_throttle.proxy.cli.main import main

TABLES = ("usage", "trace", "quarantine", "numbers")
STEPS = tuple(f"{when}-{table}" for table in TABLES for when in ("before", "after"))
"""Before and after the commit to each of the Delta tables of a batch."""


def stand_at(step: str, sign: Path) -> None:
    commit = _Batch.commit

    def stand() -> None:
        sign.touch()
        threading.Event().wait()

    def stopping(self: _Batch, name: str, do: Callable[[], Any]) -> Any:
        if step == f"before-{name}":
            stand()
        result = commit(self, name, do)
        if step == f"after-{name}":
            stand()
        return result

    _Batch.commit = stopping  # type: ignore[method-assign]


if __name__ == "__main__":
    stand_at(sys.argv[1], Path(sys.argv[2]))
    main(sys.argv[3:])
