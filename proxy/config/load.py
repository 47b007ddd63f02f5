"""Loading the configuration file, with everything that is wrong with it told in one run."""

from pathlib import Path
from typing import Any

from kafka_throttle.common.places import with_places
from kafka_throttle.common.problems import Problems
from kafka_throttle.common.settings import read_settings
from kafka_throttle.common.yaml_file import YamlFileError, YamlFileUnreadable, read_yaml_file
from kafka_throttle.proxy.config.checks import CHECKS
from kafka_throttle.proxy.config.problems import ConfigErrors, ConfigUnreadable
from kafka_throttle.proxy.config.settings import Config


def load_config(path: Path) -> Config:
    """The configuration in the file. ConfigErrors with every problem; ConfigUnreadable if it cannot be read."""
    return config_in(path, content_of(path))


def content_of(path: Path) -> Any:
    """The lists, dicts and scalars in a file. ConfigErrors if it is not YAML; ConfigUnreadable."""
    try:
        return read_yaml_file(path)
    except YamlFileUnreadable as error:
        raise ConfigUnreadable(error.problems) from error
    except YamlFileError as error:
        raise ConfigErrors(error.problems) from error


def config_in(path: Path, data: Any) -> Config:
    """The configuration in the file at `path`, whose content is `data`. ConfigErrors with every problem."""
    return with_places(path, lambda: config_of(data, path.absolute().parent))


def config_of(data: Any, folder: Path | None = None) -> Config:
    """The configuration that lists, dicts and scalars describe. ConfigErrors with every problem.

    Paths of files count from `folder`.
    """
    try:
        return read_settings(Config, data, CHECKS, {"folder": folder or ""})
    except Problems as errors:
        raise ConfigErrors(errors.problems) from errors
