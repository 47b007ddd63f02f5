"""The pages for users, docs/*.md: their files are valid, each command is run or named as not run, and all can be read
in an hour.
"""

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from kafka_throttle.proxy.cli.main import main
from kafka_throttle.proxy.config.settings import AdminConfig
from kafka_throttle.proxy.observe.http_access import Right
from kafka_throttle.proxy.observe.http_secrets import admin_access
from tests.support.certificates import Authority
from tests.support.user_pages import (
    PAGES,
    ROOT,
    TABLE,
    all_commands,
    begins_as_a_command,
    blocks,
    commands_of,
    entries,
    fits,
    run_by,
    section,
)

LANGUAGES = {"sh", "yaml", "python", ""}
MOST_WORDS = 12_000
MOST_PAGES = 15


def files() -> list[Any]:
    found = [
        pytest.param(content, id=f"{page.stem}-{number}")
        for page in PAGES
        for number, (language, content) in enumerate(blocks(page))
        if language == "yaml" and re.search(r"^virtual_clusters:", content, re.MULTILINE)
    ]
    assert len(found) > 5
    return found


def own_commands() -> list[Any]:
    texts = dict.fromkeys(text for _, text in all_commands() if text.startswith("kafka-throttle "))
    assert len(texts) > 20
    return [pytest.param(shlex.split(text), id=text) for text in texts]


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


@pytest.mark.parametrize("words", own_commands())
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


def test_each_command_has_one_entry_that_says_what_runs_it():
    texts = {command.text for command in all_commands()}
    patterns = [pattern for entry in entries() for pattern in entry.patterns]
    problems = []
    for page, text in all_commands():
        match [pattern for pattern in patterns if fits(pattern, text)]:
            case []:
                problems.append(f"docs/{page}.md: add an entry for: {text}")
            case [_, _, *_] as found:
                problems.append(f"docs/{page}.md: {text}: keep one of the lines {found}")
    problems += [
        f"no page has this command, so remove it: {pattern}"
        for pattern in patterns
        if not any(fits(pattern, text) for text in texts)
    ]
    assert not problems, f"{TABLE.name}: " + "\n".join(dict.fromkeys(problems))


def test_each_entry_names_tests_that_exist_or_says_why_there_are_none():
    problems = []
    for entry in entries():
        if bool(entry.tests) == bool(entry.not_run):
            problems.append(f"{entry.patterns[0]}: expected either `tests` or `not_run`")
        problems += [f"{entry.patterns[0]}: no such test: {test}" for test in entry.tests if not exists(test)]
    assert not problems, f"{TABLE.name}: " + "\n".join(problems)


def exists(test: str) -> bool:
    """Whether a function at the top of the file has this name; it is not run."""
    file, _, name = test.partition("::")
    path = ROOT / file
    if not name.startswith("test_") or not path.is_file():
        return False
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(part, functions) and part.name == name for part in ast.parse(path.read_text()).body)


def test_a_line_of_the_table_stands_for_other_values_but_not_for_other_options():
    assert fits("kafka-throttle top -c * --once", "kafka-throttle top -c other.yaml --once")
    for other in ("kafka-throttle top -c a.yaml --once --json", "kafka-throttle top -c --json --once"):
        assert not fits("kafka-throttle top -c * --once", other)


SAMPLE = """
Run `make all` or `kafka-throttle top`, `top --once`, see `journalctl
-u x`.

```sh
# prepare
python3 -m venv v && . v/bin/activate  # once
  kafka-throttle quotas set \\
    --user a
```

- so:

  ```sh
  curl http://x/#y
  ```

```yaml
token: t    # openssl rand 9; kept
other: 1    # no command
```

```
kafka-throttle output
```
"""


def test_commands_are_found_and_output_and_names_of_commands_are_not(tmp_path):
    (tmp_path / "page.md").write_text(SAMPLE)
    assert commands_of(tmp_path / "page.md") == [
        "make all",
        "journalctl -u x",
        "python3 -m venv v && . v/bin/activate",
        "kafka-throttle quotas set --user a",
        "curl http://x/#y",
        "openssl rand 9; kept",
    ]


def test_commands_are_in_blocks_that_say_so():
    for page in PAGES:
        for language, content in blocks(page):
            assert language in LANGUAGES, f"{page.name}: {language}"
            if language == "":
                assert not any(map(begins_as_a_command, map(str.strip, content.splitlines()))), (
                    f"{page.name}: begin a block of commands with ```sh:\n{content}"
                )


def test_the_page_about_tests_says_how_many_commands_are_run():
    page = (ROOT / "docs" / "proofs" / "testing.md").read_text()
    assert section() in page, f"docs/proofs/testing.md: have it say\n\n{section()}"


def test_a_token_is_made_as_a_page_says(tmp_path):
    [(_, command)] = run_by("tests/test_user_pages.py::test_a_token_is_made_as_a_page_says")
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    [account] = admin_access(AdminConfig(token_file="read.token"), tmp_path / "proxy.yaml").accounts
    assert (account.right, len(account.secret)) == (Right.READ, 64)


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
