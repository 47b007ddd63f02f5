"""The sections that a configuration has, by the models, and where they stand in what a file holds."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import ValidationError

from proxy.config.settings import Config, Settings


def sections(path: str, model: type[Settings]) -> Iterator[tuple[str, type[Settings]]]:
    """Each section that a model has, and it itself, by its pattern such as "virtual_clusters[].quotas"."""
    yield path, model
    for name, field in model.model_fields.items():
        annotation = without_none(field.annotation)
        several = get_args(annotation) and get_args(annotation)[-1] is Ellipsis
        inner = get_args(annotation)[0] if several else annotation
        if isinstance(inner, type) and issubclass(inner, Settings):
            dot = "." if path else ""
            yield from sections(f"{path}{dot}{name}{'[]' if several else ''}", inner)


def valid_settings(
    data: Any, wanted: Callable[[type[Settings]], bool], folder: Path | str = ""
) -> Iterator[tuple[str, Settings]]:
    """Each section of a wanted model whose settings are valid one by one, with its path, whatever is wrong with others.

    `data` is what a file holds, or a Config. Paths of files count from `folder`.
    """
    for pattern, model in sections("", Config):
        if not pattern or not wanted(model):
            continue
        for path, raw in found_at(data, pattern):
            try:
                yield path, model.model_validate(raw, context={"folder": folder})
            except ValidationError:
                continue


def found_at(data: Any, pattern: str, above: str = "") -> Iterator[tuple[str, Any]]:
    """What stands at a place like "virtual_clusters[].upstream", in each element of the lists, with its path."""
    step, _, rest = pattern.partition(".")
    key = step.removesuffix("[]")
    value = data.get(key) if isinstance(data, Mapping) else getattr(data, key) if isinstance(data, Settings) else None
    path = f"{above}.{key}" if above else key
    if key == step:
        found = [(path, value)]
    else:
        found = [(f"{path}[{i}]", item) for i, item in enumerate(value if isinstance(value, list | tuple) else ())]
    for at, item in found:
        if rest:
            yield from found_at(item, rest, at)
        elif item is not None:
            yield at, item


def without_none(annotation: Any) -> Any:
    """The annotation of a section, of one that may be left out as well."""
    parts = get_args(annotation)
    return parts[0] if len(parts) == 2 and parts[1] is NoneType else annotation
