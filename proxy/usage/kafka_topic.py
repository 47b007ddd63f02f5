"""A Kafka topic as the shipper writes to it, with kafka-python's producer."""

import contextlib
import gc
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

from proxy.usage.shipper import TopicUnavailable

_ANSWER_MS = 10_000
_DELIVERY_MS = 30_000
_FLUSH_S = 40.0
"""Longer than any delivery may take: what is not there by then has failed already."""

_ALWAYS: Mapping[str, Any] = {
    "client_id": "kafka-throttle-usage",
    "acks": "all",
    "bootstrap_timeout_ms": _ANSWER_MS,
    "max_block_ms": _ANSWER_MS,
    "request_timeout_ms": _ANSWER_MS,
    "delivery_timeout_ms": _DELIVERY_MS,
    "linger_ms": 20,
    "batch_size": 256 << 10,
    "compression_type": "gzip",
    "metrics_enabled": False,
}
_MAY_BE_SET = ("security_protocol", "compression_type", "client_id", "proxy_url")
_PREFIXES_THAT_MAY_BE_SET = ("ssl_", "sasl_")
_CHOICES: Mapping[str, Sequence[str]] = {
    "security_protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl_mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "AWS_MSK_IAM"),
}
"""The library looks at these only when it is connected, and takes what it does not know for a cluster that is away.

Its OAUTHBEARER is not among them: it needs an object that gives tokens.
"""


class KafkaTopic:
    """One topic of one cluster. A producer that has failed is never used again: the next `send` makes another."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        """`settings` are KafkaProducer's: `bootstrap_servers`, and whom it is to be there."""
        self.name = name
        self._settings = {**_ALWAYS, **settings}
        self._producer: Any = None

    def send(self, key: bytes, lines: Sequence[bytes]) -> None:
        """Return when all in-sync replicas have the lines. Raises TopicUnavailable."""
        try:
            if self._producer is None:
                self._producer = KafkaProducer(**self._settings)
            answers = [self._producer.send(self.name, line, key=key) for line in lines]
            self._producer.flush(timeout=_FLUSH_S)
            for answer in answers:
                answer.get(timeout=0)
        except Exception as error:  # a library that stumbles over a cluster is a topic that takes nothing
            problem = self._told(error)
        else:
            return
        self.close()
        gc.collect()  # sockets that did not come to be connections are held in circles, with the error
        raise TopicUnavailable(f"topic {self.name}: {problem}")

    def _told(self, error: Exception) -> str:
        text = str(error) or type(error).__name__
        if isinstance(error, KafkaTimeoutError) and "metadata" in text:
            return f"{text} Is there such a topic, and may this user write to it?"
        return text

    def close(self) -> None:
        """See Topic. Waits until what is under way is there, or has failed: else its thread would go on for ever."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(Exception):
                producer.close(timeout=_FLUSH_S)


def producer_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """KEY=VALUE as KafkaProducer takes them; VALUE may be @FILE: what it holds, without a line end.

    Only those that say whom to be and how to pack. Raises ValueError, which names the pair without its value.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        is_name = bool(equals and re.fullmatch("[a-z_]+", key))  # else a secret may be in it
        if not is_name or not (key in _MAY_BE_SET or key.startswith(_PREFIXES_THAT_MAY_BE_SET)):
            expected = ", ".join((*_MAY_BE_SET, *(f"{prefix}..." for prefix in _PREFIXES_THAT_MAY_BE_SET)))
            got = repr(key) if is_name else "something else"
            raise ValueError(f"expected KEY=VALUE with a setting of kafka-python's producer ({expected}), got {got}")
        if key not in KafkaProducer.DEFAULT_CONFIG:
            raise ValueError(f"{key}: KafkaProducer has no such setting")
        settings[key] = _value(key, contents(value, key))
    if settings.get("security_protocol", "").startswith("SASL") != ("sasl_mechanism" in settings):
        raise ValueError("expected sasl_mechanism with security_protocol=SASL_PLAINTEXT or SASL_SSL, and only then")
    return settings


def _value(key: str, text: str) -> str | bool | None:
    if isinstance(KafkaProducer.DEFAULT_CONFIG[key], bool):
        if text not in ("true", "false"):
            raise ValueError(f"{key}: expected true or false")
        return text == "true"
    if text not in _CHOICES.get(key, (text,)):
        raise ValueError(f"{key}: expected {', '.join(_CHOICES[key][:-1])} or {_CHOICES[key][-1]}")
    return None if key == "compression_type" and text == "none" else text


def contents(value: str, key: str) -> str:
    """`value`, or what is in the file if it is @FILE. Raises ValueError that names the key."""
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text().rstrip("\r\n")
    except (OSError, ValueError) as error:
        raise ValueError(f"{key}: {value[1:]} cannot be read: {getattr(error, 'strerror', None) or error}") from None
