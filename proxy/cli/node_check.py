"""A connection to a server of a cluster, made as those of clients are."""

import asyncio
import contextlib
import socket
import ssl
from typing import NamedTuple

from kafka_throttle.common.connecting import connected_to_first
from kafka_throttle.common.look_ups import at_port, look_up
from kafka_throttle.common.plain_words import words_of
from kafka_throttle.protocol.identity.distinguished_names import Validity, validity_of
from kafka_throttle.protocol.identity.proxy_header import LOCAL_PROXY_HEADER
from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.config.settings import UpstreamConfig
from kafka_throttle.quotas.sources.cluster_faults import ADDRESSES, CA_FILE, known_fault_of_tls
from kafka_throttle.quotas.sources.cluster_stream import ClusterStream, opened

_REFUSED_WITHIN_S = 1.0
"""With TLS 1.3 a node refuses the proxy's certificate after the handshake."""
_OWN_CERTIFICATE = "upstream.tls.certificate_file"
_SETTINGS = {ADDRESSES: "upstream.tls.endpoint_identification", CA_FILE: "upstream.tls.ca_file"}


class ClientFault(NamedTuple):
    """The setting to look at, what is wrong, and whether there was a TCP connection."""

    setting: str
    problem: str
    is_connected: bool = True


async def reach(
    server: HostPort, upstream: UpstreamConfig, context: ssl.SSLContext | None
) -> Validity | ClientFault | None:
    """The validity of the server's certificate, or what is wrong. None if it can be reached, without TLS."""
    timeout_s, sock = upstream.connect_timeout_ms / 1000, None
    try:
        async with asyncio.timeout(timeout_s):
            sock = await _connected(server, upstream)
            stream = await opened(sock, context, server.host)
        with contextlib.closing(stream):
            return None if context is None else await _judged(stream)
    except OSError as error:  # ssl.SSLError and TimeoutError are some
        if sock is None:
            setting = "upstream.source_addresses" if upstream.source_addresses else "upstream"
            return ClientFault(setting, _words(error, timeout_s), is_connected=False)
        return _fault_of_tls(error, timeout_s)
    except EOFError as error:
        return _fault_of_tls(error, timeout_s)


async def _connected(server: HostPort, upstream: UpstreamConfig) -> socket.socket:
    """A socket to an address where nodes may be, from one of the addresses to connect from. Raises OSError."""
    found = [at_port(each, server.port) for each in await look_up(server.host)]
    first = LOCAL_PROXY_HEADER if upstream.send_proxy_protocol else b""
    places = upstream.destinations.allowed(server.host, found)
    _, sock = await connected_to_first(places, first, upstream.source_addresses)
    return sock


async def _judged(stream: ClusterStream) -> Validity | ClientFault:
    """What the node says after the handshake, and its certificate. Raises ssl.SSLError."""
    try:
        await stream.ends_within(_REFUSED_WITHIN_S)
    except ssl.SSLError:
        raise
    except (OSError, EOFError):
        problem = "it closes the connection after the TLS handshake: it may want a certificate, or another one"
        return ClientFault(_OWN_CERTIFICATE, problem)
    return validity_of(stream.certificate)


def _fault_of_tls(error: Exception, timeout_s: float) -> ClientFault:
    if isinstance(error, ssl.SSLError) and (fault := known_fault_of_tls(error)) is not None:
        return ClientFault(_SETTINGS.get(fault.setting, _OWN_CERTIFICATE), fault.problem)
    return ClientFault("upstream.tls", f"TLS: {_words(error, timeout_s)}")


def _words(error: Exception, timeout_s: float) -> str:
    is_late = isinstance(error, TimeoutError) and error.errno is None
    return f"no connection within {timeout_s:g} s" if is_late else words_of(error)
