"""Reads the tokens and the password of the HTTP listeners."""

from pathlib import Path
from typing import NamedTuple

from kafka_throttle.common.problems import Problem
from kafka_throttle.proxy.config.kinds import is_loopback
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.config.secret_file import secret
from kafka_throttle.proxy.config.settings import AdminConfig, Config, MetricsConfig
from kafka_throttle.proxy.observe.http_access import Access, Account, Right

MIN_TOKEN_CHARACTERS = 16
MAX_TOKEN_BYTES = 4_096


class HttpAccess(NamedTuple):
    """Who may use each of the HTTP listeners."""

    admin: Access
    metrics: Access


def http_access(config: Config, config_path: Path) -> HttpAccess:
    """Who may use the HTTP listeners by this configuration. Raises ConfigErrors for a bad file."""
    return HttpAccess(admin_access(config.admin, config_path), metrics_access(config.metrics))


def admin_access(admin: AdminConfig, config_path: Path) -> Access:
    """Who may use the admin listener. Raises ConfigErrors for a bad file."""
    read_token = token_in(admin.token_file, "admin.token_file", config_path)
    write_token = token_in(admin.write_token_file, "admin.write_token_file", config_path)
    if read_token is not None and read_token == write_token:
        raise _error("admin.write_token_file", "expected another token than that of token_file, got the same")
    tokens = ((Right.READ, read_token), (Right.WRITE, write_token))
    accounts = tuple(Account(right, token) for right, token in tokens if token is not None)
    if read_token is None:
        return Access(accounts, frozenset())
    return Access(accounts, _names({*admin.hosts, admin.bind}) if admin.hosts else None)


def metrics_access(metrics: MetricsConfig) -> Access:
    """Who may use the metrics listener. Raises ConfigErrors for a bad file."""
    password = secret(metrics.password_file, "metrics.password_file")
    if metrics.username is not None and password is not None:
        accounts: tuple[Account, ...] = (Account(Right.READ, password, metrics.username),)
    else:
        accounts = ()
    are_known = metrics.hosts or (not accounts and is_loopback(metrics.bind))
    return Access(accounts, _names({*metrics.hosts, metrics.bind}) if are_known else None)


def _names(hosts: set[str]) -> frozenset[str]:
    return frozenset(host.lower() for host in hosts)


def token_in(file: str | None, setting: str, config_path: Path) -> str | None:
    """The token in a file, which is the value of a `setting`; None if no file is configured. Raises ConfigErrors."""
    if file is None:
        return None
    path = config_path.parent / file
    try:
        with path.open("rb") as opened:
            token = opened.read(MAX_TOKEN_BYTES).decode("ascii").strip()
    except OSError as error:
        problem = f"expected a file that can be read, got {path}: {error.strerror or error}"
        raise _error(setting, problem) from error
    except UnicodeDecodeError as error:
        raise _error(setting, f"expected a token of ASCII characters in {path}, got others") from error
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isprintable() or " " in token:
        expected = f"expected a token of at least {MIN_TOKEN_CHARACTERS} characters without spaces in {path}"
        raise _error(setting, f"{expected}, got {len(token)} characters")
    return token


def _error(setting: str, problem: str) -> ConfigErrors:
    return ConfigErrors([Problem(setting, problem)])
