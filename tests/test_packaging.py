"""What a distribution of this repository is made of. The wheels themselves: `test_release.py`."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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


def test_the_locks_pin_every_dependency_by_hash():
    for lock in ROOT.glob("requirements*.lock"):
        pinned = re.findall(r"^([A-Za-z0-9._-]+)(\[[^\]]*\])?==\S+ \\\n    --hash=sha256:", lock.read_text(), re.M)
        assert len(pinned) > 8, lock
        assert "://" not in lock.read_text(), lock
