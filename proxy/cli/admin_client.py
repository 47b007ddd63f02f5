"""Requests to the admin API of a running proxy, at the address and with the token in its configuration."""

import json
import ssl
from collections.abc import Callable
from functools import wraps
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import click

from kafka_throttle.common.plain_words import why_tls_failed
from kafka_throttle.common.problems import Problem
from kafka_throttle.common.tls_trust import trust
from kafka_throttle.proxy.cli.config_file import refuse
from kafka_throttle.proxy.config.kinds import HostPort, host_port
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.config.settings import AdminConfig, ServerTlsConfig
from kafka_throttle.proxy.observe.http_secrets import token_in
from kafka_throttle.proxy.server.tls_material import certificates_in

_TIMEOUT_S = 10
_MAX_RESPONSE_BYTES = 64 * 1024 * 1024


class NoProxy(Exception):
    """No proxy answers at the address."""


class ProxyRefuses(Exception):
    """The response is an error, or not from kafka-throttle. The text says what it is."""


class AdminEndpoint(NamedTuple):
    """How a command reaches the admin listener, where its options say another way than the configuration.

    `ca_file` has the authorities that the listener's certificate must go back to; then it must also be for the host of
    the address. Without it, the certificate must be the one in `admin.tls.certificate_file`.
    """

    address: HostPort | None = None
    ca_file: Path | None = None

    def address_of(self, admin: AdminConfig) -> HostPort:
        """The address at which the admin listener is asked; by default it is that of its own machine."""
        if self.address is not None:
            return self.address
        ip = ip_address(admin.bind)
        loopback = "127.0.0.1" if ip.version == 4 else "::1"
        return HostPort(loopback if ip.is_unspecified else admin.bind, admin.port)


AS_CONFIGURED = AdminEndpoint()


def admin_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options `--admin` and `--ca-file` of a command, which gets them as `way`."""

    @click.option(
        "--admin",
        "address",
        metavar="HOST:PORT",
        help="Where to ask the proxy. By default at admin.bind and admin.port of the file.",
    )
    @click.option(
        "--ca-file",
        "ca_file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="PEM certificates that the certificate of the admin listener must go back to; it must be for HOST. By "
        "default it must be the one in admin.tls of the file.",
    )
    @wraps(command)
    def with_way(*args: Any, address: str | None, ca_file: Path | None, **options: Any) -> None:
        try:
            way = AdminEndpoint(None if address is None else host_port(address), ca_file)
        except ValueError:
            refuse(f"--admin: expected HOST:PORT, got {address!r}")
        command(*args, way=way, **options)

    return with_way


def ask(
    admin: AdminConfig, config_path: Path, page: str, parameters: dict[str, str], way: AdminEndpoint = AS_CONFIGURED
) -> dict[str, Any]:
    """The JSON content of a page. Raises NoProxy, ProxyRefuses, or ConfigErrors if a file cannot be read."""
    address, token = way.address_of(admin), token_in(admin.token_file, "admin.token_file", config_path)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    connection = _connection(address, admin.tls, way.ca_file)
    try:
        connection.connect()
        if admin.tls is not None and way.ca_file is None:
            _check_certificate(connection, address, admin.tls)
        connection.request("GET", f"/api/v1/{page}?{urlencode(parameters, errors='surrogateescape')}", headers=headers)
        response = connection.getresponse()
        status, body = response.status, response.read(_MAX_RESPONSE_BYTES)
    except HTTPException as error:
        raise ProxyRefuses(f"{address} answers, but not in HTTP: {type(error).__name__}") from error
    except ssl.SSLError as error:
        raise ProxyRefuses(f"{address}: TLS: {why_tls_failed(error)}") from error
    except OSError as error:
        raise NoProxy(f"{address}: {error.strerror or error}") from error
    finally:
        connection.close()
    return _understood(address, status, body)


def _connection(address: HostPort, tls: ServerTlsConfig | None, ca_file: Path | None) -> HTTPConnection:
    if tls is None and ca_file is None:
        return HTTPConnection(address.host, address.port, timeout=_TIMEOUT_S)
    return HTTPSConnection(address.host, address.port, timeout=_TIMEOUT_S, context=tls_context(ca_file))


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """What the admin listener is asked with. Without `ca_file` any certificate will do: `_check_certificate` looks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_file is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        trust(context, str(ca_file))
    except OSError as error:
        words = why_tls_failed(error) if isinstance(error, ssl.SSLError) else error.strerror
        raise ProxyRefuses(f"--ca-file: {ca_file} cannot be used: {words}") from error
    return context


def _check_certificate(connection: HTTPConnection, address: HostPort, tls: ServerTlsConfig) -> None:
    """Refuse a server that does not show the certificate in the configuration, before it gets the token."""
    try:
        own = next(certificates_in(Path(tls.certificate_file).read_bytes()), None)
    except OSError as error:
        problem = f"{tls.certificate_file} cannot be read: {error.strerror or error}; with --ca-file it need not be"
        raise ConfigErrors([Problem("admin.tls.certificate_file", problem)]) from error
    assert isinstance(connection.sock, ssl.SSLSocket)
    if connection.sock.getpeercert(binary_form=True) != own:
        expected = f"expected the certificate in {tls.certificate_file}, or another one with --ca-file"
        raise ProxyRefuses(f"{address}: TLS: {expected}, got another one")


def _understood(address: HostPort, status: int, body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ProxyRefuses(f"{address} answers, but not as kafka-throttle does: status {status}")
    if status != 200:
        raise ProxyRefuses(f"{address}: {content.get('error') or f'status {status}'}")
    return content
