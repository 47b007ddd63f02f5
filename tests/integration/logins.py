"""SASL for the tests: a listener of a cluster's nodes that demands it, and clients of every kind that log in there."""

import asyncio
import base64
import json
import time
from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AiokafkaTokenProvider
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.support.timeouts import TIMEOUT_S

LISTENER = "CLIENTS"
PLAIN, SHA_256, SHA_512, OAUTHBEARER = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"
MECHANISMS = (PLAIN, SHA_256, SHA_512, OAUTHBEARER)
SESSION_MS = 3_000
"""How long the nodes take a login by SCRAM-SHA-512 for good."""

PASSWORDS = {"alice": "alice's", "bob": "bob's", "a=b,c": "d=e,f", "proxy": "proxy's"}
"""Of users of PLAIN and of both kinds of SCRAM; with OAUTHBEARER a client may name any user."""

_MODULES = "org.apache.kafka.common.security"


def secured(node_id: int, listener: str = LISTENER) -> Mapping[str, str]:
    """Properties of a node with a listener of that name that takes all four mechanisms."""
    clients = f"listener.name.{listener.lower()}"
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items() if name.isalpha())
    scram = f"{_MODULES}.scram.ScramLoginModule required;"
    bearer = f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="node";'
    return {
        f"{clients}.sasl.enabled.mechanisms": ",".join(MECHANISMS),
        f"{clients}.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required {users};",
        f"{clients}.scram-sha-256.sasl.jaas.config": scram,
        f"{clients}.scram-sha-512.sasl.jaas.config": scram,
        f"{clients}.oauthbearer.sasl.jaas.config": bearer,
        f"{clients}.scram-sha-512.connections.max.reauth.ms": str(SESSION_MS),
    }


def add_scram_users(bootstrap: str) -> None:
    """Let the cluster know the users of SCRAM, and wait until it does."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        credential = ScramCredentialInfo(kind, 4096)
        users = [UserScramCredentialUpsertion(name, credential, secret.encode()) for name, secret in PASSWORDS.items()]
        for done in admin.alter_user_scram_credentials(users).values():
            done.result(TIMEOUT_S)


def unsecured_token(user: str) -> str:
    """A JWT that only names its bearer."""
    claims = {"sub": user, "iat": int(time.time()), "exp": int(time.time()) + 3600}
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "none"}, claims))
    return b".".join((*parts, b"")).decode()


# ------------------------------------------------------------------ the clients


class Tokens(AbstractTokenProvider):
    """Unsecured tokens of one user, for kafka-python."""

    def __init__(self, user: str) -> None:
        self._user = user

    def token(self) -> str:
        return unsecured_token(self._user)


class AiokafkaTokens(AiokafkaTokenProvider):
    """The same for aiokafka."""

    def __init__(self, user: str) -> None:
        self._user = user

    async def token(self) -> str:
        return unsecured_token(self._user)


def python(mechanism: str, user: str, password: str, tokens: type[Any] = Tokens) -> dict[str, Any]:
    """How kafka-python logs in, and, with another kind of token provider, aiokafka."""
    settings: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism}
    if mechanism == OAUTHBEARER:
        return {**settings, "sasl_oauth_token_provider": tokens(user)}
    return {**settings, "sasl_plain_username": user, "sasl_plain_password": password}


def confluent_settings(mechanism: str, user: str, password: str) -> dict[str, Any]:
    """How librdkafka logs in."""
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    if mechanism == OAUTHBEARER:
        unsecured = {"enable.sasl.oauthbearer.unsecure.jwt": True, "sasl.oauthbearer.config": f"principal={user}"}
        return {**settings, **unsecured}
    return {**settings, "sasl.username": user, "sasl.password": password}


def go(mechanism: str, user: str, password: str) -> dict[str, str]:
    """How franz-go logs in, as tests/go/pipe has it."""
    secret = unsecured_token(user) if mechanism == OAUTHBEARER else password
    return {"mechanism": mechanism, "user": user, "password": secret}


def java(mechanism: str, user: str, password: str) -> dict[str, str]:
    """How Kafka's own clients log in, as their properties."""
    if mechanism == PLAIN:
        login = f'plain.PlainLoginModule required username="{user}" password="{password}"'
    elif mechanism == OAUTHBEARER:
        login = f'oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{user}"'
    else:
        login = f'scram.ScramLoginModule required username="{user}" password="{password}"'
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{_MODULES}.{login};",
    }


class Client:
    """A library, a mechanism, and the user that logs in."""

    def __init__(self, bootstrap: str, mechanism: str, user: str, client_id: str, password: str | None = None) -> None:
        self.bootstrap = bootstrap
        self.mechanism = mechanism
        self.user = user
        self.client_id = client_id
        self.password = PASSWORDS[user] if password is None else password


def send_with_kafka_python(client: Client, topic: str, value: bytes) -> None:
    """One record, acknowledged."""
    how = python(client.mechanism, client.user, client.password, Tokens)
    producer = KafkaProducer(bootstrap_servers=client.bootstrap, client_id=client.client_id, **how)
    try:
        producer.send(topic, value).get(TIMEOUT_S)
    finally:
        producer.close(TIMEOUT_S)


def send_with_aiokafka(client: Client, topic: str, value: bytes) -> None:
    """One record, acknowledged."""

    async def send() -> None:
        how = python(client.mechanism, client.user, client.password, AiokafkaTokens)
        producer = AIOKafkaProducer(bootstrap_servers=client.bootstrap, client_id=client.client_id, **how)
        try:
            await producer.start()
            await asyncio.wait_for(producer.send_and_wait(topic, value), TIMEOUT_S)
        finally:
            await producer.stop()

    asyncio.run(send())


def send_with_confluent_kafka(client: Client, topic: str, value: bytes) -> None:
    """One record, acknowledged. Raises KafkaException when the node does not accept the client."""
    errors: list[KafkaError] = []
    how = confluent_settings(client.mechanism, client.user, client.password)
    producer = Producer(
        {"bootstrap.servers": client.bootstrap, "client.id": client.client_id, "error_cb": errors.append, **how}
    )
    results: list[KafkaError | None] = []
    producer.produce(topic, value, on_delivery=lambda error, _message: results.append(error))
    deadline = time.monotonic() + TIMEOUT_S
    while not results and time.monotonic() < deadline:
        producer.poll(0.05)
        for error in errors:
            if error.code() == KafkaError._AUTHENTICATION:
                producer.purge()
                raise KafkaException(error)
    assert results == [None], (results, errors)


LIBRARIES = {
    "kafka-python": send_with_kafka_python,
    "aiokafka": send_with_aiokafka,
    "confluent-kafka": send_with_confluent_kafka,
}
