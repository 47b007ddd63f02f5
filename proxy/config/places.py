"""On which line of the file a problem is: that of the setting, or of the section that it should stand in."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from common.yaml_file import YamlFileError, read_yaml_nodes
from proxy.config.problems import ConfigError, ConfigErrors

Result = TypeVar("Result")

_STEP = re.compile(r"\.?(\w+)|\[(\d+)\]", re.ASCII)


def placed(problems: Sequence[ConfigError], file: Path) -> list[ConfigError]:
    """The problems with their lines, as far as the file tells them now. Reads it again."""
    try:
        root = read_yaml_nodes(file) if problems else None
    except YamlFileError:
        root = None
    return [ConfigError(each.path, each.problem, each.line or _line_of(each.path, root)) for each in problems]


def with_places(file: Path, step: Callable[[], Result]) -> Result:
    """What `step` returns. ConfigErrors that it raises are told with their lines in the file."""
    try:
        return step()
    except ConfigErrors as errors:
        raise type(errors)(placed(errors.problems, file)) from errors


def _line_of(path: str, node: Node | None) -> int | None:
    """The line of what `path` leads to, or of the last thing on the way; None if it leads to nothing."""
    line = None
    for step in _steps(path):
        found = _child(node, step)
        if found is None:
            return line
        line, node = found
    return line


def _steps(path: str) -> Iterator[str | int]:
    at = 0
    while step := _STEP.match(path, at):
        yield step[1] if step[2] is None else int(step[2])
        at = step.end()


def _child(node: Node | None, step: str | int) -> tuple[int, Node] | None:
    """A part of a node, and its line."""
    if isinstance(node, MappingNode) and isinstance(step, str):
        for key, value in node.value:
            if isinstance(key, ScalarNode) and key.value == step:
                return key.start_mark.line + 1, value
    if isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
        item = node.value[step]
        return item.start_mark.line + 1, item
    return None
