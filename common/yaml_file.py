"""Reads YAML files of bounded size; errors name the place of the problem. Writes small ones."""

import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from kafka_throttle.common.problems import Problem, Problems, show
from kafka_throttle.common.remote_path import AnyPath

MAX_FILE_BYTES = 4_194_304
MAX_VALUES = 100_000
"""So many take some 4 s of processor time to read."""
MAX_DEPTH = 50

_HALF_PAIR = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which YAML can write and which is no text."""
_INT64_MAX = 2**63 - 1
_INT64_END = 2.0**63
"""The double that a program writes for 2^63-1: no double is between the two."""
_VALUES = f"{MAX_VALUES} values"
_LEVELS = f"{MAX_DEPTH} levels"
_TEXT_TAG = "tag:yaml.org,2002:str"
_MERGE_TAG = "tag:yaml.org,2002:merge"


class YamlFileError(Problems):
    """A file that is not valid YAML; `place` is the file's name and, if it is known, the line: "a.yaml: line 3"."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__([Problem(place, problem)])


class YamlFileUnreadable(YamlFileError):
    """The file cannot be read, at least not now."""


class _TooMuch(MarkedYAMLError):
    """The document has too many values, or too many levels."""

    def __init__(self, limit: str, mark: Any) -> None:
        super().__init__(problem=f"expected at most {limit}, got more", problem_mark=mark)


class _Composer(Composer):
    """Gives up at the first value or level too many: what is behind it is not read."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self._values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """The next node. `index` is None for a key, and for the root."""
        if self.depth >= MAX_DEPTH:
            raise _TooMuch(_LEVELS, self.parser.peek_event().start_mark)
        self._values += index is not None
        if self._values >= MAX_VALUES:
            raise _TooMuch(_VALUES, self.parser.peek_event().start_mark)
        return super().compose_node(parent, index)


class _Constructor(SafeConstructor):
    """Says the place of a scalar that is not what it looks like or is tagged as: 2001-99-99, `!!int x`, `!!bool ""`.

    A whole number is an int, however it is written: Helm and Go write 1048576 as 1.048576e+06.
    """

    def construct_yaml_float(self, node: Any) -> Any:
        """An int if the number is whole and fits into 64 bits."""
        number: float = super().construct_yaml_float(node)
        if not number.is_integer() or abs(number) > _INT64_END:
            return number
        return _INT64_MAX if number == _INT64_END else int(number)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:
            raise ConstructorError(None, None, str(error), node.start_mark) from error
        except LookupError as error:
            kind = node.tag.rpartition(":")[2]
            raise ConstructorError(
                None, None, f"expected a value of type {kind}, got {show(node.value)}", node.start_mark
            ) from error


_Constructor.add_constructor("tag:yaml.org,2002:float", _Constructor.construct_yaml_float)


def read_yaml_file(path: Path) -> Any:
    """The content of the one document in a file. Raises YamlFileError."""
    name = str(path)
    return parse_yaml(text_of(read_bounded(path), name), name)


def yaml_of(content: Mapping[str, Any], comment: Iterable[str] = ()) -> str:
    """The content as the text of a file, below `comment` lines."""
    out = io.StringIO()
    for line in comment:
        out.write(f"# {line}\n")
    yaml = YAML()
    yaml.width = 1_000_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(content, out)
    return out.getvalue()


def yaml_scalar(text: str) -> str:
    """The text as it is, except that characters which YAML would read as a blank, such as U+0085, are escaped."""
    return text if text.isprintable() else DoubleQuotedScalarString(text)


def yaml_nodes(text: str) -> Node | None:
    """The nodes of the one document in a text, with their lines. They may have cycles. None if it is not YAML."""
    try:
        node: Node | None = _yaml().compose(text)
    except (YAMLError, ValueError):
        return None
    return node


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer, yaml.Constructor = _Composer, _Constructor
    return yaml


def read_bounded(path: AnyPath) -> bytes:
    """The bytes of a file. Raises YamlFileError if it cannot be read, or is longer than MAX_FILE_BYTES."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise YamlFileUnreadable(str(path), f"cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise YamlFileError(str(path), f"expected at most {MAX_FILE_BYTES} bytes, got more")
    return data


