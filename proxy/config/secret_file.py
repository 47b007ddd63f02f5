"""Reads files that hold a secret and nothing else."""

from kafka_throttle.common.login_secrets import MAX_PASSWORD_BYTES, SecretUnusable, read_secret
from kafka_throttle.common.problems import Problem
from kafka_throttle.proxy.config.problems import ConfigErrors


def secret(path: str | None, setting: str, most_bytes: int = MAX_PASSWORD_BYTES) -> str | None:
    """What a file holds, without the line end behind it. ConfigErrors, naming the setting, if it cannot be read."""
    if path is None:
        return None
    try:
        return read_secret(path, most_bytes)
    except SecretUnusable as error:
        raise ConfigErrors([Problem(setting, str(error))]) from None
