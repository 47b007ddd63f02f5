"""What is wrong with a configuration: each problem with its place in the file."""

from collections.abc import Mapping, Sequence
from typing import Any


class ConfigError(Exception):
    """One problem: where in the YAML file, and what was expected and found there."""

    def __init__(self, path: str, problem: str, line: int | None = None) -> None:
        super().__init__(f"{path}: {problem}" + ("" if line is None else f" (line {line})"))
        self.path = path
        self.problem = problem
        self.line = line


class ConfigErrors(Exception):
    """All problems that one run has found; its text has one line for each."""

    def __init__(self, problems: Sequence[ConfigError]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class ConfigUnreadable(ConfigErrors):
    """The file is not to be had, now at least."""


def show(value: Any) -> str:
    """What was found in the file, in one short line."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple | set):
        return "a list" if value else "an empty list"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    text = repr(value) if isinstance(value, str | int | float | bytes) else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def either(names: Sequence[str]) -> str:
    """The names as "a, b or c"."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
