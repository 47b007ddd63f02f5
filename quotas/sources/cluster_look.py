"""What a port speaks: asked where a node has only closed a connection.

Nodes do that to clients that speak TLS to a plain listener, or plain to one that speaks TLS, or no SASL where that is
wanted.
"""

import asyncio
import contextlib
import socket
import ssl

from kafka_throttle.common.connecting import connected
from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.protocol.messages.sasl import UNSUPPORTED_SASL_MECHANISM, Handshake, handshake_request
from kafka_throttle.quotas.sources.cluster_conversation import Conversation
from kafka_throttle.quotas.sources.cluster_faults import NodeRefuses, Spoken
from kafka_throttle.quotas.sources.cluster_stream import ClusterStream, opened

_LOOK_S = 3.0
_WORD_S = 1.0
_NO_MECHANISM = "?"


async def spoken_at(host: str, port: int, secured: bool, first_id: int = 1) -> Spoken:
    """What a port speaks; whether it wants SASL is asked over TLS if that is `secured`. Takes seconds at most.

    `first_id` is the correlation id of the first request.
    """
    try:
        sock = await _connected(host, port)
    except OSError:
        return Spoken.NOBODY_IS_THERE
    with contextlib.closing(await opened(sock, None, host)) as stream:
        if (plain := await _kafka_over(stream, first_id)) is not None:
            return plain
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(_LOOK_S):
            stream = await opened(await _connected(host, port), context, host)
    except ssl.SSLError as error:
        return Spoken.TLS if "alert" in str(error).lower() else Spoken.NOTHING_KNOWN
    except OSError:
        return Spoken.NOTHING_KNOWN
    with contextlib.closing(stream):
        if not secured:
            return Spoken.TLS
        if await _refuses_us(stream):
            return Spoken.TLS_WITH_CERTIFICATES
        spoken = await _kafka_over(stream, first_id)
        return Spoken.KAFKA_WITH_SASL if spoken is Spoken.KAFKA_WITH_SASL else Spoken.TLS


async def _connected(host: str, port: int) -> socket.socket:
    async with asyncio.timeout(_LOOK_S):
        return await connected(host, port)


async def _refuses_us(stream: ClusterStream) -> bool:
    """Whether the server sent a TLS alert after the handshake. What we send before reading it might have it lost."""
    try:
        await stream.ends_within(_WORD_S)
    except ssl.SSLError as error:
        return "alert" in str(error).lower()
    except (OSError, EOFError):
        pass
    return False


async def _kafka_over(stream: ClusterStream, first_id: int) -> Spoken | None:
    """Kafka, with or without SASL; None if it is something else."""
    conversation = Conversation(first_id)
    handshake = Handshake(0, ())
    try:
        async with asyncio.timeout(_LOOK_S):
            await stream.play(conversation.introduced())
    except (OSError, EOFError, ProtocolError):
        return None
    with contextlib.suppress(OSError, EOFError, ProtocolError, NodeRefuses):  # some only close
        async with asyncio.timeout(_LOOK_S):
            handshake = await stream.play(conversation.response_to(handshake_request(_NO_MECHANISM)))
    wants_sasl = handshake.error_code == UNSUPPORTED_SASL_MECHANISM
    return Spoken.KAFKA_WITH_SASL if wants_sasl else Spoken.KAFKA
