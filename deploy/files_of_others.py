"""Adds what is in the wheels but was made by others to bills of materials, which so far have what the locks pin.

python deploy/files_of_others.py BILL ...
"""

import json
import re
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_STATIC = Path("kafka_throttle/proxy/observe/page/static")
_UPLOT = tuple(_STATIC / name for name in ("uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE"))


def components() -> list[dict[str, Any]]:
    """The packages of npm whose files the status page loads, as components of CycloneDX."""
    version = re.findall(r"\(v([\d.]+)\)", (ROOT / _UPLOT[0]).read_text()[:100])[0]
    name = f"pkg:npm/uplot@{version}"
    package = {"bom-ref": name, "type": "library", "name": "uplot", "version": version, "purl": name}
    return [package | {"licenses": [{"license": {"id": "MIT"}}], "components": [_file(file) for file in _UPLOT]}]


def _file(path: Path) -> dict[str, Any]:
    content = sha256((ROOT / path).read_bytes()).hexdigest()
    return {"type": "file", "name": str(path), "hashes": [{"alg": "SHA-256", "content": content}]}


def add_to(bill: Path) -> None:
    """Write the file anew, with what others made."""
    contents = json.loads(bill.read_text())
    contents["components"] += components()
    contents["dependencies"] += [{"ref": component["bom-ref"]} for component in components()]
    bill.write_text(json.dumps(contents, indent=2) + "\n")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        add_to(Path(argument))
