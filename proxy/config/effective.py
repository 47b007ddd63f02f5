"""The configuration that is in force as a file: what was given, and the default of everything else."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from kafka_throttle.common.yaml_file import yaml_of, yaml_scalar
from kafka_throttle.protocol.identity.sasl_names import Claim
from kafka_throttle.proxy.config.kinds import show_range
from kafka_throttle.proxy.config.settings import Config


def effective_file(config: Config) -> str:
    """As YAML that gives the same configuration. What is off because it is not given is left out."""
    return yaml_of(_plain(config))


def _plain(value: Any) -> Any:
    """As what a file has: mappings, lists, texts and numbers."""
    match value:
        case BaseModel():
            named = ((name, _plain(getattr(value, name))) for name in type(value).model_fields)
            return {name: plain for name, plain in named if plain is not None}
        case Claim():
            return {"claim": value.name, "prefix": value.prefix}
        case range():
            return show_range(value) if len(value) > 1 else value.start
        case str():
            return yaml_scalar(value)
        case bool() | int() | float() | None:
            return value
        case Mapping():
            return {_plain(key): _plain(each) for key, each in value.items()}
        case tuple() if not hasattr(value, "_fields"):
            return [_plain(each) for each in value]
        case _:
            return str(value)
