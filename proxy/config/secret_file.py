"""Reads files that hold a secret and nothing else."""

from common.login_secrets import SecretUnusable, read_secret
from common.problems import Problem
from proxy.config.problems import ConfigErrors


def secret(path: str | None, setting: str) -> str | None:
    """What a file holds, without the line end behind it. ConfigErrors, naming the setting, if it cannot be read."""
    if path is None:
        return None
    try:
        return read_secret(path)
    except SecretUnusable as error:
        raise ConfigErrors([Problem(setting, str(error))]) from None
