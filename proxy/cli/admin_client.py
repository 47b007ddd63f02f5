"""Asking the admin API of a running proxy, at the address and with the token that its configuration says."""

import json
from http.client import HTTPConnection, HTTPException
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from proxy.config.kinds import HostPort
from proxy.config.settings import AdminConfig
from proxy.observe.token_file import read_token

_TIMEOUT_S = 10
_MAX_RESPONSE_BYTES = 64 * 1024 * 1024


class NoProxy(Exception):
    """Nobody answers there."""


class ProxyRefuses(Exception):
    """Somebody answers, but not with what was asked for. The text says what."""


def address_of(admin: AdminConfig) -> HostPort:
    """Where to reach the listener from its own machine."""
    ip = ip_address(admin.bind)
    loopback = "127.0.0.1" if ip.version == 4 else "::1"
    return HostPort(loopback if ip.is_unspecified else admin.bind, admin.port)


def ask(admin: AdminConfig, config_path: Path, page: str, parameters: dict[str, str]) -> dict[str, Any]:
    """The response of a page. Raises NoProxy, ProxyRefuses, or ConfigErrors where the token is not to be had."""
    address, token = address_of(admin), read_token(admin, config_path)
    connection = HTTPConnection(address.host, address.port, timeout=_TIMEOUT_S)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        connection.request("GET", f"/api/v1/{page}?{urlencode(parameters, errors='surrogateescape')}", headers=headers)
        response = connection.getresponse()
        status, body = response.status, response.read(_MAX_RESPONSE_BYTES)
    except HTTPException as error:
        raise ProxyRefuses(f"{address} answers, but not in HTTP: {type(error).__name__}") from error
    except OSError as error:
        raise NoProxy(f"{address}: {error.strerror or error}") from error
    finally:
        connection.close()
    return _understood(address, status, body)


def _understood(address: HostPort, status: int, body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ProxyRefuses(f"{address} answers, but not as kafka-throttle does: status {status}")
    if status != 200:
        raise ProxyRefuses(f"{address}: status {status}: {content.get('error')}")
    return content
