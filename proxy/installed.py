"""What is installed here: the version, and which build of the deciding code runs, the compiled or the pure one.

`deploy/compile.py` makes extension modules of some modules. In a wheel they are beside the Python files, and Python
imports them instead. Where the proxy runs from its sources they are in another directory, which KAFKA_THROTTLE_COMPILED
names. With KAFKA_THROTTLE_PURE=1 only Python files are imported.
"""

import hashlib
import os
import sys
from collections.abc import Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NoReturn

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("protocol", "quotas", "proxy")
_SUFFIX = EXTENSION_SUFFIXES[0]

PURE = "KAFKA_THROTTLE_PURE"
_FOR_TRACE = "trace"
"""The value of PURE that a process has set for itself."""

LIST_OF_HASHES = "sources.sha256"
"""A file in each directory of compiled modules; see `compiled_modules`."""


def installed_version() -> str:
    """The version of this package, "unknown" where it runs from its sources."""
    try:
        return version("kafka-throttle")
    except PackageNotFoundError:
        return "unknown"


def build_in_use() -> str:
    """Which build runs: `compiled` or `pure`. Valid once `take_build` was called."""
    spec = find_spec("kafka_throttle.quotas.sensors.windowed_rate")
    return "compiled" if spec is not None and str(spec.origin).endswith(_SUFFIX) else "pure"


def take_build() -> None:
    """Import the modules of the build that the environment asks for. Call it before any of them is imported."""
    files: dict[str, Path] = {}
    if os.environ.get(PURE) in ("1", _FOR_TRACE):
        compiled = [file for package in _PACKAGES for file in (_ROOT / "kafka_throttle" / package).rglob(f"*{_SUFFIX}")]
        files = {_module(file, _ROOT): file.with_name(file.name.removesuffix(_SUFFIX) + ".py") for file in compiled}
    elif named := os.environ.get("KAFKA_THROTTLE_COMPILED"):
        try:
            files = compiled_modules(Path(named))
        except ValueError as error:
            print(f"{named} has no compiled modules of these sources: {error}; pure Python runs", file=sys.stderr)
    if files:
        sys.meta_path.insert(0, _InFiles(files))


def run_again_pure() -> NoReturn:
    """Begin this process anew, with the same arguments and the pure build."""
    os.environ[PURE] = _FOR_TRACE
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def command_of_successor() -> list[str]:
    """The command line of this process. A script is run as it is now: it may name another interpreter than before."""
    script = Path(sys.orig_argv[1]) if len(sys.orig_argv) > 1 else None
    if script is not None and script.is_file() and os.access(script, os.X_OK):
        return sys.orig_argv[1:]
    return [sys.executable, *sys.orig_argv[1:]]


def environment_of_successor() -> dict[str, str]:
    """The environment of this process without what `run_again_pure` has set: the next one may trace nothing."""
    return {name: value for name, value in os.environ.items() if (name, value) != (PURE, _FOR_TRACE)}


def _module(file: Path, root: Path) -> str:
    return ".".join(file.relative_to(root).parts).removesuffix(_SUFFIX)


def compiled_modules(directory: Path) -> dict[str, Path]:
    """The compiled modules in a directory, by name, each with its file.

    Its list has the hashes of all sources that they were made of, relative to the project, and of the modules
    themselves, relative to the directory. Raises ValueError if any of them is another, is missing, or there is none.
    """
    try:
        lines = [line.split("  ", 1) for line in (directory / LIST_OF_HASHES).read_text().splitlines()]
        listed = {path: expected for expected, path in lines}
        compiled = {path: directory / path for path in listed if path.endswith(_SUFFIX)}
        others = [path for path, expected in listed.items() if _hash(compiled.get(path, _ROOT / path)) != expected]
    except OSError as error:
        raise ValueError(str(error)) from error
    if others or not compiled:
        raise ValueError(", ".join(others) or f"{LIST_OF_HASHES} names no module for this Python")
    return {_module(file, directory): file for file in compiled.values()}


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class _InFiles(MetaPathFinder):
    """Finds some modules, each in the given file."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """See MetaPathFinder."""
        file = self._files.get(fullname)
        if file is not None and not file.exists():
            raise ModuleNotFoundError(f"{fullname} is not in this build", name=fullname)
        return None if file is None else spec_from_file_location(fullname, file)
