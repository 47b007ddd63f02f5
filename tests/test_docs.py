"""The pages that people read: their links lead somewhere, and the code that they name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FILE = re.compile(
    r"`((?:common|demo|deploy|docs|pipeline|protocol|proxy|quotas|tests)/[\w./-]+\.(?:py|md|java|sh|yaml|json|svg))`"
)
_NAMED = re.compile(r"`([A-Za-z_][\w.]*)`(?: in |\s\()`([a-z]\w*/[\w/]+\.py)`")


def prose(page: Path) -> str:
    return _CODE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in _LINK.findall(prose(page)):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page):
    missing = {name for name in _FILE.findall(prose(page)) if not (ROOT / name).exists()}
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_are_in_the_files_that_they_are_said_to_be_in(page):
    for dotted, file in _NAMED.findall(prose(page)):
        text = (ROOT / file).read_text()
        for name in dotted.split("."):
            assert re.search(rf"\b(?:class|def) {name}\b|^ *{name}\b.*[=:]", text, re.MULTILINE), f"{dotted}: {file}"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 160
