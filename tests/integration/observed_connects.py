"""Runs a client under strace and finds to which ports it has opened connections."""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from kafka_throttle.common.jars import need_program
from tests.support.places import ROOT

_PORT = re.compile(r"sa_family=AF_INET6?, sin6?_port=htons\((\d+)\)")


@dataclass(frozen=True)
class Observed:
    """What a client has printed, and how often it has connected to which port."""

    output: str
    connects: Counter[int]


def observe(command: Sequence[str], *, stdin: str = "", timeout_s: float = 300) -> Observed:
    """Run a command to its end under strace. AssertionError with its output if it fails.

    ToolMissing, with the line that installs it, where there is no strace.
    """
    strace = need_program("strace", "strace")
    with tempfile.TemporaryDirectory(prefix="kafka-throttle-connects-") as folder:
        trace = Path(folder) / "trace"
        tracing = [strace, "-f", "-qq", "-e", "trace=connect", "-e", "signal=none", "--seccomp-bpf", "-o", str(trace)]
        done = subprocess.run(
            [*tracing, *command],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=ROOT,
            check=False,
        )
        shown = f"{' '.join(command[-12:])}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        assert done.returncode == 0, shown
        return Observed(done.stdout, Counter(int(port) for port in _PORT.findall(trace.read_text())))


def assert_only(connects: Counter[int], allowed: Collection[int]) -> None:
    """At least one connection was seen, and none to any port but those of the proxy."""
    assert connects.total() > 0, "strace has seen no connection at all"
    strangers = {port: count for port, count in connects.items() if port not in allowed}
    assert not strangers, f"connections around the proxy, by port: {strangers}; the proxy has {sorted(allowed)}"
