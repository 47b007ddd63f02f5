"""What is installed here: the version, and which make of the deciding code runs, the compiled or the pure one.

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

_ROOT = Path(__file__).parents[1]
_PACKAGES = ("protocol", "quotas", "proxy")
_SUFFIX = EXTENSION_SUFFIXES[0]


def installed_version() -> str:
    """The version of this package, "unknown" where it runs from its sources."""
    try:
        return version("kafka-throttle")
    except PackageNotFoundError:
        return "unknown"


def make_in_use() -> str:
    """Which make runs: `compiled` or `pure`. Valid once `take_make` was called."""
    spec = find_spec("quotas.sensors.windowed_rate")
    return "compiled" if spec is not None and str(spec.origin).endswith(_SUFFIX) else "pure"


def take_make() -> None:
    """Import the modules of the make that the environment asks for. Call it before any of them is imported."""
    files: dict[str, Path] = {}
    if os.environ.get("KAFKA_THROTTLE_PURE") == "1":
        compiled = [file for package in _PACKAGES for file in (_ROOT / package).rglob(f"*{_SUFFIX}")]
        files = {_module(file, _ROOT): file.with_name(file.name.removesuffix(_SUFFIX) + ".py") for file in compiled}
    elif named := os.environ.get("KAFKA_THROTTLE_COMPILED"):
        directory = Path(named)
        if changed := _changed_sources(directory):
            print(f"{directory} was not made of these sources: {changed}; pure Python runs", file=sys.stderr)
        else:
            files = {_module(file, directory): file for file in directory.rglob(f"*{_SUFFIX}")}
    if files:
        sys.meta_path.insert(0, _InFiles(files))


def run_again_pure() -> NoReturn:
    """Begin this process anew, with the same arguments and the pure make."""
    os.environ["KAFKA_THROTTLE_PURE"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _module(file: Path, root: Path) -> str:
    return ".".join(file.relative_to(root).parts).removesuffix(_SUFFIX)


def _changed_sources(directory: Path) -> str:
    """Why these compiled modules are not those of the sources here; empty if they are."""
    try:
        lines = (directory / "sources.sha256").read_text().splitlines()
        hashes = [(path, expected) for expected, path in map(str.split, lines)]
        changed = [path for path, expected in hashes if _hash(_ROOT / path) != expected]
    except OSError as error:
        return str(error)
    return ", ".join(changed)


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class _InFiles(MetaPathFinder):
    """Finds some modules, each in the given file."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """See MetaPathFinder."""
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)
