"""A hook of hatchling: where a C compiler is, the wheel has the compiled modules beside the Python files."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledWheel(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles when a wheel is built. With KAFKA_THROTTLE_PURE=1, and where there is no C compiler or no headers, the
    wheel has the Python files alone.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See BuildHookInterface. RuntimeError if a module does not compile."""
        made = Path(self.directory, "compiled")
        shutil.rmtree(made, ignore_errors=True)
        if version == "editable" or os.environ.get("KAFKA_THROTTLE_PURE") == "1":
            return
        if not shutil.which("cc") or not Path(sysconfig.get_path("include"), "Python.h").exists():
            self.app.display_info("no C compiler, or no headers of this Python, are here: the wheel is pure Python")
        elif subprocess.run([sys.executable, Path(self.root, "deploy/compile.py"), made], check=False).returncode:
            raise RuntimeError("could not compile, see above")
        else:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"] |= {str(file): str(file.relative_to(made)) for file in made.rglob("*.so")}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """See BuildHookInterface."""
        shutil.rmtree(Path(self.directory, "compiled"), ignore_errors=True)
