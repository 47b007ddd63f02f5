"""The proxy, with Python's bytecodes counted between two signals: see bytecodes.py.

    python tests/bench/counting_proxy.py FILE run -c proxy.yaml

From SIGUSR1 to SIGRTMIN it counts; then FILE has, as JSON, of each function its file, line and name, how often it was
called, and how many bytecodes that took.
"""

import json
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


class Bytecodes:
    """What this thread's functions take that are called from `begin` to `end`."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self.codes: Counter[CodeType] = Counter()

    def begin(self) -> None:
        """Count what is called from now on."""
        sys.settrace(self._trace)

    def end(self) -> None:
        """Count no longer."""
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "call":
            self.calls[frame.f_code] += 1
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        elif event == "opcode":
            self.codes[frame.f_code] += 1
        return self._trace

    def rows(self) -> list[tuple[str, int, str, int, int]]:
        """File, line, name, calls and bytecodes of each function."""
        return [
            (code.co_filename, code.co_firstlineno, code.co_qualname, calls, self.codes[code])
            for code, calls in self.calls.items()
        ]


def main() -> None:
    file, *arguments = sys.argv[1:]
    counted = Bytecodes()

    def end(*_: object) -> None:
        counted.end()
        aside = Path(f"{file}.part")
        aside.write_text(json.dumps(counted.rows()))
        aside.rename(file)

    signal.signal(signal.SIGUSR1, lambda *_: counted.begin())
    signal.signal(signal.SIGRTMIN, end)
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    sys.argv = ["proxy", *arguments]
    runpy.run_module("proxy", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
