"""Compiles the deciding code ahead of time, with mypyc, from the very files that also run without a compiler.

    python deploy/compile.py DIRECTORY
    python deploy/compile.py --cache CACHE       prints the directory in CACHE, which is made once for these sources

The directory gets one extension module for each of MODULES, one that holds their code, and a list of hashes: of these
files, and of all sources that they were made of (see proxy/installed.py). It appears whole or not at all.
Needs mypy, setuptools, a C compiler and the headers of this Python.
"""

import ast
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kafka_throttle.proxy.installed import LIST_OF_HASHES, compiled_modules  # noqa: E402

MODULES = (
    "kafka_throttle.protocol.fields",
    "kafka_throttle.protocol.frames",
    "kafka_throttle.protocol.messages.addresses",
    "kafka_throttle.protocol.messages.api_versions",
    "kafka_throttle.protocol.messages.client_quotas",
    "kafka_throttle.protocol.messages.fetch",
    "kafka_throttle.protocol.messages.metadata",
    "kafka_throttle.protocol.messages.produce",
    "kafka_throttle.protocol.messages.topic_mutations",
    "kafka_throttle.protocol.messages.topic_partitions",
    "kafka_throttle.protocol.numbers_by_key",
    "kafka_throttle.protocol.primitives",
    "kafka_throttle.protocol.splices",
    "kafka_throttle.protocol.walk",
    "kafka_throttle.proxy.net.poller",
    "kafka_throttle.proxy.net.stream",
    "kafka_throttle.proxy.net.swept_poller",
    "kafka_throttle.proxy.net.tls_stream",
    "kafka_throttle.proxy.relay.accounting",
    "kafka_throttle.proxy.relay.actions",
    "kafka_throttle.proxy.relay.charging",
    "kafka_throttle.proxy.relay.flow",
    "kafka_throttle.proxy.relay.in_flight",
    "kafka_throttle.proxy.relay.memory",
    "kafka_throttle.proxy.relay.plans",
    "kafka_throttle.proxy.relay.quick_responses",
    "kafka_throttle.proxy.relay.recognise",
    "kafka_throttle.proxy.relay.relay",
    "kafka_throttle.proxy.relay.relay_counters",
    "kafka_throttle.proxy.relay.repeated_requests",
    "kafka_throttle.proxy.relay.request",
    "kafka_throttle.proxy.relay.request_direction",
    "kafka_throttle.proxy.relay.response_direction",
    "kafka_throttle.proxy.relay.sasl_state",
    "kafka_throttle.proxy.relay.service_times",
    "kafka_throttle.proxy.relay.settlement",
    "kafka_throttle.proxy.relay.throttle_state",
    "kafka_throttle.proxy.relay.turn",
    "kafka_throttle.proxy.relay.use",
    "kafka_throttle.proxy.server.acceptor",
    "kafka_throttle.proxy.server.connection",
    "kafka_throttle.quotas.client_quotas",
    "kafka_throttle.quotas.fetch_rooms",
    "kafka_throttle.quotas.request_costs",
    "kafka_throttle.quotas.sensors.address_rates",
    "kafka_throttle.quotas.sensors.rows",
    "kafka_throttle.quotas.sensors.token_buckets",
    "kafka_throttle.quotas.sensors.windowed_rate",
)
"""What runs for each request. A module that compiles is added by a line here."""

IN_C = {"kafka_throttle.proxy.net._sweep": Path("kafka_throttle/proxy/net/_sweep.c")}
"""Modules that are written in C. Where they are missing, what imports them does the same in Python."""

_PACKAGE = "kafka_throttle"
_KEPT = 5
"""How many directories stay in the cache, for these and other sources, Pythons and mypys."""
_KEPT_S = 3_600.0
"""A directory that was asked for within this time stays, too: a process may still load from it."""
_MYPY = ("--config-file=", "--ignore-missing-imports", "--no-site-packages", "--follow-imports=silent")
"""As if no library were installed: what is made must not depend on it. `make lint` checks what is not compiled."""
_CODE = f"{_PACKAGE}.compiled"
"""The module that holds the code of all has this name, followed by `__mypyc`."""


def sources() -> list[Path]:
    """The files of MODULES, relative to ROOT."""
    return [_file(module) for module in MODULES]


