"""Requests to the admin API of a running proxy, at the address and with the token in its configuration."""

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
    """No proxy answers at the address."""


class ProxyRefuses(Exception):
    """The response is an error, or not from kafka-throttle. The text says what it is."""


def address_of(admin: AdminConfig) -> HostPort:
    """The address at which the admin listener can be reached from its own machine."""
    ip = ip_address(admin.bind)
    loopback = "127.0.0.1" if ip.version == 4 else "::1"
    return HostPort(loopback if ip.is_unspecified else admin.bind, admin.port)


def ask(admin: AdminConfig, config_path: Path, page: str, parameters: dict[str, str]) -> dict[str, Any]:
    """The JSON content of a page. Raises NoProxy, ProxyRefuses, or ConfigErrors if the token cannot be read."""
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
