"""Reads files that people write into frozen, strict models. All problems of a file are reported at once."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache
from itertools import chain
from types import NoneType
from typing import Any, ClassVar, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from kafka_throttle.common.kinds import Kind
from kafka_throttle.common.problems import WHOLE_FILE, Problem, Problems, bounded, either, show

_PERHAPS = 0.6
"""The least similarity of a suggested setting of the same section."""
_SURELY = 0.9
"""The least similarity of a suggested setting of another section."""
_AS_WELL = 0.05
"""Names whose similarity is lower than the highest by at most this are suggested too."""
_FEW_SECTIONS = 4
"""A setting that more sections have is not used to suggest a section."""


class Settings(BaseModel):
    """A mapping of the file: frozen, without unknown keys, and without conversion of types.

    A class variable in lower case is a constant of the section: what nobody has a reason to set. `check` says so.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)

    GONE: ClassVar[Mapping[str, str]] = {}
    """Names that an earlier version had here, each with what to write now."""

    @classmethod
    def constants(cls) -> dict[str, Any]:
        """The constants of this section, by name."""
        return {name: getattr(cls, name) for name in sorted(cls.__class_vars__) if name.islower()}

    def unless(self, problems: Iterable[str | Problem]) -> Self:
        """These settings, for use at the end of a validator. Raises Problems if there are any.

        Paths are relative to the section; a plain text is a problem of the whole section.
        """
        if found := [Problem("", each) if isinstance(each, str) else each for each in problems]:
            raise Problems(found)
        return self


Model = TypeVar("Model", bound=Settings)
Check = Callable[[Any], Iterable[Problem]]
"""A check across sections. It gets a model, or the plain content of the file if that is not valid."""


def read_settings(
    model: type[Model], data: Any, checks: Iterable[Check] = (), context: Mapping[str, Any] | None = None
) -> Model:
    """The model for the content of a file. Raises Problems, with those of the model and of the checks.

    If there are very many, only the first ones, and one that says so.
    """
    try:
        settings = model.model_validate(data, context=dict(context or {}))
    except ValidationError as error:
        raise Problems(bounded(chain(problems_of(error, model), _found(checks, data)))) from error
    if problems := bounded(_found(checks, settings)):
        raise Problems(problems)
    return settings


def _found(checks: Iterable[Check], data: Any) -> Iterator[Problem]:
    return (problem for check in checks for problem in check(data))


def valid(model: type[Model], data: Any, context: Mapping[str, Any] | None = None) -> Model | None:
    """The model for `data` (plain content or a model); None if it is not valid."""
    try:
        return model.model_validate(data, context=dict(context or {}))
    except ValidationError:
        return None


def repeated_names(sections: Sequence[Any], path: str) -> Iterator[Problem]:
    """Problems for sections of the list at `path` with the same `name` as an earlier section."""
    seen: dict[str, int] = {}
    for i, section in enumerate(sections):
        name = part(section, "name")
        if isinstance(name, str) and seen.setdefault(name, i) != i:
            problem = f"expected a unique name, got {show(name)}, the name of {path}[{seen[name]}]"
            yield Problem(f"{path}[{i}].name", problem)


# ------------------------------------------------------------------- sections


def sections(path: str, model: type[Settings]) -> Iterator[tuple[str, type[Settings]]]:
    """A model and all its sections, each with its pattern, such as "virtual_clusters[].quotas"."""
    yield path, model
    for name, field in model.model_fields.items():
        annotation = without_none(field.annotation)
        several = get_args(annotation) and get_args(annotation)[-1] is Ellipsis
        inner = get_args(annotation)[0] if several else annotation
        if isinstance(inner, type) and issubclass(inner, Settings):
            dot = "." if path else ""
            yield from sections(f"{path}{dot}{name}{'[]' if several else ''}", inner)


def found_at(data: Any, pattern: str, above: str = "") -> Iterator[tuple[str, Any]]:
    """The values at a pattern such as "virtual_clusters[].upstream", each with its path; one for each list element."""
    step, _, rest = pattern.partition(".")
    key = step.removesuffix("[]")
    value = part(data, key)
    path = f"{above}.{key}" if above else key
    found = [(path, value)] if key == step else [(f"{path}[{i}]", item) for i, item in enumerate(items(data, key))]
    for at, item in found:
        if rest:
            yield from found_at(item, rest, at)
        elif item is not None:
            yield at, item


def part(data: Any, key: str) -> Any:
    """A setting of a section, which is a model or plain content; None if it is missing."""
    if isinstance(data, Mapping):
        return data.get(key)
    return getattr(data, key, None) if isinstance(data, Settings) else None


def items(data: Any, key: str) -> Sequence[Any]:
    """A list in a section, which is a model or plain content; empty if it is missing."""
    value = part(data, key)
    return value if isinstance(value, list | tuple) else ()


