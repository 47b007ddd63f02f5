"""The sections of a configuration that are right by themselves, whatever is wrong with others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kafka_throttle.common.settings import Settings, found_at, sections, valid
from kafka_throttle.proxy.config.settings import Config


def valid_sections(data: Any, folder: Path, kinds: tuple[type[Settings], ...]) -> Iterator[tuple[str, Settings]]:
    """Each section of these kinds that is right by itself, with its path, whatever is wrong with others.

    `data` is what a file holds, or a Config. Paths of files count from `folder`.
    """
    for pattern, model in sections("", Config):
        for path, raw in found_at(data, pattern) if pattern and issubclass(model, kinds) else ():
            if section := valid(model, raw, {"folder": folder}):
                yield path, section
