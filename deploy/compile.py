"""Compiles the deciding code ahead of time, with mypyc, from the very files that also run without a compiler.

    python deploy/compile.py DIRECTORY
    python deploy/compile.py --cache CACHE       prints the directory in CACHE, which is made once for these sources

The directory gets one extension module for each of MODULES, one that holds their code, and a list of hashes: of these
files, and of all sources that they were made of (`proxy.installed.compiled_modules`). It appears whole or not at all.
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

from proxy.installed import LIST_OF_HASHES, compiled_modules  # noqa: E402

MODULES = (
    "protocol.fields",
    "protocol.frames",
    "protocol.messages.addresses",
    "protocol.messages.api_versions",
    "protocol.messages.client_quotas",
    "protocol.messages.fetch",
    "protocol.messages.metadata",
    "protocol.messages.produce",
    "protocol.messages.topic_mutations",
    "protocol.messages.topic_partitions",
    "protocol.numbers_by_key",
    "protocol.primitives",
    "protocol.splices",
    "protocol.walk",
    "proxy.net.poller",
    "proxy.net.stream",
    "proxy.net.swept_poller",
    "proxy.net.tls_stream",
    "proxy.relay.accounting",
    "proxy.relay.actions",
    "proxy.relay.charging",
    "proxy.relay.flow",
    "proxy.relay.in_flight",
    "proxy.relay.memory",
    "proxy.relay.plans",
    "proxy.relay.quick_responses",
    "proxy.relay.recognise",
    "proxy.relay.relay",
    "proxy.relay.relay_counters",
    "proxy.relay.repeated_requests",
    "proxy.relay.request",
    "proxy.relay.request_direction",
    "proxy.relay.response_direction",
    "proxy.relay.sasl_state",
    "proxy.relay.service_times",
    "proxy.relay.settlement",
    "proxy.relay.throttle_state",
    "proxy.relay.turn",
    "proxy.relay.use",
    "proxy.server.acceptor",
    "proxy.server.connection",
    "quotas.client_quotas",
    "quotas.fetch_rooms",
    "quotas.request_costs",
    "quotas.sensors.address_rates",
    "quotas.sensors.rows",
    "quotas.sensors.token_buckets",
    "quotas.sensors.windowed_rate",
)
"""What runs for each request. A module that compiles is added by a line here."""

IN_C = {"proxy.net._sweep": Path("proxy/net/_sweep.c")}
"""Modules that are written in C. Where they are missing, what imports them does the same in Python."""

PACKAGES = ("common", "protocol", "proxy", "quotas")
_KEPT = 5
"""How many directories stay in the cache, for these and other sources, Pythons and mypys."""
_KEPT_S = 3_600.0
"""A directory that was asked for within this time stays, too: a process may still load from it."""
_MYPY = ("--config-file=", "--ignore-missing-imports", "--follow-imports=silent")
"""The libraries are not installed where a wheel is built. `make lint` checks what is not compiled."""
_CODE = "kafka_throttle"
"""The module that holds the code of all is called so, followed by `__mypyc`."""


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
    ours = [_file(name) for name in names if name.partition(".")[0] in PACKAGES]
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
        extensions += [setuptools.Extension(name, [str(file)]) for name, file in IN_C.items()]
        command = build_ext(setuptools.Distribution({"ext_modules": extensions}))
        command.build_lib, command.build_temp = str(made), str(work)
        command.ensure_finalized()
        command.run()


_IMPORTS = f"""
import importlib, sys
from proxy.installed import build_in_use, take_build

take_build()
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] in {PACKAGES}:
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
