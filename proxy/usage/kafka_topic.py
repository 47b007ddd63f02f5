"""The Kafka topic that the shipper writes to, with kafka-python's producer. Lines become JSON here."""

import contextlib
import gc
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

from kafka import KafkaProducer
from kafka.errors import KafkaConnectionError, KafkaTimeoutError, SaslAuthenticationFailedError
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport

from kafka_throttle.common.login_secrets import SecretUnusable
from kafka_throttle.common.plain_words import plain_words
from kafka_throttle.common.tls_trust import trust
from kafka_throttle.common.token_endpoint import SecretPlace
from kafka_throttle.proxy.usage.producer_connections import PLAIN
from kafka_throttle.proxy.usage.shipper import LONGEST_BYTES, TopicUnavailable
from kafka_throttle.quotas.records.topic_message import message_of

for _logs_sasl_bytes_at_debug in ("kafka.net.connection", "kafka.protocol.parser"):
    logging.getLogger(_logs_sasl_bytes_at_debug).setLevel(logging.INFO)

_RESPONSE_MS = 10_000
_DELIVERY_MS = 30_000
_MOST_NODES = 32
_FLUSH_S = 40.0
"""Longer than any delivery may take: by then each message is delivered or has failed."""

_ALWAYS: Mapping[str, Any] = {
    "client_id": "kafka-throttle-usage",
    "acks": "all",
    "bootstrap_timeout_ms": _RESPONSE_MS,
    "max_block_ms": _RESPONSE_MS,
    "request_timeout_ms": _RESPONSE_MS,
    "delivery_timeout_ms": _DELIVERY_MS,
    "linger_ms": 20,
    "batch_size": 256 << 10,
    "compression_type": "gzip",
    "metrics_enabled": False,
    "proxy_url": PLAIN,
}
_MAY_BE_SET = ("security_protocol", "compression_type", "client_id", "proxy_url")
_PREFIXES_THAT_MAY_BE_SET = ("ssl_", "sasl_")
_CHOICES: Mapping[str, Sequence[str]] = {
    "security_protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl_mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "AWS_MSK_IAM"),
}
"""Checked here, because the library checks these settings only once it is connected, and reports an unknown value as
an unreachable cluster. OAUTHBEARER is missing because the library needs an object that provides tokens for it.
"""