def without_none(annotation: Any) -> Any:
    """The annotation without `| None`."""
    parts = get_args(annotation)
    return parts[0] if len(parts) == 2 and parts[1] is NoneType else annotation


# ------------------------------------------------------------------- problems


def problems_of(error: ValidationError, model: type[Settings]) -> Iterator[Problem]:
    """The problems that pydantic found in the content for a `model`, in the order of the settings."""
    return (problem for details in error.errors(include_url=False) for problem in _problems(details, model))


def _problems(details: ErrorDetails, model: type[Settings]) -> Iterator[Problem]:
    loc, kind = details["loc"], details["type"]
    rules = details.get("ctx", {}).get("error")
    if isinstance(rules, Problems):
        for path, problem, _ in rules.problems:
            yield Problem(_joined(_path(loc), path) or WHOLE_FILE, problem)
        return
    path = _path(loc) or WHOLE_FILE
    if kind == "extra_forbidden":
        yield Problem(path, _unknown_key(loc, model))
        return
    got = "nothing" if kind == "missing" else show(details["input"])
    if kind == "expected":
        expected = details["msg"]
    elif kind == "missing":
        expected = expected_of(_model_at(loc[:-1], model).model_fields[str(loc[-1])])
    elif kind == "literal_error":
        expected = str(details["ctx"]["expected"])
    elif kind == "bool_type":
        expected = "true or false"
    else:
        expected = "a mapping"
    yield Problem(path, f"expected {expected}, got {got}")


def _unknown_key(loc: tuple[int | str, ...], model: type[Settings]) -> str:
    key, section = str(loc[-1]), _model_at(loc[:-1], model)
    if key in section.GONE:
        return f"this setting is gone, {section.GONE[key]}"
    if key in (constants := section.constants()):
        return f"this setting is gone, it is always {constants[key]}: remove it"
    known = [field.alias or name for name, field in section.model_fields.items()]
    elsewhere = sections_by_setting(model)
    here, there = _alike(key, known, _PERHAPS), _alike(key, elsewhere, _SURELY)
    if max(there.values(), default=0) > max(here.values(), default=0):
        close = max(there, key=there.__getitem__)
        place = f"{close!r} of" if close != key else "it belongs in"
        return f"unknown key here, {place} {either(elsewhere[close])}"
    if here:
        return f"unknown key, did you mean {either([repr(name) for name in here])}?"
    return f"unknown key, expected {either(known)}"


def _alike(key: str, names: Iterable[str], least: float) -> dict[str, float]:
    """The names that `key` may be a misspelling of, with their similarity (1: equal), which is at least `least`."""
    ratios = {name: SequenceMatcher(None, name, key).ratio() for name in names}
    least = max(least, max(ratios.values(), default=0) - _AS_WELL)
    return {name: ratio for name, ratio in ratios.items() if ratio >= least}


@cache
def sections_by_setting(model: type[Settings]) -> dict[str, list[str]]:
    """The sections of each setting that only few sections have; given as "virtual_clusters[].quotas"."""
    found: dict[str, list[str]] = {}
    for path, section in sections("", model):
        for name in section.model_fields:
            found.setdefault(name, []).append(path or "the file itself")
    return {name: paths for name, paths in found.items() if len(paths) <= _FEW_SECTIONS}


def _path(loc: Sequence[int | str]) -> str:
    path = ""
    for step in loc:
        if step == "[key]":  # pydantic's mark for a problem of the key before
            continue
        if isinstance(step, int):
            path += f"[{step}]"
        elif re.fullmatch(r"\w{1,64}", step, re.ASCII):
            path = _joined(path, step)
        else:
            path += f"[{show(step)}]"
    return path


def _joined(path: str, step: str) -> str:
    return f"{path}.{step}" if path and step and not step.startswith("[") else f"{path}{step}"


def _model_at(loc: Sequence[int | str], model: type[Settings]) -> type[Settings]:
    """The model of the mapping at `loc` of a `model`."""
    annotation: Any = model
    for step in loc:
        annotation = get_args(annotation)[0] if isinstance(step, int) else annotation.model_fields[step].annotation
        annotation = without_none(annotation)
    found: type[Settings] = annotation
    return found


def expected_of(field: FieldInfo) -> str:
    """The valid values of a setting, in words."""
    for kind in field.metadata:
        if isinstance(kind, Kind):
            return kind.expected
    annotation: Any = without_none(field.annotation)
    if annotation is bool:
        return "true or false"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a mapping"
    if get_args(annotation) and get_args(annotation)[-1] is Ellipsis:
        return "a list"
    if get_origin(annotation) is dict:
        key, value = (get_args(part)[1] for part in get_args(annotation))
        return f"a mapping; each key {key.expected}, each value {value.expected}"
    choices = [part for part in get_args(annotation) if part is not NoneType]
    literal = get_args(choices[0]) if len(choices) == 1 and get_args(choices[0]) else choices
    return either([repr(choice) for choice in literal])
