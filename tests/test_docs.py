"""The pages that people read: their links lead somewhere, and the code that they name is there."""

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kafka_throttle.proxy.cli.man_page import man_page
from kafka_throttle.proxy.observe.log_events import LOG_EVENTS
from kafka_throttle.proxy.observe.signals_page import UnclearCall, logged_events, signals_page
from tests.support.places import ROOT

DRAWINGS: dict[str, str] = runpy.run_path(str(ROOT / "docs/drawings/draw.py"))["drawings"]()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SVG = "{http://www.w3.org/2000/svg}"
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FILE = re.compile(
    r"`((?:common|demo|deploy|docs|pipeline|protocol|proxy|quotas|tests)/[\w./-]+\.(?:py|md|java|sh|yaml|json|svg))`"
)
_NAMED = re.compile(r"`([A-Za-z_][\w.]*)`(?: in |\s\()`([a-z]\w*/[\w/]+\.py)`")
_WITHOUT_NAMESPACE = re.compile(r"(?<![\w./-])(common|pipeline|protocol|proxy|quotas)\.(\w+)\.\w+")


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_are_named_as_they_are_imported(page):
    assert not [names for names in _WITHOUT_NAMESPACE.findall(prose(page)) if ROOT.joinpath(*names).is_dir()]


def test_the_page_of_metrics_and_log_events_is_up_to_date():
    page = (ROOT / "docs" / "reference" / "signals.md").read_text(encoding="utf-8")
    assert page == signals_page(), (
        "run: python -m kafka_throttle.proxy.observe.signals_page > docs/reference/signals.md"
    )


def test_each_log_event_has_a_meaning_and_is_logged():
    logged = logged_events().keys()
    meant = [event for meanings in LOG_EVENTS.values() for event in meanings]
    assert len(meant) == len(set(meant))
    missing, gone = logged - set(meant), set(meant) - logged
    assert not missing, f"give these a meaning in proxy/observe/log_events.py: {', '.join(sorted(missing))}"
    assert not gone, f"nothing logs these; delete them in proxy/observe/log_events.py: {', '.join(sorted(gone))}"


def test_the_manual_page_is_up_to_date():
    page = (ROOT / "docs" / "reference" / "kafka-throttle.1").read_text(encoding="utf-8")
    assert page == man_page(), "run: python -m kafka_throttle.proxy.cli.man_page > docs/reference/kafka-throttle.1"


SOURCE = """
class Part:
    def note(self, reason, episode, error):
        number = {"waited" if reason else "refused": 1}
        whose, other = whose_of(reason), 5
        self._log.info("one_began", **whose, key=1, **number, **episode.counts)
        incoming.log.log(self.level_of(reason), "two" if reason else "three", **({"a": 1} if reason else {}) | {"b": 2})
        log.exception("failed", exc_info=error)
        self.catalog.info("not an event")

    def level_of(self, reason):
        return logging.DEBUG if reason else logging.INFO


def whose_of(name) -> dict[str, str]:
    return {"virtual_cluster": name, **{"listener": name}} if name else {}
"""


def test_events_keys_and_levels_are_found_in_the_source(tmp_path):
    (tmp_path / "proxy").mkdir()
    file = tmp_path / "proxy" / "part.py"
    file.write_text(SOURCE)
    found = {name: (sorted(event.levels), list(event.keys)) for name, event in logged_events(tmp_path).items()}
    assert found == {
        "one_began": (["info"], ["virtual_cluster", "listener", "key", "waited", "refused", "..."]),
        "two": (["debug", "info"], ["a", "b"]),
        "three": (["debug", "info"], ["a", "b"]),
        "failed": (["error"], ["exception"]),
    }
    file.write_text("def note(self, event):\n    self._log.info(event)\n")
    with pytest.raises(UnclearCall, match=r"proxy/part.py, line 2: expected constants as the event and its level"):
        logged_events(tmp_path)


def test_the_drawings_are_up_to_date():
    files = {file.name: file.read_text(encoding="utf-8") for file in (ROOT / "docs/drawings").glob("*.svg")}
    assert files == DRAWINGS, "run: python docs/drawings/draw.py"


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_has_a_title_and_a_description_and_a_page_shows_it(name):
    title, desc, *_ = ElementTree.fromstring(DRAWINGS[name])
    assert (title.tag, desc.tag) == (f"{SVG}title", f"{SVG}desc")
    assert title.text
    assert desc.text
    shown = [re.search(rf"!\[([^\]]+)\]\([\w/]*drawings/{name}\)", prose(page)) for page in PAGES]
    assert any(shown)


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_text_of_a_drawing_can_be_read_and_is_not_cut_off(name):
    root = ElementTree.fromstring(DRAWINGS[name])
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    size = float(root.attrib["font-size"])
    assert size * min(1, 800 / width) >= 13
    for text in root.iter(f"{SVG}text"):
        assert text.text
        length = len(text.text) * size * (0.66 if "font-weight" in text.attrib else 0.6)
        left = float(text.attrib["x"]) - length * {"start": 0, "middle": 0.5, "end": 1}[text.attrib["text-anchor"]]
        assert left >= 0, text.text
        assert left + length <= width, text.text
        assert size <= float(text.attrib["y"]) <= height - size / 4, text.text


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 160
