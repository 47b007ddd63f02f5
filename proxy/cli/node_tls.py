"""A TLS handshake with a node, as connections of clients make it."""

import asyncio
import contextlib
import ssl
from typing import NamedTuple

from common.connecting import connected
from common.plain_words import words_of
from protocol.identity.proxy_header import LOCAL_PROXY_HEADER
from quotas.sources.cluster_faults import ADDRESSES, CA_FILE, known_fault_of_tls
from quotas.sources.cluster_stream import ClusterStream, opened

_REFUSED_WITHIN_S = 1.0
"""With TLS 1.3 a node refuses the proxy's certificate after the handshake."""
_OWN_CERTIFICATE = "upstream.tls.certificate_file"
_SETTINGS = {ADDRESSES: "upstream.tls.endpoint_identification", CA_FILE: "upstream.tls.ca_file"}


class CertificateEnd(NamedTuple):
    """When the certificate of a node ends (epoch, s)."""

    ends_s: float


class TlsFault(NamedTuple):
    """The setting of `upstream.tls` to look at, and what is wrong."""

    setting: str
    problem: str


async def handshake_with(
    host: str, port: int, context: ssl.SSLContext, timeout_s: float, *, announced: bool
) -> CertificateEnd | TlsFault | None:
    """The end of the node's certificate, or what is wrong. None if there is no connection to the node at all."""
    try:
        async with asyncio.timeout(timeout_s):
            sock = await connected(host, port, LOCAL_PROXY_HEADER if announced else b"")
    except OSError:
        return None
    try:
        async with asyncio.timeout(timeout_s):
            stream = await opened(sock, context, host)
        with contextlib.closing(stream):
            return await _judged(stream)
    except ssl.SSLError as error:
        fault = known_fault_of_tls(error)
        if fault is None:
            return TlsFault("upstream.tls", f"TLS: {words_of(error)}")
        return TlsFault(_SETTINGS.get(fault.setting, _OWN_CERTIFICATE), fault.problem)
    except TimeoutError:
        return TlsFault("upstream.tls", f"no TLS handshake within {timeout_s:g} s")
    except (OSError, EOFError) as error:
        return TlsFault("upstream.tls", f"TLS: {words_of(error)}")


async def _judged(stream: ClusterStream) -> CertificateEnd | TlsFault:
    """What the node says after the handshake, and its certificate. Raises ssl.SSLError."""
    try:
        await stream.ends_within(_REFUSED_WITHIN_S)
    except ssl.SSLError:
        raise
    except (OSError, EOFError):
        problem = "it closes the connection after the TLS handshake: it may want a certificate, or another one"
        return TlsFault(_OWN_CERTIFICATE, problem)
    return CertificateEnd(stream.certificate_ends_s)