def text_of(data: bytes, name: str) -> str:
    """The bytes of the file `name` as text. Raises YamlFileError if they are not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"expected UTF-8, got the byte 0x{data[error.start]:02x}"
        raise YamlFileError(f"{name}: line {line}", problem) from error


def parse_yaml(text: str, name: str) -> Any:
    """The content of `text`, which is that of the file `name`; None if it is empty. Raises YamlFileError."""
    yaml = _yaml()
    try:
        node = yaml.compose(text)
        if node is None:
            return None
        _refuse_what_explodes(node, name)
        return yaml.constructor.construct_document(node)
    except YamlFileError:
        raise
    except _TooMuch as error:
        raise YamlFileError(_place(error.problem_mark, name), error.problem) from error
    except MarkedYAMLError as error:
        place, problem = _place(error.problem_mark, name), _first_line(error.problem)
        if error.problem_mark is not None and (tab := _tab_in(text, error.problem_mark)):
            place, problem = tab.place(name), "a tab; YAML wants spaces"
        raise YamlFileError(place, problem) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"the character U+{ord(text[error.position]):04X} is not allowed"
        raise YamlFileError(f"{name}: line {line}", problem) from error
    except (YAMLError, ValueError, OverflowError) as error:
        # An escape for a character that there is not, such as "\\U00110000".
        raise YamlFileError(name, _first_line(str(error))) from error


def _refuse_what_explodes(root: Node, name: str) -> None:
    """Raise for aliases that expand to too much ("billion laughs") or to themselves, and for keys that are not text."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: Node, depth: int) -> int:
        known = sizes.get(id(node))
        if known is not None:
            return known
        if id(node) in open_nodes:
            raise YamlFileError(_place(node.start_mark, name), "an alias inside the value that it refers to")
        if depth > MAX_DEPTH:
            raise _TooMuch(_LEVELS, node.start_mark)
        open_nodes.add(id(node))
        total = 1 + sum(size(child, depth + 1) for child in _children(node, name))
        open_nodes.discard(id(node))
        if total > MAX_VALUES:
            raise _TooMuch(_VALUES, node.start_mark)
        sizes[id(node)] = total
        return total

    size(root, 1)


def _children(node: Node, name: str) -> list[Node]:
    if isinstance(node, SequenceNode):
        return list(node.value)
    if not isinstance(node, MappingNode):
        return []
    for key, _ in node.value:
        if not isinstance(key, ScalarNode) or key.tag not in (_TEXT_TAG, _MERGE_TAG) or _HALF_PAIR.search(key.value):
            got = show(key.value) if isinstance(key, ScalarNode) else "a list or mapping"
            raise YamlFileError(_place(key.start_mark, name), f"expected a key that is text, got {got}")
    return [value for _, value in node.value]


def _place(mark: Any, name: str) -> str:
    return name if mark is None else f"{name}: line {mark.line + 1}, column {mark.column + 1}"


class _Tab(NamedTuple):
    line: int
    column: int

    def place(self, name: str) -> str:
        return f"{name}: line {self.line}, column {self.column}"


def _tab_in(text: str, mark: Any) -> _Tab | None:
    """The tab that YAML does not allow: at the place of an error, or in the indentation of its line or the one before.

    None if there is no such tab.
    """
    lines = text.splitlines()
    for number in (mark.line, mark.line - 1):
        line = lines[number] if 0 <= number < len(lines) else ""
        if number == mark.line and line[mark.column : mark.column + 1] == "\t":
            return _Tab(number + 1, mark.column + 1)
        indentation = line[: len(line) - len(line.lstrip(" \t-"))]
        if "\t" in indentation:
            return _Tab(number + 1, indentation.index("\t") + 1)
    return None


def _first_line(problem: str | None) -> str:
    return (problem or "not YAML").strip().splitlines()[0]
