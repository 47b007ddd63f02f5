"""Loading the configuration file, with everything that is wrong with it told in one run."""

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from common.yaml_file import YamlFileError, YamlFileUnreadable, parse_yaml, read_yaml_file
from proxy.config.checks import CHECKS
from proxy.config.kinds import Kind
from proxy.config.places import with_places
from proxy.config.problems import ConfigError, ConfigErrors, ConfigUnreadable, either, show
from proxy.config.sections import sections, valid_settings, without_none
from proxy.config.settings import Config, Settings

_PERHAPS = 0.6
"""So much alike is a setting of the same section that is meant."""
_SURELY = 0.9
"""And one of another section."""
_AS_WELL = 0.05
"""Who is no less alike than by this may be meant as well as the one that is the most."""
_FEW_SECTIONS = 4
"""A setting that more sections have is no word for any of them."""


def load_config(path: Path) -> Config:
    """The configuration in the file. ConfigErrors with every problem; ConfigUnreadable if it cannot be read."""
    try:
        data = read_yaml_file(path)
    except YamlFileUnreadable as error:
        raise ConfigUnreadable([ConfigError(error.place, error.problem)]) from error
    except YamlFileError as error:
        raise ConfigErrors([ConfigError(error.place, error.problem)]) from error
    return with_places(path, lambda: config_of(data, path.absolute().parent))


def parse_config(text: str) -> Config:
    """The configuration in a YAML text. ConfigErrors with every problem."""
    try:
        data = parse_yaml(text, "(file)")
    except YamlFileError as error:
        raise ConfigErrors([ConfigError(error.place, error.problem)]) from error
    return config_of(data)


def config_of(data: Any, folder: Path | None = None) -> Config:
    """The configuration that lists, dicts and scalars describe. ConfigErrors with every problem.

    Paths of files count from `folder`.
    """
    config = None
    problems: list[ConfigError] = []
    try:
        config = Config.model_validate(data, context={"folder": folder or ""})
    except ValidationError as error:
        problems = [_problem(details) for details in error.errors(include_url=False)]
    problems += [problem for check in CHECKS for problem in check(data)]
    if config is None or problems:
        raise ConfigErrors(problems)
    return config


def valid_sections(data: Any, folder: Path, kinds: tuple[type[Settings], ...]) -> Iterator[tuple[str, Settings]]:
    """Each section of these kinds that is right by itself, with its path, whatever is wrong with others.

    `data` is what a file holds, or a Config. Paths of files count from `folder`.
    """
    for path, section in valid_settings(data, lambda model: issubclass(model, kinds), folder):
        if not section.problems():
            yield path, section


def _problem(details: ErrorDetails) -> ConfigError:
    loc, kind = details["loc"], details["type"]
    if kind == "extra_forbidden":
        return ConfigError(_path(loc), _unknown_key(loc))
    got = "nothing" if kind == "missing" else show(details["input"])
    if kind == "expected":
        expected = details["msg"]
    elif kind == "missing":
        expected = expected_at(loc)
    elif kind == "literal_error":
        expected = str(details["ctx"]["expected"])
    elif kind == "bool_type":
        expected = "true or false"
    else:
        expected = "a mapping"
    return ConfigError(_path(loc), f"expected {expected}, got {got}")


def _unknown_key(loc: tuple[int | str, ...]) -> str:
    key = str(loc[-1])
    known = list(_model_at(loc[:-1]).model_fields)
    elsewhere = sections_by_setting()
    here, there = _alike(key, known, _PERHAPS), _alike(key, elsewhere, _SURELY)
    if max(there.values(), default=0) > max(here.values(), default=0):
        close = max(there, key=there.__getitem__)
        place = f"{close!r} of" if close != key else "it stands in"
        return f"unknown key here, {place} {either(elsewhere[close])}"
    if here:
        return f"unknown key, did you mean {either([repr(name) for name in here])}?"
    return f"unknown key, expected {either(known)}"


def _alike(key: str, names: Iterable[str], least: float) -> dict[str, float]:
    """Those of the names that `key` may be meant for, and how much alike they are, at least so much: 1 is the same."""
    ratios = {name: SequenceMatcher(None, name, key).ratio() for name in names}
    least = max(least, max(ratios.values(), default=0) - _AS_WELL)
    return {name: ratio for name, ratio in ratios.items() if ratio >= least}


@cache
def sections_by_setting() -> dict[str, list[str]]:
    """Where settings stand that only few sections have, by name; each section as "virtual_clusters[].quotas"."""
    found: dict[str, list[str]] = {}
    for path, model in sections("", Config):
        for name in model.model_fields:
            found.setdefault(name, []).append(path or "the file itself")
    return {name: paths for name, paths in found.items() if len(paths) <= _FEW_SECTIONS}


def _path(loc: Sequence[int | str]) -> str:
    path = ""
    for step in loc:
        if step == "[key]":  # pydantic's word for what is wrong with the key before
            continue
        if isinstance(step, int):
            path += f"[{step}]"
        elif re.fullmatch(r"\w{1,64}", step, re.ASCII):
            path += f".{step}" if path else step
        else:
            path += f"[{show(step)}]"
    return path or "(file)"


def _model_at(loc: Sequence[int | str]) -> type[Settings]:
    """The model of the mapping at `loc`."""
    annotation: Any = Config
    for step in loc:
        annotation = get_args(annotation)[0] if isinstance(step, int) else annotation.model_fields[step].annotation
        annotation = without_none(annotation)
    model: type[Settings] = annotation
    return model


def expected_at(loc: Sequence[int | str]) -> str:
    """What the setting at `loc` takes, in words."""
    field = _model_at(loc[:-1]).model_fields[str(loc[-1])]
    return expected_of(field)


def expected_of(field: FieldInfo) -> str:
    """What a setting takes, in words."""
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
