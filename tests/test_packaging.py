"""What a distribution of this repository is made of. The wheels themselves: `test_release.py`."""

import json
import re
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from deploy.compile import IN_C, all_sources
from deploy.files_of_others import add_to
from tests.support.places import ROOT

OURS = ("common", "pipeline", "protocol", "proxy", "quotas")


@pytest.mark.parametrize("package", OURS)
def test_package_roots_hold_a_docstring_and_nothing_else(package):
    for init in (ROOT / package).rglob("__init__.py"):
        assert re.fullmatch(r'"""[^"]+"""\n', init.read_text()), init


def test_there_is_one_version():
    """The chart, the changelog and the pages name that of the package."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = (ROOT / "deploy/helm/kafka-throttle/Chart.yaml").read_text()
    assert re.findall(r"^(?:version|appVersion): (\S+)$", chart, re.M) == [version, version]
    assert re.findall(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)[0] == version
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    assert {found for page in pages for found in re.findall(r"kafka_throttle-(\d[\d.]*\d)-", page.read_text())} == {
        version
    }


def test_a_wheel_has_what_runs_and_what_the_pages_load_and_nothing_to_build_or_read_it_by():
    """A compiled one has its extension modules besides."""
    files = [Path(file.distribution_path) for file in WheelBuilder(str(ROOT)).recurse_included_files()]
    assert {file.suffix for file in files} == {".py", ".pyi", ".typed", ".css", ".j2", ".js", ".svg", ".LICENSE"}
    assert {file.parts[0] for file in files} == {"kafka_throttle"}


def test_the_source_has_all_that_a_compiled_wheel_is_built_of():
    files = {Path(file.distribution_path) for file in SdistBuilder(str(ROOT)).recurse_included_files()}
    of_the_hook = {Path("deploy/compile.py"), Path("deploy/compiled_wheel.py")}
    assert files >= of_the_hook | set(all_sources()) | set(IN_C.values())


def test_the_locks_pin_every_dependency_by_hash():
    for lock in ROOT.glob("requirements*.lock"):
        pinned = re.findall(r"^([A-Za-z0-9._-]+)(\[[^\]]*\])?==\S+ \\\n    --hash=sha256:", lock.read_text(), re.M)
        assert len(pinned) > 8, lock
        assert "://" not in lock.read_text(), lock


def test_the_lock_of_the_pipeline_has_all_that_the_proxy_has():
    """SECURITY.md has one command that looks up both."""
    proxy, pipeline = (
        set(re.findall(r"^\S+==\S+", (ROOT / f"requirements{part}.lock").read_text(), re.M))
        for part in ("", "-pipeline")
    )
    assert proxy < pipeline


def test_a_bill_of_materials_has_the_javascript_of_others_with_version_licence_and_hashes(tmp_path):
    bill = tmp_path / "bill.json"
    bill.write_text(json.dumps({"components": [{"name": "aiohttp"}], "dependencies": [{"ref": "requirements-L1"}]}))
    add_to(bill)
    before, uplot = json.loads(bill.read_text())["components"]
    assert before == {"name": "aiohttp"}
    assert uplot["purl"] == "pkg:npm/uplot@1.6.32"
    assert uplot["licenses"] == [{"license": {"id": "MIT"}}]
    hashes = {part["name"]: part["hashes"][0]["content"] for part in uplot["components"]}
    assert hashes == {f"kafka_throttle/{file.relative_to(ROOT)}": digest(file) for file in files_of_others()}


def files_of_others() -> list[Path]:
    """What is minified, or has a licence beside it, was not written here."""
    found = [file for package in OURS for end in ("js", "css") for file in (ROOT / package).rglob(f"*.min.{end}")]
    return found + [file for package in OURS for file in (ROOT / package).rglob("*LICENSE*")]


def digest(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()
