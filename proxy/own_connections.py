"""How kafka-python connects for the proxy itself where nodes expect a PROXY header before all else."""

from typing import Any, Final

from kafka.net.inet import KafkaNetSocket

from protocol.proxy_header import LOCAL_PROXY_HEADER

_SCHEME: Final = "kafka-throttle-announced"
ANNOUNCED: Final = f"{_SCHEME}://"
"""As kafka-python's setting `proxy_url`: a connection begins with a header that says it is the sender's own."""


class _Announced(KafkaNetSocket):  # type: ignore[misc]
    """Known to kafka-python by its scheme."""

    SCHEMES = (_SCHEME,)

    async def sock_connect(self, *args: Any, **settings: Any) -> Any:
        """The socket, once it stands and the header is sent."""
        sock = await super().sock_connect(*args, **settings)
        sock.send(LOCAL_PROXY_HEADER)
        return sock
