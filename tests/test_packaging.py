"""What is shipped: the wheel, in an environment of its own, started in an empty directory."""

import re
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"common", "pipeline", "proxy", "protocol", "quotas"}


def test_no_other_distribution_claims_our_names():
    claimed = {name: owners for name, owners in packages_distributions().items() if name in OURS}
    assert all(set(owners) == {"kafka-throttle"} for owners in claimed.values()), claimed


@pytest.mark.parametrize("package", sorted(OURS))
def test_package_roots_hold_a_docstring_and_nothing_else(package):
    for init in (ROOT / package).rglob("__init__.py"):
        assert re.fullmatch(r'"""[^"]+"""\n', init.read_text()), init


def test_the_locks_pin_every_dependency_by_hash():
    for lock in ROOT.glob("requirements*.lock"):
        pinned = re.findall(r"^([A-Za-z0-9._-]+)(\[[^\]]*\])?==\S+ \\\n    --hash=sha256:", lock.read_text(), re.M)
        assert len(pinned) > 8, lock
        assert "://" not in lock.read_text(), lock
