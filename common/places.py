"""Finds the line of a problem in a YAML file: that of the setting, or of the section where it is missing."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kafka_throttle.common.problems import WHOLE_FILE, Problem, Problems, show
from kafka_throttle.common.remote_path import AnyPath
from kafka_throttle.common.yaml_file import YamlFileError, parse_yaml, read_bounded, text_of, yaml_nodes

Result = TypeVar("Result")
_Keys = dict[int, dict[str, tuple[int, Node]]]
"""By the id of a mapping's node, its keys, as they are and as they are shown, each with its line and its value."""

_STEP = re.compile(r"\.?(\w+)|\[(\d+)\]|\[(['\"].*)\]$", re.ASCII)
"""A key, a number in a list, or a key that is shown in quotes: nothing follows that."""


def placed(problems: Sequence[Problem], file: Path) -> list[Problem]:
    """The problems with their lines, as far as they are found, those of the whole file with its name.

    Reads the file again.
    """
    try:
        text = text_of(read_bounded(file), str(file)) if problems else ""
    except YamlFileError:
        text = ""
    found = placed_in(problems, text)
    return [each._replace(path=str(file)) if each.path == WHOLE_FILE else each for each in found]


def placed_in(problems: Sequence[Problem], text: str) -> list[Problem]:
    """The problems with their lines in the text of a file, if it is YAML."""
    root, known = yaml_nodes(text), _Keys()
    return [each._replace(line=each.line or _line_of(each.path, root, known)) for each in problems]


def with_places(file: Path, step: Callable[[], Result]) -> Result:
    """Calls `step` and returns its result. If it raises Problems, their lines in the file are added."""
    try:
        return step()
    except Problems as errors:
        raise type(errors)(placed(errors.problems, file)) from errors


def made_of(file: AnyPath, make: Callable[[Any], Result], content: bytes | None = None) -> Result:
    """The result of `make` for the YAML document in a file. Raises Problems with their lines and the file's name.

    `content` is the content of the file, if it was already read.
    """
    text = text_of(read_bounded(file) if content is None else content, str(file))
    data = parse_yaml(text, str(file))
    try:
        return make(data)
    except Problems as errors:
        raise Problems(placed_in(errors.problems, text)).named(file) from errors


def _line_of(path: str, node: Node | None, known: _Keys) -> int | None:
    """The line of the node at `path`, or of its nearest existing parent; None if there is neither."""
    line = None
    for step in _steps(path):
        found = _child(node, step, known)
        if found is None:
            return line
        line, node = found
    return line


def _steps(path: str) -> Iterator[str | int]:
    at = 0
    while step := _STEP.match(path, at):
        yield int(step[2]) if step[2] else step[1] or step[3]
        at = step.end()


def _child(node: Node | None, step: str | int, known: _Keys) -> tuple[int, Node] | None:
    """A child of a node, with its line; None if there is no such child."""
    if isinstance(node, MappingNode) and isinstance(step, str):
        if id(node) not in known:
            known[id(node)] = {
                name: (key.start_mark.line + 1, value)
                for key, value in reversed(node.value)
                if isinstance(key, ScalarNode)
                for name in (show(key.value), key.value)
            }
        return known[id(node)].get(step)
    if isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
        item = node.value[step]
        return item.start_mark.line + 1, item
    return None