class KafkaTopic:
    """One topic of one cluster. A producer that has failed is not used again: the next `send` makes a new one.

    It asks the bootstrap servers and, as any of them may be down, the nodes that the one before it has seen.
    """

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        secret: SecretPlace | None = None,
        extensions: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` are KafkaProducer's: `bootstrap_servers`, and the settings of security and compression.

        `secret` is where each login has its password or token from, if it is not among the settings; `extensions` are
        sent with a token.
        """
        self.name = name
        self._secret, self._extensions = secret, extensions or {}
        self._settings = {**_ALWAYS, **settings}
        self._nodes: Sequence[str] = ()
        self._producer: Any = None
        self._connections: _Connections | None = None

    def send(self, key: bytes, lines: Sequence[bytes]) -> None:
        """Return when all in-sync replicas have the lines. Raises TopicUnavailable."""
        try:
            if self._producer is None:
                servers = [*self._settings["bootstrap_servers"], *self._nodes]
                settings = self._settings | {"bootstrap_servers": servers}
                self._producer = KafkaProducer(**settings, ssl_context=self.tls_context(), kafka_client=self._client)
            responses = [self._producer.send(self.name, key=key, **_message(line)) for line in lines]
            self._producer.flush(timeout=_FLUSH_S)
            for response in responses:
                response.get(timeout=0)
        except Exception as error:  # any failure of the library means that the topic takes nothing
            problem = self._reported(error)
        else:
            return
        has_another_secret = self._connections is not None and self._connections.has_another_secret
        self.close()
        gc.collect()  # sockets of failed connections are in reference cycles with the error
        if has_another_secret:
            self.send(key, lines)
            return
        raise TopicUnavailable(f"topic {self.name}: {problem}")

    def tls_context(self) -> ssl.SSLContext | None:
        """The context that the library would make, but with the trust of all other connections of the proxy.

        None without `ssl_cafile`. Raises OSError.
        """
        if (ca_file := self._settings.get("ssl_cafile")) is None:
            return None
        context: ssl.SSLContext = KafkaSSLTransport._build_ssl_context(
            KafkaSSLTransport.DEFAULT_CONFIG | self._settings
        )
        trust(context, ca_file)
        return context

    def _client(self, **settings: Any) -> KafkaNetClient:
        """The network client that the producer would make itself, but with a time limit for each connection."""
        net = NetworkSelector(**settings)
        self._connections = _Connections(net, self._secret, self._extensions, **settings)
        return KafkaNetClient(net, self._connections)

    def _reported(self, error: Exception) -> str:
        text = _words_of(error)
        if self._producer is None and self._connections is not None and self._connections.problem:
            return f"{text}: {self._connections.problem}"
        if isinstance(error, KafkaTimeoutError) and "metadata" in text:
            return f"{text} Is there such a topic, and may this user write to it?"
        return text

    def close(self) -> None:
        """See Topic. Waits until each message is delivered or has failed: else the producer's thread never ends."""
        producer, self._producer = self._producer, None
        connections, self._connections = self._connections, None
        if connections is not None and (nodes := connections.nodes()):
            self._nodes = nodes
        with contextlib.suppress(Exception):
            if producer is not None:
                producer.close(timeout=_FLUSH_S)
            elif connections is not None:
                connections.let_go()


class _Token(AbstractTokenProvider):  # type: ignore[misc]
    """A token for one login."""

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        super().__init__()
        self._token, self._extensions = token, extensions

    def token(self) -> str:
        """The token."""
        return self._token

    def extensions(self) -> dict[str, str]:
        """What is sent with it."""
        return dict(self._extensions)


class _Connections(KafkaConnectionManager):  # type: ignore[misc]
    """Connections that are closed when they are not ready in time, and ask for the secret of each login.

    kafka-python 3.0 waits without a limit for the server's part of a TLS handshake, and so does a new producer. Without
    this class, a node whose kernel accepts connections while its process hangs would stop the shipper for ever.
    """

    def __init__(
        self, net: NetworkSelector, secret: SecretPlace | None, extensions: Mapping[str, str], **settings: Any
    ) -> None:
        super().__init__(net, **settings)
        self._secret = secret
        self._extensions = extensions
        self.problem = ""
        """The reason of the last failed connection."""
        self.has_another_secret = False
        """Whether the last secret was refused while another one can be offered at once."""
        self._bounded: WeakSet[KafkaConnection] = WeakSet()

    def get_connection(self, node_id: Any, timeout_ms: float | None = None, **settings: Any) -> KafkaConnection:
        """As in the library, but a new connection must be ready within `timeout_ms` and within `request_timeout_ms`."""
        connection = super().get_connection(node_id, timeout_ms=timeout_ms, **settings)
        if connection not in self._bounded:
            self._bounded.add(connection)
            connection.init_future.add_errback(self._note)
            if self._secret is not None:
                connection._sasl_authenticate = partial(self._log_in, connection, connection._sasl_authenticate)
            most_ms = self.config["request_timeout_ms"]
            within_s = max(0.0, min(timeout_ms or most_ms, most_ms)) / 1000
            self._net.call_soon(lambda: self._bound(connection, within_s))
        return connection

    async def _log_in(
        self, connection: KafkaConnection, authenticate: Callable[..., Awaitable[None]], *args: Any
    ) -> None:
        """Log in, for the first time or again, with the secret of now. The library knows only one for all times.

        A connection that is lost meanwhile counts as a refusal: a node closes it right behind its refusal, which the
        library then does not read.
        """
        assert self._secret is not None
        try:
            attempt = self._secret.begin()
        except SecretUnusable as error:
            raise SaslAuthenticationFailedError(str(error)) from None
        connection.config["sasl_plain_password"] = attempt.secret
        connection.config["sasl_oauth_token_provider"] = _Token(attempt.secret, self._extensions)
        try:
            await authenticate(*args)
        except (SaslAuthenticationFailedError, KafkaConnectionError) as error:
            self.has_another_secret = attempt.refused(_words_of(error))
            raise
        else:
            attempt.accepted()
            self.has_another_secret = False
        finally:
            attempt.ended()

    async def _bound(self, connection: KafkaConnection, within_s: float) -> None:
        await self._net.sleep(within_s)
        if connection.initializing:
            speaks = self.config["security_protocol"]
            connection.close(KafkaTimeoutError(f"not ready within {within_s:.1f} s: does the server speak {speaks}?"))

    def nodes(self) -> Sequence[str]:
        """The nodes (host:port) that the cluster has named."""
        brokers = list(self.cluster.brokers())[:_MOST_NODES]
        return [f"[{one.host}]:{one.port}" if ":" in one.host else f"{one.host}:{one.port}" for one in brokers]

    def _note(self, error: BaseException) -> None:
        self.problem = _words_of(error)

    def let_go(self) -> None:
        """Close all sockets, also those of connections that never became ready."""
        self.close()
        self._net.close()


def _message(line: bytes) -> Mapping[str, Any]:
    """Value and headers. A predicate of Kafka Connect sees only the name of a header, so the kind is a name."""
    message = message_of(line, LONGEST_BYTES)
    return {"value": message.value, "headers": [(message.kind, b"")] if message.kind else []}


def _words_of(error: BaseException) -> str:
    if isinstance(error, KafkaConnectionError) and not error.args:
        return "the connection was closed"
    return plain_words(error)


def producer_settings(texts: Mapping[str, str]) -> dict[str, Any]:
    """The settings of KafkaProducer from texts. Raises ValueError that names the setting without its value.

    Only settings of security, compression, client-id and proxy are allowed.
    """
    for key in texts:
        if key not in _MAY_BE_SET and not key.startswith(_PREFIXES_THAT_MAY_BE_SET):
            expected = ", ".join((*_MAY_BE_SET, *(f"{prefix}..." for prefix in _PREFIXES_THAT_MAY_BE_SET)))
            raise ValueError(f"expected a setting of kafka-python's producer ({expected}), got {key!r}")
        if key not in KafkaProducer.DEFAULT_CONFIG:
            raise ValueError(f"{key}: KafkaProducer has no such setting")
    settings = {key: _value(key, text) for key, text in texts.items()}
    has_sasl, has_mechanism = settings.get("security_protocol", "").startswith("SASL"), "sasl_mechanism" in settings
    if has_sasl and not has_mechanism:
        raise ValueError("security_protocol SASL_PLAINTEXT or SASL_SSL needs sasl_mechanism")
    if has_mechanism and not has_sasl:
        raise ValueError("sasl_mechanism needs security_protocol SASL_PLAINTEXT or SASL_SSL")
    return settings


def _value(key: str, text: str) -> Any:
    if isinstance(KafkaProducer.DEFAULT_CONFIG[key], bool):
        if text not in ("true", "false"):
            raise ValueError(f"{key}: expected true or false")
        return text == "true"
    if text not in _CHOICES.get(key, (text,)):
        raise ValueError(f"{key}: expected {', '.join(_CHOICES[key][:-1])} or {_CHOICES[key][-1]}")
    return None if key == "compression_type" and text == "none" else text
