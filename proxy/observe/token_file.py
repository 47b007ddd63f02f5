"""Reads the token of the admin listener."""

from pathlib import Path

from common.problems import Problem
from proxy.config.problems import ConfigErrors
from proxy.config.settings import AdminConfig

MIN_TOKEN_CHARACTERS = 16
MAX_TOKEN_BYTES = 4_096


def read_token(config: AdminConfig, config_path: Path) -> str | None:
    """The token in `admin.token_file`, None if no file is configured. Raises ConfigErrors for a bad file."""
    if config.token_file is None:
        return None
    path = config_path.parent / config.token_file
    try:
        with path.open("rb") as file:
            token = file.read(MAX_TOKEN_BYTES).decode("ascii").strip()
    except OSError as error:
        raise _error(f"expected a file that can be read, got {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise _error(f"expected a token of ASCII characters in {path}, got others") from error
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isprintable() or " " in token:
        expected = f"expected a token of at least {MIN_TOKEN_CHARACTERS} characters without spaces in {path}"
        raise _error(f"{expected}, got {len(token)} characters")
    return token


def _error(problem: str) -> ConfigErrors:
    return ConfigErrors([Problem("admin.token_file", problem)])
