"""Builds and starts `rig`, the node and the client of the measurements: see rig.c."""

import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from demo.proxy_process import free_port_run
from tests.bench.candidates import Candidate
from tests.bench.processes import Cores, need_tool, running

START_TIMEOUT_S = 60


def rig_program() -> Path:
    """The path of the compiled rig.c, built into the cache directory when the source is new."""
    source = Path(__file__).with_name("rig.c")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafka-throttle"
    cache = Path(os.environ.get("KAFKA_THROTTLE_CACHE") or cache)
    program = cache / f"rig-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(f".{os.getpid()}")
        compiler = need_tool("cc", "gcc libc6-dev")
        subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-o", unfinished, source], check=True)
        unfinished.rename(program)
    return program


@contextlib.contextmanager
def backend(rig: Path, cpu: int | str, directory: Path) -> Iterator[tuple[int, int]]:
    """A `rig backend` that serves: its port and process id."""
    (port,) = free_port_run(1)
    command = [str(rig), "backend", "--port", str(port)]
    with running(command, cpu, directory / "backend.log", stdout=subprocess.PIPE) as process:
        assert process.stdout
        if json.loads(process.stdout.readline() or "null") != {"port": port}:
            raise RuntimeError("the backend does not start: " + (directory / "backend.log").read_text())
        yield port, process.pid


@contextlib.contextmanager
def serving(
    rig: Path, candidate: Candidate, cores: Cores | str, node: int, directory: Path
) -> Iterator[tuple[str, int | None]]:
    """A candidate at its core, or at a list of cores, that answers.

    Yields where clients connect (host:port), and its process id (direct: None).
    """
    if candidate.command is None:
        yield f"127.0.0.1:{node}", None
        return
    directory = Path(tempfile.mkdtemp(dir=directory))
    # Room for the node's port behind the bootstrap port.
    port = free_port_run(4)[0]
    command = candidate.command(port, node, directory)
    log = directory / "stderr"
    cpu = cores if isinstance(cores, str) else cores.proxy
    with running(command, cpu, log, stdout=subprocess.DEVNULL) as process:
        target = f"127.0.0.1:{port}"
        probe = [str(rig), "load", "--target", target, "--seconds", "0.1"]
        deadline = time.monotonic() + START_TIMEOUT_S
        while (result := subprocess.run(probe, capture_output=True, text=True)).returncode:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{candidate.name} does not serve: {result.stderr}{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield target, process.pid
