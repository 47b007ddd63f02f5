"""Reads files that hold a secret and nothing else."""

from pathlib import Path

from common.problems import Problem
from proxy.config.problems import ConfigErrors

_MAX_SECRET_BYTES = 4096


def secret(path: str | None, setting: str) -> str | None:
    """What a file holds, without the line end behind it. ConfigErrors, naming the setting, if it cannot be read."""
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_SECRET_BYTES + 1)
        text = data.decode().rstrip("\r\n")
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror or error}"
    except UnicodeDecodeError:
        problem = f"{path}: expected UTF-8"
    else:
        if text and len(data) <= _MAX_SECRET_BYTES:
            return text
        problem = f"{path}: expected a secret of 1 to {_MAX_SECRET_BYTES} bytes, got {len(data)}"
    raise ConfigErrors([Problem(setting, problem)])
