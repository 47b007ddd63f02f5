"""Programs of tests/go, compiled by the Go that is here."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from kafka_throttle.common.jars import ToolMissing, cache_dir
from tests.support.places import ROOT

_GO = ROOT / "tests/go"
_BUILD_S = 580


def go_program(name: str, package: str = ".") -> Path:
    """The path of a program of tests/go; the first call on a machine fetches what it needs and builds it.

    `package` is another program among the dependencies of that module. ToolMissing, with the line that installs it,
    where there is no Go, or a Go that is too old.
    """
    folder = _GO / name
    source = b"".join((folder / file).read_bytes() for file in ("main.go", "go.mod", "go.sum")) + package.encode()
    called = name if package == "." else package.rpartition("/")[2]
    program = cache_dir() / f"go-{called}-{hashlib.sha256(source).hexdigest()[:16]}"
    if not program.exists():
        unfinished = program.with_suffix(f".{os.getpid()}")
        program.parent.mkdir(parents=True, exist_ok=True)
        settings = {**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
        command = [_go(), "build", "-buildvcs=false", "-mod=readonly", "-o", str(unfinished), package]
        built = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=_BUILD_S)
        if "GOTOOLCHAIN=local" in built.stderr:
            raise ToolMissing(f"{built.stderr.strip()}\nInstall a newer Go: https://go.dev/dl/")
        assert built.returncode == 0, built.stderr
        unfinished.rename(program)
    return program


def _go() -> str:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise ToolMissing("go is missing. Install it with: apt-get install -y golang-go")
    return go
