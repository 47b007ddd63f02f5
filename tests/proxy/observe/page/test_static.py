"""The files that the page loads: those of others are what their package has, and all are in the wheel."""

import re
from hashlib import sha256

import pytest

from kafka_throttle.proxy.observe.page.rendering import static_files
from tests.support.places import ROOT

PLACE = ROOT / "proxy/observe/page/static"
OF_OTHERS = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""uplot 1.6.32 of the npm registry."""


@pytest.mark.parametrize("name", OF_OTHERS)
def test_files_of_others_are_unchanged(name):
    assert sha256((PLACE / name).read_bytes()).hexdigest() == OF_OTHERS[name]


def test_the_version_and_the_licence_stand_beside_them():
    assert "1.6.32" in (PLACE / "README.md").read_text()
    assert "v1.6.32" in (PLACE / "uPlot.iife.min.js").read_text()[:100]


def test_what_is_served_is_what_the_page_loads():
    files = static_files()
    assert set(files) == {"icon.svg", "page.css", "page.js", "uPlot.iife.min.js", "uPlot.min.css"}
    assert all(re.fullmatch(rf"/static/{re.escape(name)}\?v=[0-9a-f]{{12}}", file.path) for name, file in files.items())


def test_own_files_name_no_other_host():
    for name in ("page.css", "page.js"):
        assert "//" not in re.sub(r"(?m)^\s*// .*$|; // .*$", "", (PLACE / name).read_text()), name
