"""The pages for users, docs/*.md: their files are valid, their commands exist, and all can be read in an hour."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from kafka_throttle.proxy.cli.main import main
from tests.certificates import Authority

ROOT = Path(__file__).parents[1]
PAGES = sorted(ROOT.glob("docs/*.md"))
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MOST_WORDS = 12_000
MOST_PAGES = 15


def fenced(page: Path) -> Iterator[tuple[str, str]]:
    """The language and the content of each block of code."""
    return ((found[1], found[2]) for found in _FENCED.finditer(page.read_text()))


def files() -> list[Any]:
    found = [
        pytest.param(content, id=f"{page.stem}-{number}")
        for page in PAGES
        for number, (language, content) in enumerate(fenced(page))
        if language == "yaml" and re.search(r"^virtual_clusters:", content, re.MULTILINE)
    ]
    assert len(found) > 5
    return found


def commands() -> list[Any]:
    found = [
        pytest.param(shlex.split(line, comments=True), id=f"{page.stem}: {line[:60]}")
        for page in PAGES
        for language, content in fenced(page)
        if language != "yaml"
        for line in content.replace("\\\n", " ").splitlines()
        if line.startswith("kafka-throttle ")
    ]
    assert len(found) > 20
    return found


def settings(value: Any) -> Iterator[tuple[str, Any]]:
    """All names with their values, however deep."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield str(name), inner
            yield from settings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from settings(inner)


def make_files(folder: Path, config: Any) -> None:
    """The certificates, keys and passwords that a configuration names by paths in its own folder."""
    named = list(settings(config))
    hosts = {host for name, host in named if name == "advertised_host"}
    hosts |= {f"*.{host.partition('.')[2]}" for name, host in named if name == "advertised_node_host"}
    (folder / "authority").mkdir()
    authority = Authority(folder / "authority")
    issued = authority.issue(*sorted(hosts or {"localhost"}))
    contents = {
        "certificate_file": issued.certificate_file.read_bytes(),
        "key_file": issued.key_file.read_bytes(),
        "ca_file": authority.file.read_bytes(),
    }
    for name, path in named:
        if name.endswith("_file") and name not in ("state_file", "sensors_file"):
            assert not path.startswith("/"), f"{name}: {path} is not beside the file"
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(contents.get(name, b"a-secret-of-sixteen-bytes-or-more"))
            file.chmod(0o600)


@pytest.mark.parametrize("content", files())
def test_a_file_of_a_user_page_is_valid(content, tmp_path):
    path = tmp_path / "proxy.yaml"
    path.write_text(content)
    make_files(tmp_path, YAML(typ="safe").load(content))
    done = CliRunner().invoke(main, ["check", "-c", str(path)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("words", commands())
def test_a_command_of_a_user_page_has_the_options_that_it_is_given(words):
    command: click.Command = main
    for word in words[1:]:
        if isinstance(command, click.Group) and not word.startswith("-"):
            found = command.get_command(click.Context(command), word)
            assert found is not None, f"no command {word!r}"
            command = found
        elif word.startswith("-") and not re.fullmatch(r"-\d.*", word):
            option = word.partition("=")[0]
            known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
            assert option in known | {"--help"}, f"{command.name}: no option {option}"


def test_the_pages_for_users_are_short():
    words = {page.name: sum(map(_is_word, page.read_text().split())) for page in PAGES}
    assert sum(words.values()) <= MOST_WORDS, words
    assert len(words) <= MOST_PAGES


def _is_word(text: str) -> bool:
    return any(map(str.isalnum, text))


def test_the_first_page_leads_to_all_others():
    index = (ROOT / "docs" / "README.md").read_text()
    others = [page.name for page in PAGES if page.name != "README.md"]
    assert [name for name in others if f"]({name}" not in index] == []