def all_sources() -> dict[Path, bytes]:
    """The files of MODULES and of what they import of ours, directly or not, with what they contain.

    Constants and types come from what is imported.
    """
    found, waiting = dict[Path, bytes](), sources()
    while waiting:
        file = waiting.pop()
        if file not in found:
            found[file] = (ROOT / file).read_bytes()
            waiting += _imported(found[file])
    return dict(sorted(found.items()))


def _imported(source: bytes) -> list[Path]:
    """The files of ours that a source imports."""
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}", *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
    ours = [_file(name) for name in names if name.partition(".")[0] == _PACKAGE]
    return [file for file in ours if (ROOT / file).is_file()]


def _file(module: str) -> Path:
    return Path(*module.split(".")).with_suffix(".py")


def compile_into(directory: Path) -> None:
    """Make the directory. Ends the process with a message if that fails."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{directory.name}-", dir=directory.parent) as name:
        made = Path(name, "made")
        contents = all_sources()
        _build([*map(str, sources())], made, Path(name, "c"))
        contents |= {file.relative_to(made): file.read_bytes() for file in made.rglob("*.so")}
        hashes = [f"{hashlib.sha256(content).hexdigest()}  {file}\n" for file, content in contents.items()]
        (made / LIST_OF_HASHES).write_text("".join(hashes))
        _try_out(made)
        made.rename(directory)


def compiled_in(cache: Path) -> Path:
    """The directory in `cache` for these sources, this Python and this mypy; made if it is not there, or is broken."""
    key = hashlib.sha256(f"{version('mypy')} {sys.version}".encode())
    for content in (*all_sources().values(), Path(__file__).read_bytes()):
        key.update(content)
    directory = cache / f"compiled-{key.hexdigest()[:16]}"
    with _alone(cache):
        try:
            compiled_modules(directory)
        except ValueError:
            shutil.rmtree(directory, ignore_errors=True)
            print(f"compiling {len(MODULES)} modules into {directory}, which takes minutes", file=sys.stderr)
            compile_into(directory)
        os.utime(directory)
        _prune(cache)
    return directory


def _prune(cache: Path) -> None:
    """Delete the directories in `cache` that were not used for long, except the last ones."""
    used_s = {directory: directory.stat().st_mtime for directory in cache.glob("compiled-*/")}
    for directory in sorted(used_s, key=used_s.__getitem__)[:-_KEPT]:
        if used_s[directory] < time.time() - _KEPT_S:
            shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _alone(cache: Path) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "compiled.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(files: list[str], made: Path, work: Path) -> None:
    import setuptools  # before mypyc, which otherwise takes distutils
    from mypyc.build import mypycify
    from setuptools.command.build_ext import build_ext

    os.chdir(ROOT)
    with contextlib.redirect_stdout(sys.stderr):
        extensions = mypycify([*_MYPY, *files], group_name=_CODE, target_dir=str(work), debug_level="0")
        extensions += [
            setuptools.Extension(name, [str(file)], extra_compile_args=["-g0"]) for name, file in IN_C.items()
        ]
        command = build_ext(setuptools.Distribution({"ext_modules": extensions}))
        command.build_lib, command.build_temp = str(made), str(work)
        command.ensure_finalized()
        command.run()


_IMPORTS = f"""
import importlib, sys
from kafka_throttle.proxy.installed import build_in_use, take_build

take_build()
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("", "{_PACKAGE}"):
            raise
print(build_in_use())
"""


def _try_out(made: Path) -> None:
    """Import every module in a fresh interpreter, as far as the libraries that they need are here: what does not load
    there must not be used.
    """
    environment = os.environ | {"KAFKA_THROTTLE_COMPILED": str(made), "KAFKA_THROTTLE_PURE": ""}
    command = [sys.executable, "-c", _IMPORTS, *MODULES, *IN_C]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.stdout.strip() != "compiled":
        raise SystemExit(f"the compiled modules do not load: {done.stdout}{done.stderr}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--cache", cache]:
            print(compiled_in(Path(cache).absolute()))
        case [directory]:
            compile_into(Path(directory).absolute())
        case _:
            raise SystemExit(__doc__)
