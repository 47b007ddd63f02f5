"""The commands on the pages for users, docs/*.md, and what runs them: commands_of_user_pages.yaml.

A command is each line of a block `sh`, and what begins with one of PROGRAMS in the text or in a comment of a block
`yaml`. `kafka-throttle` with words alone is the name of a command, in the text. Output is in blocks without a language.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ruamel.yaml import YAML

from tests.support.places import ROOT

PAGES = sorted(ROOT.glob("docs/*.md"))
TABLE = ROOT / "tests/commands_of_user_pages.yaml"
PROGRAMS = (
    *("buildah", "curl", "deploy/nightly.sh", "docker", "helm", "journalctl", "kafka-configs", "kafka-throttle"),
    *("kill", "kubectl", "make", "openssl", "pip", "podman", "python", "python3", "systemctl", "systemd-analyze"),
)
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`]+)`")
_COMMENT = re.compile(r"(?:^|\s)#\s(.*)$", re.MULTILINE)
_BEGINS = re.compile(rf"(?:{'|'.join(map(re.escape, PROGRAMS))})\s+\S")


class Command(NamedTuple):
    """A command, in one line and without a comment, and the name of its page."""

    page: str
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """Patterns of commands, and the tests that run these, or why no test does."""

    patterns: tuple[str, ...]
    tests: tuple[str, ...]
    not_run: str | None


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """The language and the content of each block of code."""
    return ((found[1], found[2]) for found in _BLOCK.finditer(page.read_text()))


def begins_as_a_command(line: str) -> bool:
    """Whether it is a program with something behind it."""
    return _BEGINS.match(line) is not None


def commands_of(page: Path) -> list[str]:
    """The commands of a page from its top on; the same one may be there again."""
    text = page.read_text()
    found = []
    for block in _BLOCK.finditer(text):
        if block[1] == "sh":
            found += [(block.start(), line) for line in _lines(block[2])]
        elif block[1] == "yaml":
            found += [(block.start(), comment) for comment in _COMMENT.findall(block[2]) if _BEGINS.match(comment)]
    prose = _BLOCK.sub(lambda block: " " * len(block[0]), text)
    for code in _CODE.finditer(prose):
        words = " ".join(code[1].split())
        if _BEGINS.match(words) and not re.fullmatch(r"kafka-throttle[a-z ]+", words):
            found.append((code.start(), words))
    return [command for _, command in sorted(found, key=lambda each: each[0])]


def _lines(content: str) -> Iterator[str]:
    for line in content.replace("\\\n", " ").splitlines():
        if command := " ".join(re.sub(r"(^|\s)#\s.*", "", line).split()):
            yield command


def all_commands() -> list[Command]:
    """Those of all pages."""
    return [Command(page.stem, text) for page in PAGES for text in commands_of(page)]


def entries() -> list[Entry]:
    """The table."""
    return [
        Entry(tuple(entry.pop("commands")), tuple(entry.pop("tests", ())), entry.pop("not_run", None), **entry)
        for entry in YAML(typ="safe").load(TABLE)
    ]


def fits(pattern: str, command: str) -> bool:
    """Whether a command is as a pattern says: `*` is one word that is no option, or a part of a word."""
    words = (r"[^\s-]\S*" if word == "*" else re.escape(word).replace(r"\*", r"\S*") for word in pattern.split())
    return re.fullmatch(" ".join(words), command) is not None


def run_by(test: str) -> list[Command]:
    """The commands that the table says are run by a test, page by page; one may be there several times."""
    patterns = [pattern for entry in entries() if test in entry.tests for pattern in entry.patterns]
    return [command for command in all_commands() if any(fits(pattern, command.text) for pattern in patterns)]


def section() -> str:
    """What docs/proofs/testing.md says about it."""
    different = list(dict.fromkeys(command.text for command in all_commands()))
    not_run = [
        (command, entry.not_run)
        for entry in entries()
        if entry.not_run
        for command in different
        if any(fits(pattern, command) for pattern in entry.patterns)
    ]
    rows = ["| `{}` | {} |".format(command.replace("|", r"\|"), reason) for command, reason in not_run]
    return "\n".join(
        [
            f"Tests run {len(different) - len(not_run)} of the {len(different)} different commands on the pages for "
            "users (`docs/*.md`).",
            "[commands_of_user_pages.yaml](../../tests/commands_of_user_pages.yaml) says which test runs which. No "
            "test runs these:",
            "",
            "| command | because |",
            "|---|---|",
            *rows,
        ]
    )
