"""The proxy's own credentials, from the configuration and the files that it names."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kafka_throttle.common.login_secrets import MAX_TOKEN_BYTES, PasswordFile, TokenFile
from kafka_throttle.common.token_endpoint import SecretPlace, TokenEndpoint
from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.config.secret_file import secret
from kafka_throttle.proxy.config.settings import CredentialsConfig, UpstreamConfig, UsageTopicConfig
from kafka_throttle.quotas.sources.cluster_connection import Credentials, mark_of


def credentials_of(upstream: UpstreamConfig) -> Credentials:
    """Who the proxy is to a cluster. ConfigErrors if its password cannot be read now; it is read for each login."""
    look_at_secrets(upstream.admin, "upstream.admin")
    return credentials_at(upstream)


def look_at_secrets(config: CredentialsConfig, path: str) -> None:
    """Raise ConfigErrors if a file with a secret of the section at this path cannot be read."""
    secret(config.password_file, f"{path}.password_file")
    secret(config.token_file, f"{path}.token_file", MAX_TOKEN_BYTES)
    if config.token_endpoint is not None:
        secret(config.token_endpoint.client_secret_file, f"{path}.token_endpoint.client_secret_file")


def credentials_at(upstream: UpstreamConfig) -> Credentials:
    """The same, whether its password can be read now or not."""
    return replace(
        _credentials(upstream.admin, upstream.bootstrap_servers),
        announced=upstream.send_proxy_protocol,
        destinations=upstream.destinations,
        mark=mark_of(upstream.virtual_cluster),
    )


def topic_credentials(topic: UsageTopicConfig) -> Credentials:
    """Who the proxy is to the cluster of that topic. ConfigErrors if its password cannot be read now."""
    look_at_secrets(topic, "usage.kafka")
    return _credentials(topic, topic.bootstrap_servers)


def topic_settings(topic: UsageTopicConfig) -> dict[str, Any]:
    """Where the cluster of that topic is, and who the proxy is to it, as kafka-python's producer takes it.

    The secret is missing: it is read for each login.
    """
    credentials = topic_credentials(topic)
    return {
        "bootstrap_servers": [str(server) for server in topic.bootstrap_servers],
        "compression_type": "gzip",
        "security_protocol": credentials.security_protocol,
        "ssl_cafile": credentials.ssl_cafile,
        "ssl_certfile": credentials.ssl_certfile,
        "ssl_keyfile": credentials.ssl_keyfile,
        "sasl_mechanism": credentials.sasl_mechanism,
        "sasl_plain_username": credentials.sasl_plain_username,
    }


def _credentials(config: CredentialsConfig, servers: Sequence[HostPort]) -> Credentials:
    return Credentials(
        security_protocol=config.security_protocol,
        ssl_cafile=config.ca_file,
        ssl_certfile=config.certificate_file,
        ssl_keyfile=config.key_file,
        sasl_mechanism=config.sasl_mechanism,
        sasl_plain_username=config.username,
        secret=_secret_of(config, servers),
        sasl_extensions=tuple(config.sasl_extensions.items()),
    )


def _secret_of(config: CredentialsConfig, servers: Sequence[HostPort]) -> SecretPlace | None:
    """Where the secret is that logins need."""
    if config.token_file is not None:
        return TokenFile(config.token_file)
    if (endpoint := config.token_endpoint) is not None:
        return TokenEndpoint(
            endpoint.url,
            endpoint.client_id,
            endpoint.client_secret_file,
            endpoint.scope,
            endpoint.ca_file,
        )
    if config.password_file is None:
        return None
    account = f"{config.username} at {','.join(map(str, servers))}"
    return PasswordFile(config.password_file, account)
